"""A host has next to no memory left.

## What it finds
Hosts whose free or /proc/meminfo shows less available memory than a threshold, with swap used up or absent.

## Why it matters
The kernel kills the largest process next, which is a rank or a data loader; before that everything slows down while pages are reclaimed.

## What would refute it
The listing was taken before the job, or most of the memory is a cache that the kernel can drop (then MemAvailable is high).

## What to do next
Look for the largest processes (ps, smem), data loader workers and /dev/shm; lower workers or prefetching.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place

_TOTAL, _AVAILABLE = ("MemTotal", "total"), ("MemAvailable", "available")


@rule(name="host-memory-low", code="ME04", cause="out-of-memory", severity="warning", at_most=16)
def host_memory_low(
    memory: pl.LazyFrame,
    source_hosts: pl.LazyFrame | None,
    *,
    least: Annotated[float, "share of a host's memory that must be available"] = 0.02,
) -> Iterator[Finding]:
    """One finding per source with a total and an available figure."""
    rows = located(memory, source_hosts)
    for (_, host), part in rows.group_by("source_id", "host", maintain_order=True):
        total = part.filter(pl.col("name").is_in(list(_TOTAL)) & (pl.col("value_kb") > 0))
        free = part.filter(pl.col("name").is_in(list(_AVAILABLE)) & pl.col("value_kb").is_not_null())
        if not total.height or not free.height:
            continue
        has, left = float(total["value_kb"][0]), float(free["value_kb"][-1])
        if left >= least * has:
            continue
        yield Finding(
            title=f"{place(host)} has {left / 2**20:.1f} GiB of {has / 2**20:.0f} GiB of memory available",
            summary="Less than this and the kernel kills a process; a rank or a data loader is the likely one.",
            confidence="medium",
            hosts=names_of(host),
            culprits=(Culprit(host=name_of(host)),),
            subject=("memory", str(host)),
            evidence=(*cite(free.tail(1), "available"), *cite(total.head(1), "in all")),
            remedy="Fewer data loader workers, less prefetching, no large caches per rank; check /dev/shm for leftovers.",
            would_refute=("a kernel log of that time without any reclaim or kill",),
            actions=(Action("raise_memory_limit", hosts=names_of(host), command="ps aux --sort=-rss | head", confidence="low"),),
            metrics={"available_gib": round(left / 2**20, 2), "total_gib": round(has / 2**20, 1)},
        )
