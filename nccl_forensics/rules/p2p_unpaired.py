"""Sends and receives of NCCL's logs, or of recorders, do not pair up between two ranks.

## What it finds
Two ranks of a communicator, of which one sent more often than the other received, or sent another size or type than the other awaits.

## Why it matters
A send ends with its receive: the one that is left alone never does, and everything that is enqueued behind it waits.

## What would refute it
A line of NCCL's log of one of the two was lost, or the log was copied before the call was written.

## What to do next
Compare the calls of both ranks in that step: a batch that one leaves out, a microbatch more, another split of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import group_words, ranks_words

_EXPLAINS = ("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler", "host-stall")
#: What a difference in size or type is called.
_CAUSES = {"shape": "shape-mismatch", "dtype": "dtype-mismatch"}


@rule(name="p2p-unpaired", code="DE08", cause="p2p-deadlock", severity="critical", at_most=1, explains=_EXPLAINS)
def p2p_unpaired(unpaired: pl.LazyFrame) -> Iterator[Finding]:
    """One finding of all pairs; its cause is that of the first: the number of calls, else their size or type."""
    rows = unpaired.sort("group_key", "sender", "receiver").collect()
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    odd = tuple(sorted(set(rows["odd"].drop_nulls().to_list())))
    if first["kind"] == "calls":
        said = f"rank {first['sender']} called {first['sends']} sends to rank {first['receiver']}, which called {first['receives']} receives from it"
        if first["beyond"] is not None:
            waits, went_on = (
                first[side] for side in (("sender", "receiver") if first["sends"] > first["receives"] else ("receiver", "sender"))
            )
            said += f", before rank {went_on} went on to a collective (#{first['beyond']}) to which rank {waits} never came"
    else:
        said = f"rank {first['sender']} sent rank {first['receiver']} {first['sent']}, which awaits {first['received']}"
    yield Finding(
        title=said + (f", and {rows.height - 1} more pairs like it" if rows.height > 1 else ""),
        summary=f"What does not pair up is all with {ranks_words(odd)}."
        if odd and rows.height > 1
        else f"Other pairs of ranks agree, and {ranks_words(odd)} does otherwise than they."
        if odd
        else "Which of the two is wrong these lines do not tell.",
        cause=_CAUSES.get(first["kind"]),
        # A single call that one side lacks may be a line that was lost.
        confidence="low" if rows.height == 1 and first["kind"] == "calls" and abs(first["sends"] - first["receives"]) == 1 else "medium",
        ranks=odd,
        subject=("unpaired", str(first["kind"])),
        evidence=(
            *cite(rows, "the last send of the one to the other", at_most=8),
            *cite([whereabouts(r, "peer_") for r in rows.head(8).iter_rows(named=True)], "the last receive of the other from it"),
        ),
        remedy="Give each send its receive of the same size and type on the other rank.",
        prevention="Test the schedule of sends and receives in a small run with each number of microbatches.",
        would_refute=("a line of one of the two logs was lost",),
        actions=(Action("fix-code", ranks=odd),),
        metrics={"pairs": rows.height},
    )


@rule(name="p2p-unlike", code="DE13", cause="shape-mismatch", severity="critical", at_most=4, explains=(*_EXPLAINS, "p2p-deadlock"))
def p2p_unlike(unlike_halves: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for each open send or receive that is of another size than its other half."""
    for row in unlike_halves.collect().iter_rows(named=True):
        rank, peer = (row["rank"],), (row["peer"],)
        way, does = ("to", "awaits") if row["op"] == "send" else ("from", "sends")
        group = group_words(row)
        yield Finding(
            title=f"{ranks_words(rank)} called a {row['op']} of {row['own']} {way} {ranks_words(peer)} in {group}, which {does} {row['theirs']}; neither ends",
            summary="Both have called as many, and all other sends and receives of the job are of one size.",
            cause=_CAUSES[row["kind"]],
            confidence="medium",
            ranks=rank,
            subject=("unlike", str(row["group_desc"] or row["group_name"] or "group"), str(row["call_site"] or "")),
            evidence=(*cite([whereabouts(row)], "of another size"), *cite([whereabouts(row, "peer_")], "its other half")),
            remedy=f"Make {ranks_words(rank)} {row['op']} what {ranks_words(peer)} {does}.",
            prevention="Test the schedule of sends and receives in a small run with each number of microbatches.",
            would_refute=("a later dump in which one of the two has ended",),
            actions=(Action("fix-code", ranks=rank, confidence="medium", where=row["call_site"]),),
        )
