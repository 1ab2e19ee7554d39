"""Gradient norms that several ranks tell for the same step."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view

REPLICA_NORMS = typed("rank:i32 step:i64 grad_norm:f64 usual:f64 ranks:u32 source_id:u32 line_no:u32")
#: Ranks that make a majority.
LEAST_RANKS = 3


@view(rows="operations")
def replica_norms(training_steps: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> pl.LazyFrame:
    """One row per rank and step where three ranks or more tell a norm: it, and ``usual``, the median over the ranks.

    The rank is what a launcher's prefix says, else that of the file. A step that was made again after a restart counts as it was made last.
    """
    stated = pl.when(pl.col("hint_scope").is_null() | (pl.col("hint_scope") != "local")).then(pl.col("hint_rank"))
    rows = training_steps.filter(pl.col("step").is_not_null() & pl.col("grad_norm").is_finite()).with_columns(rank=stated)
    if source_ranks is not None:
        known = source_ranks.select("source_id", owner=pl.col("rank")).unique("source_id")
        rows = rows.join(known, on="source_id", how="left").with_columns(rank=pl.coalesce("rank", "owner"))
    last = rows.filter(pl.col("rank").is_not_null()).sort("source_id", "line_no").unique(["rank", "step"], keep="last", maintain_order=True)
    judged = last.with_columns(ranks=pl.len().over("step"), usual=pl.col("grad_norm").median().over("step"))
    return judged.filter(pl.col("ranks") >= LEAST_RANKS).sort("rank", "step").select(pl.col(c).cast(t) for c, t in REPLICA_NORMS.items())
