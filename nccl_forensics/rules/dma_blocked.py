"""The IOMMU of a host blocked what a GPU or network card wanted to read or write.

## What it finds
Faults of Intel's (DMAR) and AMD's (AMD-Vi) IOMMU: a device used an address that is not mapped for it.

## Why it matters
With the IOMMU translating, or with access control (ACS) on the switches, direct copies between GPUs and to network cards go to addresses that
the IOMMU does not know: collectives hang, or bring wrong data.

## What would refute it
The device is none of the job's, or a driver of its own is at fault and the same host works with iommu=pt.

## What to do next
On bare metal boot with iommu=pt (or the IOMMU off) and turn ACS off on the PCIe switches; test with NCCL_P2P_DISABLE=1 whether the hang goes.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding, given, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, near_job, people, place, untimely_finding
from nccl_forensics.rules.common.thresholds import BESIDE_S, ZONES_H, AroundHours, NearSeconds


@rule(
    name="dma-blocked",
    code="PC02",
    cause="bad-setting",
    severity="error",
    at_most=32,
    explains=("timeout", "closed", "collective-stuck", "gpu-stall", "data-corruption", "gdr-disabled", "p2p-disabled"),
)
def dma_blocked(
    kernel_events: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    *,
    window_h: AroundHours = ZONES_H,
    near_s: NearSeconds = BESIDE_S,
) -> Iterator[Finding]:
    """One finding per host and device; certain only for a GPU of a rank in the time of a job that failed."""
    who = people(processes)
    rows = located(kernel_events.filter(pl.col("kind") == "iommu-fault"), source_hosts).sort("source_id", "line_no")
    rows = near_job(rows, job_times, near_s, window_h)
    if not rows["inside"].all():
        yield untimely_finding(rows.filter(~pl.col("inside")), "faults of the IOMMU")
    failed = has_rows(failures)
    for (host, device), part in rows.filter("inside").group_by("host", "device", maintain_order=True):
        rank = who.of_gpu(host, device)
        hosts = names_of(host)
        close = bool(part["close"].any())
        yield Finding(
            title=f"the IOMMU of {place(host)} blocked DMA of {device or 'a device'}"
            + (f", the GPU of rank {rank}" if rank is not None else ""),
            summary=f'The kernel wrote: "{part["message"][0]}".',
            severity="critical" if rank is not None and close and failed else "error" if rank is not None or failed else "warning",
            confidence="medium" if rank is not None and close else "low",
            ranks=given(rank),
            hosts=hosts,
            culprits=(Culprit(rank=rank, host=name_of(host), gpu=str(device) if rank is not None else None),),
            subject=(str(host or ""), str(device or ""), "dma"),
            evidence=cite(part, "fault of the IOMMU"),
            evidence_total=part.height,
            remedy="Boot with iommu=pt and turn access control (ACS) off on the PCIe switches between GPUs and network cards.",
            prevention="Test direct copies (p2pBandwidthLatencyTest) and the IOMMU's mode when a host joins the pool.",
            would_refute=("the device is none of the job's", "the same fault in runs that went well"),
            actions=(Action("fix_config", hosts=hosts, command="cat /proc/cmdline; dmesg | grep -i -e DMAR -e AMD-Vi -e iommu"),),
        )
