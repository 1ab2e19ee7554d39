"""A path through the InfiniBand fabric ends before it reaches its host.

## What it finds
Traces of ibtracert that ended with an error, by the node that they reached last. Several that end at one node point to it.

## Why it matters
The subnet manager has no working path between the two hosts: connections of NCCL between them time out, however healthy both ends look.

## What would refute it
The trace named a LID that belongs to no host any more: LIDs may change when the subnet manager starts again.

## What to do next
Look at the ports of that node and at the subnet manager's log; trace from another host to see whether the path breaks at the same place.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule


@rule(name="broken-path", code="NE17", cause="ib-link", severity="warning", at_most=16, explains=("connection-failed", "rank-never-joined"))
def broken_path(ib_routes: pl.LazyFrame) -> Iterator[Finding]:
    """One finding per node at which paths end, most paths first."""
    hops = ib_routes.sort("source_id", "route", "hop").collect()
    failed = hops.filter(pl.col("error").is_not_null()).select("source_id", "route", "line_no", "error")
    if failed.is_empty():
        return
    reached = (
        hops.filter(pl.col("error").is_null())
        .group_by("source_id", "route", maintain_order=True)
        .agg(pl.col("node").first().alias("sender"), pl.col("node").last(), pl.col("lid").last(), pl.len().alias("hops"))
    )
    ends = failed.join(reached, on=["source_id", "route"], how="left", maintain_order="left")
    by_node = (
        ends.group_by("node", "lid", maintain_order=True).agg(pl.len().alias("paths")).sort("paths", descending=True, maintain_order=True)
    )
    for node, lid, count in by_node.iter_rows():
        part = ends.filter(
            pl.col("node").eq_missing(pl.lit(node, dtype=pl.String())) & pl.col("lid").eq_missing(pl.lit(lid, dtype=pl.Int64()))
        )
        where = f"end at {node} (LID {lid})" if node is not None else "end before their first hop"
        yield Finding(
            title=f"{count} {'path' if count == 1 else 'paths'} through the fabric {where if count != 1 else where.replace('end', 'ends', 1)}",
            summary=f'ibtracert says: "{part["error"][0]}".',
            confidence="medium" if count > 1 else "low",
            culprits=(Culprit(link=str(node)),) if node is not None else (),
            subject=("path", str(node)),
            evidence=cite(part, "the trace ended here"),
            evidence_total=part.height,
            remedy="Check the ports of this node and what the subnet manager says of it.",
            prevention="Let the subnet manager's sweep and ibdiagnet report broken paths before jobs meet them.",
            would_refute=("the traced LID belongs to no host any more",),
            actions=(Action("collect-more", command="ibtracert -n SOURCE_LID TARGET_LID; ibdiagnet", confidence="low"),),
        )
