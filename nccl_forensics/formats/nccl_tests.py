"""Output of nccl-tests and rccl-tests, as text (all layouts since those of NCCL 1, also inside Markdown and launcher logs), as JSON
(``-J``) and as rccl-tests' lines of JSON (``-Z json``).

Rows are read by the names in their header: the leading columns differ per test and version, ``error`` became ``#wrong`` in 2022, and
options add columns. Rows without a header are those of the layout since 2022, if their types, counts and sizes agree. What is read is
checked by the tool's own definition: bus bandwidth over algorithm bandwidth is a known factor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
import polars as pl

from nccl_forensics.facts.bandwidth import bus_factor
from nccl_forensics.facts.setting_effects import is_setting
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, classify, real, whole
from nccl_forensics.masking import mask
from nccl_forensics.values.documents import items, mapping, mappings

#: mpirun --tag-output writes its tag again wherever the program flushed: in the middle of a row.
_TAG = r"\[\d+,\d+\]<(?:stdout|stderr)>:"
#: MPICH's and srun's label of the writer, which stands again wherever the program flushed: a number in brackets right behind a word of the
#: row.
_LABEL = r"(\S)\[\d{1,6}\](\s)"
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[a-z][a-z0-9_]*(?:\s|$)")
#: A row that NCCL's own lines cut: its head with an NCCL line glued on, and later one half alone or glued likewise.
_GLUED = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+([a-z][a-z0-9_]*)\s+(?:([a-z]+)\s+)?(-1|\d{1,18}?)(?=[^\s\d.]|\s+\d+\.\d|\d{0,18}[a-z][\w.-]{0,255}:\d+:\d+ )(.*)$"
)
_HALF = re.compile(
    r"^\s*(\d+(?:\.\d+)?(?:e[+-]\d+)?\s+\d+\.\d+\s+\d+\.\d+\s+(?:0|[1-9]\d{0,17}|N/A|\d\.?\d{0,18}e[+-]\d+))(?:$|\s*$|(?=[\w.-]{1,255}:\d+:\d+ \[))"
)
_WRITER = re.compile(r"([\w.-]{1,255}):\d+:\d+ \[")
_HALF_LINE = r"^\s*\d+(?:\.\d+)?\s+\d+\.\d+\s+\d+\.\d+\s+(?:\d|N/A)"
_SIGNS = (
    r"^(?:Rank +\d+ |nThread |Using devices|size +count|bytes +N |out-of-place|\(B\)|Out of bounds values|Avg bus bandwidth|Base Copy BW|nccl-tests version"
    r"|rccl-tests: |Collective test |\.\. |Test timeout|Reducing maxBytes|Writing JSON output|Per-Iteration|rank=\d+ #wrong|Errors with asterisks"
    r"|[A-Za-z0-9_.-]+: Test (?:NCCL|CUDA|HIP) failure|(?:Cuda|NCCL) failure [\w.]+:\d+ ')"
)
_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|gather|scatter|sendrecv|hypercube)_perf\w*\b")
_CLOCK = re.compile(r"^\d\d:\d\d:\d\d$")
#: Columns of words before the numbers; "memtype" is that of rccl-tests (coarse, fine, host).
_LEADING = ("type", "memtype", "redop", "root")
#: Columns of the layout since 2022, for rows whose header is lost, and how many bytes an element of a type has.
_USUAL = ("type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
_ELEMENT = dict.fromkeys(("int8", "uint8", "f8e4m3", "f8e5m2"), 1) | dict.fromkeys(("half", "bfloat16"), 2)
_ELEMENT |= dict.fromkeys(("float", "int32", "uint32"), 4) | dict.fromkeys(("double", "int64", "uint64"), 8)
_OPERATIONS = frozenset(("sum", "prod", "max", "min", "avg", "mulsum", "none", "all"))
#: Names of columns until 2018.
_FIRST_NAMES = {"op": "redop", "res": "error"}
_NEAR = 0.02


@dataclass(slots=True)
class _Run:
    """One run while its lines are read."""

    first: int
    columns: tuple[str, ...] = ()
    placements: int = 2
    milliseconds: bool = False
    facts: dict[str, object] = field(default_factory=dict)
    devices: list[dict[str, object]] = field(default_factory=list)
    rows: list[dict[str, object]] = field(default_factory=list)
    footed: bool = False
    torn: dict[str, object] | None = None
    halves: list[list[str]] = field(default_factory=list)
    #: How many ranks there were, where no device is listed.
    ranks: int | None = None


def read(text: Text) -> Reading:
    """Tests, devices and rows of one text source."""
    body = text.lines.with_columns(raw=pl.col("text").str.replace_all(_TAG, ""))
    cut = body["raw"].str.contains(_ROW.pattern) & body["raw"].str.contains(_LABEL)
    if cut.any():
        body = body.with_columns(raw=pl.when(cut).then(pl.col("raw").str.replace_all(_LABEL, "${1}${2}")).otherwise("raw"))
    body = body.with_columns(text=pl.col("raw").str.replace(r"^\s*#?\s*", ""))
    sign = body["text"].str.contains(_SIGNS)
    row = body["raw"].str.contains(_ROW.pattern)
    named = body["text"].str.contains(r"_perf\b")
    lone = body["raw"].str.contains(r"^\s*#\s*$")
    half = body["raw"].str.contains(_HALF_LINE)
    picked = body.filter(sign | row | named | lone | half)
    raw = dict(zip(picked["line_no"], picked["raw"], strict=True))
    runs: list[_Run] = []
    claimed: list[int] = []
    gaps: list[Gap] = []
    program: str | None = None
    for line in classify(picked, "nccl_tests"):
        if line.kind is None:
            found = _PROGRAM.search(line.text)
            if found and not _ROW.match(raw[line.number]):
                program = found.group(1)
            elif _headless(raw[line.number]) and not (runs and runs[-1].columns and not runs[-1].footed):
                if not runs or runs[-1].footed:
                    runs.append(_Run(line.number, facts={"collective": program, **line.where}))
                    program = None
                runs[-1].columns = _USUAL
                _row(runs[-1], line, raw[line.number], claimed, gaps)
            elif runs and runs[-1].columns and not runs[-1].footed and _mended_row(runs[-1], line, raw[line.number], claimed):
                continue
            elif runs and runs[-1].columns and not runs[-1].footed and _ROW.match(raw[line.number]):
                _row(runs[-1], line, raw[line.number], claimed, gaps)
            elif runs and not raw[line.number].strip("# \t"):
                claimed.append(line.number)
            continue
        if _opens(line, runs):
            runs.append(_Run(line.number, facts={"collective": program, **line.where}))
            program = None
        if runs:
            _take(runs[-1], line)
            claimed.append(line.number)
    frames = _frames(runs)
    return Reading(frames=frames, lines=line_numbers(claimed), gaps=tuple(gaps))


def _headless(raw: str) -> bool:
    """Whether a line is by itself a row of the layout since 2022: words that nccl-tests prints, and a size that holds the elements a whole
    number of times."""
    cells = raw.split()
    if len(cells) != 2 + len(_USUAL) or cells[2] not in _ELEMENT or cells[3] not in _OPERATIONS or whole(cells[4]) is None:
        return False
    size, count = whole(cells[0]) or 0, whole(cells[1]) or 0
    return count > 0 and size % (count * _ELEMENT[cells[2]]) == 0


def _opens(line: Line, runs: Sequence[_Run]) -> bool:
    """Whether a line begins another run: a heading after rows, or a second one of its kind."""
    if line.kind not in ("program", "rccl_program", "starting", "setup", "devices", "header", "header_first"):
        return not runs and line.kind in ("device", "failure_nccl", "failure_cuda", "failure_old", "timeout")
    if not runs or runs[-1].footed or runs[-1].rows:
        return True
    seen = runs[-1].facts
    if line.kind == "setup":
        return "max_bytes" in seen or bool(runs[-1].columns)
    if line.kind == "devices":
        return bool(runs[-1].devices)
    return line.kind in ("program", "starting") and ("max_bytes" in seen or (line.kind == "starting" and "named" in seen))


def _take(run: _Run, line: Line) -> None:
    facts, get = run.facts, line.get
    match line.kind:
        case "program":
            library = whole(get("library"))
            facts["version"] = get("version")
            facts["nccl_version"] = _library(library)
        case "starting" | "concluded":
            found = _PROGRAM.search(f"{get('name')}")
            facts["named"] = True
            if found:
                facts["collective"] = found.group(1)
            run.footed = run.footed or line.kind == "concluded"
        case "setup":
            facts.update(
                min_bytes=whole(get("min_bytes")),
                max_bytes=whole(get("max_bytes")),
                iterations=whole(get("iterations")),
                validation=None if get("validation") is None else get("validation") != "0",
            )
        case "device":
            run.devices.append(
                {
                    **line.where,
                    "rank": whole(get("rank")),
                    "group": whole(get("group")),
                    "pid": whole(get("pid")),
                    "host": get("host"),
                    "device": whole(get("device")),
                    "bus": get("bus"),
                    "gpu": (get("gpu") or "").strip() or None,
                }
            )
        case "header" | "header_first":
            run.columns = tuple(_FIRST_NAMES.get(name, name) for name in (get("columns") or "").split())
            run.milliseconds = line.kind == "header_first"
            run.placements = run.columns.count("algbw") or 1
        case "header_units":
            run.milliseconds = "(ms)" in (get("columns") or "")
        case "bounds":
            facts["out_of_bounds"] = whole(get("count"))
            facts["out_of_bounds_ok"] = get("outcome") == "OK"
        case "average":
            facts["average_text"] = get("average")
            facts["average_bus_bw_gb_s"] = real(get("average"))
            facts["minimum_met"] = None if get("outcome") is None else get("outcome") == "OK"
            run.footed = True
        case "failure_nccl" | "failure_cuda" | "failure_old" | "timeout":
            facts.setdefault("error", (get("message") or line.text).strip(" /'") or line.text)
            facts.setdefault("failed_host", get("host"))
            facts.setdefault("error_line", line.number)
        case "failure_test":
            facts.setdefault("error", f"Test failure {get('place')}")
            facts.setdefault("failed_host", get("host"))
            facts.setdefault("error_line", line.number)
        case _:
            pass


def _library(code: int | None) -> str | None:
    """2.28.7 of 22807; None where the number is not NCCL's (2.9 and later: major * 10000 + minor * 100 + patch)."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code is not None and code >= 20000 else None


