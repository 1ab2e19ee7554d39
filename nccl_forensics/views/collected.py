"""What our own collection script could not get, and why."""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.collecting import STEPS
from nccl_forensics.frames import typed
from nccl_forensics.views import view

NOT_COLLECTED = typed("step:str status:str reason:str hosts:list[str] ranks:list[i32] times:u32 source_id:u32 line_no:u32")


@view(rows="steps x reasons")
def not_collected(collected: pl.LazyFrame) -> pl.LazyFrame:
    """One row per step and reason, the most decisive step first; what another try of the same step got on that host and process is left
    out.

    Of several tries that all failed the first one's reason is told: later tools are only there to stand in for it.
    """
    about = ["host", "step", "pid"]
    failed = (
        collected.sort("source_id", "line_no")
        .with_columns(got=(pl.col("status") == "ok").any().over(about), first=pl.int_range(pl.len()).over(about) == 0)
        .filter(~pl.col("got") & pl.col("first"))
        .collect()
    )
    order = pl.col("step").replace_strict({name: n for n, name in enumerate(STEPS)}, default=len(STEPS), return_dtype=pl.Int64)
    return (
        failed.lazy()
        .group_by("step", "status", "reason", maintain_order=True)
        .agg(
            pl.col("host").drop_nulls().unique().sort().alias("hosts"),
            pl.col("rank").drop_nulls().unique().sort().alias("ranks"),
            pl.len().alias("times"),
            pl.col("source_id", "line_no").first(),
        )
        .sort(order, "source_id", "line_no", maintain_order=True)
        .select(pl.col(c).cast(t) for c, t in NOT_COLLECTED.items())
    )
