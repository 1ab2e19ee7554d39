"""Sends and receives wait for each other.

## What it finds
Ranks whose stacks or records stand in send or receive, with no partner on the other side that would match.

## Why it matters
Both sides wait for ever, and everyone behind them in other groups as well.

## What would refute it
A later sample shows one of them gone on.

## What to do next
Order the calls (even ranks send first), or use batch_isend_irecv so that both directions are posted together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules_shared import stall_findings

_REMEDY = "Reverse the order on one side, or post both directions together with batch_isend_irecv."
_PREVENTION = "Test each pipeline schedule with blocking semantics in a two-rank run."


@rule(
    name="p2p-deadlock",
    code="DE03",
    cause="p2p-deadlock",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "group-deadlock", "host-stall"),
)
def p2p_deadlock(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for all ranks that wait for each other, and one for those of whose partners nothing is known."""
    lone = (pl.col("partners").list.len() == 0).fill_null(value=False)
    yield from stall_findings(
        stalls.filter(~lone),
        "p2p-deadlock",
        ("waits in a send or receive that does not pair up", "wait for each other in send or receive"),
        remedy=_REMEDY,
        prevention=_PREVENTION,
        action="fix-code",
    )
    for finding in stall_findings(
        stalls.filter(lone),
        "p2p-deadlock",
        ("waits in a send or receive that does not pair up", "wait in sends or receives that do not pair up"),
        remedy=_REMEDY,
        prevention=_PREVENTION,
        action="fix-code",
    ):
        # It does what it should: at fault is whoever has gone on without the other half, and no record tells who that is.
        yield replace(
            finding,
            culprits=(),
            summary=f"{finding.summary} No rank is seen to answer: one has left out the other half, and the evidence does not tell which.",
            actions=(
                Action("fix-code", ranks=finding.ranks, confidence=finding.confidence),
                Action("collect-more", ranks=finding.ranks, command="py-spy dump --locals --pid <pid>"),
            ),
        )
