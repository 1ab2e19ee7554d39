"""Some ranks left out a collective that the others of the group wait in.

## What it finds
Ranks whose operations from one position on are those that their peers do later: they skipped one or more collectives and went on.
The operations of all ranks of a group are aligned with each other and with what the steps before foretell, so that a skip is told
from another call in its place, also where later operations happen to pair up one step apart.

## Why it matters
The peers wait in the skipped collective for ever, and the rank waits in a later one: a hang until a timeout ends the job.

## What would refute it
The rank's own log or dump shows the collective at that position, or the recorder's window of that rank starts after it.

## What to do next
Look at the line of user code where the peers wait and find the condition that kept this rank from it: a branch on rank, on data,
on a loss value or on an exception that was swallowed.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import AGREE_ON_STEPS, COMPARE_CALLS
from nccl_forensics.rules.common.arguments import certain, doubt_words
from nccl_forensics.rules.common.stalls import stall_findings
from nccl_forensics.words import group_words, operation_words, ranks_words, verb

#: Ranks whose own operation is cited.
_CITED = 8


@rule(
    name="collective-skipped",
    code="CO01",
    cause="collective-skipped",
    severity="critical",
    at_most=16,
    explains=(
        "timeout",
        "closed",
        "collective-mismatch",
        "host-stall",
        "collective-stuck",
        "rank-died",
        "connection-failed",
        "group-deadlock",
    ),
)
def collective_skipped(divergences: pl.LazyFrame) -> Iterator[Finding]:
    """Findings of skipped collectives, one per group."""
    for row in divergences.filter(pl.col("kind") == "skipped").sort("domain", "group_key").collect().iter_rows(named=True):
        ranks = tuple(row["ranks"])
        group = group_words(row)
        waited = operation_words(row["expected_op"], row["seq"])
        place = f" at {row['peer_call_site']}" if row["peer_call_site"] else ""
        own = f" at {row['call_site']}" if row["call_site"] else ""
        confidence: Confidence = "high" if certain(row) else "medium"
        yield Finding(
            title=f"{ranks_words(ranks)} skipped {waited} of {group}; {ranks_words(row['others'])} {verb(row['others'], 'waits', 'wait')} in it",
            summary=f"At position {row['seq']} of {group} {ranks_words(row['others'])} called {row['expected_op']}{place}, "
            f"while {ranks_words(ranks)} {verb(ranks, 'was', 'were')} already in {row['found_op']}{own}: {row['why']}.{doubt_words(row)}",
            confidence=confidence,
            ranks=ranks,
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["expected_op"]), str(row["peer_call_site"] or "")),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["expected_op"]),
            evidence=(
                *cite([whereabouts(row)], f"{ranks_words(ranks[:1])} calls {row['found_op']} here"),
                *cite([whereabouts(row, "peer_")], f"{ranks_words(row['others'][:1])} calls {row['expected_op']} at the same position"),
            ),
            remedy=f"Make every rank of {group} call {row['expected_op']}"
            + (f" at {row['peer_call_site']}" if row["peer_call_site"] else "")
            + ", or none: look for a branch around it that depends on the rank or on its data.",
            prevention=COMPARE_CALLS,
            would_refute=(f"an entry of {ranks_words(ranks)} for {waited} in another dump or log",),
            actions=(Action("fix-code", ranks=ranks, confidence=confidence, where=row["peer_call_site"]),),
            alternatives=(("collective-mismatch", ranks, "what it called next is what its peers call later, so it left one out"),),
            metrics={"skipped": row["skipped"], "position": row["seq"]},
        )


@rule(
    name="collective-skipped-by-step",
    code="CO06",
    cause="collective-skipped",
    severity="critical",
    at_most=8,
    # Whom the missing call holds in one group comes late to the calls of another, which looks as if it had left them out.
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "collective-skipped"),
)
def collective_skipped_by_step(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks whose log ends after whole steps with fewer collectives than their peers: skips that pair up one step apart show no other
    way."""
    yield from stall_findings(
        stalls,
        "collective-skipped",
        ("left out a collective that the peers entered",) * 2,
        remedy="Find the call or step that this rank left out: a branch, a shorter data set, an early break, a skipped batch, or groups in another order.",
        prevention=AGREE_ON_STEPS,
        action="fix-code",
        there="and went on to",
    )


