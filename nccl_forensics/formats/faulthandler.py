"""Stacks written by Python's faulthandler: ``dump_traceback``, the crash form and the timer form (CPython 3.8 to 3.14).

Most recent call first, short function names, pthread ids, no process id: the file's name or the lines around must say whose it is.
"""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.tables import TABLES

_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9A-Fa-f]{1,16})(?: \[(.{0,100})\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "([^"]{1,1024})", line ([0-9]{1,9}|\?{1,3}) in (.{1,256})$')
_OTHER = ("  ...", "  Garbage-collecting", "  <no Python frame>", "  <freed")
_HINTS = ("hint_rank", "hint_scope", "hint_host", "hint_pid", "time_raw_ns", "time_kind")


def _read(text: Text) -> Reading:
    rows: list[dict[str, object]] = []
    used: list[int] = []
    lines = text.lines
    numbers, content, hints, hits = (
        lines["line_no"].to_list(),
        lines["text"].to_list(),
        lines.select(*_HINTS).rows(),
        lines["hit"].to_list(),
    )
    sample = 0
    for at, number in enumerate(numbers):
        head = _THREAD.match(content[at]) if hits[at] else None
        if head is None:
            continue
        frames: list[str] = []
        last = at
        for i in range(at + 1, len(numbers)):
            if hints[i][0] != hints[at][0]:
                continue
            frame = _FRAME.match(content[i])
            if frame:
                frames.append(
                    f"{frame.group(3)} ({frame.group(1).rsplit('/', 1)[-1] if '/torch/' not in frame.group(1) else frame.group(1)[frame.group(1).index('torch/') :]}:{frame.group(2)})"[
                        :600
                    ]
                )
            elif not content[i].startswith(_OTHER):
                break
            last = i
            used.append(numbers[i])
        used.append(number)
        current = head.group(1) == "Current thread"
        rows.append(
            {
                **dict(zip(_HINTS, hints[at], strict=True)),
                "line_no": number,
                "end_line": numbers[last],
                "sampler": "faulthandler",
                "pthread_id": str(int(head.group(2), 16)),
                "thread_name": head.group(3),
                "is_main": current,
                "sample": sample,
                "depth": len(frames),
                "frames": frames,
                "native": False,
            }
        )
        sample += current
    return Reading(
        frames={"stacks": TABLES["stacks"].frame(rows)}, lines=pl.Series("line_no", sorted(used), dtype=pl.UInt32()), records=len(rows)
    )


FORMAT = TextFormat("faulthandler", "faulthandler stack dump", ("stacks",), ("(most recent call first):",), _read, 12)
