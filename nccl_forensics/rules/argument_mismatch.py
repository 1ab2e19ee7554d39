"""The same collective was called with another reduce operation or root on some ranks.

## What it finds
At one position of a group all ranks call the same operation, but some with another reduce operation or root.

## Why it matters
The ranks compute different things or wait for different roots: wrong results or a hang.

## What would refute it
The argument is not used by this operation.

## What to do next
Compare the call's arguments on the deviating rank with those of its peers.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.arguments import argument_findings


@rule(
    name="argument-mismatch",
    code="CO05",
    cause="argument-mismatch",
    severity="critical",
    at_most=16,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed"),
)
def argument_mismatch(divergences: pl.LazyFrame) -> Iterator[Finding]:
    """Findings of this argument, one per group."""
    yield from argument_findings(divergences, "argument", "Keep reduce operation and root constant in code, never derived from local data.")
