"""What launchers say about the end of workers: torchrun's failure block and lines, srun, slurmstepd, mpirun.

torchrun's "Root Cause (first observed failure)" is only the smallest time stamp, at one-second resolution, among the workers of one
agent: it is kept as evidence and never believed by itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import polars as pl

from nccl_forensics.facts.signatures import classify
from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.masking import mask
from nccl_forensics.tables import TABLES

_HINTS = ("hint_rank", "hint_scope", "hint_host", "hint_pid")
_FAILED = re.compile(r"failed \(exitcode: (-?[0-9]{1,5})\) (?:local_rank: ([0-9]{1,6}) )?\(pid: ([0-9]{1,10})\)")
_CLOSING = re.compile(r"Sending process ([0-9]{1,10}) closing signal (SIG[A-Z0-9]{2,8})")
_GOT = re.compile(r"Process ([0-9]{1,10}) got signal: ([0-9]{1,3})")
_ITEM = re.compile(r"^\s*\[([0-9]{1,7})\]:\s*$")
_KEY = re.compile(r"^\s{0,12}(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_RANK = re.compile(r"^([0-9]{1,7}) \(local_rank: ([0-9]{1,6})\)")
_EXIT = re.compile(r"^(-?[0-9]{1,5}) \(pid: ([0-9]{1,10})\)(?:\s*\((SIG[A-Z0-9]{2,8})\))?")
_SRUN = re.compile(r"srun: error: ([\w.-]{1,64}): tasks? ([0-9,-]{1,200}): (.{1,200})$")
_STEP = re.compile(
    r"(?:slurmstepd|srun): (?:error|fatal): \*{3} (JOB|STEP) ([0-9.]+\S{0,40}) ON (\S{1,64}) CANCELLED AT (\S{1,40})(.*?)\*{3}"
)
_OOM = re.compile(r"slurmstepd: error: (?:Detected [0-9]+ oom[-_]kill event|.{0,40}oom-kill)", re.IGNORECASE)
_MPI = re.compile(r"noticed that process rank ([0-9]{1,7}) with PID ([0-9]{1,10}) on node ([\w.-]{1,64}) exited on signal ([0-9]{1,3})")
_RAISED = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]{0,200}(?:Error|Exception|Interrupt|Exit|Timeout)[A-Za-z]{0,32}: .*$")
_FRAME = re.compile(r'^File "([^"]{1,1024})", line ([0-9]{1,9}), in (.{1,256})$')
_SIGNAL_WORDS = {
    "Killed": "SIGKILL",
    "Segmentation fault": "SIGSEGV",
    "Terminated": "SIGTERM",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Out Of Memory": "SIGKILL",
}
_NUMBERS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def _read(text: Text) -> Reading:
    rows: list[dict[str, object]] = []
    used: set[int] = set()
    lines = text.lines
    numbers = lines["line_no"].to_list()
    column = lines["text"]
    position = {n: i for i, n in enumerate(numbers)} if text.hits.height else {}
    for hit in text.hits.select("line_no", "text", *_HINTS).iter_rows(named=True):
        number, line = hit["line_no"], str(hit["text"])[:4000]
        if number in used:
            continue
        base = {"line_no": number, **{h: hit[h] for h in _HINTS}}
        if line.strip() in ("Failures:", "Root Cause (first observed failure):") or line.rstrip().endswith(" FAILED"):
            at = position[number]
            for row, members in _items(column, numbers, at):
                used.update(members)
                rows.append(base | row)
            used.add(number)
            continue
        told = _single(line)
        if told is not None:
            used.add(number)
            rows.extend(base | r for r in told)
    unique: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        unique.setdefault((row["line_no"], row.get("rank"), row.get("pid"), row["kind"]), row)
    raised = [_exception(row) for row in unique.values() if row.get("frames")]
    for row in unique.values():
        row.pop("frames", None)
    frame = TABLES["worker_exits"].frame(sorted(unique.values(), key=lambda r: int(str(r["line_no"]))))
    exceptions = TABLES["exceptions"].frame(raised)
    return Reading(
        frames={"worker_exits": frame, "exceptions": exceptions},
        lines=pl.Series("line_no", sorted(used), dtype=pl.UInt32()),
        records=frame.height,
    )


def _single(line: str) -> list[dict[str, object]] | None:
    """Rows of a line that stands for itself."""
    if match := _FAILED.search(line):
        code = int(match.group(1))
        local = match.group(2)
        return [
            {
                "kind": "failed",
                "exit_code": code,
                "local_rank": int(local) if local else None,
                "pid": int(match.group(3)),
                "signal": _NUMBERS.get(-code),
                "message": line[:400],
            }
        ]
    if match := _CLOSING.search(line):
        return [{"kind": "closing-signal", "pid": int(match.group(1)), "signal": match.group(2), "message": line[:400]}]
    if match := _GOT.search(line):
        return [{"kind": "launcher-signal", "pid": int(match.group(1)), "signal": _NUMBERS.get(int(match.group(2))), "message": line[:400]}]
    if match := _SRUN.search(line):
        return [_task(match.group(1), task, match.group(3), line) for task in _expand(match.group(2))]
    if match := _STEP.search(line):
        return [{"kind": "scheduler", "host": match.group(3), "message": line.strip()[:400]}]
    if _OOM.search(line):
        return [{"kind": "scheduler-oom", "message": line.strip()[:400]}]
    if match := _MPI.search(line):
        number = int(match.group(4))
        return [
            {
                "kind": "failure",
                "rank": int(match.group(1)),
                "pid": int(match.group(2)),
                "host": match.group(3),
                "exit_code": -number,
                "signal": _NUMBERS.get(number),
                "message": line[:400],
            }
        ]
    return None


def _task(host: str, task: int, what: str, line: str) -> dict[str, object]:
    """A task of srun; with one task per GPU its number is the rank, which the identity view decides."""
    row: dict[str, object] = {"kind": "task", "host": host, "rank": task, "message": line.strip()[:400]}
    if match := re.search(r"[Ee]xit(?:ed with exit)? code ([0-9]{1,4})", what):
        row["exit_code"] = int(match.group(1))
    for word, signal in _SIGNAL_WORDS.items():
        if word in what:
            row["signal"] = signal
            row["exit_code"] = {v: -k for k, v in _NUMBERS.items()}[signal]
    return row


def _expand(tasks: str) -> list[int]:
    """``3,5-7`` as numbers, at most 4,096."""
    out: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            out.extend(range(int(first), (int(last) if last.isdigit() else int(first)) + 1)[:4096])
    return out[:4096]


def _items(column: pl.Series, numbers: list[int], at: int) -> list[tuple[dict[str, object], list[int]]]:
    """Items of torchrun's failure block from a heading on, up to the closing border."""
    out: list[tuple[dict[str, object], list[int]]] = []
    current: dict[str, object] | None = None
    members: list[int] = []
    kind = "failure"
    borders = 0
    for i in range(at, min(len(numbers), at + 20_000)):
        line = str(column[i])
        stripped = line.strip()
        if stripped.startswith("Root Cause (first observed failure)"):
            if current is not None:
                out.append((current, members))
            current, members, kind = None, [numbers[i]], "root-cause"
            continue
        if set(stripped) == {"="} and len(stripped) >= 10:
            borders += 1
            members.append(numbers[i])
            if current is not None and kind == "root-cause":
                break
            continue
        if _ITEM.match(line):
            if current is not None:
                out.append((current, members))
            current, members = (
                {"kind": kind, "line_no": numbers[i], "has_traceback": False},
                [*([] if current is not None else members), numbers[i]],
            )
            continue
        members.append(numbers[i])
        if current is None:
            continue
        current["end_line"] = numbers[i]
        if current.get("has_traceback") and (frame := _FRAME.match(stripped)):
            stack = current.setdefault("frames", [])
            assert isinstance(stack, list)
            stack.insert(0, f"{frame.group(3)} ({frame.group(1)}:{frame.group(2)})")
        if current.get("has_traceback") and (last := _RAISED.match(stripped)) and not stripped.startswith(("File ", "Traceback")):
            current["message"] = mask(last.group(0))[:2000]
        if match := _KEY.match(line):
            _fill(current, match.group(1), match.group(2).strip())
    if current is not None:
        out.append((current, members))
    return [(row, m) for row, m in out if row.get("exit_code") is not None or row.get("rank") is not None]


