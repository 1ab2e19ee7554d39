"""The watchdogs of a group's ranks time out in the same position, but in another operation or with another number of elements.

## What it finds
``Watchdog caught collective operation timeout: WorkNCCL(SeqNum=…, OpType=…, NumelIn=…, NumelOut=…)`` lines of one process group with
the same sequence number whose operation or numbers of elements differ. Where recorders of the others hold the deviating call at a later
position, the rank left out what lies between. Silent where a recorder or NCCL's own log shows the divergence.

## Why it matters
Without a Flight Recorder dump these lines are all there is, and they name the deviating rank.

## What would refute it
The operation may rightly differ in size between ranks (all_to_all, gather, scatter, lists of uneven tensors: those are left out), or
the rank had skipped an operation earlier, so that its numbers run one behind.

## What to do next
Print the tensor's shape, or the call, on the deviating rank just before this collective.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows, text_of
from nccl_forensics.model import Action, Confidence, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import COMPARE_CALLS
from nccl_forensics.values.shapes import elements
from nccl_forensics.views.calls import op_word
from nccl_forensics.words import group_words, operation_words, ranks_words

_EXPLAINS = ("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed")
#: Operations that have the same numbers of elements on all ranks (torch 2.9 c10d/ProcessGroupNCCL.cpp; lists of tensors may be uneven).
_EVEN = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLREDUCE_COALESCED")
_NO_COLLECTIVE = ("SEND", "RECV", "UNKNOWN", "COALESCED")


@rule(name="shape-mismatch-by-watchdog", code="CO11", cause="shape-mismatch", severity="critical", at_most=16, explains=_EXPLAINS)
def shape_mismatch_by_watchdog(watchdog_calls: pl.LazyFrame, divergences: pl.LazyFrame | None) -> Iterator[Finding]:
    """One finding per group whose ranks time out in one operation with differing numbers of elements."""
    for part in _groups(watchdog_calls, divergences):
        if part["op"].n_unique() != 1 or part["op"][0] not in _EVEN:
            continue
        sizes = part.with_columns(said=text_of("{} in, {} out", pl.col("numel_in"), pl.col("numel_out"))).drop_nulls("said")
        yield from _finding(sizes, "another number of elements", "Assert equal shapes (all_gather the numel) before the collective.")


@rule(name="collective-mismatch-by-watchdog", code="CO12", cause="collective-mismatch", severity="critical", at_most=16, explains=_EXPLAINS)
def collective_mismatch_by_watchdog(watchdog_calls: pl.LazyFrame, divergences: pl.LazyFrame | None) -> Iterator[Finding]:
    """One finding per group whose ranks time out in different collectives at one position."""
    for part in _groups(watchdog_calls, divergences):
        named = part.filter(~pl.col("op").is_in(_NO_COLLECTIVE)).with_columns(said=pl.col("op"))
        yield from _finding(named, "another collective", COMPARE_CALLS)


@rule(
    name="collective-skipped-by-watchdog",
    code="CO13",
    cause="collective-skipped",
    severity="critical",
    at_most=16,
    explains=(*_EXPLAINS, "shape-mismatch", "collective-mismatch"),
)
def collective_skipped_by_watchdog(
    watchdog_calls: pl.LazyFrame, divergences: pl.LazyFrame | None, operations: pl.LazyFrame
) -> Iterator[Finding]:
    """One finding per group in which what one rank timed out in is what the recorders of the others hold some positions later: it left
    out what lies between."""
    for part in _groups(watchdog_calls, divergences):
        if part["op"].is_in(_NO_COLLECTIVE).any() or part.filter(~pl.col("op").is_in(_EVEN)).height:
            continue
        if part["numel_in"].null_count():
            continue  # up to torch 2.0 the watchdog tells no sizes
        counts = part.group_by("op", "numel_in").agg(n=pl.len()).sort("n", "op", "numel_in", descending=[True, False, False])
        usual = counts.row(0, named=True)
        same = (pl.col("op") == usual["op"]) & (pl.col("numel_in") == usual["numel_in"])
        odd, others = part.filter(~same), part.filter(same)
        if odd.height != 1 or usual["n"] * 2 <= part.height:
            continue
        own, first = odd.row(0, named=True), others.row(0, named=True)
        later = _later(own, others["rank"].to_list(), operations)
        if later is None:
            continue
        position = operation_words(first["op"], first["seq"])
        group = group_words({"group_name": str(first["group_key"]).removeprefix("pg:"), "group_desc": first["group_desc"], "comm_id": None})
        rank = int(own["rank"])
        yield Finding(
            title=f"{ranks_words((rank,))} skipped {position} of {group}: it timed out in what the others call {later['ahead']} later",
            summary=f"Its watchdog names {own['op']} of {own['numel_in']} elements at position {own['seq']}; the others' recorders hold that call "
            f"at position {later['seq']}, and at {own['seq']} one of {first['numel_in']} elements.",
            confidence="medium",
            ranks=(rank,),
            subject=(str(first["group_desc"] or first["group_key"]), str(first["op"])),
            divergence=Divergence(str(first["group_key"]).removeprefix("pg:"), None, first["seq"], first["op"]),
            evidence=(
                *cite(odd, "the rank timed out in another call"),
                *cite([later], "the others make that call here"),
                *cite(others.head(4), "what most ranks timed out in"),
            ),
            evidence_total=part.height + 1,
            remedy=f"Make every rank of {group} call {position}, or none: look for a branch around it that depends on the rank or on its data.",
            prevention=COMPARE_CALLS,
            would_refute=(f"a dump of {ranks_words((rank,))} that shows all calls of the others",),
            actions=(Action("fix-code", ranks=(rank,), confidence="medium"),),
            alternatives=(("shape-mismatch", (rank,), "the call that it is in is one that the others make later"),),
        )


#: How far a rank may have run ahead.
_AHEAD = 64


def _later(own: dict[str, object], peers: list[int], operations: pl.LazyFrame) -> dict[str, object] | None:
    """The first recorded operation of peers behind the position of ``own`` that is the same call, with ``ahead``, how many positions; None
    where the peers' recorders hold that call at the position itself or not at all."""
    seq = int(str(own["seq"]))
    near = operations.filter(
        (pl.col("domain") == "fr")
        & ~pl.col("is_p2p")
        & (pl.col("group_key") == own["group_key"])
        & pl.col("seq").is_between(seq, seq + _AHEAD)
        & pl.col("rank").is_in(peers)
        & (pl.col("op") == op_word(pl.lit(own["op"], dtype=pl.String)))
    )
    columns = ("seq", "shape", "source_id", "line_no", "record")
    alike = [r for r in near.select(columns).sort("seq", "source_id").collect().to_dicts() if elements(r["shape"])[:1] == [own["numel_in"]]]
    return alike[0] | {"ahead": alike[0]["seq"] - seq} if alike and alike[0]["seq"] > seq else None


