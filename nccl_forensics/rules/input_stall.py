"""A rank sits in its data loading while all others wait for it.

## What it finds
A rank that its peers wait for, and whose own stack is in a data loader, a tokenizer or a function that reads samples.

## Why it matters
One slow or stuck reader stops every GPU of the job.

## What would refute it
Several samples of its stack show it elsewhere, or all ranks load data alike.

## What to do next
Look at the storage and the worker processes of that rank's host; look for one corrupt or huge sample.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules_shared import stall_findings


@rule(
    name="input-stall",
    code="ST02",
    cause="input-stall",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "group-deadlock", "host-stall"),
)
def input_stall(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for all ranks that stall alike."""
    yield from stall_findings(
        stalls,
        "input-stall",
        ("sits in its data loading", "sit in their data loading"),
        remedy="Look at the storage, the worker processes and the sample that this rank reads.",
        prevention="Give the data loader a timeout (DataLoader(timeout=…)) and log the time of each batch per rank.",
        action="fix-code",
    )
