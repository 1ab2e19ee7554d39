"""What launchers say about the end of workers: torchrun's failure block and lines, srun, slurmstepd, PBS, LSF, mpirun, Hydra, Ray, the
shell.

torchrun's "Root Cause (first observed failure)" is only the smallest time stamp, at one-second resolution, among the workers of one
agent: it is kept as evidence and never believed by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import polars as pl

from nccl_forensics.facts.signals import ASKS_TO_END
from nccl_forensics.formats._raised import CHAIN, Raised, raised_row
from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, line_numbers, line_of
from nccl_forensics.grammar.blocks import glog_timed
from nccl_forensics.grammar.lines import load
from nccl_forensics.grammar.writers import HINTS, WriterLines, near_hits
from nccl_forensics.masking import mask
from nccl_forensics.stacks.callstack import Frame, frame_of
from nccl_forensics.tables import TABLES
from nccl_forensics.values.hostlist import expand
from nccl_forensics.values.units import is_number

_HEADINGS = ("Failures:", "Root Cause (first observed failure):")
_ITEM = re.compile(r"^\s*\[([0-9]{1,7})\]:\s*$")
_KEY = re.compile(r"^\s{0,12}(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_RANK = re.compile(r"^([0-9]{1,7}) \(local_rank: ([0-9]{1,6})\)")
_EXIT = re.compile(r"^(-?[0-9]{1,5}) \(pid: ([0-9]{1,10})\)(?:\s*\((SIG[A-Z0-9]{2,8})\))?")
_RAISED = re.compile(r"^([A-Za-z_][A-Za-z0-9_.]{0,200})(?:: ?(.*))?$")
#: Prefix of Python's own logging, and of torch's in 2.1 and 2.2: [2024-01-20 15:47:00,123] torch.x.y: [ERROR]; glog's form came after them.
_LOGGING = (
    r"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[A-Za-z0-9_.]{1,200}:"
    r"|\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8},[0-9]{3}\] [A-Za-z0-9_.]{1,200}: \[[A-Z]{4,8}\] )"
)
#: The same of DeepSpeed's launcher: [2023-04-07 13:09:33,220] [ERROR] [launch.py:324:sigkill_handler]
_DEEPSPEED = r"^\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8},[0-9]{3}\] \[[A-Z]{4,8}\] \[launch\.py:[0-9]{1,5}:\w{1,64}\] "
_EXITED = re.compile(r"[Ee]xit(?:ed with exit)? code ([0-9]{1,4})")
_NUMBERS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
}
_SIGNALS = {name: number for number, name in _NUMBERS.items()}
#: How srun and the shell name the signal that ended a process (strsignal of glibc).
_FATES = {
    "Hangup": "SIGHUP",
    "Interrupt": "SIGINT",
    "Quit": "SIGQUIT",
    "User defined signal 1": "SIGUSR1",
    "User defined signal 2": "SIGUSR2",
    "Broken pipe": "SIGPIPE",
    "CPU time limit exceeded": "SIGXCPU",
    "Killed": "SIGKILL",
    "Out Of Memory": "SIGKILL",
    "Segmentation fault": "SIGSEGV",
    "Terminated": "SIGTERM",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
}
#: Limits of memory by which PBS and LSF end a job, in their words.
_MEMORY_LIMITS = ("mem", "vmem", "pmem", "pvmem", "MEMLIMIT", "SWAP")
#: LSF's reasons that are no decision of the batch system.
_LSF_OTHERS = ("EXTERNAL_SIGNAL", "UNKNOWN", "CHKPNT")
_REACH, _BEFORE = 20_000, 5
_MOST_TASKS = 65_536


def _read(text: Text) -> Reading:
    rows: list[Row] = []
    raised: list[Row] = []
    used: set[int] = set()
    for lines in near_hits(text.lines, _REACH, _BEFORE):
        _blocks(lines, rows, raised, used)
    started: list[Row] = []
    single, numbers = _singles(text.hits.filter(~pl.col("line_no").is_in(sorted(used))), text, started)
    used.update(numbers)
    unique: dict[tuple[object, ...], Row] = {}
    for row in [*rows, *single]:
        unique.setdefault((row["line_no"], row.get("rank"), row.get("pid"), row["kind"]), row)
    frames = {
        "worker_exits": TABLES["worker_exits"].frame(sorted(unique.values(), key=line_of)),
        "exceptions": TABLES["exceptions"].frame(raised),
        "launches": TABLES["launches"].frame(started),
    }
    return Reading(frames=frames, lines=line_numbers(sorted(used)), records=len(used))


def _blocks(lines: WriterLines, rows: list[Row], raised: list[Row], used: set[int]) -> None:
    """torchrun's failure blocks among the lines of one writer."""
    for at in lines.starts:
        if lines.numbers[at] in used or lines.texts[at].strip() not in _HEADINGS:
            continue
        used.add(lines.numbers[at])
        # Border, "train.py FAILED" and border stand above the first heading.
        for above in range(at - 1, max(-1, at - 4), -1):
            stripped = lines.texts[above].strip()
            if not (stripped.endswith(" FAILED") or _is_border(stripped)):
                break
            used.add(lines.numbers[above])
        hints = {h: lines.hints[h] for h in HINTS}
        for row, exception in _items(lines, at, used):
            rows.append({**hints, **row})
            if exception is not None:
                raised.append({**hints, **exception})
    for at in lines.starts:
        key = _KEY.match(lines.texts[at])
        if lines.numbers[at] in used or key is None or key.group(1) != "rank" or not _RANK.match(key.group(2)):
            continue
        # An item whose heading was cut away: its other keys stand around the line that names the rank.
        first, last = at, at
        while first > 0 and at - first < 2 and _KEY.match(lines.texts[first - 1]) and lines.numbers[first - 1] not in used:
            first -= 1
        while last + 1 < len(lines.texts) and last - at < 3 and _KEY.match(lines.texts[last + 1]):
            last += 1
        row, _ = _item({"line_no": lines.numbers[first], "end_line": lines.numbers[last], "kind": "failure"}, lines.texts[first : last + 1])
        if row.get("exit_code") is not None:
            used.update(lines.numbers[first : last + 1])
            rows.append({**{h: lines.hints[h] for h in HINTS}, **row})


