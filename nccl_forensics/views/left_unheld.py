"""Ranks that came to a call with fewer sends and receives behind them than in the steps before, where recorders hold none of these."""

from __future__ import annotations

import polars as pl

from nccl_forensics.folding import SORT, FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import GROUP
from nccl_forensics.words import UNIDENTIFIED

LEFT_UNHELD = typed("rank:i32", GROUP, "comm_id:str seq:i64 op:str call_site:str usual:i64 made:i64 source_id:u32 record:str")
#: Earlier calls of one kind, each after as many sends and receives, that make a habit; and so many where as many others came to this very
#: call after as many as ever.
_HABIT, _BESIDE = 3, 2
_LINE = ("rank", "group_key")
#: What calls of one kind have in common: the line is not in every dump.
_ALIKE = (*_LINE, "op", "shape", "call_site")


@view(rows="ranks")
def left_unheld(operations: pl.LazyFrame | Calls, fr_entries: pl.LazyFrame | FoldedTable) -> pl.LazyFrame:
    """Ranks whose last recorded collective of a group came after fewer calls without an entry (``made``) than each one before it of
    the same kind (``usual``): they left sends or receives out and went on. Nobody where half of the group's ranks did.
    Two steps before are enough where two others came to this very call after as many as ever.

    Gloo numbers sends and receives as it does collectives (``op_id``) and records the latter alone (torch 2.13 ProcessGroupGloo.cpp), so
    that what lies between two of them shows in their numbers.
    """
    own = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("seq").is_not_null() & (pl.col("rank") < UNIDENTIFIED)
    columns = [c for c in LEFT_UNHELD if c not in ("usual", "made")]
    made = calls_of(operations).recent().filter(own).select(*columns, "shape")
    told = made.join(_numbers(fr_entries), on=["source_id", "record"]).sort(*_LINE, "seq")
    between = (pl.col("op_id") - pl.col("op_id").shift(1) - 1).over(*_LINE)
    first = pl.when(pl.col("seq") == 1).then(pl.col("op_id") - 1)
    rows = told.with_columns(made=pl.when((pl.col("seq") - pl.col("seq").shift(1)).over(*_LINE) == 1).then(between), first=first).collect()
    if rows.is_empty():
        return pl.LazyFrame(schema=LEFT_UNHELD)
    last = rows.unique(_LINE, keep="last", maintain_order=True)
    before = rows.join(last.select(*_LINE, end="seq"), on=_LINE).filter((pl.col("seq") < pl.col("end")) & pl.col("made").is_not_null())
    usual = before.group_by(_ALIKE).agg(usual=pl.col("made").min(), most=pl.col("made").max(), times=pl.len())
    habits = usual.filter(pl.col("usual") == pl.col("most")).drop("most")
    # What lies before the very first call may be of the setting up: it counts where it is as usual.
    opening = rows.filter(pl.col("first").is_not_null()).select(*_ALIKE, usual="first", once=pl.lit(1))
    ends = last.join(habits.join(opening, on=[*_ALIKE, "usual"], how="left", nulls_equal=True), on=_ALIKE, nulls_equal=True)
    as_ever = (pl.col("made") == pl.col("usual")).sum().over("group_key", "seq", "op", "shape", "call_site")
    times = pl.col("times") + pl.col("once").fill_null(0)
    habit = (times >= _HABIT) | ((times >= _BESIDE) & (as_ever >= _BESIDE))
    found = ends.with_columns(habit=habit).filter((pl.col("made") < pl.col("usual")) & pl.col("habit"))
    members = last.group_by("group_key").agg(members=pl.len())
    few = found.join(members, on="group_key").filter((pl.len() * 2).over("group_key") < pl.col("members"))
    return few.sort("rank", "group_key").select([pl.col(c).cast(t) for c, t in LEFT_UNHELD.items()]).lazy()


def _numbers(fr_entries: pl.LazyFrame | FoldedTable) -> pl.LazyFrame:
    """``op_id`` of gloo's entries, by ``source_id`` and ``record``."""
    of_gloo = (pl.col("backend") == "gloo") & ~pl.col("is_p2p")
    if isinstance(fr_entries, FoldedTable):
        words = fr_entries.words.filter(of_gloo).select("source_id", SORT)
        return fr_entries.lazy().join(words.lazy(), on=["source_id", SORT]).select("source_id", "record", "op_id")
    return fr_entries.filter(of_gloo).select("source_id", "record", "op_id")
