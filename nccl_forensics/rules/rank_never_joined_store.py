"""The ranks that gave up in init say whose address they waited for in vain.

## What it finds
Timeouts of torch's store while gloo connects the default group: each rank puts its address under its own number and waits for those of the
others, one after the other, so that the key in the message names the first rank that never came.

## Why it matters
The job ends before its first collective, on ranks that did all they should; the one that is missing may have written nothing at all.

## What would refute it
The named rank did come, later than the timeout (a slow import, a large file to read first). Then it is what it did before that counts.

## What to do next
Look at what the named rank did before init_process_group, whether it reaches MASTER_ADDR:MASTER_PORT, and whether its RANK and WORLD_SIZE are those
of the launcher.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import ranks_in
from nccl_forensics.model import Action, Confidence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.endings import raised_at
from nccl_forensics.words import ranks_words, verb

#: One key alone: ``/default_pg/0//cpu//0/3`` is the address of rank 3 on the first device
#: (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp,
#: gloo/rendezvous/context.cc). Of other groups the number is one inside the group.
_KEY = r"keys?: /?default_pg/0//[a-z]+//\d+/(\d{1,7})\s*$"


@rule(
    name="rank-never-joined-by-store",
    code="IN06",
    cause="rank-never-joined",
    severity="critical",
    at_most=4,
    explains=("timeout", "closed", "connection-failed", "host-stall", "input-stall"),
)
def rank_never_joined_by_store(
    endings: pl.LazyFrame, processes: pl.LazyFrame | None, watchdog: pl.LazyFrame | None, source_ranks: pl.LazyFrame | None
) -> Iterator[Finding]:
    """One finding per rank that others waited for, the lowest first."""
    named = pl.col("message").fill_null("").str.extract(_KEY).cast(pl.Int32)
    ended = endings.filter(pl.col("rank").is_not_null()).with_columns(awaited=named).sort("rank").collect()
    waiting = ended.filter(pl.col("awaited").is_not_null())
    known = set(ended["rank"].to_list())
    # gloo puts its own address into the store before it connects to any other (gloo/rendezvous/context.cc, connectFullMesh).
    # Whoever hosts the store waits for all of its clients first, and for no address of its own (torch/csrc/distributed/c10d/TCPStore.cpp).
    hosts = pl.col("message").fill_null("").str.contains("waiting for clients", literal=True)
    came = set(ended.filter((pl.col("signature") == "gloo-connect") | hosts)["rank"].to_list())
    # It puts its own address there before it waits for any other's, too: who waited for a third one came, though late.
    late = waiting.filter(pl.col("awaited") != pl.col("rank"))["rank"].to_list()
    came |= set(late) if set(waiting["awaited"].to_list()) - came - set(late) else set()
    known |= ranks_in(processes)
    for (awaited,), part in waiting.group_by("awaited", maintain_order=True):
        rank = int(str(awaited))
        if rank in came:
            continue
        waiters = tuple(part["rank"].to_list())
        itself = rank in waiters
        unreached = _unreached(watchdog, source_ranks, rank) if watchdog is not None else pl.DataFrame()
        there = rank in known
        all_others = len(waiters) > 1 and known - {rank} <= set(waiters)
        confidence: Confidence = "low" if not there else "high" if all_others and not itself else "medium"
        why = (
            f"The process that the launcher counts as rank {rank} waits for the address of rank {rank} too: it takes itself for another rank."
            if itself
            else "They gave up; it had not put its address into the store, and did not say why."
            if there
            else "Nothing in the evidence is of such a rank: it was not started, or the number of ranks is wrong where it is waited for."
        )
        if unreached.height:
            why += " It could not reach the store itself."
        ranks = (rank,) if there else ()
        yield Finding(
            title=f"rank {rank} never joined: {ranks_words(waiters)} waited in init for its address",
            summary=f"{why} The key that {verb(waiters, 'it', 'they')} waited for bears the number of the rank.",
            cause="environment-mismatch" if itself else None,
            confidence=confidence,
            ranks=ranks,
            subject=("store-key", str(rank)),
            evidence=(
                *cite([raised_at(row) for row in part.iter_rows(named=True)], f"waited for the address of rank {rank}", at_most=8),
                *(cite(unreached, "how the missing rank fared", at_most=4) if unreached.height else ()),
            ),
            evidence_total=part.height + unreached.height,
            remedy=f"Find out what rank {rank} did instead of init_process_group: its output, its RANK, WORLD_SIZE and MASTER_PORT.",
            prevention="Give init_process_group a short timeout, and keep slow work of single ranks after it or on all ranks alike.",
            would_refute=(f"a line of rank {rank} that shows it past init_process_group",),
            actions=(Action("collect-more", ranks=ranks, command="ps -ef | grep python; nc -zv $MASTER_ADDR $MASTER_PORT"),),
            alternatives=(("connection-failed", ranks, "nothing but its own line says that it had no way to the store"),)
            if unreached.height
            else (),
        )


def _unreached(watchdog: pl.LazyFrame, source_ranks: pl.LazyFrame | None, rank: int) -> pl.DataFrame:
    """What the missing rank wrote of a store that it could not reach."""
    own = pl.col("hint_rank") == rank
    if source_ranks is not None:
        files = source_ranks.filter(pl.col("rank") == rank).select("source_id").collect()["source_id"].to_list()
        own = own.fill_null(value=False) | pl.col("source_id").is_in(files)
    lines = watchdog.filter((pl.col("kind") == "store-timeout") & pl.col("message").str.contains("connect", literal=True) & own)
    return lines.sort("source_id", "line_no").collect()
