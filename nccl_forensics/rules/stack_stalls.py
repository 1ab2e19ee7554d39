"""Stacks alone show who stands apart: most processes wait in one place and few do something else.

## What it finds
Processes whose main thread stands elsewhere than that of the others: in a data loader, a lock, a checkpoint or other work of the host,
in point-to-point calls among themselves, or in another collective. It speaks only where no dump, log or launcher line names a rank. Of a job that goes on, the one rank
that is at work in each of three looks and more while all others wait (`straggler-by-stacks`): a guess, as looks are few.

## Why it matters
The odd one out is what the others wait for, and the frame at which its stack parts from theirs is the line to look at.

## What would refute it
A second sample of its stack that differs: then it moves. Processes of other process groups, which need not be in the same call.

## What to do next
Take the stacks of all ranks twice, a minute apart, and turn on the Flight Recorder, which says who enqueued what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from nccl_forensics.evidence import AT_MOST, at_frame, cite, whereabouts
from nccl_forensics.model import Action, Confidence, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import AGREE_ON_STEPS, COMPARE_CALLS, LOG_LAG, RECORD_STACKS, WHY_IT_LEFT
from nccl_forensics.stacks.tree import CHAINED, MAKING, PASSED, UNANSWERED
from nccl_forensics.words import ranks_words

_EXPLAINS = ("timeout", "closed", "collective-stuck", "connection-failed", "straggler")
_ORDER: tuple[Confidence, ...] = ("high", "medium", "low")


@rule(name="input-stall-by-stacks", code="ST11", cause="input-stall", severity="critical", at_most=8, explains=_EXPLAINS)
def input_stall_by_stacks(stack_stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Processes in their data loading while the others wait."""
    yield from _findings(
        stack_stalls,
        "input-stall",
        "in data loading",
        remedy="Look at the storage, the worker processes and the sample that this process reads.",
        prevention="Give the data loader a timeout (DataLoader(timeout=…)) and log the time of each batch per rank.",
    )