def _is_border(line: str) -> bool:
    return len(line) >= 10 and set(line) <= {"=", "-"}


def _items(lines: WriterLines, at: int, used: set[int]) -> Iterator[tuple[Row, Row | None]]:
    """Items of a failure block from a heading on, up to the closing border: the row and its exception. Their lines are added to
    ``used``."""
    kind = "root-cause" if lines.texts[at].strip() == _HEADINGS[1] else "failure"
    current: Row | None = None
    body: list[str] = []
    for i in range(at + 1, len(lines.texts)):
        line, number = lines.texts[i], lines.numbers[i]
        stripped = line.strip()
        heading = stripped == _HEADINGS[1]
        closing = stripped.startswith("==========") and _is_border(stripped)
        if _ITEM.match(line) or heading or closing:
            if current is not None:
                yield _item(current, body)
            used.add(number)
            if closing:
                return
            kind = "root-cause" if heading else kind
            current, body = None if heading else {"line_no": number, "end_line": number, "kind": kind}, []
            continue
        if stripped and (current is None or not line[0].isspace()) and stripped != "<NO_OTHER_FAILURES>" and not _is_border(stripped):
            break  # not torchrun's block, or one that was cut off: all that stands in an item is indented
        if current is not None:
            if stripped and not _is_border(stripped):
                current["end_line"] = number
            body.append(line)
        used.add(number)
    if current is not None:
        yield _item(current, body)


def _item(row: Row, body: list[str]) -> tuple[Row, Row | None]:
    trace: list[str] = []
    for line in body:
        match = None if trace else _KEY.match(line)
        if match is not None:
            _fill(row, match.group(1), match.group(2).strip())
            if match.group(1) == "traceback":
                trace = [match.group(2)]
        elif trace:
            trace.append(line)
    exception = _exception(trace) if row.get("has_traceback") else None
    if exception is None:
        # Cut off before what was raised: its first line says nothing.
        return row | ({"message": None} if row.get("has_traceback") else {}), None
    row["message"] = f"{exception['type']}: {exception['message']}"
    own = {k: row.get(k) for k in ("line_no", "end_line", "rank", "pid", "time_raw_ns", "time_kind")}
    return row, {**exception, **{k: v for k, v in own.items() if v is not None}}


def _exception(trace: list[str]) -> Row | None:
    """The exceptions of an indented traceback, chained or one alone; None where it was cut off before what was raised."""
    chain: list[Raised] = []
    frames: list[Frame] = []
    kind, message = "", list[str]()
    for line in trace[1:]:
        said = line.strip()
        if said in CHAIN and kind:
            chain.append((frames, kind, "\n".join(message)))
        if said in CHAIN or said.startswith("Traceback (most recent call last)"):
            frames, kind, message = [], "", []
        elif not kind and (frame := frame_of(line)):
            frames.append(frame)
        elif not kind and len(line) - len(line.lstrip()) <= 2 and (match := _RAISED.match(said)):
            kind, message = match.group(1), [match.group(2) or ""]
        elif kind and said and not _is_border(said):
            message.append(said)
    if kind:
        chain.append((frames, kind, "\n".join(message)))
    return raised_row(chain) if chain else None


