"""Ranks entered collectives of several groups in different orders and wait for each other.

## What it finds
A circle in the wait-for graph across groups: each rank has entered an operation of one group that another rank of the circle has not, and so on round.

## Why it matters
Nobody can go on; a longer timeout only delays the end.

## What would refute it
One of the ranks is about to enter the other operation (it moves between samples).

## What to do next
Make all ranks call the collectives of different groups in one order, or put them on one stream in program order.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules_shared import stall_findings


@rule(
    name="group-deadlock",
    code="DE04",
    cause="group-deadlock",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler"),
)
def group_deadlock(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for all ranks that stall alike."""
    yield from stall_findings(
        stalls,
        "group-deadlock",
        ("waits across groups in a circle", "wait for each other across groups"),
        remedy="Call the collectives of these groups in the same order on all ranks.",
        prevention="Keep one order of groups in code; avoid collectives under conditions that differ between ranks.",
        action="fix-code",
    )