@rule(name="host-stall-by-stacks", code="ST12", cause="host-stall", severity="critical", at_most=8, explains=_EXPLAINS)
def host_stall_by_stacks(stack_stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Processes busy or blocked on their host while the others wait."""
    yield from _findings(
        stack_stalls,
        "host-stall",
        "busy or blocked on the host",
        remedy="Find out what this process did at the quoted line that the others did not.",
        prevention="Take stacks of all ranks automatically when a timeout nears.",
    )


@rule(name="rank-ended-by-stacks", code="ST22", cause="rank-died", severity="critical", at_most=8, explains=_EXPLAINS)
def rank_ended_by_stacks(stack_stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Processes whose program is over while the others wait."""
    yield from _findings(stack_stalls, "rank-died", "at the end of their programs", remedy=WHY_IT_LEFT, prevention=AGREE_ON_STEPS)


@rule(name="p2p-deadlock-by-stacks", code="ST13", cause="p2p-deadlock", severity="critical", at_most=8, explains=_EXPLAINS)
def p2p_deadlock_by_stacks(stack_stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Processes in point-to-point calls among themselves that the others have left behind."""
    yield from _findings(
        stack_stalls,
        "p2p-deadlock",
        "in point-to-point calls",
        remedy="Order the sends and receives of each pair (the lower rank sends first), or use batch_isend_irecv.",
        prevention="Exchange through batch_isend_irecv: it cannot deadlock on the order of calls.",
    )


@rule(name="collective-skipped-by-stacks", code="ST14", cause="collective-skipped", severity="critical", at_most=8, explains=_EXPLAINS)
def collective_skipped_by_stacks(stack_stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Processes that wait in another collective than most, or in one that most are not in."""
    yield from _findings(
        stack_stalls,
        "collective-skipped",
        "in another collective than the others",
        remedy="Find the branch that brings some ranks into a collective that others leave out.",
        prevention=COMPARE_CALLS,
    )


@rule(name="collective-mismatch-by-stacks", code="ST15", cause="collective-mismatch", severity="critical", at_most=8, explains=_EXPLAINS)
def collective_mismatch_by_stacks(stack_stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Processes in another collective call than most."""
    yield from _findings(
        stack_stalls,
        "collective-mismatch",
        "in another collective call than most",
        remedy="Find the branch that makes ranks call different collectives at the same point.",
        prevention=COMPARE_CALLS,
    )


@rule(name="straggler-by-stacks", code="ST20", cause="straggler", severity="error", at_most=1)
def straggler_by_stacks(stack_work: pl.LazyFrame) -> Iterator[Finding]:
    """The one rank that is at work whenever somebody looks."""
    for row in stack_work.collect().iter_rows(named=True):
        where = f" at {row['user_frame']}" if row["user_frame"] else ""
        rank, others = row["rank"], ranks_words(row["others"])
        yield Finding(
            title=f"rank {rank} is at work in each of {row['samples']} looks at its stack{where}, while {others} wait in all of theirs",
            summary=f"It moves between the looks, so that the job goes on, and none of them finds it waiting. Of the others none is found at work: they are done "
            f"sooner in each step, or rank {rank} has more to do.",
            confidence="low",
            ranks=(rank,),
            culprits=(Culprit(rank=rank, host=row["host"], pid=row["pid"]),),
            subject=("stacks", str(row["user_frame"] or row["place"])),
            evidence=(
                *at_frame(cite([row], f"stack of rank {rank}: {row['place']}"), row["user_frame"]),
                *cite([whereabouts(row, "peer_")], "stack of one of the others, which wait"),
            ),
            remedy="Look at what this rank does at the quoted line that takes the others less time: its data, its clocks, a noisy neighbour.",
            prevention=LOG_LAG,
            would_refute=("more looks that find it waiting, and others at work", "the program gives this rank more to do than the others"),
            alternatives=(("host-stall", (rank,), "its stack differs between the looks, so that it does not stand"),),
            actions=(Action("collect-more", ranks=(rank,), command=RECORD_STACKS),),
        )


def _findings(stack_stalls: pl.LazyFrame, cause: str, words: str, *, remedy: str, prevention: str) -> Iterator[Finding]:
    """One finding for all processes that stand apart for this cause, the surest first."""
    rows = stack_stalls.filter(pl.col("cause") == cause).sort("rank", "host", "pid", "line_no", nulls_last=True).collect()
    for confidence in _ORDER:
        part = rows.filter(pl.col("confidence") == confidence)
        if not part.height:
            continue
        first = part.row(0, named=True)
        # Where few wait in a collective that most have passed, for a group, in a send or in a receive, or for those that wait in a circle,
        # nothing says which of all is wrong.
        blamed = part.filter(~pl.col("reason").is_in([CHAINED, MAKING, PASSED, UNANSWERED]))
        ranks = tuple(r for r in blamed["rank"].to_list() if r is not None)
        who = _who(part.to_dicts())
        where = f" at {first['user_frame']}" if first["user_frame"] else ""
        others = first["others_op"] or first["others_at"] or "one place"
        title = f"{who} {'stands' if part.height == 1 else 'stand'} apart, {words}{where}; {first['others_count']} others stand in {others}"
        if first["reason"] == UNANSWERED:
            title = f"{who} {'waits' if part.height == 1 else 'wait'} in a send or a receive that nobody answers{where}"
            if first["rank"] not in (first["others"] or ()):
                title += f"; {first['others_count']} others stand in {others}"
        yield Finding(
            title=title,
            summary=f"{first['reason'][0].upper()}{first['reason'][1:]}. The stacks part at {first['parts_at'] or first['user_frame']}"
            + (f", where the others are at {first['others_at']}." if first["others_at"] else ".")
            + f" What tells the place: {first['why_place']}.",
            confidence=confidence,
            ranks=ranks,
            culprits=tuple(Culprit(rank=r["rank"], host=r["host"], pid=r["pid"]) for r in blamed.iter_rows(named=True)),
            subject=(str(first["user_frame"] or first["place"]), str(first["others_op"] or "")),
            evidence=(
                *(
                    e
                    for row in part.head(AT_MOST).to_dicts()
                    for e in at_frame(cite([row], f"stack of {who}: {first['place']}"), row["user_frame"])
                ),
                *at_frame(cite([whereabouts(first, "peer_")], f"stack of one of the others: {others}"), first["others_at"]),
            ),
            remedy=remedy,
            prevention=prevention,
            would_refute=(
                "a second sample of its stack that differs: then it moves",
                "a third rank that left out the half for which they wait (py-spy dump --locals names whom each call is for)"
                if cause == "p2p-deadlock"
                else "a process group that the others are in without it",
            ),
            actions=(
                Action("fix-code", ranks=ranks, where=first["user_frame"], confidence=confidence),
                _look_again(blamed, ranks, confidence),
            ),
            alternatives=tuple((other, ranks, None) for other in _instead(cause, str(first["place"])) if confidence != "high"),
            metrics={"others": first["others_count"]},
        )


def _instead(cause: str, place: str) -> tuple[str, ...]:
    """What stacks alone may show as well: a process that is late and no more, one that waits for its GPU in a function of the program, a call
    that was left out before another."""
    if cause in ("host-stall", "input-stall"):
        return ("gpu-stall", "straggler") if place == "user-code" else ("straggler",)
    return {"collective-skipped": ("collective-mismatch",), "collective-mismatch": ("collective-skipped",)}.get(cause, ())


def _look_again(blamed: pl.DataFrame, ranks: tuple[int, ...], confidence: Confidence) -> Action:
    """A second sample: beside which process, where it is one, and on which hosts."""
    pids = blamed["pid"].drop_nulls().to_list()
    command = f"py-spy dump --pid {pids[0]}" if blamed.height == len(pids) == 1 else "py-spy dump --pid <pid>"
    hosts = tuple(sorted({str(h) for h in blamed["host"].drop_nulls()}))
    return Action("collect-more", hosts=hosts, ranks=ranks, command=command, confidence=confidence)


def _who(rows: Sequence[dict[str, object]]) -> str:
    ranks = [int(str(r["rank"])) for r in rows if r["rank"] is not None]
    if len(ranks) == len(rows):
        return ranks_words(ranks)
    names = [f"{r['pid']}" + (f" on {r['host']}" if r["host"] else "") for r in rows]
    return f"process {names[0]}" if len(names) == 1 else f"processes {', '.join(names[:8])}" + (" …" if len(names) > 8 else "")
