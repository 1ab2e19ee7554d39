"""Gradients or parameters travel in many small collectives.

## What it finds
Profiler traces in which most all_reduce, reduce_scatter and all_gather operations of a step are small, are many, and take a good part of
the time, waiting for late ranks left aside. An error where they take so much, and half of what runs alone, while nothing computes and
follow each other with little computed between, on GPUs of which several ranks left three steps and more; those are then also why
communication runs alone.

## Why it matters
A collective costs tens of microseconds before the first byte moves. Small ones never reach the bandwidth of the links, and each is a kernel
that takes the GPU from the computation.

## What would refute it
The small ones are hidden behind computation, or belong to tensor parallelism, where messages are small by nature.

## What to do next
Raise DDP's bucket_cap_mb or FSDP's wrapping size; join metrics and scalars into one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.traces import balance, usual

#: Such a share of all communication that nothing hides must be theirs, if they are its reason.
_HALF = 0.5
_BUCKETED = ("all_reduce", "reduce_scatter", "all_gather")


@rule(
    name="small-buckets", code="TP03", cause="small-buckets", severity="warning", at_most=1, explains=("communication-bound", "low-overlap")
)
def small_buckets(
    trace_bandwidth: pl.LazyFrame,
    trace_measures: pl.LazyFrame,
    *,
    small_bytes: Annotated[int, "size below which a collective is small"] = 1 << 20,
    per_step: Annotated[float, "small collectives in a step, of one rank"] = 20.0,
    small_share: Annotated[float, "share of the collectives that must be small"] = 0.6,
    time_share: Annotated[float, "share of the traced time that the small ones must take"] = 0.1,
) -> Iterator[Finding]:
    """At most one finding, over all groups."""
    ranks = balance(trace_measures, None)
    steps = float(str(ranks["steps"].median() or 0)) if ranks.height else 0.0
    span = float(str(ranks["span_ms"].median() or 0.0)) if ranks.height else 0.0
    if steps < 1 or span <= 0:
        return
    # What could not be matched over ranks is listed once for each of them.
    own = pl.when(pl.col("ranks_seen") > 1).then(pl.lit(1.0)).otherwise(pl.lit(1.0 / ranks.height))
    rows = (
        trace_bandwidth.filter(pl.col("collective").is_in(_BUCKETED))
        .with_columns(times=pl.col("count") * own)
        .with_columns(total_ms=pl.col("times") * pl.col("median_ms"), small=pl.col("bytes") < small_bytes)
        .sort("total_ms", "group_key", "collective", "bytes", descending=[True, False, False, False])
        .collect()
    )
    small = rows.filter("small")
    # What stands in a queue while nothing computes is lost; one after each layer may have to be as small as it is.
    queued = float((small["queued_ms"].fill_null(0.0) * small["times"] / small["count"]).sum())
    exposed = float(str(ranks["exposed_share"].median() or 0.0)) * span
    lost = queued >= max(time_share * span, _HALF * exposed) and ranks.height > 1 and usual(ranks, steps)
    count, every = float(small["times"].sum()), float(rows["times"].sum())
    took = float(small["total_ms"].sum())
    if not every or count / steps < per_step or count < small_share * every or took < time_share * span:
        return
    yield Finding(
        title=f"{count / steps:.0f} small collectives a step (below {small_bytes >> 10:,} KiB) take {took / span:.0%} of the traced time",
        summary=f"They are {count / every:.0%} of the all_reduce, reduce_scatter and all_gather operations of a rank; durations are the shortest "
        "among the traced ranks."
        + (f" For {queued / span:.0%} of the time they follow each other with little or nothing computed between." if lost else ""),
        severity="error" if lost else None,
        confidence="medium",
        subject=("traces",),
        evidence=cite(small, "the shortest collective of this size"),
        evidence_total=small.height,
        remedy="Raise DDP's bucket_cap_mb or FSDP's wrapping size; join metrics and scalars into one tensor.",
        prevention="Look at the histogram of message sizes of a profiled step in every release.",
        would_refute=("the small ones run while something computes", "they belong to tensor parallelism"),
        actions=(Action("change-setting", confidence="low"),),
        metrics={"per_step": round(count / steps, 1), "small_share": round(count / every, 4), "time_share": round(took / span, 4)},
    )
