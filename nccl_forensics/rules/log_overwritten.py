"""Processes of one host wrote their NCCL logs into one file, over each other.

## What it finds
Files with NCCL lines of several processes in which the lines are lost by which most of them made their communicators, though they made them.

## Why it matters
NCCL opens NCCL_DEBUG_FILE to write from its beginning. With one name for all processes of a host each writes over what the others wrote, and the file
keeps what came last at each place: which calls a rank made, and where it stopped, cannot be told from it. Its operations are left out.

## What would refute it
The file was put together from the ends of several logs.

## What to do next
Give each process a file of its own: NCCL_DEBUG_FILE=nccl.%h.%p.log.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule


@rule(name="log-overwritten", code="LO01", cause="bad-setting", severity="info", at_most=16)
def log_overwritten(overwritten: pl.LazyFrame) -> Iterator[Finding]:
    """One finding per file. It explains nothing: ``info`` says that it is context."""
    for row in overwritten.sort("source_id").head(16).collect().iter_rows(named=True):
        yield Finding(
            title="processes wrote their NCCL logs into one file, over each other: of most of them lines are lost",
            summary="Which calls these ranks made cannot be told from it; its operations were left out.",
            severity="info",
            confidence="high",
            culprits=(),
            subject=("log-overwritten",),
            evidence=cite([row], "a process in this file without the lines by which it made its communicator"),
            remedy="Set NCCL_DEBUG_FILE=nccl.%h.%p.log, so that each process has a file of its own.",
            prevention="Put %p into NCCL_DEBUG_FILE.",
            would_refute=("the file was put together from the ends of several logs",),
            actions=(Action("collect-more", command="NCCL_DEBUG_FILE=nccl.%h.%p.log"),),
            metrics={"processes": len(row["processes"]), "holed": len(row["holed"])},
        )
