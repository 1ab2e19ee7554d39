"""Every rank entered the collective and none finished: the transport, not the program.

## What it finds
A group whose members all wait in the same operation, at the same position, with a timeout or an error to show that they do not go on.

## Why it matters
The program is innocent: looking for a skipped call wastes the night. The network, its plugin, a GPU or NCCL itself stands still.

## What would refute it
A rank whose evidence is missing never entered the operation; two dumps show that the position moves (then it is slow, not stuck).

## What to do next
Compare with a run over another transport (NCCL_NET=Socket, NCCL_P2P_DISABLE=1); look at NIC counters, IB ports and kernel logs of all hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import values_in
from nccl_forensics.model import Action, Confidence, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.views.failures import ENDED, GAVE_UP, LONGER, STANDSTILL, WAITS
from nccl_forensics.views.looks import LOOKS
from nccl_forensics.words import group_words, operation_words, ranks_words

_EXPLAINS = ("timeout", "closed", "rank-died", "software-crash", "connection-failed")
_REMEDY = "Look at the network below: NIC and port counters, plugin settings, kernel logs; try another transport to narrow it down."
_PREVENTION = "Run a short all_reduce health check over all nodes and NICs before each job."
_ASK_NCCL = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET"


@rule(name="collective-stuck", code="CO07", cause="collective-stuck", severity="critical", at_most=4, explains=_EXPLAINS)
def collective_stuck(
    stuck: pl.LazyFrame,
    watchdog: pl.LazyFrame | None,
    failures: pl.LazyFrame,
    looks: pl.LazyFrame | None,
    endings: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per stuck group, if something says that the job did not go on. Members that all raised an exception of their own, outside
    any collective, did not wait for what they had enqueued."""
    signs = values_in(failures, "sign") - {WAITS, ENDED}
    if not signs:
        return
    # A computation that takes longer than ever before, and in which no collective ends either, looks alike.
    guessed = signs == {LONGER}
    seen = looks.collect() if looks is not None else pl.DataFrame(schema=LOOKS)
    # What stands behind something unfinished of another group waits for that.
    open_ones = stuck.filter(~pl.col("held").fill_null(value=False)).sort("domain", "group_key").collect()
    # Where recorders of some members are there, what the others called, and whether their GPUs came to it, no watchdog's line tells.
    recorded = open_ones.filter((pl.col("domain") == "fr") & ~pl.col("complete")).select("group_name", "seq").rows()
    raised = _raised(endings) if endings is not None else set()
    for row in open_ones.iter_rows(named=True):
        if raised.issuperset(row["ranks"]):
            continue
        group = group_words(row)
        waited = operation_words(row["op"], row["seq"])
        evidence = cite([row], "a rank that waits in it")
        in_part = row["domain"] == "watchdog" and (row["group_name"], row["seq"]) in recorded
        if watchdog is not None:
            evidence = (*cite(_own(watchdog, row["group_name"]), "timed out in it", at_most=12), *evidence)
        # Only a recorder tells of each operation whether a GPU has begun it; before the first of a group there is none that it could stand
        # in. A watchdog prints the number by which its own rank counts: what one enqueued behind a call that it left out bears a number
        # that the others know.
        counted = row["domain"] == "watchdog" and row["seq"] != 1
        reached = row["begun"] or (row["domain"] != "fr" and not counted)
        own = seen.filter(pl.col("rank").is_in(row["ranks"])) if LONGER in signs else seen.clear()
        if own.height:
            look = own.select("rank", "age_ms", source_id="look_source_id", line_no="look_line_no")
            evidence = (*evidence, *cite(look, "asked for a dump then, in which the operation is not finished", at_most=4))
        # Before anything timed out nobody waited as long as the timeout; nor need a job that its scheduler ended.
        lasted = row["timeout_ms"] if signs & GAVE_UP else min(own["age_ms"].to_list(), default=None)
        limit = f" after {lasted / 1000:.0f} s" if lasted else ""
        yield Finding(
            title=f"{'all ' if row['complete'] else ''}{len(row['ranks']):,} ranks entered {waited} of {group} and none finished{limit}"
            + ("" if row["complete"] else _unseen(row)),
            summary=_summary(row, counted=counted, reached=reached, in_part=in_part),
            # Where those that are not seen may well hold it up that is no cause yet.
            severity="warning" if row["hidden"] else "critical",
            confidence=_sure(row, reached=reached, guessed=guessed, in_part=in_part),
            culprits=(),
            subject=_subject(row),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["op"]),
            evidence=evidence,
            remedy=_REMEDY,
            prevention=_PREVENTION,
            would_refute=(f"evidence of a rank that never entered {waited}",),
            actions=(Action("collect-more", ranks=tuple(row["ranks"][:8]), command=_ASK_NCCL),),
            alternatives=(
                ("gpu-stall", (), None)
                if row["complete"] and not reached
                else ("host-stall", (), f"{ranks_words(row['ranks'])} all entered it"),
                *((("collective-skipped", (), None),) if counted else ()),
            ),
        )


