"""All ranks fell over alike, in a library or in the program.

## What it finds
Nearly every rank ended by the same signal or the same exception: no rank is special, so no host is to be blamed.

## Why it matters
Cordoning nodes or restarting does not help; the next start dies the same way.

## What would refute it
One rank died clearly earlier and the others followed within its consequences, or only the ranks of one host are hit.

## What to do next
Reproduce on one node with the same versions; get the Python and native stack of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.endings import most_crashed_alike, own_signal, ranks_known

#: Libraries that carry the traffic; a crash whose innermost frames lie there is theirs (or of what they were handed).
_LIBRARIES = r"(lib(?:uc[tpsm]|ucp|mpi|open-pal|fabric|ibverbs|mlx5|nccl|rccl|gloo|psm2|cxi)[\w.-]*\.so[\w.]*)"
_TOP = 6
#: Signals that no fault raises (signal(7)): somebody sends them, such as a scheduler before the time limit.
_SENT = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")
#: NCCL hands on what CUDA, or what lies below it, failed by: that may be the program, and may be what all of them stand on.
_HANDED_ON = ("nccl-error", "nccl-cuda")
#: NCCL was let down by a socket, a device or the system (ncclSystemError in nccl.h): whatever all ranks met there is no fault of the program.
_SYSTEM = ((pl.col("signature") == "nccl-error") & pl.col("message").str.contains("ncclSystemError|unhandled system error")).fill_null(
    value=False
)


@rule(
    name="software-crash",
    code="DE02",
    cause="software-crash",
    severity="critical",
    at_most=4,
    explains=("timeout", "closed", "rank-died", "connection-failed"),
)
def software_crash(
    endings: pl.LazyFrame,
    exceptions: pl.LazyFrame | None,
    processes: pl.LazyFrame | None = None,
    source_ranks: pl.LazyFrame | None = None,
    launches: pl.LazyFrame | None = None,
    watchdog_calls: pl.LazyFrame | None = None,
    *,
    share: Annotated[float, "share of the ranks that must end alike"] = 0.8,
    at_least: Annotated[int, "ranks that must end alike"] = 2,
) -> Iterator[Finding]:
    """All ranks alike; else crashes whose innermost native frames are in a communication library."""
    everyone = endings.collect()
    known = ranks_known(everyone, launches, processes, source_ranks, watchdog_calls)
    yield from _alike(everyone, known, share, at_least)
    if exceptions is not None:
        yield from _in_library(everyone, exceptions)


def _in_library(everyone: pl.DataFrame, exceptions: pl.LazyFrame) -> Iterator[Finding]:
    crashed = everyone.filter(pl.col("own") & pl.col("kind").is_in(["segfault", "abort", "bus-error", "exception"]))
    native = exceptions.filter(pl.col("frames").is_not_null() & pl.col("kind").is_in(["fatal-signal", "cpp-terminate"]))
    top = pl.col("frames").str.split("\n").list.head(_TOP).list.join("\n")
    rows = (
        native.with_columns(library=top.str.extract(_LIBRARIES))
        .filter(pl.col("library").is_not_null())
        .sort("source_id", "line_no")
        .collect()
    )
    if not crashed.height or not rows.height or crashed.height >= everyone.height > 1:
        return
    first = rows.row(0, named=True)
    function = str(first["frames"]).split("\n", 1)[0][:120]
    yield Finding(
        title=f"crash inside {first['library']}: {function}",
        summary="The innermost frames of the crash are in a communication library, not in the program or the machine.",
        confidence="medium",
        culprits=(),
        subject=("library", str(first["library"])),
        evidence=(*cite(rows, "native frames of the crash", at_most=8), *cite(crashed, "how the process ended", at_most=4)),
        evidence_total=rows.height + crashed.height,
        remedy="Compare the versions of this library with the last run that worked; report it with the native stack.",
        prevention="Pin the versions of communication libraries in the image.",
        would_refute=("an earlier error of this process that corrupted its memory",),
        actions=(Action("fix-code"),),
    )


def _alike(everyone: pl.DataFrame, ranks: int, share: float, at_least: int) -> Iterator[Finding]:
    """``ranks``: how many the evidence knows, those of whose end it says nothing among them."""
    # No process kills itself: a signal that ends all of them at once comes from outside.
    sent = pl.col("signal").is_in(_SENT).fill_null(value=False)
    own = everyone.filter(pl.col("own") & ~pl.col("kind").is_in(["vanished", "killed"]) & ~sent & ~_SYSTEM)
    if not own.height or (not most_crashed_alike(everyone) and not _nearly_all(own, ranks, share, at_least)):
        return
    first = own.with_columns(own_signal()).sort("rank").row(0, named=True)
    what = first["signal"] or first["type"] or f"exit code {first['exit_code']}"
    message = str(first["message"] or "").split("\n", 1)[0][:160]
    whole = own.height == ranks
    # A bare exit code is what a program that was told to end leaves as well, and an abort without a word is how a watchdog ends processes
    # too.
    told = first["type"] or (first["signal"] and (first["signal"] != "SIGABRT" or first["frame"] or message))
    yield Finding(
        title=f"{'all ' if whole else ''}{own.height} ranks fell over alike: {what}" + (f" at {first['frame']}" if first["frame"] else ""),
        summary=f"{'Every rank' if whole else 'Each of them'} ended in the same way ({what}{': ' + message if message else ''}): a fault of the program or of a "
        f"library, not of one rank or host.{'' if whole else ' The others did nothing of their own: they were stopped, or found these gone.'}",
        confidence="high" if whole and told and first["signature"] not in _HANDED_ON else "medium",
        culprits=(),
        subject=(str(first["kind"]), str(what), str(first["frame"] or "")),
        evidence=cite(own, f"ended by {what}"),
        evidence_total=own.height,
        remedy="Reproduce on one node; compare versions with the last run that worked; get a native stack of one rank.",
        prevention="Run a few steps of each release on one node before the large job, with the versions that it will have.",
        would_refute=("one rank that died clearly before all others",),
        actions=(Action("fix-code"),),
    )


def _nearly_all(own: pl.DataFrame, everyone: int, share: float, at_least: int) -> bool:
    """Whether so many of all ranks ended in one way."""
    if own.height < max(at_least, min(3, everyone)):
        return False
    # A signal is the same one whether or not the process left a stack.
    signal = own_signal()
    most = own.group_by("kind", signal, pl.when(signal.is_null()).then("type")).len()["len"].max()
    return int(str(most)) >= share * everyone
