"""Stacks of pystack (``remote`` and ``core``, also with --native and --locals). Most recent call last; rows are innermost first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_forensics.formats.base import Reading, Text, TextFormat, line_numbers, line_of
from nccl_forensics.grammar.blocks import Line
from nccl_forensics.stacks.frames import frame_text, indent, origin, outermost, short_path, windows
from nccl_forensics.tables import TABLES

_HEADER = r"^\s*(?:Traceback for thread [0-9]{1,10} .*\(most recent call last\):|The frame stack for thread [0-9]{1,10} is empty)"


def read(text: Text) -> Reading:
    """Every thread of every process in these lines."""
    rows: list[dict[str, object]] = []
    used: set[int] = set()
    for lines in windows(text.lines, _HEADER, "pystack"):
        samples: dict[object, int] = {}
        for process in _processes(lines, used):
            main = _main(process)
            pid = int(str(process[main]["thread_id"]))
            sample = samples.get(pid, 0)
            samples[pid] = sample + 1
            rows += [row | {"pid": pid, "is_main": n == main, "sample": sample} for n, row in enumerate(process)]
    rows.sort(key=line_of)
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, lines=line_numbers(sorted(used)), records=len(rows))


def _main(process: Sequence[dict[str, object]]) -> int:
    """The main thread runs the module; else it is the oldest, with the smallest id. Its id is the process id."""

    def key(n: int) -> tuple[bool, int]:
        frames = process[n]["frames"]
        return (not isinstance(frames, list) or outermost(frames) != "<module>", int(str(process[n]["thread_id"])))

    return min(range(len(process)), key=key)


def _processes(lines: Sequence[Line], used: set[int]) -> Iterator[list[dict[str, object]]]:
    """Threads of one process after the other: a thread that comes again, a second main thread or other text between begins the next."""
    rows: list[dict[str, object]] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.kind in ("thread", "empty"):
            row, at = _thread(lines, at, used)
            again = any(row["thread_id"] == r["thread_id"] for r in rows)
            if rows and (again or (_runs_module(row) and any(_runs_module(r) for r in rows))):
                yield rows
                rows = []
            rows.append(row)
            continue
        if line.text.strip() and rows:
            yield rows
            rows = []
        at += 1
    if rows:
        yield rows


def _runs_module(row: dict[str, object]) -> bool:
    frames = row["frames"]
    return isinstance(frames, list) and outermost(frames) == "<module>"


def _thread(lines: Sequence[Line], at: int, used: set[int]) -> tuple[dict[str, object], int]:
    header, frames, last, native = lines[at], list[str](), lines[at].number, False
    used.add(last)
    at += 1
    margin = 0
    while at < len(lines) and header.kind == "thread" and lines[at].text.strip() and indent(lines[at]) > indent(header):
        line = lines[at]
        if line.kind == "frame" and (not margin or indent(line) == margin):
            margin = indent(line)
            native = native or line.fields["lang"] == "C"
            frames.append(_frame(line))
        # Everything further in is a line of source, an argument or a local.
        last = line.number
        used.add(last)
        at += 1
    status = header.get("status")
    return {
        **origin(header),
        "line_no": header.number,
        "end_line": last,
        "sampler": "pystack",
        "thread_id": header.fields["tid"],
        "thread_name": header.get("name"),
        "state": status,
        "owns_gil": True if status and "Has the GIL" in status else None,
        "depth": len(frames),
        "frames": [*(["Garbage-collecting ()"] if status and "Garbage collecting" in status else []), *reversed(frames)],
        "native": native,
    }, at


def _frame(line: Line) -> str:
    path, number, name = str(line.fields["path"])[1:-1], line.fields["line"], str(line.fields["func"])
    if line.fields["lang"] == "C":
        name, cut, library = name.rpartition(" (")
        if not cut:
            name, library = library, path
        path = library.rstrip(")")
        return frame_text(name, short_path(path), None)
    return frame_text(name, short_path(path), number)


FORMAT = TextFormat("pystack", "pystack", ("stacks",), ("Traceback for thread ", "The frame stack for thread "), read, 13)
