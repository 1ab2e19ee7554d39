"""A rank's GPU stands still on work that its peers have long finished.

## What it finds
A rank whose enqueued operations are not completed although its peers completed the same ones and wait for its next.

## Why it matters
Everyone waits for that GPU; restarting without looking at it brings the hang back.

## What would refute it
The recorder's completion marks of that rank are merely late (its watchdog thread hangs): compare two dumps.

## What to do next
Read its kernel log for Xid and its nvidia-smi for ECC, throttling and a hung process; drain the node if the hardware is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.stalls import stall_findings


@rule(
    name="gpu-stall",
    code="GP02",
    cause="gpu-stall",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "group-deadlock", "host-stall"),
)
def gpu_stall(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for all ranks that stall alike."""
    yield from stall_findings(
        stalls,
        "gpu-stall",
        ("has a GPU that stopped making progress", "have GPUs that stopped making progress"),
        remedy="Look for Xid, ECC and fallen-off-the-bus messages of this GPU; run a diagnostic before it is used again.",
        prevention="Watch Xid and GPU progress per node; run a health check before each start.",
        action="collect-more",
    )
