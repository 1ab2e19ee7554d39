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
    *,
    share: Annotated[float, "share of the ranks that must end alike"] = 0.8,
    at_least: Annotated[int, "ranks that must end alike"] = 2,
) -> Iterator[Finding]:
    """At most one finding."""
    everyone = endings.collect()
    own = everyone.filter(pl.col("own") & ~pl.col("kind").is_in(["vanished"]))
    if own.height < max(at_least, min(3, everyone.height)) or own.height < share * everyone.height:
        return
    kinds = own.group_by("kind", "signal", "type").len().sort("len", "kind", descending=[True, False])
    if kinds.row(0)[3] < share * everyone.height:
        return
    first = own.sort("rank").row(0, named=True)
    what = first["signal"] or first["type"] or f"exit code {first['exit_code']}"
    message = str(first["message"] or "").split("\n", 1)[0][:160]
    yield Finding(
        title=f"all {own.height} ranks fell over alike: {what}" + (f" at {first['frame']}" if first["frame"] else ""),
        summary=f"Every rank ended in the same way ({what}{': ' + message if message else ''}): a fault of the program or of a library, "
        "not of one rank or host.",
        confidence="high" if own.height == everyone.height else "medium",
        subject=(str(first["kind"]), str(what), str(first["frame"] or "")),
        evidence=cite(own, f"ended by {what}"),
        evidence_total=own.height,
        remedy="Reproduce on one node; compare versions with the last run that worked; get a native stack of one rank.",
        would_refute=("one rank that died clearly before all others",),
        actions=(Action("fix-code"),),
    )
