"""The store of the rendezvous waited for processes that never came, and says how many did.

## What it finds
Timeouts of torch's store that count: "8/12 clients joined". Nothing names the missing ones; where ranks left words in the evidence, their number is told.

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

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule

#: torch/csrc/distributed/c10d/TCPStore.cpp, since 2.0.
_JOINED = re.compile(r"waiting for clients\. ([0-9]{1,7})/([0-9]{1,7}) clients joined")


@rule(
    name="clients-never-joined",
    code="IN05",
    cause="rank-never-joined",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "host-stall"),
)
def clients_never_joined(exceptions: pl.LazyFrame) -> Iterator[Finding]:
    """At most one finding, by the message that counts the most processes."""
    told = exceptions.filter(pl.col("message").str.contains("waiting for clients. ", literal=True)).sort("source_id", "line_no").collect()
    counts = [(int(m[1]), int(m[2]), row) for row in told.iter_rows(named=True) if (m := _JOINED.search(str(row["message"])))]
    short = [c for c in counts if c[0] < c[1]]
    if not short:
        return
    came, wanted, row = max(short, key=lambda c: (c[1], c[0]))
    missing = wanted - came
    yield Finding(
        title=f"{missing} of {wanted} processes never came to the rendezvous: its store waited for them in vain",
        summary="The message counts them and names none. It comes from the process that hosts the store, before NCCL is asked for anything.",
        confidence="medium",
        culprits=(),
        subject=("clients", str(wanted)),
        evidence=cite([row], f"{came} of {wanted} came"),
        evidence_total=len(short),
        remedy="Find the hosts on which nothing was started, or from which the master's port cannot be reached.",
        prevention="Let the launcher check that all nodes answer before it starts the job.",
        would_refute=("the missing processes came after the timeout",),
        actions=(Action("collect-more", command="ps -ef | grep python; nc -zv $MASTER_ADDR $MASTER_PORT, on every node"),),
        metrics={"missing": missing, "wanted": wanted},
    )