def _fill(row: Row, key: str, value: str) -> None:
    if key == "time":
        row["time_raw_ns"] = _moment(value, "%Y-%m-%d_%H:%M:%S")
        row["time_kind"] = "local-unzoned" if row["time_raw_ns"] is not None else None
    elif key == "host":
        row["host"] = value[:128]
    elif key == "rank" and (match := _RANK.match(value)):
        row["rank"], row["local_rank"] = int(match.group(1)), int(match.group(2))
    elif key == "exitcode" and (exit_match := _EXIT.match(value)):
        row["exit_code"], row["pid"] = int(exit_match.group(1)), int(exit_match.group(2))
        row["signal"] = exit_match.group(3) or _NUMBERS.get(-int(exit_match.group(1)))
    elif key == "traceback":
        row["has_traceback"] = value.startswith("Traceback")
        row["message"] = mask(value[:1000])[:400]


def _moment(text: str, form: str) -> int | None:
    try:
        return int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()) * 10**9
    except ValueError:
        return None


#: What is read of the head that torch puts before its lines.
_HEAD = {"row": pl.UInt32(), "message": pl.String(), "date": pl.String(), "time": pl.String()}


def _singles(hits: pl.DataFrame, text: Text, started: list[Row]) -> tuple[list[Row], list[int]]:
    """Rows of lines that stand for themselves or with the one below, and the numbers of all lines that are understood. What tells of the start
    is added to ``started``."""
    rows: list[Row] = []
    numbers: list[int] = []
    if not hits.height:
        return rows, numbers
    prefixed = load("c10d_prefix").extract(hits["text"]).frames
    told = [f.select(c for c in _HEAD if c in f.columns) for f in prefixed.values() if f.height]
    heads = pl.concat([pl.DataFrame(schema=_HEAD), *told], how="diagonal_relaxed")
    lines = glog_timed(hits.with_row_index("row").join(heads, on="row", how="left").sort("row"))
    message = pl.coalesce("message", pl.col("text").str.replace(_LOGGING, "").str.replace(_DEEPSPEED, "")).str.strip_chars(" \t")
    lines = lines.with_columns(message=message)
    found = load("launcher").extract(lines["message"])
    open_rank: Row | None = None
    events = [(r, kind) for kind, frame in found.frames.items() for r in frame.iter_rows(named=True)]
    base = lines.select("line_no", "text", *HINTS).rows(named=True)
    for values, kind in sorted(events, key=lambda e: int(str(e[0]["row"]))):
        hit = base[int(str(values["row"]))]
        number = int(str(hit["line_no"]))
        raised = str(hit["text"]).startswith(("torch.", "-- Process "))
        if kind in _SPAWNED or (kind == "got_signal" and raised):
            # The line stays with its traceback. torchrun prints the first two once more, and says of itself how its workers ended.
            rows += _rows(kind, values, hit) if raised else []
            continue
        numbers.append(number)
        if kind == "world":
            started.append({h: hit[h] for h in ("line_no", *HINTS)} | {"end_line": number, "nranks": _number(values["ranks"])})
            continue
        if kind in _PARTS:
            # Open MPI, Horovod and Hydra name the process in one line and its end in another.
            near = open_rank is not None and number - int(str(open_rank["end_line"])) <= 4
            if open_rank is None or not near:
                open_rank = {**_base(hit), "kind": "failure", "end_line": number}
                rows.append(open_rank)
            open_rank["end_line"] = number
            open_rank.update(_part(kind, values))
            continue
        found_rows = _rows(kind, values, hit)
        if kind in ("mpi_signal_wrapped", "mpi_abort") and found_rows:
            numbers += _wrapped(found_rows[0], number, text)
        rows += found_rows
    return [r for r in rows if len(r) > 3], numbers


#: What torch.multiprocessing.spawn raises for one of its processes.
_SPAWNED = ("spawned_raised", "spawned_failed")
_PARTS = frozenset({"mpi_process", "mpi_exit", "hvd_rank", "hvd_slot", "hydra", "hydra_pid", "hydra_signal", "hydra_exit", "hydra_string"})
_BELOW = re.compile(r"^\s*(?:signal ([0-9]{1,3})|with errorcode (-?[0-9]{1,5}))\b")