def _raised(endings: pl.LazyFrame) -> set[int]:
    """Ranks whose program raised an exception of its own."""
    own = pl.col("own") & (pl.col("kind") == "exception") & (pl.col("signature") == "user")
    return set(endings.filter(own).collect()["rank"].drop_nulls().to_list())


@rule(name="collective-stuck-downstream", code="CO16", cause="collective-stuck", severity="critical", at_most=4, explains=_EXPLAINS)
def collective_stuck_downstream(stuck_downstream: pl.LazyFrame, watchdog: pl.LazyFrame | None, failures: pl.LazyFrame) -> Iterator[Finding]:
    """One finding per group in which a broadcast (or reduce, gather, scatter) has ended on those who send and not on those who receive, if
    something timed out."""
    signs = values_in(failures, "sign") - {WAITS, ENDED, LONGER, STANDSTILL}
    if not signs:
        return
    for row in stuck_downstream.sort("domain", "group_key").collect().iter_rows(named=True):
        group, waited = group_words(row), operation_words(row["op"], row["seq"])
        ranks, entered, size = row["ranks"], row["entered"], row["size"]
        everyone = size is not None and len(entered) >= size
        waiting = ranks_words(ranks)
        evidence = cite([row], "a rank that waits in it")
        if watchdog is not None:
            evidence = (*cite(_own(watchdog, row["group_name"]), "timed out in this group", at_most=12), *evidence)
        yield Finding(
            title=f"{'all ' if everyone else ''}{len(entered):,} ranks{'' if everyone else ' that are seen'} entered {waited} of {group}; it never "
            f"ended on {waiting}, while the others went on and stand further on",
            summary="Whoever sends in such an operation is done with it before those who receive. Nobody is behind: the data never came, which is "
            "the transport (network, plugin, links) or a GPU that stands.",
            confidence="low",
            culprits=(),
            subject=_subject(row),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["op"]),
            evidence=evidence,
            remedy=_REMEDY,
            prevention=_PREVENTION,
            would_refute=(f"evidence of a rank that never entered {waited}",),
            actions=(Action("collect-more", ranks=tuple(ranks[:8]), command=_ASK_NCCL),),
            alternatives=(("gpu-stall", tuple(ranks), f"{waiting} would have to send on to all others that wait"),),
        )


def _summary(row: dict[str, object], *, counted: bool, reached: bool, in_part: bool) -> str:
    """What follows of that they wait, and what would look the same. ``counted``: by numbers of calls that watchdogs print; ``reached``: all
    GPUs have come to it, as far as anything tells; ``in_part``: no recorder tells what some of them called."""
    partly = " Of some of them no recorder tells what they called." if in_part else ""
    if not row["complete"]:
        return (
            "If the others are in it as well, it is the transport (network, plugin, links, GPU) and not the program; one that never came, "
            f"or came with something else, would look the same.{partly}"
        )
    said = (
        "By what their watchdogs print everyone is in and nobody is out: the transport (network, plugin, links, GPU) rather than the program."
        if counted
        else "Everyone is in, nobody is out: the transport (network, plugin, links, GPU), not the program."
    )
    if not reached:
        said += " Nothing tells whether every GPU has come to it: one that stands before it looks the same."
    if counted:
        said += " Each rank counts its own calls: one that left out an earlier one alike, and waits in another group, looks the same."
    if row["stated"] is False:
        said += " Nothing states how many members it has."
    return said + partly


def _subject(row: dict[str, object]) -> tuple[str, str]:
    return str(row["group_desc"] or row["group_name"] or "group"), str(row["op"] or "")


def _sure(row: dict[str, object], *, reached: bool, guessed: bool, in_part: bool) -> Confidence:
    """A recorder without marks of begin leaves a second cause beside the transport: a GPU that never came to the operation. So does one
    that is missing (``in_part``)."""
    if in_part or not row["complete"]:
        return "low"
    return "high" if row["stated"] is not False and reached and not guessed else "medium"


def _unseen(row: dict[str, object]) -> str:
    """What is not known of a group of which not every member waits in the operation for all to see."""
    ranks, size = row["ranks"], row["size"]
    assert isinstance(ranks, list)
    missing = int(str(size)) - len(ranks) if size is not None else 0
    if size is not None and missing <= 0:
        return "; the GPUs of some may be held by what they enqueued before it"
    return f"; whether {f'the other {missing:,}' if missing > 1 else 'the other one' if missing == 1 else 'every member'} came is not in the evidence"


def _own(watchdog: pl.LazyFrame, group_name: object) -> pl.DataFrame:
    """Watchdogs' lines of timeouts in this group.

    Some lines name no group: they count where they stand in a file whose other lines name this one, or none at all.
    """
    lines = watchdog.filter(pl.col("kind").is_in(["timeout", "failure"]))
    if group_name is not None:
        named, own = pl.col("pg_name").is_not_null(), (pl.col("pg_name") == str(group_name)).fill_null(value=False)
        lines = lines.filter(own | (~named & (own.any() | ~named.any()).over("source_id")))
    return lines.sort("source_id", "line_no").collect()
