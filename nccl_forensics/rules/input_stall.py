"""A rank sits in its data loading while all others wait for it.

## What it finds
A rank that its peers wait for, and whose own stack is in a data loader, a tokenizer or a function that reads samples. Of a job
that only runs slowly: a rank that profiler traces show last to its collectives, and meanwhile in its data loader or between the begin of a step
and the first operator, longer than its peers.

## Why it matters
One slow or stuck reader stops every GPU of the job.

## What would refute it
Several samples of its stack show it elsewhere, or all ranks load data alike.

## What to do next
Look at the storage and the worker processes of that rank's host; look for one corrupt or huge sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.late import stalled_or_late
from nccl_forensics.rules.common.stalls import stall_findings


@rule(
    name="input-stall",
    code="ST02",
    cause="input-stall",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "group-deadlock", "host-stall"),
)
def input_stall(
    stalls: pl.LazyFrame | None,
    late_ranks: pl.LazyFrame | None = None,
    *,
    lost_share: Annotated[float, "share of all time lost to waiting that must be this rank's, by traces"] = 0.6,
    window_share: Annotated[float, "share of the traced time that the others must lose to it"] = 0.05,
    p_value: Annotated[float, "chance of so many last places among alike ranks"] = 0.001,
    reason_share: Annotated[float, "share of that loss that this reason must account for"] = 0.6,
    at_least: Annotated[int, "traced collectives of the group that must be comparable"] = 8,
) -> Iterator[Finding]:
    """One finding for all ranks that stall alike; of a job that only runs slowly, one for each rank that traces show so."""
    yield from stalled_or_late(
        _stalled(stalls) if stalls is not None else (),
        late_ranks,
        ("loader", "lead"),
        "it takes its next batch",
        reason_share=reason_share,
        lost_share=lost_share,
        window_share=window_share,
        p_value=p_value,
        at_least=at_least,
        remedy="Look at this rank's storage, the worker processes of its loader and their number; compare with its neighbours.",
        prevention="Give the loader workers and prefetching enough to stay ahead of the step; log the time of each batch per rank.",
    )


def _stalled(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Of a job that stands still."""
    yield from stall_findings(
        stalls,
        "input-stall",
        ("sits in its data loading", "sit in their data loading"),
        remedy="Look at the storage, the worker processes and the sample that this rank reads.",
        prevention="Give the data loader a timeout (DataLoader(timeout=…)) and log the time of each batch per rank.",
        action="fix-code",
    )
