"""Native stacks of all threads, as gdb's ``thread apply all bt`` prints them. Most recent call first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_forensics.formats.base import Reading, Text, TextFormat, line_numbers, line_of
from nccl_forensics.grammar.blocks import Line
from nccl_forensics.stacks.frames import frame_text, origin, short_path, windows
from nccl_forensics.tables import TABLES

_HEADER = r"^\s*Thread [0-9]{1,6} \((?:Thread 0x[0-9a-f]+ \()?(?:LWP|process) [0-9]"
#: A call holds its arguments, and its place stands at the end: only so much of a longer one is looked at.
_LONGEST_CALL = 8000


def read(text: Text) -> Reading:
    """Every thread of every process in these lines."""
    rows: list[dict[str, object]] = []
    used: set[int] = set()
    for lines in windows(text.lines, _HEADER, "gdb", before=64):
        samples: dict[object, int] = {}
        for process in _processes(lines, used):
            pid = process[0]["pid"]
            rows += [row | {"sample": samples.get(pid, 0)} for row in process]
            samples[pid] = samples.get(pid, 0) + 1
    rows.sort(key=line_of)
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, lines=line_numbers(sorted(used)), records=len(rows))


def _processes(lines: Sequence[Line], used: set[int]) -> Iterator[list[dict[str, object]]]:
    """Threads of one process after the other: a thread number that comes again, or other text between, begins the next."""
    rows: list[dict[str, object]] = []
    numbers: set[int] = set()
    stated: int | None = None
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.kind == "thread":
            number = int(str(line.fields["number"]))
            if number in numbers:
                yield _owned(rows, stated)
                rows, numbers, stated = [], set(), None
            numbers.add(number)
            row, at = _thread(lines, at, number, used)
            rows.append(row)
            continue
        if line.kind in ("inferior", "attach", "new_lwp"):
            used.add(line.number)
        if line.kind == "inferior" and rows:
            stated = int(str(line.fields["pid"]))
        if line.text.strip() and rows:
            yield _owned(rows, stated)
            rows, numbers, stated = [], set(), None
        if line.kind == "attach":
            stated = int(str(line.fields["pid"]))
        at += 1
    if rows:
        yield _owned(rows, stated)


def _owned(rows: list[dict[str, object]], stated: int | None) -> list[dict[str, object]]:
    """The process id: as gdb states it, else the id of its main thread."""
    pid = stated if stated is not None else next((int(str(r["thread_id"])) for r in rows if r["is_main"]), None)
    return [row | {"pid": pid} for row in rows]


def _thread(lines: Sequence[Line], at: int, number: int, used: set[int]) -> tuple[dict[str, object], int]:
    header, calls, last = lines[at], list[str](), lines[at].number
    used.add(last)
    at += 1
    while at < len(lines):
        line = lines[at]
        if line.kind == "frame":
            calls.append(str(line.fields["call"]))
        elif calls and line.text[:1] in (" ", "\t") and line.text.strip():
            calls[-1] += " " + line.text.strip()  # gdb on a narrow terminal wraps
        elif line.kind != "more":
            break
        last = line.number
        used.add(last)
        at += 1
    frames = [_frame(call) for call in calls]
    pthread = header.fields.get("pthread")
    name = header.fields.get("name")
    return {
        **origin(header),
        "line_no": header.number,
        "end_line": last,
        "sampler": "gdb",
        "thread_id": header.fields["lwp"],
        "pthread_id": str(int(pthread, 16)) if pthread else None,
        "thread_name": name[1:-1] if name else None,
        # gdb counts threads from the oldest on.
        "is_main": number == 1,
        "depth": len(frames),
        "frames": frames,
        "native": True,
    }, at


def _frame(call: str) -> str:
    """``0x… in func(type) (arg=1) at file.c:3`` becomes ``func (file.c:3)``; a library stands in for a file."""
    call = call if len(call) <= _LONGEST_CALL else f"{call[: _LONGEST_CALL // 2]}{call[-_LONGEST_CALL // 2 :]}"
    if call.startswith("0x"):
        call = call.partition(" in ")[2] or call
    place, number = "??", None
    head, at, where = call.rpartition(") at ")
    if at and " " not in where:
        call, (place, _, number) = f"{head})", where.rpartition(":")
    else:
        head, from_, where = call.rpartition(") from ")
        if from_:
            call, place = f"{head})", where
    return frame_text(_bare(_without_arguments(call)), short_path(place), number)


def _without_arguments(call: str) -> str:
    """The call without its last list of arguments, which gdb sets off with a blank."""
    opener = _opener(call)
    return call[:opener].rstrip() if opener is not None and opener > 0 and call[opener - 1] == " " else call


def _bare(name: str) -> str:
    """A name of C++ without its types: ``c10d::Work::wait(…)`` gives ``c10d::Work::wait``."""
    for end in (" const", " [clone .isra.0]"):
        name = name.removesuffix(end)
    opener = _opener(name)
    return name[:opener] if opener and name[:opener].rstrip()[-1:].isalnum() else name


def _opener(text: str) -> int | None:
    """Where the parenthesis opens that the text's last character closes."""
    if not text.endswith(")"):
        return None
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            return i
    return None


FORMAT = TextFormat("gdb", "gdb thread apply all bt", ("stacks",), ("(LWP ", "(process "), read, 14)
