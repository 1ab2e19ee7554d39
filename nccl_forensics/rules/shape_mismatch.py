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

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules_shared import argument_findings
from nccl_forensics.words import ranks_words


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


@rule(
    name="shape-mismatch-by-transport",
    code="CO08",
    cause="shape-mismatch",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed"),
)
def shape_mismatch_by_transport(endings: pl.LazyFrame, divergences: pl.LazyFrame | None) -> Iterator[Finding]:
    """A transport that received more bytes than it expected, where no recorder tells whose size was wrong."""
    if divergences is not None and divergences.collect().height:
        return
    rows = endings.filter(pl.col("signature") == "gloo-size-mismatch").sort("rank").collect()
    if not rows.height:
        return
    ranks = tuple(r for r in rows["rank"].to_list() if r is not None)
    lines = [
        {"source_id": r["exc_source_id"] or r["source_id"], "line_no": r["exc_line_no"] or r["line_no"]} for r in rows.iter_rows(named=True)
    ]
    yield Finding(
        title=f"sizes or types differ between ranks: {ranks_words(ranks) if ranks else 'a process'} received more bytes than expected and aborted",
        summary="The process that receives too much aborts; the one with the wrong tensor may be any other. The evidence does not tell which.",
        confidence="medium",
        subject=("gloo-size",),
        evidence=cite(lines, "received data size does not match"),
        remedy="Compare the tensor's shape and type on all ranks at the collective where the others wait.",
        prevention="Keep the Flight Recorder on and dump it on a timeout: it names the rank.",
        would_refute=("Flight Recorder dumps that show equal sizes",),
        actions=(Action("collect-more", command="TORCH_FR_BUFFER_SIZE=2000"),),
        alternatives=(("dtype-mismatch", (), "byte counts differ for types as well as for sizes"),),
    )