def _wrapped(row: Row, number: int, text: Text) -> list[int]:
    """Open MPI wraps its lines at 74 characters: the signal or error code stands below."""
    below = text.lines.filter(pl.col("line_no").is_between(number + 1, number + 2)).select("line_no", "text").rows()
    for line_no, line in below:
        if match := _BELOW.match(str(line)):
            _end(row, signal=match.group(1), code=match.group(2))
            row["end_line"] = line_no
            return [line_no]
    return []


def _base(hit: Row) -> Row:
    return {"line_no": hit["line_no"], **{h: hit[h] for h in HINTS}, "message": mask(str(hit["text"]).strip()[:1000])[:400]}


def _end(row: Row, *, signal: str | None = None, code: str | None = None) -> None:
    """Fill exit code and signal from either, as torchrun prints them: a negative code is a signal."""
    if signal is not None:
        name = signal.removeprefix("Signals.")
        number = int(name) if is_number(name) else _SIGNALS.get(name)
        row["signal"] = _NUMBERS.get(number, name) if number is not None else name
        if number is not None:
            row["exit_code"] = -number
    elif code is not None:
        number = int(code)
        # A shell and Hydra print 128 + the signal.
        row["exit_code"] = 128 - number if 128 < number < 160 else number
        row["signal"] = _NUMBERS.get(number - 128) if number > 128 else _NUMBERS.get(-number)


def _number(value: object) -> int | None:
    return int(str(value)) if value is not None else None


def _part(kind: str, values: Row) -> Row:
    out: Row = {}
    if kind in ("mpi_process", "hvd_rank"):
        out["rank"] = _number(values["rank"])
    elif kind == "hvd_slot":
        out = {"host": values["slot_host"], "local_rank": _number(values["local_rank"])}
    elif kind == "hydra_pid":
        out = {"pid": _number(values["pid"]), "host": values["host"]}
        if values["rank"] is not None:
            out["rank"] = _number(values["rank"])
    elif kind in ("hydra_signal", "hydra_string"):
        _end(out, signal=str(values["signal"]))
    elif kind in ("mpi_exit", "hydra_exit"):
        _end(out, code=str(values["exit_code"]))
    return out


#: Kinds of ``launcher.lark`` that make one row as they are, with their word in the table.
_KINDS = {
    "failed": "failed",
    "spawned_raised": "failed",
    "spawned_failed": "failed",
    "command_failed": "failed",
    "closing": "closing-signal",
    "forced": "closing-signal",
    "death_signal": "launcher-signal",
    "got_signal": "launcher-signal",
    "restart": "restart",
    "finished": "finished",
    "cancelled": "scheduler",
    "node_failure": "scheduler",
    "oom_kill": "scheduler-oom",
    "memory_limit": "scheduler-oom",
    "pbs_limit": "scheduler",
    "lsf_end": "scheduler",
    "submitit": "scheduler",
    "step_note": "scheduler-note",
    "mpi_signal": "failure",
    "mpi_signal_wrapped": "failure",
    "mpi_abort": "failure",
    "hvd_exit": "failure",
    "told_exit": "failure",
    "pals": "failure",
    "shell": "shell",
    "ray_lost": "lost",
    "ray_began": "started",
    "ray_dead": "lost",
    "vllm_lost": "lost",
    "ray_on_node": "memory-monitor",
}
#: Ends that the worker or its owner asked for.
_RAY_INTENDED = ("INTENDED_SYSTEM_EXIT", "INTENDED_USER_EXIT")


