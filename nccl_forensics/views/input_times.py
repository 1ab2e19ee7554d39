"""How long each rank waited for its batches, by what the training loops print of every step."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.step_leads import steps_of_ranks

INPUT_TIMES = typed("rank:i32 steps:u32 longest_steps:u32 input_ms:f64 others_ms:f64 step_ms:f64 source_id:u32 line_no:u32")
#: A rank's batch came much later than any other's, by this share of the step.
_LATER = 0.2


@view(rows="ranks")
def input_times(training_steps: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> pl.LazyFrame:
    """Per rank, of the steps that every rank tells with its time and that of its batch: medians of both, ``others_ms``, the median of the
    longest that any other rank waited for a batch, and ``longest_steps``, those in which it alone waited longer by a fifth of the step.
    Cites its longest."""
    told = steps_of_ranks(training_steps, source_ranks).filter(pl.col("input_ms").is_not_null() & (pl.col("step_ms") > 0))
    once = told.sort("source_id", "line_no").unique(["rank", "step"], keep="last", maintain_order=True).collect()
    whole = once.filter(pl.len().over("step") == once["rank"].n_unique())
    if once["rank"].n_unique() < 2 or not whole.height:
        return pl.LazyFrame(schema=INPUT_TIMES)
    ordered = pl.col("input_ms").sort(descending=True)
    most, second = (ordered.get(n).over("step") for n in (0, 1))
    longest = pl.col("input_ms") == most
    compared = whole.with_columns(others=pl.when(longest).then(second).otherwise(most)).with_columns(
        late=longest & (pl.col("input_ms") - pl.col("others") >= _LATER * pl.col("step_ms").median().over("step"))
    )
    ranks = compared.group_by("rank").agg(
        pl.len().alias("steps"),
        pl.col("late").sum().alias("longest_steps"),
        pl.col("input_ms", "step_ms").median(),
        pl.col("others").median().alias("others_ms"),
        pl.col("source_id", "line_no").sort_by("input_ms", descending=True).first(),
    )
    return ranks.sort("rank").select(pl.col(c).cast(t) for c, t in INPUT_TIMES.items()).lazy()
