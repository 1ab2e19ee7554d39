"""A GPU has fewer NVLinks in NCCL's topology than its neighbours.

## What it finds
The summed NVLink bandwidth of each GPU in NCCL's own topology as its log prints it, and the NVLinks and PCIe lanes in the XML file that it
wrote of it, compared with the other GPUs of the same host.

## Why it matters
Rings are built for the weakest GPU: one GPU with dead links halves the bandwidth of all.

## What would refute it
A topology file (NCCL_TOPO_FILE) that is wrong about the hardware: then the file is the cause, and is named where the process of that GPU
was given another one than those of its neighbours.

## What to do next
nvidia-smi nvlink -s on that GPU; look for NVLink errors in its kernel log; compare the topology file with a fresh dump.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, people, place


@rule(
    name="nvlink-topology",
    code="NV02",
    cause="nvlink-fault",
    severity="error",
    at_most=16,
    explains=("few-channels", "low-bus-bandwidth", "p2p-disabled"),
)
def nvlink_topology(
    gpu_links: pl.LazyFrame,
    settings: pl.LazyFrame | None = None,
    *,
    below: Annotated[float, "share of the neighbours' NVLink bandwidth below which a GPU is named"] = 0.95,
) -> Iterator[Finding]:
    """GPUs below their host's usual NVLink bandwidth."""
    rows = gpu_links.collect()
    files = _topology_files(settings)
    for (host,), part in rows.group_by("host", maintain_order=True):
        best = float(part["nvlink_gb_s"].max() or 0.0)  # type: ignore[arg-type]  # a column of floats
        weak = part.filter(pl.col("nvlink_gb_s") < below * best)
        alike = rows.filter(pl.col("nvlink_gb_s") >= below * best)
        # Where half of a host's few GPUs are weak, those of the other hosts tell which half is the odd one.
        if best <= 0 or 2 * weak.height >= max(part.height, alike.height):
            continue
        for row in weak.iter_rows(named=True):
            ranks = (row["rank"],) if row["rank"] is not None else ()
            own, theirs = files.get(row["rank"]), {files.get(rank) for rank in part["rank"].to_list() if rank != row["rank"]}
            other_file = own is not None and own not in theirs
            yield Finding(
                title=f"GPU {row['gpu']} of {host}{f' (rank {ranks[0]})' if ranks else ''} has {row['nvlink_gb_s']:g} GB/s of NVLink, its neighbours {best:g}",
                summary="NCCL builds its rings for the weakest GPU of the host."
                + (
                    f" Its process alone was given the topology file {own}: more likely that file is wrong, or not there."
                    if other_file
                    else ""
                ),
                cause="bad-setting" if other_file else None,
                confidence="medium" if other_file else "high",
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


def _topology_files(settings: pl.LazyFrame | None) -> dict[int, str]:
    """The topology file that each rank was given."""
    if settings is None:
        return {}
    given = settings.filter((pl.col("name") == "NCCL_TOPO_FILE") & pl.col("value").is_not_null()).select("ranks", "value").collect()
    return {int(rank): str(value) for ranks, value in given.iter_rows() for rank in ranks or ()}


@rule(
    name="topology-dump",
    code="NV03",
    cause="nvlink-fault",
    severity="error",
    at_most=16,
    explains=("few-channels", "low-bus-bandwidth", "p2p-disabled", "nvls-disabled"),
)
def topology_dump(
    nccl_topo: pl.LazyFrame,
    job_settings: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
) -> Iterator[Finding]:
    """GPUs of a dump (NCCL_TOPO_DUMP_FILE) with fewer NVLinks or PCIe lanes than the others of their host; a file that NCCL was given to
    read is judged by a rule of its own."""
    if has_rows(job_settings, pl.col("name") == "NCCL_TOPO_FILE"):
        return
    who = people(processes)
    rows = located(nccl_topo, source_hosts)
    device = ["source_id", "host", "host_hash", "bus_id"]
    links = rows.filter(pl.col("element") == "nvlink").group_by(device).agg(links=pl.col("count").sum())
    lanes = rows.filter(pl.col("element") == "pci").group_by(device).agg(lanes=pl.col("link_width").first())
    gpus = rows.filter((pl.col("element") == "gpu") & pl.col("rank").is_not_null()).select(*device, "rank", "record", "line_no")
    for frame in (links, lanes):
        gpus = gpus.join(frame, on=device, how="left", nulls_equal=True, maintain_order="left")
    for (_, host, _), part in gpus.with_columns(pl.col("links").fill_null(0)).group_by(device[:3], maintain_order=True):
        for what, cause, words in (("links", None, "NVLinks"), ("lanes", "pcie-degraded", "PCIe lanes")):
            best = int(str(part[what].max() or 0))
            weak = part.filter(pl.col(what) < best)
            if part.height < 3 or not best or weak.height * 2 >= part.height:
                continue
            for row in weak.iter_rows(named=True):
                sits = who.of_gpu(host, row["bus_id"])
                rank = sits if sits is not None else row["rank"] if not who.by_bus else None
                ranks, hosts, gpu = () if rank is None else (rank,), names_of(host), str(row["bus_id"])
                yield Finding(
                    title=f"{place(host, gpu)}{f' (rank {rank})' if ranks else ''} has {row[what]} {words} in NCCL's topology, its neighbours {best}",
                    summary="NCCL wrote this file from what it found, and builds its channels for the weakest GPU: with one that has no NVLink"
                    " it goes from dozens of channels to two, without a word.",
                    cause=cause,
                    confidence="high" if job_settings is not None and hosts else "medium",
                    ranks=ranks,
                    hosts=hosts,
                    culprits=(Culprit(rank=rank, host=name_of(host), gpu=gpu),),
                    subject=(what, str(host or row["host_hash"]), gpu),
                    evidence=(
                        *cite([row], f"{words} of this GPU: {row[what]}"),
                        *cite(part.filter(pl.col(what) == best).head(1), f"a neighbour: {best}"),
                    ),
                    remedy="Check the links (nvidia-smi nvlink -s, -e; lspci -vv), reseat or replace the GPU.",
                    prevention="Check links and lanes of every GPU in the job's prologue.",
                    would_refute=("the file was written by hand, or on another machine",),
                    actions=(Action("collect_more", ranks=ranks, hosts=hosts, gpus=(gpu,), command="nvidia-smi nvlink -s; lspci -vv"),),
                )
