"""By their stacks, most ranks wait for a process group to be made, and a few have not come to that call.

## What it finds
Most of the ranks whose stacks were taken stand in ``init_process_group``, ``new_group`` or a store barrier, none of them moves, and a few
others stand still somewhere else on their host. A rank that stands in a collective has passed the call and is not meant.

## Why it matters
A job that hangs before its first step leaves neither dumps nor watchdog lines; the stacks are all there is.

## What would refute it
A second sample in which those few have come to the call, or a process group that they are not a member of.

## What to do next
Look at the quoted line of user code: storage, downloads, a compile, or a condition that keeps this rank from the call.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import at_frame, cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.words import ranks_words, verb

#: Places at which a rank is past the call, or nowhere in particular.
_NOT_LATE = (*WAITING, "unknown", "import")


@rule(
    name="rank-never-joined-by-stacks",
    code="IN04",
    cause="rank-never-joined",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "connection-failed", "host-stall", "input-stall"),
)
def rank_never_joined_by_stacks(last_calls: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for all ranks that stay away while most wait in initialisation."""
    # A traceback tells where a rank gave up waiting; where one was that did not come, only its stack tells.
    gave_up = (pl.col("witness") == "exception") & (pl.col("place") == "rendezvous")
    known = last_calls.filter((pl.col("witness") == "stack") | gave_up).sort("rank").collect()
    waiting = known.filter(pl.col("place") == "rendezvous")
    away = known.filter((pl.col("place") != "rendezvous") & ~pl.col("place").is_in(_NOT_LATE))
    passed = known.filter(pl.col("place").is_in(WAITING))
    if waiting.height < 2 or waiting.height * 2 <= known.height or not away.height or passed.height:
        return
    if waiting["moved"].any() or away["moved"].any():
        return
    ranks = tuple(away["rank"].to_list())
    first = away.row(0, named=True)
    where = f" at {first['user_frame']}" if first["user_frame"] else ""
    call = f" at {waiting['user_frame'][0]}" if waiting["user_frame"][0] else ""
    yield Finding(
        title=f"{ranks_words(ranks)} {verb(ranks, 'has', 'have')} not come to the initialisation{call}, where {ranks_words(waiting['rank'].to_list())} wait",
        summary=f"By its stack, {ranks_words(ranks[:1])} is still on its host{where} ({first['place']}); the others wait for a process group to be made.",
        confidence="medium",
        ranks=ranks,
        subject=("init", str(first["user_frame"] or first["place"])),
        evidence=(
            *at_frame(cite(away, "stack of a rank that has not come"), first["user_frame"] if away.height == 1 else None),
            *cite(waiting.head(4), "a rank that waits in initialisation"),
        ),
        evidence_total=away.height + waiting.height,
        remedy="Find out what keeps this rank at the quoted line.",
        prevention="Give init_process_group a short timeout, and keep slow work of single ranks after it or on all ranks alike.",
        would_refute=("a second sample of its stack inside the same call", "a process group that it is not a member of"),
        actions=(Action("fix-code", ranks=ranks, confidence="medium"),),
        alternatives=(("host-stall", ranks, "the wait is for the making of a group, not for a collective"),),
    )
