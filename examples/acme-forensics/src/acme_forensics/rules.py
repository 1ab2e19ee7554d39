"""A node was used although a check of the site had failed on it.

## What it finds
Checks of Acme's prolog that failed on nodes of the job.

## Why it matters
The prolog warns and lets the job start; weeks later nobody reads its log.

## What would refute it
The check itself is wrong: then it fails on every node alike.

## What to do next
Drain the node and run the check by hand.
"""

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Culprit, Finding
from nccl_forensics.rules import rule

#: A check's name to the word of the report for what it looks for.
CAUSES = {"gpu-clock": "gpu-throttled", "nvlink": "nvlink-fault", "ib-port": "ib-link"}


@rule(name="acme-prolog-failed", code="ACME01", cause="node-failed", severity="warning")
def acme_prolog_failed(
    x_acme_checks: pl.LazyFrame,
    *,
    at_least: Annotated[int, "failed checks of a node below which nothing is said"] = 1,
) -> Iterator[Finding]:
    """One finding for each node and check."""
    failed = x_acme_checks.filter(pl.col("passed") == "FAIL").sort("node", "check", "source_id", "line_no").collect()
    for (node, check), rows in failed.group_by("node", "check", maintain_order=True):
        if rows.height < at_least:
            continue
        yield Finding(
            title=f"{node} was used although Acme's check {check} had failed: {rows['detail'][0]}",
            cause=CAUSES.get(str(check)),
            confidence="medium",
            hosts=(str(node),),
            culprits=(Culprit(host=str(node)),),
            subject=(str(node), str(check)),
            evidence=cite(rows, "failed check"),
            evidence_total=rows.height,
            remedy="Drain the node.",
            prevention="Let the prolog end with an error.",
        )
