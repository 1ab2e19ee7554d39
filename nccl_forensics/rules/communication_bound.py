"""Too much of the step is communication that nothing hides.

## What it finds
Profiler traces in which communication kernels run alone for a large share of the time, and not because they wait for a late rank: what each
rank waits for others is taken off (known where several ranks were traced; a collective ends on all of them together, and a receive that waits takes longer
than the shortest of its size). The bubbles of a pipeline are waiting, not transfer.

## Why it matters
While only communication runs, the arithmetic units of every GPU stand still. Faster GPUs would not make this job faster.

## What would refute it
One rank's trace alone cannot tell transfer from waiting. Traced steps that are not typical: warm-up, a checkpoint, a first use of a group.

## What to do next
Compare the bus bandwidth of the collectives with the platform's; then overlap, larger batches per rank, gradient accumulation, sharding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.traces import balance, time_shares, usual


@rule(name="communication-bound", code="TP01", cause="communication-bound", severity="warning", at_most=1, explains=("low-overlap",))
def communication_bound(
    trace_measures: pl.LazyFrame,
    trace_lag: pl.LazyFrame | None,
    trace_pair_waits: pl.LazyFrame | None = None,
    trace_ranks: pl.LazyFrame | None = None,
    *,
    exposed_share: Annotated[float, "share of the time in which communication runs alone"] = 0.3,
    transfer_share: Annotated[float, "share of the time that it does so without waiting for a late rank"] = 0.2,
    severe_share: Annotated[float, "such share from which it is an error, of GPU traces of several ranks and steps"] = 0.4,
    whole_share: Annotated[float, "such share where every rank of the job left a trace"] = 1 / 3,
    at_least_ms: Annotated[float, "milliseconds that must have been traced"] = 5.0,
) -> Iterator[Finding]:
    """At most one finding: the median rank speaks for the job."""
    ranks = balance(trace_measures, trace_lag, trace_pair_waits).filter(pl.col("span_ms") >= at_least_ms)
    if not ranks.height:
        return
    middle = ranks.select(pl.col("exposed_share", "transfer_share", "waited_share", "compute_share").median()).row(0, named=True)
    several = ranks["waited_share"].null_count() == 0
    transfer = middle["transfer_share"] if several else middle["exposed_share"]
    if middle["exposed_share"] is None or middle["exposed_share"] < exposed_share or transfer < transfer_share:
        return
    # All of a few ranks may wait for one that left no trace.
    least = whole_share if trace_ranks is not None and _all_traced(trace_ranks) else severe_share
    severe = several and transfer >= least and usual(ranks, ranks["steps"].min())
    waiting = (
        f", and {middle['waited_share']:.0%} of it is waiting for the last rank of a collective or for a partner."
        if several
        else ". Only one rank was traced, so transfer cannot be told from waiting for others."
    )
    yield Finding(
        title=f"communication runs alone in {middle['exposed_share']:.0%} of the traced time (median of {ranks.height} ranks)",
        summary=f"Something computes in {middle['compute_share']:.0%} of the traced time{waiting}",
        severity="error" if severe else "warning",
        confidence="medium" if several else "low",
        subject=("traces",),
        evidence=cite(ranks.sort("exposed_share", descending=True).with_columns(time_shares()), "its windows, by unions of kernel times"),
        evidence_total=ranks.height,
        remedy="Let communication run while the backward pass computes, send fewer or smaller messages (gradient accumulation, sharding within "
        "the host, lower precision), or give each rank more work per step.",
        prevention="Watch the share of exposed communication of a few profiled steps in every release.",
        would_refute=("the traced steps are not typical ones", "another rank's trace shows the same time as waiting"),
        actions=(Action("change-setting", confidence="low"),),
        metrics={
            "exposed_share": round(middle["exposed_share"], 4),
            "transfer_share": round(transfer, 4) if several else None,
            "ranks": ranks.height,
        },
    )


def _all_traced(trace_ranks: pl.LazyFrame) -> bool:
    """Whether there is a trace of each rank of the job."""
    size, traced = trace_ranks.select(pl.col("world_size").max(), pl.col("rank").n_unique().alias("traced")).collect().row(0)
    return size is not None and int(size) == int(traced)
