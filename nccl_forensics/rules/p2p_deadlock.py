"""Sends and receives wait for each other.

## What it finds
Ranks whose stacks or records stand in send or receive, with no partner on the other side that would match. Of gloo, whose recorder holds
no sends and receives, the numbers of the collectives tell who went on without making as many as in each step before.

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

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.model import Action, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.stalls import stall_findings
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.words import group_words, operation_words, ranks_words, verb

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
def p2p_deadlock(stalls: pl.LazyFrame, left_unheld: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """One finding for all ranks that wait for each other, and one for those of whose partners nothing is known; of those that are known to
    have left sends or receives out, one alone."""
    if left_unheld is not None and (gone := _gone_on(stalls, left_unheld)) is not None:
        yield gone
        return
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


def _gone_on(stalls: pl.LazyFrame, left_unheld: pl.LazyFrame) -> Finding | None:
    """Who came to a collective with fewer sends and receives behind it than in all steps before, while others stand in one, or where a wait
    for a request leaves no frame."""
    untold = (pl.col("cause") == "host-stall") & (pl.col("place") == "user-code")
    waiting = stalls.filter((pl.col("cause") == "p2p-deadlock") | untold).sort("rank").collect()
    left = left_unheld.collect()
    rest = [rank for rank in waiting["rank"].to_list() if rank not in left["rank"].to_list()]
    if not rest or left.is_empty():
        return None
    first, ranks = left.row(0, named=True), tuple(sorted(set(left["rank"].to_list())))
    met = operation_words(first["op"], first["seq"])
    return Finding(
        title=f"{ranks_words(ranks)} went on to {met} with {first['made']} sends and receives behind {verb(ranks, 'it', 'them')} and not {first['usual']} as in each step before; {ranks_words(rest)} {verb(rest, 'waits', 'wait')} in one",
        summary="Gloo numbers sends and receives and records none of them: between two collectives their number shows. The others stand "
        f"{'at ' + str(waiting['user_frame'].drop_nulls()[0]) if waiting['user_frame'].drop_nulls().len() else 'in theirs'}.",
        confidence="medium",
        ranks=ranks,
        subject=(str(first["group_desc"] or first["group_name"] or "group"), str(first["call_site"] or "")),
        divergence=Divergence(first["group_name"], first["comm_id"], first["seq"], first["op"]),
        evidence=cite(left, "the call to which it went on, and its number among all calls of the group"),
        remedy=f"Find the branch by which {ranks_words(ranks)} {verb(ranks, 'leaves', 'leave')} a send or receive out before {first['call_site'] or met}.",
        prevention=_PREVENTION,
        would_refute=("the number of its sends and receives rightly differs between steps",),
        actions=(Action("fix-code", ranks=ranks, confidence="medium", where=first["call_site"]),),
    )


@rule(
    name="p2p-deadlock-by-watchdogs",
    code="DE11",
    cause="p2p-deadlock",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "group-deadlock", "host-stall"),
)
def p2p_deadlock_by_watchdogs(watchdog_calls: pl.LazyFrame, groups: pl.LazyFrame, stalls: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """Both ranks of a group of two whose watchdogs timed out in the same half at the same number: neither comes to the other half."""
    halves = watchdog_calls.filter(pl.col("op").is_in(["SEND", "RECV"]))
    pairs = halves.group_by("group_key", "seq", "op").agg(
        pl.col("rank").sort(), pl.col("group_desc").first(), pl.col("source_id", "line_no")
    )
    two = groups.filter((pl.col("domain") == "fr") & (pl.col("size") == 2)).select("group_key", "group_name", rank="members")
    told = stalls.filter(pl.col("cause") == "p2p-deadlock").select("rank").collect()["rank"].to_list() if stalls is not None else []
    for row in pairs.join(two, on=["group_key", "rank"]).sort("group_key", "seq").collect().iter_rows(named=True):
        ranks, word = tuple(row["rank"]), str(row["op"]).lower()
        if not set(ranks).isdisjoint(told):
            continue  # recorders or stacks say it
        group = group_words(row)
        yield Finding(
            title=f"{ranks_words(ranks)} both timed out in {word} #{row['seq']} of {group}, which has no other member",
            summary=f"Each waits for the other to {'receive' if word == 'send' else 'send'}. Whoever waits for these two in other groups waits for ever.",
            confidence="medium",
            ranks=ranks,
            subject=(str(row["group_desc"] or row["group_name"] or "group"), word),
            evidence=cite(
                [{"source_id": s, "line_no": n} for s, n in zip(row["source_id"], row["line_no"], strict=True)],
                f"the watchdog of a rank that stands in {word}",
            ),
            remedy=_REMEDY,
            prevention=_PREVENTION,
            would_refute=("a link between the two that failed: then both halves may have been on their way",),
            actions=(Action("fix-code", ranks=ranks, confidence="medium"),),
        )


@rule(
    name="p2p-half-left-out",
    code="DE09",
    cause="p2p-deadlock",
    severity="critical",
    at_most=8,
    explains=(
        "timeout",
        "closed",
        "collective-stuck",
        "rank-died",
        "connection-failed",
        "straggler",
        "group-deadlock",
        "host-stall",
        "p2p-deadlock",
    ),
)
def p2p_half_left_out(unmet: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for each rank that went on without its half, by the counts of recorders."""
    for row in unmet.collect().unique("rank", keep="first", maintain_order=True).iter_rows(named=True):
        rank, waiter = (row["rank"],), (row["waiter"],)
        group = group_words(row)
        beyond = group_words({"group_name": row["beyond_name"], "group_desc": row["beyond_desc"]})
        ways = {"send": "to", "recv": "from"}
        place = f" at {row['call_site']}" if row["call_site"] else ""
        beside = as_ranks(row["siblings"])
        yield Finding(
            title=f"{ranks_words(rank)} never called its {row['op']} {ways[row['op']]} {ranks_words(waiter)} and went on; {ranks_words(waiter)} waits in that "
            f"{row['waits_in']} of {group}",
            summary=f"{ranks_words(beside).capitalize()}, at the same place of other pipelines, all posted it as #{row['number']}, and {ranks_words(rank)} did as they did "
            f"before and after it. {ranks_words(waiter).capitalize()} waits{place}."
            if beside
            else f"The {row['waits_in']} number {row['number']} of {ranks_words(waiter)} {ways[row['waits_in']]} {ranks_words(rank)}, of those that are kept, has no other half under the "
            f"number of its batch, where all before and after it have: the next one of {ranks_words(rank)} is in #{row['beyond_seq']}."
            if row["followed"] is None
            else f"{ranks_words(waiter)} waits in its {row['waits_in']} number {row['number']} {ways[row['waits_in']]} {ranks_words(rank)}{place}, which has called "
            f"fewer, and has enqueued #{row['beyond_seq']} of {beyond} that {ranks_words(waiter)} "
            + ("enqueued after it." if row["followed"] else "has not come to, with fewer before it than in the step before."),
            confidence="medium",
            ranks=rank,
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["op"]), str(row["call_site"] or "")),
            # Counts of a pair are no numbers of its group.
            divergence=Divergence(row["group_name"], None, row["number"] if beside else None, row["op"]),
            evidence=(
                *cite([whereabouts(row)], f"{ranks_words(waiter)} waits in this"),
                *cite([whereabouts(row, "own_")], f"{ranks_words(rank)} is beyond it here"),
            ),
            remedy=f"Make {ranks_words(rank)} call this {row['op']}, or {ranks_words(waiter)} not wait for it{place}: look for a branch, or an exception that is caught.",
            prevention=_PREVENTION,
            would_refute=(f"an entry of {ranks_words(rank)} for this {row['op']} in another dump",),
            actions=(Action("fix-code", ranks=(*rank, *waiter), confidence="medium", where=row["call_site"]),),
            alternatives=(("p2p-deadlock", waiter, f"it may have called one {row['waits_in']} too many"),),
        )