@rule(
    name="collective-skipped-whole-step",
    code="CO24",
    cause="collective-skipped",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "shape-mismatch"),
)
def collective_skipped_whole_step(missed_steps: pl.LazyFrame, failures: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks of a job that failed whose loops went past a step that all others made: where steps are alike their calls pair up with those of
    the next one, until these ranks have come to the end and leave."""
    rows = missed_steps.collect()
    if not rows.height or not has_rows(failures):
        return
    row, ranks = rows.row(0, named=True), tuple(rows["rank"].to_list())
    who, others, steps = ranks_words(ranks), ranks_words(row["others"]), ", ".join(str(step) for step in row["missed"])
    yield Finding(
        title=f"{who} left out step {steps} of the training loop, which {others} made",
        summary=f"{who} {verb(ranks, 'tells', 'tell')} no step {steps} and {verb(ranks, 'has', 'have')} come to step {row['step']}, {others} to step "
        f"{row['others_step']}: as many steps, and those of the others wait for calls that {verb(ranks, 'this rank has', 'these ranks have')} behind "
        f"{verb(ranks, 'it', 'them')}.",
        confidence="medium",
        ranks=ranks,
        subject=("step",),
        evidence=(
            *cite(rows, "the step after the one that it does not tell"),
            *cite([whereabouts(row, "peer_")], f"{ranks_words(row['others'][:1])} made it"),
        ),
        remedy="Find what passes over a step on some ranks: a batch that is skipped, an exception that is caught, a shorter data set.",
        prevention=AGREE_ON_STEPS,
        would_refute=("the loop may tell a step under another number",),
        actions=(Action("fix-code", ranks=ranks, confidence="medium"),),
        alternatives=(("rank-died", ranks, "it ended in order, after the last of its steps"),),
    )


@rule(
    name="collective-skipped-ahead",
    code="CO15",
    cause="collective-skipped",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "group-deadlock", "host-stall"),
)
def collective_skipped_ahead(overtakers: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks that stand in a later call of what all others wait in, after work of which nobody else has enqueued any: one finding for all
    that left the same call out."""
    for rows in overtakers.collect().partition_by(["group_name", "group_desc", "comm_id", "seq"], maintain_order=True):
        row = rows.row(0, named=True)
        ranks, others = tuple(rows["rank"].to_list()), row["others"]
        group, waited = group_words(row), operation_words(row["op"], row["seq"])
        beyond = group_words(
            {name: row[f"ahead_{name.removeprefix('group_').removesuffix('_id')}"] for name in ("group_name", "group_desc", "comm_id")}
        )
        place = f" at {row['call_site']}" if row["call_site"] else ""
        later = f"#{row['ahead_seq']} of {beyond}" + ("" if len(ranks) == 1 else " or one like it")
        yield Finding(
            title=f"{ranks_words(ranks)} left out a call of {group} and went on; {ranks_words(others)} wait in {waited}",
            summary=f"{ranks_words(others)} stand in {waited}{place}. {ranks_words(ranks)} enqueued {verb(ranks, 'its', 'their')} own {waited} only after {later}, "
            "to which none of the others has come: that is the next call of this kind, and the one in which they wait was never made there.",
            confidence="medium",
            ranks=ranks,
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["op"]), str(row["call_site"] or "")),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["op"]),
            evidence=(
                *cite([whereabouts(row)], f"{ranks_words(others[:1])} waits in {waited}"),
                *(
                    e
                    for own in rows.head(_CITED).iter_rows(named=True)
                    for e in cite([whereabouts(own, "own_")], f"rank {own['rank']} is beyond it here")
                ),
            ),
            remedy=f"Make every rank of {group} make this call{place}, or none: look for an exception that is caught there, or a branch on the rank or its data.",
            prevention=COMPARE_CALLS,
            would_refute=(
                f"{ranks_words(ranks)} {verb(ranks, 'enqueues', 'enqueue')} these two groups from different threads, in no fixed order",
            ),
            actions=(Action("fix-code", ranks=ranks, confidence="medium", where=row["call_site"]),),
            alternatives=(("group-deadlock", ranks, "the two groups would have been taken in another order than by all the others"),),
        )


@rule(
    name="collective-skipped-by-line",
    code="CO17",
    cause="collective-skipped",
    severity="critical",
    at_most=8,
    explains=(
        "timeout",
        "closed",
        "collective-stuck",
        "rank-died",
        "connection-failed",
        "group-deadlock",
        "host-stall",
        "collective-mismatch",
    ),
)
def collective_skipped_by_line(passed_over: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks that stand with others in a later line and have no record of the call that those made before it, in which the rest waits."""
    for row in passed_over.collect().iter_rows(named=True):
        ranks, others, waiters = (row["rank"],), row["others"], row["waiters"]
        yield Finding(
            title=f"{ranks_words(ranks)} left out {row['op']} at {row['call_site']}; {ranks_words(waiters)} {verb(waiters, 'waits', 'wait')} in it",
            summary=f"{ranks_words((*ranks, *others))} stand in {row['stands_in']} at {row['stands_at']}. Since they were last there {ranks_words(others)} "
            f"have made the {row['op']} at {row['call_site']}, and {ranks_words(ranks)} has not.",
            confidence="medium",
            ranks=ranks,
            subject=("line", str(row["op"]), str(row["call_site"])),
            evidence=(
                *cite([whereabouts(row)], f"{ranks_words(waiters[:1])} waits in {row['op']}"),
                *cite([whereabouts(row, "own_")], f"{ranks_words(ranks)} is beyond it here"),
            ),
            remedy=f"Make every rank of that group call {row['op']} at {row['call_site']}, or none: look for a branch around it that depends on the rank "
            "or on its data.",
            prevention="Keep collectives of sub-groups out of branches that depend on data.",
            would_refute=(f"{ranks_words(ranks)} is no member of the group of {ranks_words(waiters)}",),
            actions=(Action("fix-code", ranks=ranks, confidence="medium", where=row["call_site"]),),
            alternatives=(("group-deadlock", ranks, "it would make this call after the one in which it stands"),),
        )
