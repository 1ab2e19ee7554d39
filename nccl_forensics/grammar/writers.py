"""Lines near the starts of blocks, writer by writer: lines of several ranks may interleave in one source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

#: What a launcher's prefix said about the writer of a line, and when it wrote.
WRITER = ("hint_rank", "hint_scope", "hint_host", "hint_pid")
HINTS = (*WRITER, "time_raw_ns", "time_kind")


@dataclass(frozen=True, slots=True)
class WriterLines:
    """Lines of one writer, in order; ``starts`` are positions of the lines with an anchor; ``hints`` those of the first of them; ``marked``:
    which lines torch's excepthook wrote."""

    numbers: list[int]
    texts: list[str]
    starts: list[int]
    hints: dict[str, object]
    marked: list[bool]


def near_hits(lines: pl.DataFrame, reach: int, before: int = 0) -> Iterator[WriterLines]:
    """The lines from ``before`` lines in front of each hit to ``reach`` behind it; nothing of a source without hits."""
    keep: list[tuple[int, int]] = []
    for start in lines["hit"].arg_true().to_list():
        first, last = max(0, start - before), min(lines.height, start + reach)
        if keep and first <= keep[-1][1]:
            keep[-1] = (keep[-1][0], last)
        else:
            keep.append((first, last))
    if not keep:
        return
    near = pl.concat([lines.slice(a, b - a) for a, b in keep])
    for part in near.partition_by(list(WRITER), maintain_order=True):
        starts = part["hit"].arg_true().to_list()
        if starts:
            first_row = part.row(starts[0], named=True)
            yield WriterLines(
                part["line_no"].to_list(), part["text"].to_list(), starts, {h: first_row[h] for h in HINTS}, part["marked"].to_list()
            )
