"""Ranks that make calls of which their recorders keep no entry: gloo's sends and receives."""

from __future__ import annotations

import polars as pl

from nccl_forensics.folding import SORT, FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.views import view

UNHELD_CALLS = typed("rank:i32 calls:i64")


@view(rows="ranks")
def unheld_calls(fr_entries: pl.LazyFrame | FoldedTable, source_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """How many ``calls`` of a rank have no entry, in the group that lacks most; ranks without any have no row.

    Gloo numbers sends and receives as it does collectives (``op_id`` of an entry) and records the latter alone (torch 2.13
    ProcessGroupGloo.cpp), so that its collectives have lower numbers among themselves than among all. Recorders of NCCL hold both.
    """
    of_gloo = (pl.col("backend") == "gloo") & ~pl.col("is_p2p")
    if isinstance(fr_entries, FoldedTable):
        groups = fr_entries.words.filter(of_gloo).select("source_id", SORT, "pg_id")
        if not groups.height:
            return pl.LazyFrame(schema=UNHELD_CALLS)
        held = fr_entries.lazy().join(groups.lazy(), on=["source_id", SORT])
    else:
        held = fr_entries.filter(of_gloo)
    numbered = held.filter(pl.col("collective_seq_id") > 0)
    beyond = numbered.group_by("source_id", "pg_id").agg((pl.col("op_id") - pl.col("collective_seq_id")).max().alias("calls"))
    known = source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").unique("source_id")
    told = beyond.join(known, on="source_id").group_by("rank").agg(pl.col("calls").max()).filter(pl.col("calls") > 0)
    return told.select(pl.col(c).cast(t) for c, t in UNHELD_CALLS.items()).sort("rank")
