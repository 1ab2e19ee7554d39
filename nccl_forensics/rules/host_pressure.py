"""The processes of a host wait for memory, storage or CPUs.

## What it finds
Hosts of which /proc/pressure says that all processes stood still for a good share of a minute, waiting for memory or storage, or that vmstat
shows swapping.

## Why it matters
A rank that waits for a page enqueues nothing, and every other rank waits for it: the job is slow or times out, and nothing on the GPUs tells why.

## What would refute it
The sample was taken outside the job, or while a checkpoint was written.

## What to do next
ps aux --sort=-rss and iotop on the host; fewer data loader workers, local storage for data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import place

_WORDS = {"memory": "memory: pages are reclaimed or swapped in", "io": "storage"}


@rule(name="host-pressure", code="HO04", cause="host-stall", severity="warning", at_most=32)
def host_pressure(
    pressures: pl.LazyFrame,
    *,
    memory_percent: Annotated[float, "percent of a minute in which all processes waited for memory"] = 10.0,
    io_percent: Annotated[float, "percent of a minute in which all processes waited for storage"] = 40.0,
    swap_kb_s: Annotated[float, "kilobytes a second swapped in or out"] = 1024.0,
) -> Iterator[Finding]:
    """One finding per host and resource."""
    rows = pressures.collect()
    for resource, least in (("memory", memory_percent), ("io", io_percent)):
        waiting = rows.filter((pl.col("name") == f"{resource}-pressure-full") & (pl.col("number") >= least))
        for (host,), part in waiting.group_by("host", maintain_order=True):
            share = float(str(part["number"].max()))
            yield _finding(part, host, f"all processes of {place(host)} waited {share:.0f} % of a minute for {_WORDS[resource]}", resource)
    swapping = rows.filter(pl.col("name").is_in(["swap-in-kb-s", "swap-out-kb-s"]) & (pl.col("number") >= swap_kb_s))
    for (host,), part in swapping.group_by("host", maintain_order=True):
        most = float(str(part["number"].max()))
        yield _finding(part, host, f"{place(host)} swaps {most / 1024:.1f} MiB a second", "swap")


def _finding(rows: pl.DataFrame, host: object, title: str, subject: str) -> Finding:
    hosts = names_of(host)
    return Finding(
        title=title,
        summary="Ranks on this host stand still while they wait, and all others wait for them.",
        confidence="medium",
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in hosts),
        subject=(subject, *hosts),
        evidence=cite(rows, "what the kernel counted"),
        evidence_total=rows.height,
        remedy="Give the job more memory or fewer processes per host; keep data and checkpoints off storage that is slow.",
        prevention="Watch /proc/pressure of every node while jobs run.",
        would_refute=("the sample was taken outside the job",),
        actions=(
            Action("collect_more", hosts=hosts, command="grep . /proc/pressure/*; vmstat 1 5; ps aux --sort=-rss | head", confidence="low"),
        ),
    )
