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
from typing import Any

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.stalls import stall_findings
from nccl_forensics.words import group_words, operation_words, ranks_words


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


@rule(
    name="group-deadlock-by-order",
    code="DE05",
    cause="group-deadlock",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "host-stall"),
)
def group_deadlock_by_order(inversions: pl.LazyFrame, failures: pl.LazyFrame | None) -> Iterator[Finding]:
    """Everyone enqueued everything, and two operations of two groups stand in opposite orders on ranks that share both groups. Lines of
    NCCL's logs do not tell that an operation did not end: that the logs do is all there is."""
    failed = has_rows(failures)
    for row, pairs in _alike(inversions.sort("group_key", "other_key").collect().to_dicts()):
        ranks = tuple(row["ranks"]) if row["majority"] else ()
        # Groups of one description are as many copies of one line of the program.
        each = f", in each of {pairs} pairs of groups alike" if pairs > 1 else ""
        one, two = operation_words(row["op"], row["seq"]), operation_words(row["other_op"], row["other_seq"])
        first = group_words({k: row[k] for k in ("group_name", "group_desc")} | {"comm_id": row["group_key"]})
        second = group_words({"group_name": row["other_name"], "group_desc": row["other_desc"], "comm_id": row["other_key"]})
        logged = row["line_no"] is not None
        # Those who stand in one of the two may have left the other out as well, if they are more than the others.
        confidence: Confidence = "high" if failed and row["majority"] and row["entered"] else "medium"
        sites = [s for s in (row["call_site"], row["peer_call_site"]) if s]
        yield Finding(
            title=f"{ranks_words(row['ranks'])} called {one} of {first} before {two} of {second}, {ranks_words(row['others'])} the other way "
            f"round{each}; {'the logs end in this step' if logged else 'neither ends'}",
            summary=(
                "Every member of both groups has enqueued both operations, and their GPUs wait for each other."
                if row["entered"]
                else f"{ranks_words(row['others'])} stand in the one and have not come to the other, behind which it is enqueued elsewhere."
            )
            + (f" Called at {' and '.join(sites)}." if sites else ""),
            confidence=confidence,
            ranks=ranks,
            subject=(str(row["group_desc"] or row["group_name"]), str(row["other_desc"] or row["other_name"]), *sites[:1]),
            divergence=Divergence(row["group_name"], None, row["seq"], row["op"]),
            evidence=(
                *cite([whereabouts(row)], f"{ranks_words(row['ranks'][:1])} enqueued this first"),
                *cite([whereabouts(row, "peer_")], f"{ranks_words(row['others'][:1])} enqueued this first"),
            ),
            remedy="Call the collectives of these groups in the same order on all ranks.",
            prevention="Keep one order of groups in code; avoid collectives under conditions that differ between ranks.",
            would_refute=("one of the two operations ends later: then the order did no harm",),
            actions=(Action("fix-code", ranks=ranks, confidence=confidence),),
        )


def _alike(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """The rows, those of groups of the same descriptions at the same positions as one, and of how many pairs of groups."""
    parts: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        described = row["majority"] and all(row[n] and row[n] != "undefined" for n in ("group_desc", "other_desc"))
        names = ("group_desc", "other_desc") if described else ("group_key", "other_key")
        parts.setdefault(tuple(row[n] for n in (*names, "seq", "op", "other_seq", "other_op", "majority")), []).append(row)
    for part in parts.values():
        ranks = sorted({r for row in part for r in row["ranks"]})
        others = sorted({r for row in part for r in row["others"]} - set(ranks))
        yield part[0] | {"ranks": ranks, "others": others}, len(part)
