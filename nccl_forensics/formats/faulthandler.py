"""Stacks written by Python's faulthandler: ``dump_traceback``, the crash form and the timer form (CPython 3.8 to 3.14).

Most recent call first, short function names, pthread ids, no process id: the file's name or the lines around must say whose it is.
Threads are listed from the newest to the oldest, so the main thread is the last; the *current* one is where a signal arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_forensics.formats.base import Gap, Reading, Text, TextFormat, line_numbers, line_of
from nccl_forensics.grammar.blocks import Line
from nccl_forensics.stacks.frames import frame_text, indent, origin, short_path, windows
from nccl_forensics.tables import TABLES

_HEADER = r"^\s*(?:Current thread(?:'s C stack trace| 0x)|Thread 0x|Stack \().*\(?most recent call first\):"
_HEADERS = ("current", "thread", "alone", "c_stack")
_INSIDE = ("frame", "binary", "note")


def read(text: Text) -> Reading:
    """Every thread of every dump in these lines."""
    rows: list[dict[str, object]] = []
    used: set[int] = set()
    gaps: list[Gap] = []
    for lines in windows(text.lines, _HEADER, "faulthandler", before=2):
        for sample, dump in enumerate(_dumps(lines, used, gaps)):
            oldest = max((n for n, row in enumerate(dump) if not row["native"]), default=None)
            rows += [row | {"sample": sample, "is_main": n == oldest} for n, row in enumerate(dump)]
    rows.sort(key=line_of)
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, lines=line_numbers(sorted(used)), gaps=tuple(gaps), records=len(rows))


def _dumps(lines: Sequence[Line], used: set[int], gaps: list[Gap]) -> Iterator[list[dict[str, object]]]:
    """One list of threads per dump: a thread that comes again, or other text between, begins another."""
    dump: list[dict[str, object]] = []
    seen: set[object] = set()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.kind in _HEADERS:
            row, at = _thread(lines, at, used, gaps)
            if row["pthread_id"] in seen:
                yield dump
                dump, seen = [], set()
            dump.append(row)
            seen.add(row["pthread_id"] or row["native"])
            continue
        if line.kind == "timeout":
            used.add(line.number)
        if line.text.strip() and dump:
            yield dump
            dump, seen = [], set()
        at += 1
    if dump:
        yield dump


def _thread(lines: Sequence[Line], at: int, used: set[int], gaps: list[Gap]) -> tuple[dict[str, object], int]:
    header, frames, last = lines[at], list[str](), lines[at].number
    used.add(last)
    at += 1
    while at < len(lines) and lines[at].text.strip() and indent(lines[at]) > indent(header):
        line = lines[at]
        if line.kind == "frame":
            frames.append(frame_text(str(line.fields["func"]), short_path(str(line.fields["path"])[1:-1]), line.fields["line"]))
        elif line.kind == "binary":
            place = str(line.fields["address"]).split(" [", 1)[0].split("+", 1)[0]
            frames.append(frame_text(place or "??", short_path(str(line.fields["path"])[1:-1]), None))
        elif line.kind == "note" and line.text.strip() == "Garbage-collecting":
            frames.append("Garbage-collecting ()")
        elif line.kind not in _INSIDE:
            gaps.append(Gap("frame cut off or not understood", line.number, text=line.text))
            at += 1
            continue
        last = line.number
        used.add(last)
        at += 1
    number = header.fields.get("id")
    return {
        **origin(header),
        "line_no": header.number,
        "end_line": last,
        "sampler": "faulthandler",
        "pthread_id": str(int(number, 16)) if number else None,
        "thread_name": header.get("name"),
        "state": "current" if header.kind != "thread" else None,
        "native": header.kind == "c_stack",
        "depth": len(frames),
        "frames": frames,
    }, at


FORMAT = TextFormat("faulthandler", "faulthandler stack dump", ("stacks",), ("(most recent call first):",), read, 12)
