"""A process of the job was gone while its peers went on, and nothing of its own says why.

## What it finds
Ranks that had joined the communicator, and whose connections other processes found closed or refused while they themselves went on working:
no line is left of the rank, its lines end before a collective that these peers entered, it alone of those that went tells of no error, RAS
declared it dead, processes of its host lost it and nobody else, it ended its communicator long before the last collective, or all of its
host lack the end of a communicator that all others aborted. A job that is stopped as a whole ends without such lines.

## Why it matters
Whatever its peers say later follows from this: they wait for, or fail on, a process that is no more. Why it ended only its own output, the
launcher or the kernel log can tell.

## What would refute it
Its own log, dump or stack from after that moment; or peers that had left before it did.

## What to do next
Get the log, standard error and exit code of this rank, and the kernel log of its host.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, cite_absence
from nccl_forensics.frames import ranks_in
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words, verb

_FOUND = {
    "closed": ("found its connection closed and went on", "found its connection closed and went on"),
    "left": ("lost the connection to it before their last collective", "lost the connection to it before their last collective"),
    "lost": ("failed for a lost connection to it", "failed for lost connections to it"),
    "dead": ("declared it dead (RAS)", "declared it dead (RAS)"),
    "first": ("lost the connection to it, and to nobody who stayed", "lost the connection to it, and to nobody who stayed"),
    "unended": ("aborted the communicator and it did not", "aborted the communicator and it did not"),
    "silent": ("found its connection closed and went on", "found its connection closed and went on"),
    "ended": (
        "entered two collectives and more after it had ended its communicator",
        "entered two collectives and more after it had ended its communicator",
    ),
    "refused": ("is refused a connection to it after the bootstrap", "are refused connections to it after the bootstrap"),
}
#: In these ways of going the rank's own log is there, and ends.
_LOGGED = ("left", "lost", "silent", "dead", "first", "unended", "ended")


@rule(
    name="peer-gone",
    code="DE07",
    cause="rank-died",
    severity="critical",
    at_most=2,
    explains=("timeout", "closed", "connection-failed", "host-stall", "collective-stuck", "collective-skipped"),
)
def peer_gone(
    gone_peers: pl.LazyFrame, endings: pl.LazyFrame | None, progress: pl.LazyFrame | None, last_calls: pl.LazyFrame | None
) -> Iterator[Finding]:
    """One finding for all ranks that were gone in the same way, unless anything else tells of them."""
    heard = ranks_in(endings) | ranks_in(last_calls) | ranks_in(progress, pl.col("domain") == "fr")
    rows = gone_peers.filter(~pl.col("rank").is_in(sorted(heard))).sort("how", "rank").collect()
    for (how,), part in rows.group_by("how", maintain_order=True):
        ranks = tuple(part["rank"].to_list())
        witnesses = sorted({w for ws in part["seen_by"].to_list() for w in ws})
        hosts = tuple(sorted({str(h) for h in part["host"].drop_nulls().to_list()}))
        yield Finding(
            title=f"{ranks_words(ranks)} {verb(ranks, 'was', 'were')} gone while the others went on: {ranks_words(witnesses)} {verb(witnesses, *_FOUND[str(how)])}",
            summary="That says that the process ended, not why: "
            + (
                "it took its communicator down and left."
                if how == "ended"
                else "its log just ends."
                if how in _LOGGED
                else "nothing in the evidence is its own."
            )
            + (" The others that ended tell of lost connections; it alone tells of no error." if how == "silent" else ""),
            confidence="medium" if how in _LOGGED and how != "unended" else "low",
            ranks=ranks,
            hosts=hosts,
            culprits=tuple(Culprit(rank=r["rank"], host=r["host"]) for r in part.iter_rows(named=True)),
            subject=("peer-gone", str(how)),
            evidence=(
                *cite(part, "its end of the communicator" if how == "ended" else "what a peer saw of its end"),
                *cite_absence(
                    f"{'a later collective' if how == 'ended' else 'an end of the communicator' if how in _LOGGED else 'a line of NCCL'} of {ranks_words(ranks)}",
                    ("all NCCL logs of the bundle",),
                ),
            ),
            evidence_total=part.height + 1,
            remedy=f"Look at the standard error, exit code and kernel log of {ranks_words(ranks)}: why it ended stands there.",
            prevention="Keep each rank's standard error and exit code (torchrun --log-dir, @record).",
            would_refute=(f"a log of {ranks_words(ranks)} that goes on after that",),
            actions=(Action("collect-more", ranks=ranks, hosts=hosts, command="dmesg -T; coredumpctl"),),
            alternatives=tuple(
                (cause, ranks, "its own output would tell") for cause in ("invalid-usage", "out-of-memory", "gpu-fault", "version-mismatch")
            ),
        )
