"""A GPU has fewer NVLinks in NCCL's topology than its neighbours.

## What it finds
The summed NVLink bandwidth of each GPU in NCCL's own topology dump, compared with the other GPUs of the same host.

## Why it matters
Rings are built for the weakest GPU: one GPU with dead links halves the bandwidth of all.

## What would refute it
A topology file (NCCL_TOPO_FILE) that is wrong about the hardware: then the file is the cause.

## What to do next
nvidia-smi nvlink -s on that GPU; look for NVLink errors in its kernel log; compare the topology file with a fresh dump.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule


@rule(
    name="nvlink-topology",
    code="NV02",
    cause="nvlink-fault",
    severity="error",
    at_most=16,
    explains=("few-channels", "low-bus-bandwidth", "p2p-disabled"),
)
def nvlink_topology(
    gpu_links: pl.LazyFrame, *, below: Annotated[float, "share of the neighbours' NVLink bandwidth below which a GPU is named"] = 0.95
) -> Iterator[Finding]:
    """GPUs below their host's usual NVLink bandwidth."""
    rows = gpu_links.collect()
    for (host,), part in rows.group_by("host", maintain_order=True):
        best = float(part["nvlink_gb_s"].max() or 0.0)  # type: ignore[arg-type]  # a column of floats
        weak = part.filter(pl.col("nvlink_gb_s") < below * best)
        if part.height < 3 or best <= 0 or weak.height * 2 >= part.height:
            continue
        for row in weak.iter_rows(named=True):
            ranks = (row["rank"],) if row["rank"] is not None else ()
            yield Finding(
                title=f"GPU {row['gpu']} of {host}{f' (rank {ranks[0]})' if ranks else ''} has {row['nvlink_gb_s']:g} GB/s of NVLink, its neighbours {best:g}",
                summary="NCCL builds its rings for the weakest GPU of the host.",
                confidence="high",
                ranks=ranks,
                hosts=(str(host),),
                culprits=(Culprit(rank=row["rank"], host=str(host), gpu=row["gpu"]),),
                subject=("nvlink", str(host), str(row["gpu"])),
                evidence=(
                    *cite([row], f"NVLink bandwidth of this GPU: {row['nvlink_gb_s']:g} GB/s"),
                    *cite(part.filter(pl.col("nvlink_gb_s") == best).head(1), f"a neighbour: {best:g} GB/s"),
                ),
                remedy="Check the links (nvidia-smi nvlink -s, -e), reseat or replace the GPU; if NCCL_TOPO_FILE is set, compare it with a fresh dump.",
                prevention="Check NVLink state of every GPU in the job's prologue.",
                would_refute=("a topology file that does not match the hardware",),
                actions=(Action("collect_more", ranks=ranks, hosts=(str(host),), gpus=(str(row["gpu"]),), command="nvidia-smi nvlink -s"),),
            )
