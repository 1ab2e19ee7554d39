"""The same collective was called with another number of elements on some ranks.

## What it finds
At one position of a group all ranks call the same operation, but some with another number of elements.

## Why it matters
NCCL hangs or overwrites memory, gloo aborts a process that may be innocent (the one that received too much).

## What would refute it
The operation may rightly differ in size between ranks (all_to_all, gather, scatter, variants with sizes per rank).

## What to do next
Print the tensor's shape on the deviating rank at the quoted line: uneven batches, a last partial batch and padding are the usual reasons.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules_shared import argument_findings


@rule(
    name="shape-mismatch",
    code="CO03",
    cause="shape-mismatch",
    severity="critical",
    at_most=16,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed"),
)
def shape_mismatch(divergences: pl.LazyFrame) -> Iterator[Finding]:
    """Findings of this argument, one per group."""
    yield from argument_findings(
        divergences,
        "shape",
        "Assert equal shapes (all_gather the numel) before the collective, or run once with TORCH_DISTRIBUTED_DEBUG=DETAIL.",
    )
