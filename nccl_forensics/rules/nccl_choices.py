"""NCCL chose a slow way: the wrong protocol for large messages, or channels over a path that is no NVLink.

## What it finds
TUNING lines in which large messages run with the LL protocol, and graph dumps whose ring crosses PCIe or the CPU inside a host that has NVLink,
or carries next to nothing per channel.

## Why it matters
NCCL chooses by what it believes of the hardware. A choice that bad means that it saw another machine: a lost link, a bad topology file, a VM.

## What would refute it
The machine really has no better path (PCIe cards without bridges), or the choice was forced by a setting.

## What to do next
Compare NCCL's topology dump with nvidia-smi topo -m; look at NCCL_PROTO, NCCL_ALGO and NCCL_TOPO_FILE.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule


@rule(name="nccl-slow-choice", code="TR04", cause="low-bus-bandwidth", severity="warning", at_most=4)
def nccl_slow_choice(
    nccl_tuning: pl.LazyFrame | None,
    nccl_graphs: pl.LazyFrame | None,
    nccl_topo: pl.LazyFrame | None,
    settings: pl.LazyFrame | None,
    *,
    large_bytes: Annotated[int, "size from which LL costs bandwidth"] = 64 << 20,
    least_gb_s: Annotated[float, "bandwidth per channel inside a host below which a search has failed"] = 1.0,
) -> Iterator[Finding]:
    """Protocols of large messages; then graphs."""
    forced = has_rows(settings, pl.col("name").is_in(["NCCL_PROTO", "NCCL_ALGO"]))
    if nccl_tuning is not None and not forced:
        slow = (
            nccl_tuning.filter((pl.col("bytes") >= large_bytes) & (pl.col("proto").str.to_uppercase() == "LL"))
            .sort("source_id", "line_no")
            .collect()
        )
        if slow.height:
            yield Finding(
                title=f"NCCL runs messages of {int(str(slow['bytes'].max())) >> 20} MiB with the LL protocol",
                summary="LL is meant for small messages: it moves a flag with every 4 bytes. NCCL's model believes the links to be very slow.",
                confidence="medium",
                subject=("LL",),
                evidence=cite(slow, "chosen for a large message"),
                evidence_total=slow.height,
                remedy="Compare the topology that NCCL found (NCCL_TOPO_DUMP_FILE) with the machine.",
                would_refute=("a tuner plugin or a setting made the choice",),
                actions=(Action("collect-more", command="NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING"),),
            )
    if nccl_graphs is None:
        return
    linked = has_rows(nccl_topo, pl.col("element") == "nvlink")
    rings = nccl_graphs.filter((pl.col("pattern") == 4) & (pl.col("gpus").list.len() > 1) & (pl.col("channels") > 0)).collect()
    for row in rings.sort("source_id", "id").iter_rows(named=True):
        crosses = linked and row["type_intra"] in ("PHB", "SYS", "PXB", "PIX")
        starved = row["bw_intra"] is not None and row["bw_intra"] < least_gb_s
        if not crosses and not starved:
            continue
        yield Finding(
            title=f"NCCL's ring has {row['channels']} channels of {row['bw_intra']:g} GB/s over {row['type_intra']} inside a host"
            + (" that has NVLink" if linked else ""),
            summary="The search for channels fell back to a path that carries little.",
            confidence="medium" if crosses else "low",
            subject=("graph", str(row["type_intra"])),
            evidence=cite([row], "the graph that NCCL chose"),
            remedy="Look for a GPU without its links in the topology; unset NCCL_TOPO_FILE and NCCL_GRAPH_FILE.",
            would_refute=("no GPU pair of the ring has a direct link",),
            actions=(Action("collect-more", command="nvidia-smi topo -m; nvidia-smi nvlink -s"),),
        )
        return
