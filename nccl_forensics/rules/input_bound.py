"""Every GPU of the job runs dry in each step while its host waits for the next batch.

## What it finds
GPU traces in which nearly every step of every traced rank spends a good part of its time in the data loader with nothing running on the device
meanwhile. No rank is late: all wait for input alike.

## Why it matters
The GPUs stand still for so long, and nothing fails. Neither faster links nor faster GPUs would help.

## What would refute it
The traced steps are the first of an epoch, before the workers of the loader have read ahead.

## What to do next
Give the loader more workers and prefetching; look at the storage that all ranks read from, and at what is decoded or augmented on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.traces import STEPS


@rule(name="input-bound", code="ST26", cause="input-stall", severity="error", at_most=1, explains=("communication-bound", "low-overlap"))
def input_bound(
    trace_steps: pl.LazyFrame,
    *,
    dry_share: Annotated[float, "share of a step in which the loader is waited for and the device does nothing"] = 0.25,
    steps_share: Annotated[float, "share of a rank's steps that must be so"] = 0.75,
) -> Iterator[Finding]:
    """At most one finding, for all ranks."""
    dry = pl.min_horizontal("loader_ms", "idle_ms")
    ranks = (
        trace_steps.filter((pl.col("device") == "gpu") & (pl.col("span_ms") > 0))
        .with_columns(dry_ms=dry.fill_null(0.0))
        .with_columns(dry_share=pl.col("dry_ms") / pl.col("span_ms"))
        .group_by("rank")
        .agg(
            pl.len().alias("steps"),
            (pl.col("dry_share") >= dry_share).sum().alias("dry_steps"),
            pl.col("dry_share").median(),
            pl.col("source_id", "record").sort_by("dry_share", descending=True).first(),
        )
        .sort("rank")
        .collect()
    )
    often = (ranks["steps"] >= STEPS) & (ranks["dry_steps"] >= steps_share * ranks["steps"])
    if not ranks.height or not often.all():
        return
    least = float(str(ranks["dry_share"].min()))
    yield Finding(
        title=f"every traced GPU stands still for {least:.0%} or more of its steps while its host waits for the data loader",
        summary=f"In {int(str(ranks['dry_steps'].sum()))} of {int(str(ranks['steps'].sum()))} traced steps of {ranks.height} "
        f"{'rank' if ranks.height == 1 else 'ranks'}; all alike, so no rank keeps the others waiting.",
        confidence="medium",
        subject=("traces", "input"),
        evidence=cite(ranks, "its step that waits longest"),
        evidence_total=int(str(ranks["dry_steps"].sum())),
        remedy="More workers and prefetching for the data loader, faster storage, less to decode on the CPU.",
        prevention="Log the time of each batch beside that of each step.",
        would_refute=("the traced steps are the first of an epoch",),
        actions=(Action("change-setting", confidence="low"),),
        metrics={"dry_share": round(least, 4), "ranks": ranks.height},
    )