def _rows(kind: str, values: Row, hit: Row) -> list[Row]:
    base = _base(hit)
    if kind == "task":
        return [base | row for row in _tasks(values)]
    if kind == "ray_killed":
        # One line for both: those that Ray itself killed, and those that ended without it.
        ends = (("memory-monitor", values["killed"]), ("lost", values["crashed"]))
        return [base | {"kind": word, "host": values["host"]} for word, count in ends if int(str(count))]
    if kind not in _KINDS or values.get("exit_type") in _RAY_INTENDED or values.get("term") in _LSF_OTHERS:
        return []
    ended_by_memory = (values.get("limited") or values.get("term")) in _MEMORY_LIMITS
    row: Row = base | {
        "kind": "scheduler-oom" if ended_by_memory else _KINDS[kind],
        "pid": _number(values.get("pid")),
        "rank": _number(values.get("rank")),
    }
    row["local_rank"] = _number(values.get("local_rank"))
    row["host"] = values.get("host") or values.get("hosts") or values.get("ip") or values.get("node")
    if values.get("exit_type") == "NODE_OUT_OF_MEMORY":
        row["kind"] = "memory-monitor"
    if kind == "spawned_raised":
        row["exit_code"] = 1  # torch/multiprocessing/spawn.py: what was raised is passed on, and the process ends with 1
    if kind in ("closing", "forced", "death_signal", "got_signal"):
        _end(row, signal=str(values["signal"]))
        row.pop("exit_code", None)
    elif kind == "shell":
        _end(row, signal=_FATES[str(values["fate"])])
    elif values.get("signal") is not None:
        _end(row, signal=str(values["signal"]))
        if kind == "pals" and row["signal"] in ASKS_TO_END:
            # The first of those that PALS ends itself, after one of them ended or when it was told to stop.
            row["kind"] = "closing-signal"
            row.pop("exit_code", None)
    elif kind in ("hvd_exit", "told_exit", "pals"):
        if not int(str(values["exit_code"])):
            return []
        _end(row, code=str(values["exit_code"]))
    elif values.get("exit_code") is not None:
        row["exit_code"] = _number(values["exit_code"])
        row["signal"] = _NUMBERS.get(-int(str(values["exit_code"])))
    if values.get("at") is not None and row["time_raw_ns"] is None:
        row["time_raw_ns"] = _moment(str(values["at"]), "%Y-%m-%dT%H:%M:%S")
        row["time_kind"] = "local-unzoned" if row["time_raw_ns"] is not None else None
    return [row]


def _tasks(values: Row) -> Iterator[Row]:
    """Tasks of srun; with one task per GPU a task's number is the rank, which views decide (``rank_of_task``)."""
    state = str(values["state"])
    host = str(values["host"])
    end: Row = {}
    if match := _EXITED.search(state):
        _end(end, code=match.group(1))
    for word, signal in _FATES.items():
        if word in state:
            _end(end, signal=signal)
    single = host if not any(c in host for c in "[,") else None
    tasks = _expand(str(values["tasks"]))
    each = len(tasks) // max(1, len(expand(host)))
    for task in tasks:
        yield {"kind": "task", "host": single, "rank": task, "tasks_per_host": each, **end}


def _expand(tasks: str) -> list[int]:
    """``3,5-7`` as numbers."""
    out: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if is_number(first) and len(first) < 8:
            stop = int(last) if is_number(last) and len(last) < 8 else int(first)
            out.extend(range(int(first), min(stop, int(first) + _MOST_TASKS) + 1))
    return out[:_MOST_TASKS]


FORMAT = TextFormat(
    name="launcher-log",
    title="torchrun, srun, PBS, LSF, mpirun, Ray, vLLM and the shell on the end of workers, DeepSpeed, torchrun and Ray Train on their start",
    tables=("worker_exits", "exceptions", "launches"),
    anchors=(
        "dist_world_size=",
        "global_world_sizes=[",
        "Worker proc VllmWorker-",
        ") world_rank=",
        ") rank=",
        "failed (exitcode:",
        "orker group successfully finished.",
        "orker group finished (",
        " exits with return code = ",
        " closing signal SIG",
        " via signal SIG",
        " terminated with ",
        "forcefully exiting via",
        " death signal",
        "got signal: ",
        "worker group failed",
        "Worker group FAILED",
        "Failures:",
        " (local_rank: ",
        "Root Cause (first observed failure)",
        "no error file defined for parent",
        "Setting OMP_NUM_THREADS environment variable",
        "srun: ",
        "slurmstepd: error: ",
        "] error: Detected ",
        "slurmstepd-",
        " CANCELLED AT ",
        "=>> PBS: job killed: ",
        "TERM_",
        ": this job is ",
        "noticed that process rank",
        "MPI_ABORT was invoked on rank",
        "Process name: ",
        " exit with status code ",
        " exited with code ",
        " died from signal ",
        " exited with exit code ",
        " exit code ",
        "Exit code: ",
        "BAD TERMINATION OF ONE OF YOUR",
        " RUNNING AT ",
        "KILLED BY SIGNAL: ",
        "EXIT CODE: ",
        "TERMINATED WITH THE EXIT STRING: ",
        ": line ",
        "A worker died or was killed while executing a task by",
        "because its worker process has died. Worker exit type: ",
        "killed due to memory pressure (OOM)",
        "Memory on the node (IP: ",
    ),
    read=_read,
    priority=20,
)
