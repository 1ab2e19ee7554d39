"""A rank does something else on its host while all others wait for it.

## What it finds
A rank that its peers wait for, that has nothing enqueued, and whose stack (where there is one) is outside any collective: a lock, the GIL, a checkpoint, garbage collection, a file system, plain code. Of a job that only runs slowly: a rank that profiler
traces show last to its collectives while its device had nothing to run.

## Why it matters
The GPUs of all other ranks spin in a collective until a timeout ends the job.

## What would refute it
The rank's own dump or log shows that it entered the collective, or it moves between two samples of its stack.

## What to do next
Take its stack twice (py-spy dump) and read the line of user code; look at its host's file systems and memory.
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
    name="host-stall",
    code="ST03",
    cause="host-stall",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "group-deadlock", "host-stall"),
)
def host_stall(
    stalls: pl.LazyFrame | None,
    late_ranks: pl.LazyFrame | None = None,
    *,
    lost_share: Annotated[float, "share of all time lost to waiting that must be this rank's, by traces"] = 0.6,
    window_share: Annotated[float, "share of the traced time that the others must lose to it"] = 0.05,
    p_value: Annotated[float, "chance of so many last places among alike ranks"] = 0.001,
    reason_share: Annotated[float, "share of that loss that this reason must account for"] = 0.6,
    at_least: Annotated[int, "traced collectives of the group that must be comparable"] = 8,
) -> Iterator[Finding]:
    """One finding for all ranks that stall alike; of a job that only runs slowly, one for each rank that traces show so.

    A gap in a trace without a GPU is no such sign: there the program itself is what the trace does not show, and that it keeps arriving late
    is all that is known.
    """
    untold = (pl.col("reason") == "host") & ~pl.col("on_gpu")
    yield from stalled_or_late(
        _stalled(stalls) if stalls is not None else (),
        late_ranks.filter(~untold.fill_null(value=False)) if late_ranks is not None else None,
        ("gc", "host"),
        "its device has nothing to run",
        reason_share=reason_share,
        lost_share=lost_share,
        window_share=window_share,
        p_value=p_value,
        at_least=at_least,
        remedy="Find out what this rank does on its host between collectives that the others do not: garbage collection, logging, checks, a busy CPU.",
        prevention="Collect garbage at the same step on all ranks; keep rank-dependent host work out of the step.",
    )


def _stalled(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Of a job that stands still."""
    yield from stall_findings(
        stalls,
        "host-stall",
        ("never came: it is busy or blocked on its host", "never came: they are busy or blocked on their hosts"),
        remedy="Find out what this rank did at the quoted line that the others did not.",
        prevention="Take stacks of all ranks automatically when a timeout nears; keep rank-dependent work short or behind a barrier with a timeout of its own.",
        action="fix-code",
    )
