"""The store of the rendezvous waited for processes that never came, and says how many did.

## What it finds
Timeouts of torch's store that count: "8/12 clients joined", or "world_size=12, worker_count=8" of the barrier behind a new group. The message names
none; the ranks are told where stacks show just as many elsewhere, or where all that came say that they gave up there. More workers than the group has mean that two launches met at one store.

## Why it matters
The job ends before NCCL is asked for anything: no log of NCCL shows it. A node that was never started, or cannot reach the master's port, is the usual reason.

## What would refute it
The missing processes came later than the timeout (a slow import, an image that was still being pulled).

## What to do next
Look on which hosts the launcher runs at all, then whether these reach MASTER_ADDR:MASTER_PORT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import at_frame, cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.words import ranks_words, verb

#: torch/csrc/distributed/c10d/TCPStore.cpp, since 2.0.
_JOINED = re.compile(r"waiting for clients\. ([0-9]{1,7})/([0-9]{1,7}) clients joined")
#: torch/distributed/distributed_c10d.py, _store_based_barrier, since 1.8.
_BARRIER = re.compile(
    r"store based barrier (?:on|to initialize process group for) (?:[0-9.]{1,20} seconds)?rank:? [0-9]{1,7},? (?:for )?key: .{1,200}?"
    r"\(world_size=([0-9]{1,7}), (?:worker_count|num_workers_joined)=([0-9]{1,7})"
)
#: What whoever waits there prints every ten seconds, a good job at its start as well.
_WAITING = "Waiting in store based barrier"


def _counted(exceptions: pl.LazyFrame) -> list[tuple[int, int, dict[str, object]]]:
    """How many came and how many were wanted, with the message that says so."""
    words = pl.col("message").str.contains_any(["waiting for clients. ", "store based barrier"])
    out: list[tuple[int, int, dict[str, object]]] = []
    for row in exceptions.filter(words).sort("source_id", "line_no").collect().iter_rows(named=True):
        if m := _JOINED.search(str(row["message"])):
            out.append((int(m[1]), int(m[2]), row))
        elif m := _BARRIER.search(str(row["message"])):
            out.append((int(m[2]), int(m[1]), row))
    return out


@rule(
    name="clients-never-joined",
    code="IN05",
    cause="rank-never-joined",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "host-stall"),
)
def clients_never_joined(
    exceptions: pl.LazyFrame, last_calls: pl.LazyFrame | None = None, endings: pl.LazyFrame | None = None
) -> Iterator[Finding]:
    """At most one finding, by the message that counts the most processes. Names the missing ones where stacks show just as many elsewhere,
    or all others gave up in the rendezvous."""
    counts = _counted(exceptions)
    short = [c for c in counts if c[0] < c[1]]
    if not short:
        return
    gave_up = [c for c in short if _WAITING not in str(c[2]["message"])]
    came, wanted, row = max(gave_up or short, key=lambda c: (c[1], c[0]))
    missing = wanted - came
    waits = " and had not given up where the log ends" if not gave_up else ""
    away = _away(last_calls, wanted, missing) if last_calls is not None and gave_up else None
    ranks = tuple(away["rank"].to_list()) if away is not None else ()
    rest = _not_among(endings, came, wanted) if endings is not None and gave_up and not ranks else ()
    place = next(iter(away["user_frame"].drop_nulls()), None) if away is not None else None
    named, highest = ranks or rest, tuple(range(came, wanted))
    who = ranks_words(named) if named else f"{missing} of {wanted} processes"
    yield Finding(
        title=f"{who} never came to the rendezvous: its store waited for {'it' if missing == 1 else 'them'} in vain{waits}",
        summary=f"The message counts {came} of {wanted} and names none; by {verb(ranks, 'its stack', 'their stacks')} {ranks_words(ranks)} "
        f"{verb(ranks, 'was', 'were')} elsewhere{f', at {place}' if place else ''}, and no other stack is."
        if ranks
        else f"The message counts {came} of {wanted}, as many as gave up there; {ranks_words(rest)} {verb(rest, 'is', 'are')} not among them."
        if rest
        else "The message counts them and names none. It comes from the process that hosts the store, before NCCL is asked for anything."
        if gave_up
        else "The message counts those that came. In a good job it stops as soon as the others do; a log that was cut there looks the same.",
        confidence="medium" if gave_up else "low",
        ranks=named,
        subject=("clients", str(wanted)),
        evidence=(
            *cite([row], f"{came} of {wanted} came"),
            *(at_frame(cite(away, "the stack of a rank that has not come"), place if missing == 1 else None) if away is not None else ()),
        ),
        evidence_total=len(short) + len(ranks),
        remedy=f"Find out what keeps {ranks_words(ranks)}{f' at {place}' if place else ' on the host'}."
        if ranks
        else f"Find out why {ranks_words(rest)} {verb(rest, 'was', 'were')} not started, or could not reach the master's port."
        if rest
        else "Find the hosts on which nothing was started, or from which the master's port cannot be reached.",
        prevention="Let the launcher check that all nodes answer before it starts the job.",
        would_refute=(
            "the missing processes came after the timeout",
            *(("the job was meant to be smaller than the number of ranks that all of them were told",) if rest == highest else ()),
        ),
        actions=(
            Action("fix-code", ranks=ranks, where=place)
            if ranks and place
            else Action("collect-more", command="ps -ef | grep python; nc -zv $MASTER_ADDR $MASTER_PORT, on every node"),
        ),
        alternatives=(("host-stall", ranks, "the wait is for the making of a group, not for a collective"),) if ranks else (),
        metrics={"missing": missing, "wanted": wanted},
    )


#: Missing ranks that are named, at most.
_MOST = 4096


def _not_among(endings: pl.LazyFrame, came: int, wanted: int) -> tuple[int, ...]:
    """The ranks that are missing where just as many as came say that they gave up there, or lost the store."""
    # The store goes with the process that hosts it, which gives up first; who lost it had come.
    came_there = pl.col("signature").is_in(["store-timeout", "store-closed"])
    said = endings.filter(came_there & (pl.col("rank") < wanted)).select("rank").unique().collect()
    known = set(said["rank"].to_list())
    if len(known) != came or wanted - came > _MOST:
        return ()
    return tuple(rank for rank in range(wanted) if rank not in known)


def _away(last_calls: pl.LazyFrame, wanted: int, missing: int) -> pl.DataFrame | None:
    """The ranks whose stacks show them before the rendezvous, where these are as many as are missing. One that still imports may be one of
    them, and where a group is at work the rendezvous was another's."""
    known = last_calls.filter(pl.col("rank") < wanted).sort("rank").collect()
    if known["place"].is_in([*WAITING, "import"]).any():
        return None
    away = known.filter((pl.col("witness") == "stack") & ~pl.col("place").is_in(["rendezvous", "unknown"]))
    return away if away.height == missing and not away["moved"].any() else None


