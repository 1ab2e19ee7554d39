"""How long each rank waits in its sends and receives, from profiler traces.

They are not matched over ranks. But who receives what takes longest to make waits for it, and one of as many bytes that went at once tells
how long the transfer itself takes: what is beyond that is the bubble of a pipeline, or a partner that is late, and no slow network.
"""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.collective_kernels import PAIRWISE
from nccl_forensics.frames import typed
from nccl_forensics.views import view

TRACE_PAIR_WAITS = typed("rank:i32 calls:u32 waited_ms:f64")


@view(rows="ranks")
def trace_pair_waits(trace_collectives: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Per rank that sends and receives in pairs, where several ranks left a trace: ``waited_ms``, what its ``calls`` take, while nothing
    computes, beyond the shortest one of as many bytes on any rank."""
    counted = trace_ranks.filter(pl.col("duplicate_of").is_null() & pl.col("rank").is_not_null()).select("source_id", "rank")
    pairs = trace_collectives.filter(pl.col("op").is_in(PAIRWISE)).join(counted, on="source_id")
    shortest = pl.col("duration_ns").min().over(pl.col("bytes").fill_null(-1))
    beyond = pl.min_horizontal(pl.col("duration_ns") - shortest, pl.col("exposed_ns").fill_null(pl.col("duration_ns")))
    waits = pairs.with_columns(beyond=beyond, ranks=pl.col("rank").n_unique().over(pl.lit(1))).filter(pl.col("ranks") > 1)
    told = waits.group_by("rank").agg(pl.len().alias("calls"), (pl.col("beyond").sum() / 1e6).alias("waited_ms"))
    return told.select(pl.col(c).cast(t) for c, t in TRACE_PAIR_WAITS.items()).sort("rank")
