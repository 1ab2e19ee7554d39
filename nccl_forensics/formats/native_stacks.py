"""Native and mixed stacks: gdb's ``thread apply all bt`` and pystack.

gdb prints the most recent call first, pystack last; rows are innermost first for both.
"""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.tables import TABLES

_GDB_THREAD = re.compile(r'^Thread ([0-9]{1,6}) \((?:Thread (0x[0-9a-f]{1,16}) )?\(?LWP ([0-9]{1,10})\)(?: "(.{0,64})")?.{0,20}\):?\s*$')
_GDB_FRAME = re.compile(r"^#([0-9]{1,4}) +(?:0x[0-9a-f]{1,16} in )?(.{1,2000})$")
_GDB_PLACE = re.compile(r"^(.{1,1200}?) \(.*?\)? ?(?:at ([^ ]{1,512}:[0-9]{1,9})|from ([^ ]{1,512}))?$")
_PY_THREAD = re.compile(r"^Traceback for thread ([0-9]{1,10}) \((.{0,64})\) \[(.{0,200})\] \(most recent call last\):")
_PY_FRAME = re.compile(r'^    \((Python|C)\) File "([^"]{1,1024})", line ([0-9]{1,9}), in (.{1,512})$')
_HINTS = ("hint_rank", "hint_scope", "hint_host", "hint_pid", "time_raw_ns", "time_kind")


def _read_gdb(text: Text) -> Reading:
    rows: list[dict[str, object]] = []
    used: list[int] = []
    lines = text.lines
    numbers, content, hints, hits = (
        lines["line_no"].to_list(),
        lines["text"].to_list(),
        lines.select(*_HINTS).rows(),
        lines["hit"].to_list(),
    )
    for at, number in enumerate(numbers):
        head = _GDB_THREAD.match(content[at]) if hits[at] else None
        if head is None:
            continue
        frames: list[str] = []
        last = at
        for i in range(at + 1, len(numbers)):
            frame = _GDB_FRAME.match(content[i])
            if frame:
                frames.append(_gdb_frame(frame.group(2)))
            elif not content[i].startswith((" ", "\t", "(More stack")):
                break
            last = i
            used.append(numbers[i])
        used.append(number)
        rows.append(
            {
                **dict(zip(_HINTS, hints[at], strict=True)),
                "line_no": number,
                "end_line": numbers[last],
                "sampler": "gdb",
                "thread_id": head.group(3),
                "pthread_id": str(int(head.group(2), 16)) if head.group(2) else None,
                "thread_name": head.group(4),
                "is_main": head.group(1) == "1",
                "sample": 0,
                "depth": len(frames),
                "frames": frames,
                "native": True,
            }
        )
    # The main thread's LWP is the process id.
    mains = [r["thread_id"] for r in rows if r["is_main"]]
    if len(mains) == 1:
        for row in rows:
            row["pid"] = int(str(mains[0]))
    return Reading(
        frames={"stacks": TABLES["stacks"].frame(rows)}, lines=pl.Series("line_no", sorted(used), dtype=pl.UInt32()), records=len(rows)
    )


def _gdb_frame(rest: str) -> str:
    place = _GDB_PLACE.match(rest)
    if place is None:
        return rest[:400]
    name = place.group(1).split(" (", 1)[0]
    return f"{name} ({place.group(2) or (place.group(3) or '??').rsplit('/', 1)[-1]})"[:600]


def _read_pystack(text: Text) -> Reading:
    rows: list[dict[str, object]] = []
    used: list[int] = []
    lines = text.lines
    numbers, content, hints, hits = (
        lines["line_no"].to_list(),
        lines["text"].to_list(),
        lines.select(*_HINTS).rows(),
        lines["hit"].to_list(),
    )
    for at, number in enumerate(numbers):
        head = _PY_THREAD.match(content[at]) if hits[at] else None
        if head is None:
            continue
        frames: list[str] = []
        last = at
        native = False
        for i in range(at + 1, len(numbers)):
            frame = _PY_FRAME.match(content[i])
            if frame:
                native |= frame.group(1) == "C"
                frames.append(f"{frame.group(4)} ({frame.group(2).rsplit('/', 1)[-1]}:{frame.group(3)})"[:600])
            elif not content[i].startswith("        "):
                break
            last = i
            used.append(numbers[i])
        used.append(number)
        rows.append(
            {
                **dict(zip(_HINTS, hints[at], strict=True)),
                "line_no": number,
                "end_line": numbers[last],
                "sampler": "pystack",
                "thread_id": head.group(1),
                "state": head.group(3) or None,
                "owns_gil": "Has the GIL" in head.group(3) or None,
                "is_main": not any(r["sampler"] == "pystack" for r in rows),
                "sample": 0,
                "depth": len(frames),
                "frames": frames[::-1],
                "native": native,
            }
        )
    return Reading(
        frames={"stacks": TABLES["stacks"].frame(rows)}, lines=pl.Series("line_no", sorted(used), dtype=pl.UInt32()), records=len(rows)
    )


FORMATS = (
    TextFormat("gdb", "gdb thread apply all bt", ("stacks",), ("(LWP ",), _read_gdb, 14),
    TextFormat("pystack", "pystack", ("stacks",), ("Traceback for thread ",), _read_pystack, 13),
)
