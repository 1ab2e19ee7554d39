"""GPU pairs of a host that may not, or do not, copy to each other directly.

## What it finds
Tests of peer access (p2pBandwidthLatencyTest, nvidia-smi topo -p2p): pairs without access where others have it, access that brings no
bandwidth, and latencies that only IOMMU or ACS explain.

## Why it matters
Without direct copies NCCL goes through host memory: several times slower, and where access is claimed but broken, hangs or wrong data.

## What would refute it
The GPUs have no common path by design (another socket, consumer cards).

## What to do next
Turn ACS off on the PCIe switches and set iommu=pt (bare metal), or fix the hypervisor's passthrough; then repeat the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place

_ON, _OFF = "p2p=enabled", "p2p=disabled"


@rule(name="peer-access", code="TR05", cause="p2p-disabled", severity="warning", at_most=16, explains=("low-bus-bandwidth",))
def peer_access(
    gpu_bandwidth: pl.LazyFrame,
    source_hosts: pl.LazyFrame | None,
    *,
    latency_us: Annotated[float, "latency with peer access from which it is broken"] = 10.0,
    stuck_us: Annotated[float, "latency from which nothing that uses it gets on"] = 1000.0,
    gain: Annotated[float, "how many times faster than without it peer access must be"] = 1.1,
) -> Iterator[Finding]:
    """Per source: pairs without access among pairs with it, then latencies, then access without gain."""
    rows = located(gpu_bandwidth.filter((pl.col("row") != pl.col("column")) & pl.col("value").is_not_null()), source_hosts)
    for (_, host), part in rows.group_by("source_id", "host", maintain_order=True):
        access = part.filter(pl.col("test") == "access")
        none = access.filter(pl.col("value") == 0)
        if none.height and none.height < access.height:
            yield _finding(
                none,
                host,
                f"{none.height} of {access.height} GPU pairs may not copy to each other",
                "The other pairs of this host may.",
                "no access",
            )
        timed = part.filter((pl.col("unit") == "us") & pl.col("test").str.contains(_ON))
        slow = timed.filter(pl.col("value") >= latency_us)
        if slow.height:
            worst = float(str(slow["value"].max()))
            yield _finding(
                slow,
                host,
                f"{slow.height} GPU pairs answer direct copies after up to {worst:.0f} us",
                "Healthy pairs take a few microseconds: IOMMU or ACS redirects the copies.",
                "latency",
                severity="error" if worst >= stuck_us else "warning",
            )
        speeds = part.filter((pl.col("unit") == "gb_s") & pl.col("test").str.starts_with("unidirectional"))
        keys = ["row", "column"]
        off = speeds.filter(pl.col("test").str.contains(_OFF)).select(*keys, without="value")
        on = speeds.filter(pl.col("test").str.contains(_ON)).join(off, on=keys)
        useless = on.filter(pl.col("value") < gain * pl.col("without"))
        if useless.height and useless.height == on.height and not none.height:
            yield _finding(
                useless,
                host,
                f"direct copies bring no bandwidth to any of {on.height} GPU pairs",
                "With and without peer access the pairs are equally fast: it does not work.",
                "no gain",
            )


def _finding(rows: pl.DataFrame, host: object, words: str, why: str, subject: str, severity: Severity = "warning") -> Finding:
    pairs = [f"GPU {a} -> GPU {b}" for a, b in rows.select("row", "column").head(8).iter_rows()]
    hosts = names_of(host)
    return Finding(
        title=f"{words} on {place(host)} ({', '.join(pairs[:3])}{', ...' if rows.height > 3 else ''})",
        summary=why,
        severity=severity,
        confidence="medium",
        hosts=hosts,
        culprits=tuple(Culprit(host=name_of(host), link=p) for p in pairs),
        subject=("peer", str(host), subject),
        evidence=cite(rows, words),
        evidence_total=rows.height,
        remedy="Check ACS (lspci -vvv: ACSCtl), IOMMU (dmesg, iommu=pt) and, in a VM, how the GPUs are passed through.",
        prevention="Run p2pBandwidthLatencyTest or nvbandwidth in the burn-in of every node, and after changes of BIOS or hypervisor.",
        would_refute=("the pair has no common path by design",),
        actions=(Action("fix_config", hosts=hosts, command="nvidia-smi topo -p2p r", confidence="medium"),),
    )
