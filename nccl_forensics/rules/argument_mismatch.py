"""The same collective was called with another reduce operation, root or split on some ranks.

## What it finds
At one position of a group all ranks call the same operation, but some with another reduce operation or root; or an all-to-all in which the
members together send more or less than they together await: one that none finished, or that ended with part of what it should bring. Of a
call whose root no recorder holds: all entered it, some left it, and the others never do.

## Why it matters
The ranks compute different things or wait for different roots: wrong results or a hang.

## What would refute it
The argument is not used by this operation.

## What to do next
Compare the call's arguments on the deviating rank with those of its peers.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.model import Action, Culprit, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.arguments import argument_findings
from nccl_forensics.words import group_words, operation_words, ranks_words

_ENDED = "it ended, with something else than sent in what was awaited"


@rule(
    name="argument-mismatch",
    code="CO05",
    cause="argument-mismatch",
    severity="critical",
    at_most=16,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed"),
)
def argument_mismatch(divergences: pl.LazyFrame) -> Iterator[Finding]:
    """Findings of this argument, one per group."""
    yield from argument_findings(divergences, "argument", "Keep reduce operation and root constant in code, never derived from local data.")


@rule(
    name="splits-mismatch",
    code="CO19",
    cause="argument-mismatch",
    severity="critical",
    at_most=4,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "connection-failed"),
)
def splits_mismatch(unequal_exchanges: pl.LazyFrame) -> Iterator[Finding]:
    """One finding per group: sizes of an all-to-all may differ between ranks, and their sum over all members may not."""
    for row in unequal_exchanges.sort("group_key").collect().iter_rows(named=True):
        everyone, group, called = tuple(row["ranks"]), group_words(row), operation_words(row["op"], row["seq"])
        odd = () if row["odd"] is None else (row["odd"],)
        place = f" at {row['call_site']}" if row["call_site"] else ""
        yield Finding(
            title=f"{ranks_words(odd or everyone)} called {called} of {group} with splits that do not fit: {row['sent']} elements are sent and "
            f"{row['awaited']} awaited",
            summary=f"All {len(everyone)} members entered it and {_ENDED if row['ended'] else 'none finished'}{place}. "
            + (
                f"The size of {ranks_words(odd)} is {row['own']}, that of all others {row['usual']}: just what is too much or too little."
                if odd
                else "Sizes differ between all of them anyway, so that they do not tell whose split is wrong."
            ),
            confidence="medium",
            ranks=odd or everyone,
            culprits=tuple(Culprit(rank=rank) for rank in odd),
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["op"]), str(row["call_site"] or "")),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["op"]),
            evidence=cite([whereabouts(row)], f"sizes of {ranks_words(odd)}" if odd else "sizes of the first member"),
            remedy=f"Exchange the counts of this step before the data{place}, and compute what is sent and what is received from the same counts.",
            prevention="Assert, in a small run, that the sum of all input splits is that of all output splits.",
            would_refute=("the sizes of a recorder older than schema 2.4, which may not be those of the call",),
            actions=(Action("fix-code", ranks=odd or everyone, confidence="medium", where=row["call_site"]),),
            alternatives=(("shape-mismatch", odd, "each rank may give the sizes of its own tensors rightly"),),
        )


@rule(
    name="roots-mismatch",
    code="CO25",
    cause="argument-mismatch",
    severity="critical",
    at_most=4,
    explains=("timeout", "closed", "collective-stuck", "connection-failed"),
)
def roots_mismatch(two_roots: pl.LazyFrame) -> Iterator[Finding]:
    """One finding per group: a call with one root ends for all that entered it."""
    for row in two_roots.sort("group_key").collect().iter_rows(named=True):
        inside, group, called = tuple(row["ranks"]), group_words(row), operation_words(row["op"], row["seq"])
        place = f" at {row['call_site']}" if row["call_site"] else ""
        yield Finding(
            title=f"all members of {group} entered {called}{place}, and {ranks_words(inside)} never left it: ranks gave it different roots",
            summary=f"{ranks_words(row['beyond'])} went on to {row['next_op']}. With one root, and sizes and types alike, it would have ended for "
            "all. The recorder holds no root, so that nothing tells who gave another.",
            confidence="low",
            ranks=inside,
            culprits=(),
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["op"]), str(row["call_site"] or "")),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["op"]),
            evidence=(
                *cite([whereabouts(row)], f"{called}, which this rank never left"),
                *cite([whereabouts(row, "peer_")], "the next call of a rank that did"),
            ),
            remedy=f"Compute the root{place} from what is the same on all ranks.",
            prevention="Keep the root constant in code, never derived from local data.",
            would_refute=(
                "a second sample of these stacks that differs: then the job goes on",
                "a connection between two of them that broke",
            ),
            actions=(
                Action("fix-code", ranks=inside, confidence="low", where=row["call_site"]),
                Action("collect-more", ranks=inside, command="py-spy dump --locals --pid <pid>"),
            ),
            alternatives=(("collective-stuck", (), None),),
        )