@rule(
    name="two-launches-at-one-store",
    code="IN08",
    cause="bad-setting",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "host-stall", "rank-died"),
)
def two_launches_at_one_store(exceptions: pl.LazyFrame) -> Iterator[Finding]:
    """At most one finding: more workers checked in than the group has members."""
    many = [c for c in _counted(exceptions) if c[0] > c[1]]
    if not many:
        return
    came, wanted, row = max(many, key=lambda c: (c[0], -c[1]))
    yield Finding(
        title=f"{came} workers checked in for a group of {wanted}: two launches, or more processes than the world size says, met at one store",
        summary="The barrier behind init_process_group counts every process that reaches its key. It was never meant to be passed by more than the "
        "world size: the ranks of both launches mix, and each waits for members that the other took.",
        confidence="medium",
        culprits=(),
        subject=("workers", str(wanted)),
        evidence=cite([row], f"{came} came, {wanted} were wanted"),
        evidence_total=len(many),
        remedy="Give each launch its own MASTER_PORT or init file (and remove the file of an earlier run), and make WORLD_SIZE the number of processes "
        "that are started: a launcher such as srun or torchrun beside mp.spawn starts them twice.",
        prevention="Let the launcher choose a free port per job (--rdzv-endpoint=localhost:0, or a port made of the job's number).",
        would_refute=("an elastic restart of the same job that used the store of the attempt before",),
        actions=(Action("fix_config", command="echo $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT; ss -ltnp"),),
        metrics={"came": came, "wanted": wanted},
    )
