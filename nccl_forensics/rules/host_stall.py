"""A rank does something else on its host while all others wait for it.

## What it finds
A rank that its peers wait for, that has nothing enqueued, and whose stack (where there is one) is outside any collective: a lock, the GIL, a checkpoint, garbage collection, a file system, plain code.

## Why it matters
The GPUs of all other ranks spin in a collective until a timeout ends the job.

## What would refute it
The rank's own dump or log shows that it entered the collective, or it moves between two samples of its stack.

## What to do next
Take its stack twice (py-spy dump) and read the line of user code; look at its host's file systems and memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules_shared import stall_findings


@rule(
    name="host-stall",
    code="ST03",
    cause="host-stall",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "group-deadlock", "host-stall"),
)
def host_stall(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for all ranks that stall alike."""
    yield from stall_findings(
        stalls,
        "host-stall",
        ("never came: it is busy or blocked on its host", "never came: they are busy or blocked on their hosts"),
        remedy="Find out what this rank did at the quoted line that the others did not.",
        prevention="Take stacks of all ranks automatically when a timeout nears; keep rank-dependent work short or behind a barrier with a timeout of its own.",
        action="fix-code",
    )
