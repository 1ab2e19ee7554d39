"""The same collective was called with another data type on some ranks.

## What it finds
At one position of a group all ranks call the same operation, but some with another data type.

## Why it matters
Nothing reports it where byte counts agree: the result is silently wrong on every rank.

## What would refute it
The rank has no tensor of its own in this operation (receiver of a scatter, for example).

## What to do next
Look for a cast (autocast, .half(), an integer tensor) that only this rank executes before the quoted line.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import COMPARE_CALLS
from nccl_forensics.rules.common.arguments import argument_findings


@rule(
    name="dtype-mismatch",
    code="CO04",
    cause="dtype-mismatch",
    severity="critical",
    at_most=16,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed"),
)
def dtype_mismatch(divergences: pl.LazyFrame, last_calls: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """Findings of this argument, one per group."""
    yield from argument_findings(divergences, "dtype", COMPARE_CALLS, last_calls)
