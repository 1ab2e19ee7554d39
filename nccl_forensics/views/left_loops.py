"""Ranks that went on to a call behind the loop in which their peers still are, by the lines of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.stacks.frames import line_of_code
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.checked_calls import with_frames

LEFT_LOOPS = typed("rank:i32 group_key:str seq:i64 loop:str last_line:i64")
#: Latest calls of a rank that are looked at.
_BACK = 64
#: Times that a line has to come to be one of the steps.
_AGAIN = 2


@view(rows="ranks")
def left_loops(divergences: pl.LazyFrame, operations: pl.LazyFrame | Calls, fr_entries: pl.LazyFrame | FoldedTable) -> pl.LazyFrame:
    """Ranks whose call at ``seq``, where recorders of their group part, is made further down in the function (``loop``) from which their
    peers make the call that is due, at a line to which they had not come before, and that stands behind all lines of their steps (the
    ``last_line`` of these among them, which comes after that of the due call): they left the loop, or made one call more at its end.
    """
    parted = divergences.filter((pl.col("domain") == "fr") & (pl.col("kind") == "different")).sort("group_key").collect()
    rows: list[dict[str, object]] = []
    for row in parted.iter_rows(named=True):
        members = [*as_ranks(row["ranks"]), *as_ranks(row["others"])[:1]]
        recorded = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("seq").is_not_null() & pl.col("call_site").is_not_null()
        made = calls_of(operations).recent().filter(recorded & pl.col("rank").is_in(members))
        told = made.select("rank", "group_key", "seq", "order", *PLACE).sort("rank", "order").group_by("rank", maintain_order=True)
        paths = with_frames(told.tail(_BACK).collect(), fr_entries)
        here = (pl.col("group_key") == row["group_key"]) & (pl.col("seq") == row["seq"])
        at = {rank: _path(frames) for rank, frames in paths.filter(here).select("rank", "frames").iter_rows()}
        for rank in members[:-1]:
            if rank not in at or members[-1] not in at:
                continue
            before = paths.filter((pl.col("rank") == rank) & ~here)["frames"].drop_nulls().to_list()
            left = _left(at[rank], at[members[-1]], [_path(frames) for frames in before])
            if left is not None:
                rows.append({"rank": rank, "group_key": row["group_key"], "seq": row["seq"], "loop": left[0], "last_line": left[1]})
    return pl.DataFrame(rows, schema=LEFT_LOOPS, infer_schema_length=None).lazy()


def _path(frames: str | None) -> tuple[tuple[str, str, str], ...]:
    """Frames of a recorder as (function, line, file), the outermost first."""
    return tuple(line_of_code(frame) for frame in reversed((frames or "").split("\n")))


def _left(
    own: Sequence[tuple[str, str, str]], due: Sequence[tuple[str, str, str]], before: Sequence[Sequence[tuple[str, str, str]]]
) -> tuple[str, int] | None:
    """(function, last line of its steps) where the call stands behind the steps of which the due one is part."""
    depth = next((n for n, (one, other) in enumerate(zip(own, due, strict=False)) if one != other), None)
    if depth is None or own[depth][::2] != due[depth][::2]:
        return None
    function, line, file = own[depth]
    outer = own[:depth]
    steps = Counter(int(p[depth][1]) for p in before if len(p) > depth and p[:depth] == outer and p[depth][::2] == (function, file))
    again = [n for n, times in steps.items() if times >= _AGAIN]
    due_line = int(due[depth][1])
    if int(line) in steps or due_line not in again or not due_line < max(again) < int(line):
        return None
    return f"{function} ({file})", max(again)