def _row(run: _Run, line: Line, raw: str, claimed: list[int], gaps: list[Gap]) -> None:
    """Rows of one line: one for each placement."""
    cells = raw.split()
    if _CLOCK.match(cells[-1]) and len(cells) > 4:
        cells = cells[:-2]  # date and clock of -S 1
    named = [n for n in run.columns if n in _LEADING]
    width = (len(run.columns) - len(named)) // run.placements if run.placements else 0
    size, count = whole(cells[0]), whole(cells[1])
    run.facts["last_bytes"] = size
    # Some tests leave the cell of a named column blank; some runs print one placement only.
    split = next((n for n in (run.placements * width, width) if width and 1 <= len(cells) - 2 - n <= max(1, len(named))), None)
    if split is None:
        gaps.append(Gap("torn: fewer or more columns than the header names", line.number, text=raw))
        return
    halves, words = cells[-split:], cells[2:-split]
    if "memtype" in named and len(words) > 1:
        words = [words[0], *words[2:]]
    head = {"type": words[0]} | {("root" if whole(word) is not None else "redop"): word for word in words[1:]}
    body_names = [n for n in run.columns if n not in _LEADING][:width]
    in_place_only = len(halves) == width and run.placements == 2
    claimed.append(line.number)
    whole_head: dict[str, object] = {**line.where, "bytes": size, "count": count, **head}
    for half in range(len(halves) // width):
        values = dict(zip(body_names, halves[half * width : (half + 1) * width], strict=True))
        run.rows.append(_placed(run, whole_head, values, in_place=bool(half) or in_place_only))


def _mended_row(run: _Run, line: Line, raw: str, claimed: list[int]) -> bool:
    """Put a row together that NCCL's lines cut in pieces. Lines that NCCL's text shares are read here and claimed by its own format."""
    rest: str | None = raw
    if "NCCL" in raw and (head := _GLUED.match(raw)):
        size, count, dtype, red_op, root, rest = head.groups()
        words = {"type": dtype, "redop": red_op, "root": root}
        run.torn, run.halves = {**line.where, "bytes": whole(size), "count": whole(count), **words}, []
        run.facts["last_bytes"] = whole(size)
    elif run.torn is None:
        return False
    half = _HALF.match(_without_writer(run, rest or ""))
    if half is None:
        return run.torn is not None and rest is not raw
    if "NCCL" not in raw:
        claimed.append(line.number)
    run.halves.append(half.group(1).split())
    if len(run.halves) == run.placements and run.torn is not None:
        names = [n for n in run.columns if n not in _LEADING]
        for number, cells in enumerate(run.halves):
            run.rows.append(_placed(run, run.torn, dict(zip(names, cells, strict=False)), in_place=number > 0))
        run.torn, run.halves = None, []
    return True


def _without_writer(run: _Run, text: str) -> str:
    """A half of a row up to the NCCL line glued on: a host that begins with digits (a container's id) runs on from the last number."""
    writer = _WRITER.search(text)
    host = next((h for d in run.devices if writer and (h := f"{d['host']}") and writer.group(1).endswith(h)), None)
    return text if writer is None or host is None else text[: writer.end(1) - len(host)]


def _placed(run: _Run, head: dict[str, object], values: dict[str, str], *, in_place: bool) -> dict[str, object]:
    """One row of one placement."""
    root = whole(str(head.get("root")))
    time = real(values.get("time") or values.get("cputime"))
    where = {k: v for k, v in head.items() if k not in ("type", "redop", "root")}
    return {
        **where,
        "dtype": head.get("type"),
        "red_op": None if head.get("redop") in (None, "none") else head["redop"],
        "root": root if root is not None and root >= 0 else None,
        "placement": "in-place" if in_place else "out-of-place",
        "time_us": time * 1000 if time is not None and run.milliseconds else time,
        "alg_bw_gb_s": real(values.get("algbw")),
        "bus_bw_gb_s": real(values.get("busbw")),
        "wrong": _wrong(values.get("#wrong")),
        "max_error": real(values.get("error", "").rstrip("*")),
    }


def _wrong(text: str | None) -> int | None:
    number = real(text)
    return int(number) if number is not None else None


def _frames(runs: Sequence[_Run]) -> dict[str, pl.DataFrame]:
    tests: list[dict[str, object]] = []
    devices: list[dict[str, object]] = []
    rows: list[dict[str, object]] = []
    for number, run in enumerate(runs):
        tests.append(_summary(run, number))
        devices.extend({**d, "test": number} for d in run.devices)
        rows.extend({**r, "test": number} for r in run.rows)
    return filled({"bandwidth_tests": tests, "bandwidth_devices": devices, "bandwidth_rows": rows})


def _summary(run: _Run, number: int) -> dict[str, object]:
    groups = {d["group"] for d in run.devices if d["group"] is not None}
    ranks = len([d for d in run.devices if d["group"] in (None, min(groups, key=str) if groups else None)]) or run.ranks
    ranks = ranks or _counted(run)
    told = run.facts.get("collective")
    collective, known_by = (str(told), "name") if told else _collective(run, ranks)
    summary: dict[str, object] = {
        **run.facts,
        "line_no": run.facts.get("error_line") or run.facts.get("line_no", run.first),
        "test": number,
        "collective": collective,
        "collective_known_by": known_by,
        "ranks": ranks,
        "groups": len(groups) or None,
        "hosts": list(dict.fromkeys(str(d["host"]) for d in run.devices if d["host"])) or None,
        "gpus": sorted({str(d["gpu"]) for d in run.devices if d["gpu"]}) or None,
        "complete": run.footed,
    }
    return {k: v for k, v in summary.items() if k not in ("named", "error_line")}


def _best_row(run: _Run) -> dict[str, object]:
    return max(run.rows, key=lambda r: (float(str(r["alg_bw_gb_s"] or 0)), int(str(r["bytes"] or 0))))


def _counted(run: _Run) -> int | None:
    """Ranks of an all_reduce that lists no devices, by its own definition: bus over algorithm bandwidth is 2 (n - 1) / n, and above one of
    no other collective; of many ranks the rounded figures do not tell."""
    if not run.rows:
        return None
    algorithm, bus = (real(str(_best_row(run)[name])) for name in ("alg_bw_gb_s", "bus_bw_gb_s"))
    if not algorithm or bus is None or not 1 + _NEAR < bus / algorithm < 2 - _NEAR:
        return None
    ranks = 2 / (2 - bus / algorithm)
    return round(ranks) if abs(ranks - round(ranks)) < 5 * _NEAR else None


def _collective(run: _Run, ranks: int | None) -> tuple[str | None, str | None]:
    """Which collective a table without a name shows: by its columns, and by the ratio of its bandwidths."""
    if not run.rows:
        return None, None
    sample = _best_row(run)
    reduces, rooted = sample["red_op"] is not None, sample["root"] is not None
    if rooted:
        return ("reduce" if reduces else "broadcast"), "columns"
    algorithm, bus = real(str(sample["alg_bw_gb_s"])), real(str(sample["bus_bw_gb_s"]))
    if not reduces or not algorithm or bus is None or ranks is None:
        return None, None  # all_gather and alltoall look alike
    fits = [c for c in ("all_reduce", "reduce_scatter", "sendrecv") if abs(bus / algorithm - (bus_factor(c, ranks) or 0)) < _NEAR]
    return (fits[0], "ratio") if len(fits) == 1 else (None, None)


def _sniff_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"minimum_bytes"' in head and b'"nccl_version"' in head


def _read_json(data: bytes) -> Reading:
    """A ``-J`` file. Booleans are the strings "true" and "false" there, times are microseconds; of ``env`` only settings of
    the communication stack are kept (the rest leaks secrets)."""
    gaps: tuple[Gap, ...] = ()
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        document = _mended(data)
        gaps = (Gap(f"truncated: {problem}"[:200]),)
    if not isinstance(document, dict):
        return Reading(gaps=gaps or (Gap("unreadable: not an object"),))
    config = mapping(document.get("config"))
    run = _Run(0)
    for i, device in enumerate(mappings(config.get("devices"))):
        run.devices.append(
            {
                "record": f"config.devices[{i}]",
                "rank": device.get("rank"),
                "group": device.get("group"),
                "pid": device.get("pid"),
                "host": device.get("hostname"),
                "device": device.get("device"),
                "bus": device.get("device_hex"),
                "gpu": device.get("device_info"),
            }
        )
    for i, result in enumerate(mappings(document.get("results"))):
        run.rows.extend(_json_rows(result, f"results[{i}]"))
    bounds, average = mapping(document.get("out_of_bounds")), mapping(document.get("average_bus_bandwidth"))
    arguments = document.get("args")
    program = _PROGRAM.search(" ".join(str(a) for a in arguments[:1])) if isinstance(arguments, list) else None
    errors = document.get("errors")
    code = document.get("nccl_version")
    run.footed = "bandwidth" in average
    run.facts = {
        "record": "",
        "collective": program.group(1) if program else None,
        "nccl_version": _library(code if isinstance(code, int) else whole(str(code))),
        "min_bytes": config.get("minimum_bytes"),
        "max_bytes": config.get("maximum_bytes"),
        "iterations": config.get("iterations"),
        "validation": _truth(config.get("validation")),
        "out_of_bounds": bounds.get("count"),
        "out_of_bounds_ok": _truth(bounds.get("okay")),
        "average_bus_bw_gb_s": real(str(average.get("bandwidth"))),
        "average_text": str(average["bandwidth"]) if "bandwidth" in average else None,
        "minimum_met": _truth(average.get("okay")),
        "error": "; ".join(str(e) for e in errors)[:500] if isinstance(errors, list) and errors else None,
        "last_bytes": run.rows[-1]["bytes"] if run.rows else None,
    }
    frames = _frames([run]) | filled({"environment": _environment(document.get("env"))})
    return Reading(frames=frames, gaps=gaps, records=sum(f.height for f in frames.values()))


def _environment(listed: object) -> list[dict[str, object]]:
    """Settings among the ``K=V`` texts of ``env``."""
    out: list[dict[str, object]] = []
    for i, item in enumerate(items(listed)):
        name, equals, value = str(item).partition("=")
        if equals and is_setting(name):
            out.append({"record": f"env[{i}]", "name": name, "value": mask(value)[:4000]})
    return out


def _json_rows(result: Mapping[str, object], record: str) -> list[dict[str, object]]:
    rows = []
    for placement in ("out_of_place", "in_place"):
        half = mapping(result.get(placement))
        if half:
            root, red_op = whole(str(result.get("root"))), str(result.get("redop") or "none")
            rows.append(
                {
                    "record": f"{record}.{placement}",
                    "bytes": result.get("size"),
                    "count": result.get("count"),
                    "dtype": result.get("type"),
                    "red_op": None if red_op == "none" else red_op,
                    "root": root if root is not None and root >= 0 else None,
                    "placement": placement.replace("_", "-"),
                    "time_us": real(str(half.get("time", half.get("cpu_time")))),
                    "alg_bw_gb_s": real(str(half.get("alg_bw"))),
                    "bus_bw_gb_s": real(str(half.get("bus_bw"))),
                    "wrong": _wrong(str(half.get("nwrong"))),
                }
            )
    return rows


def _read_rccl_lines(text: Text) -> Reading:
    """Lines of rccl-tests' reporter (``-Z json -x FILE``): one object for each size, type and placement. It tells neither hosts nor a
    footer, so that a run which broke off looks like a short one. One test for each collective."""
    runs: dict[str, _Run] = {}
    claimed: list[int] = []
    gaps: list[Gap] = []
    hits = text.hits.filter(pl.col("text").str.contains('"algBw"', literal=True))
    for line_no, body in hits.select("line_no", "text").iter_rows():
        try:
            told = mapping(orjson.loads(body.strip().rstrip(",")))
        except orjson.JSONDecodeError:
            told = {}
        size, name = told.get("size"), told.get("name")
        if not isinstance(size, int) or not isinstance(name, str):
            gaps.append(Gap("unparsed: no object of a result", line_no, text=body))
            continue
        claimed.append(line_no)
        ranks = told.get("ranks")
        facts: dict[str, object] = {"collective": _snake(name), "line_no": line_no}
        run = runs.setdefault(name, _Run(line_no, facts=facts, ranks=ranks if isinstance(ranks, int) else None))
        run.facts["last_bytes"] = size
        values = {
            "time": f"{told.get('time')}",
            "algbw": f"{told.get('algBw')}",
            "busbw": f"{told.get('busBw')}",
            "#wrong": f"{told.get('wrong')}",
        }
        head: dict[str, object] = {"line_no": line_no, "bytes": size, "type": told.get("type"), "redop": told.get("redop") or None}
        run.rows.append(_placed(run, head, values, in_place=told.get("inPlace") == 1))
    return Reading(frames=_frames(list(runs.values())), lines=line_numbers(claimed), gaps=tuple(gaps))


def _snake(name: str) -> str:
    """all_reduce of AllReduce; alltoall is one word in the names of the programs."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return {"send_recv": "sendrecv", "all_to_all": "alltoall", "allto_all": "alltoall", "allto_allv": "alltoallv"}.get(words, words)


def _mended(data: bytes) -> object:
    """What a file that an aborted run left unterminated holds: cut after a complete value, with its brackets closed."""
    stack: list[int] = []
    quoted = escaped = False
    closers = {ord("{"): b"}", ord("["): b"]"}
    cut, open_then = 0, b""
    for i, byte in enumerate(data):
        if quoted:
            quoted = escaped or byte != 0x22
            escaped = byte == 0x5C and not escaped
        elif byte == 0x22:
            quoted = True
        elif byte in closers:
            stack.append(byte)
        elif byte in b"}]":
            if not stack:
                return None
            stack.pop()
            cut, open_then = i + 1, b"".join(closers[b] for b in reversed(stack))
    try:
        return orjson.loads(data[:cut] + open_then)
    except orjson.JSONDecodeError:
        return None


def _truth(value: object) -> bool | None:
    return {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())


_TABLES = ("bandwidth_tests", "bandwidth_devices", "bandwidth_rows")
FORMATS = (
    TextFormat(
        name="nccl-tests",
        title="nccl-tests and rccl-tests results (text)",
        tables=_TABLES,
        anchors=(
            " minBytes ",
            "Avg bus bandwidth",
            "Out of bounds values",
            "Using devices",
            "algbw",
            "Test NCCL failure",
            "Test CUDA failure",
            "Test HIP failure",
            "Cuda failure common.cu",
            "NCCL failure common.cu",
            ": Test failure ",
            "Collective test ",
            "nccl-tests version",
            # Rows whose header is lost.
            "sum      -1",
            "none      -1",
            "none       0",
        ),
        read=read,
        # Before NCCL's own format: a row may share its line with one of NCCL's.
        priority=8,
    ),
    TextFormat(
        name="rccl-tests-lines",
        title="rccl-tests results (lines of JSON, -Z json)",
        tables=("bandwidth_tests", "bandwidth_rows"),
        anchors=('"algBw"',),
        read=_read_rccl_lines,
        priority=20,
    ),
    DocumentFormat(
        name="nccl-tests-json",
        title="nccl-tests results (JSON, -J)",
        tables=(*_TABLES, "environment"),
        sniff=_sniff_json,
        read=_read_json,
        priority=20,
    ),
)