def _exception(row: dict[str, object]) -> dict[str, object]:
    """The traceback that a failure block carries of its worker."""
    kind, _, message = str(row.get("message") or "").partition(": ")
    frames = row["frames"]
    assert isinstance(frames, list)
    kept = {k: row.get(k) for k in ("line_no", "end_line", "time_raw_ns", "time_kind", *_HINTS, "rank", "pid")}
    return kept | {"kind": "python", "type": kind, "message": message, "signature": classify(kind, message), "frames": "\n".join(frames)}


def _fill(row: dict[str, object], key: str, value: str) -> None:
    if key == "time" and row.get("time_raw_ns") is None:
        try:
            moment = datetime.strptime(value, "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC)
        except ValueError:
            return
        row["time_raw_ns"], row["time_kind"] = int(moment.timestamp()) * 10**9, "local-unzoned"
    elif key == "host":
        row.setdefault("host", value[:128])
    elif key == "rank" and (match := _RANK.match(value)):
        row["rank"], row["local_rank"] = int(match.group(1)), int(match.group(2))
    elif key == "exitcode" and (exit_match := _EXIT.match(value)):
        row["exit_code"], row["pid"] = int(exit_match.group(1)), int(exit_match.group(2))
        row["signal"] = exit_match.group(3) or _NUMBERS.get(-int(exit_match.group(1)))
    elif key == "traceback":
        row["has_traceback"] = value.startswith("Traceback")
        row["message"] = value[:400]


FORMAT = TextFormat(
    name="launcher-log",
    title="torchrun, srun and mpirun on the end of workers",
    tables=("worker_exits", "exceptions"),
    anchors=(
        "failed (exitcode:",
        "closing signal SIG",
        "got signal: ",
        "Failures:",
        "Root Cause (first observed failure)",
        "srun: error: ",
        "slurmstepd: error: ",
        "noticed that process rank",
    ),
    read=_read,
    priority=20,
)