def _groups(calls: pl.LazyFrame, divergences: pl.LazyFrame | None) -> Iterator[pl.DataFrame]:
    """Ranks of one group that stand at one position, as far as nothing better tells their operations."""
    if has_rows(divergences):
        return
    for _, part in calls.collect().group_by("group_key", "seq", maintain_order=True):
        inside = part["pg_rank"].drop_nulls()
        # Two ranks with one place in the group are in two groups of one name.
        if part.height > 1 and inside.n_unique() == inside.len():
            yield part


def _finding(part: pl.DataFrame, what: str, prevention: str) -> Iterator[Finding]:
    """What fewer ranks say than any other thing is the deviation; where no majority is, nobody is named."""
    counts = part.group_by("said").agg(n=pl.len()).sort("n", "said", descending=[True, False])
    if counts.height < 2:
        return
    usual, most = str(counts["said"][0]), int(counts["n"][0])
    majority = most * 2 > part.height
    odd, others = part.filter(pl.col("said") != usual), part.filter(pl.col("said") == usual)
    ranks = tuple(odd["rank"].to_list()) if majority else ()
    first = others.row(0, named=True)
    position = operation_words(first["op"], first["seq"])
    group = group_words({"group_name": str(first["group_key"]).removeprefix("pg:"), "group_desc": first["group_desc"], "comm_id": None})
    sizes = "; ".join(f"{ranks_words(p['rank'].to_list())}: {said}" for (said,), p in part.group_by("said", maintain_order=True))
    confidence: Confidence = "medium" if majority else "low"
    yield Finding(
        title=f"{ranks_words(ranks)} timed out in {position} of {group} with {what} than the others ({sizes})"
        if majority
        else f"the ranks timed out at {position} of {group}, each in {what} ({sizes})",
        summary="The watchdogs of the group name one position and do not agree on what was called there.",
        confidence=confidence,
        ranks=ranks,
        subject=(str(first["group_desc"] or first["group_key"]), str(first["op"])),
        divergence=Divergence(str(first["group_key"]).removeprefix("pg:"), None, first["seq"], first["op"]),
        evidence=(*cite(odd, "says otherwise"), *cite(others.head(4), "what most ranks say")),
        evidence_total=part.height,
        remedy=f"Make all ranks of the group call {position} alike; look at what differs on {ranks_words(ranks) if ranks else 'each of them'}.",
        prevention=prevention,
        would_refute=("Flight Recorder dumps that show the same call on all ranks", "an operation that the rank had left out earlier"),
        actions=(Action("fix-code", ranks=ranks, confidence=confidence),),
        alternatives=(("collective-skipped", ranks, "their numbers of operations were not seen to differ"),),
    )
