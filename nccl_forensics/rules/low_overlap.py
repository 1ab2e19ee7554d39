"""Communication is not hidden behind computation, although there is computation to hide it behind.

## What it finds
Profiler traces in which little of the communication runs while something computes, and a good part of the step could be won: the smaller of
the communication that runs alone (without waiting for late ranks) and the computation that runs alone. An error where so much could be won
by what runs in one stretch of each step, on GPUs of which several ranks left three steps and more: collectives that follow each other with
no computation between could have begun while the one before them ran.

## Why it matters
Transfers and arithmetic use different parts of a GPU. Run one after the other, a step takes the sum of both instead of the larger.

## What would refute it
The computation depends on the result: tensor parallelism, an optimizer step that needs all gradients. Then the order cannot be changed.

## What to do next
Look at what starts the collectives: DDP without buckets, a synchronous all_reduce after backward, prefetching of FSDP switched off,
CUDA_DEVICE_MAX_CONNECTIONS, a single stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.traces import balance, time_shares, usual


@rule(name="low-overlap", code="TP02", cause="low-overlap", severity="warning", at_most=1)
def low_overlap(
    trace_measures: pl.LazyFrame,
    trace_lag: pl.LazyFrame | None,
    trace_pair_waits: pl.LazyFrame | None = None,
    *,
    overlap: Annotated[float, "share of communication that must run while something computes"] = 0.3,
    gain_share: Annotated[float, "share of the time that hiding it would win"] = 0.1,
    at_least_ms: Annotated[float, "milliseconds that must have been traced"] = 5.0,
) -> Iterator[Finding]:
    """At most one finding: the median rank speaks for the job."""
    ranks = balance(trace_measures, trace_lag, trace_pair_waits).filter(
        (pl.col("span_ms") >= at_least_ms) & pl.col("overlap_fraction").is_not_null()
    )
    if not ranks.height:
        return
    middle = ranks.select(pl.col("overlap_fraction", "gain_share", "stretch_share").median()).row(0, named=True)
    if middle["overlap_fraction"] >= overlap or middle["gain_share"] < gain_share:
        return
    several = ranks["waited_share"].null_count() == 0
    certain = (
        several and usual(ranks, ranks["steps"].min()) and middle["stretch_share"] is not None and middle["stretch_share"] >= gain_share
    )
    yield Finding(
        title=f"only {middle['overlap_fraction']:.0%} of the communication runs while something computes; hiding it would win up to "
        f"{middle['gain_share']:.0%} of the traced time",
        summary=f"Median of {ranks.height} ranks; the win is the smaller of communication alone and computation alone."
        + (
            f" In each step {middle['stretch_share']:.0%} of it are collectives one after the other, with nothing between."
            if certain
            else ""
        ),
        severity="error" if certain else None,
        confidence="medium" if several else "low",
        subject=("traces",),
        evidence=cite(ranks.sort("overlap_fraction").with_columns(time_shares()), "its windows, by unions of kernel times"),
        evidence_total=ranks.height,
        remedy="Start the collectives during backward (DDP buckets, FSDP prefetch, asynchronous operations on their own stream).",
        prevention="Watch the overlap of a few profiled steps in every release.",
        would_refute=("the computation needs the result of the communication",),
        actions=(Action("change-setting", confidence="low"),),
        metrics={"overlap_fraction": round(middle["overlap_fraction"], 4), "gain_share": round(middle["gain_share"], 4)},
    )
