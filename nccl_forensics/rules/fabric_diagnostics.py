"""A fabric tool (ibdiagnet, ibqueryerrors) reports errors of its own.

## What it finds
Stages of ibdiagnet with errors, and the error lines that name a node, a port and what is wrong with it.

## Why it matters
The tool looks at the whole fabric at once and sees switches, which no host's counters show.

## What would refute it
The errors are on links that the job does not use, or were there before and did it no harm.

## What to do next
Read the lines of the named stage in ibdiagnet2.log; check cable and port of the nodes that they name.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule


@rule(name="fabric-diagnostics", code="NE08", cause="ib-link", severity="warning", at_most=16, explains=("low-bus-bandwidth",))
def fabric_diagnostics(ib_diagnostics: pl.LazyFrame) -> Iterator[Finding]:
    """One finding per source and stage with errors; lines that name a node come with it, or alone where no stage is shown."""
    rows = ib_diagnostics.sort("source_id", "line_no").collect()
    lines = rows.filter(pl.col("kind") == "error")
    stages = rows.filter((pl.col("kind") == "stage") & (pl.col("errors").fill_null(0) > 0))
    for (source, tool), own in lines.group_by("source_id", "tool", maintain_order=True):
        named = sorted({str(n) for n in own["name"].to_list() if n})
        of_stage = stages.filter(pl.col("source_id") == source)
        counted = ", ".join(f"{n}: {e}" for n, e in of_stage.select("name", "errors").iter_rows())
        yield Finding(
            title=f"{tool or 'a fabric tool'} reports {own.height} error{'s' if own.height > 1 else ''}"
            + (f" on {', '.join(named[:4])}" if named else "")
            + f": {str(own['message'][0])[:120]}",
            # A health check tests what the node needs; ibdiagnet tells of every link of the fabric.
            severity="error" if tool == "nhc" else None,
            summary=f"Errors by stage: {counted}." if counted else "The tool's own lines of errors.",
            confidence="medium",
            culprits=tuple(Culprit(link=n) for n in named[:8]),
            subject=("fabric", str(tool), *named[:8]),
            evidence=(*cite(own, "error of the fabric tool"), *cite(of_stage, "stage with errors")),
            evidence_total=own.height + of_stage.height,
            remedy="Check cable, optic and port of the named nodes; then repeat the tool.",
            prevention="Check ports and links of nodes before they take jobs.",
            would_refute=("the same errors in a report from before the trouble",),
            actions=(Action("check_cable_or_optic", command="ibdiagnet -r", confidence="low"),),
        )
    alone = stages.filter(~pl.col("source_id").is_in(lines["source_id"].unique().implode()))
    for _, part in alone.group_by("source_id", maintain_order=True):
        counted = ", ".join(f"{n}: {e}" for n, e in part.select("name", "errors").iter_rows())
        yield Finding(
            title=f"ibdiagnet counts errors in {part.height} stage{'s' if part.height > 1 else ''} ({counted})",
            summary="The lines that say which links are meant are not in the evidence.",
            confidence="low",
            subject=("fabric-stages", *[str(n) for n in part["name"].to_list()]),
            evidence=cite(part, "stage with errors"),
            evidence_total=part.height,
            remedy="Hand in ibdiagnet2.log or its db_csv as well.",
            would_refute=("errors of links that the job does not use",),
            actions=(Action("collect_more", command="ibdiagnet -r", confidence="low"),),
        )
