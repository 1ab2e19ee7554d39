"""Messages that look alarming and are known to be harmless.

## What it finds
Lines of kernel logs and of the fabric manager that are known noise, each with the reason why it is ignored.

## Why it matters
They are what a tired engineer finds first in a log. Listed here, nobody has to look them up again.

## What would refute it
The count rises together with real faults of the same device: then look at the device, not at the line.

## What to do next
Nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import hosts_of
from nccl_forensics.rules.common.hosts import located


@rule(name="known-noise", code="KN01", cause="gpu-fault", severity="info", at_most=24)
def known_noise(
    kernel_events: pl.LazyFrame | None, fabric_events: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None
) -> Iterator[Finding]:
    """One finding per reason. It bears no cause of its own: ``info`` says that it is context."""
    parts = [t.filter(pl.col("severity") == "benign") for t in (kernel_events, fabric_events) if t is not None]
    frames = [located(p, source_hosts).select("source_id", "line_no", "host", "detail", "message", "time_raw_ns") for p in parts]
    rows = pl.concat(frames) if frames else pl.DataFrame()
    if not rows.height:
        return
    named = rows.with_columns(reason=pl.coalesce("detail", pl.lit("known noise")))
    for (reason,), part in named.sort("reason", "source_id", "line_no").group_by("reason", maintain_order=True):
        hosts = hosts_of(part)
        yield Finding(
            title=f"ignored: {part.height} line{'s' if part.height > 1 else ''} like '{str(part['message'][0])[:100]}'",
            summary=f"{reason}.",
            severity="info",
            confidence="high",
            hosts=hosts,
            subject=("noise", str(reason)),
            evidence=cite(part.head(3), str(reason)),
            evidence_total=part.height,
            would_refute=("real faults of the same device at the same time",),
            actions=(Action("none"),),
        )
