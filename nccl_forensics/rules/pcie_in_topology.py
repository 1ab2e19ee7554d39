"""In NCCL's picture of a host the PCIe link of one GPU or network card carries less than that of its neighbours.

## What it finds
Topology dumps (NCCL_TOPO_DUMP_FILE) in which one of several equal GPUs has a lower PCIe rate, or one of several equal network cards fewer
lanes or a lower rate, than the others, and NCCL's own tree of the host (subsystem GRAPH) in which a GPU has. NVLinks and lanes of GPUs in dumps
are judged by ``topology-dump``.

## Why it matters
NCCL builds its rings for the weakest link of the host: all ranks run at its pace.

## What would refute it
The slot is built so (another model of riser or card), or a topology file (NCCL_TOPO_FILE) that is wrong about the hardware.

## What to do next
nvidia-smi -q (PCIe link width, current and maximum); compare with a dump of another host of the same model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows, text_of
from nccl_forensics.model import Action, Culprit, Finding, given, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located

_SHARE = Annotated[float, "share of what the others of its kind have below which a device is named"]


def _from_a_file(job_settings: pl.LazyFrame | None) -> bool:
    """Whether NCCL was handed its topology: then a dump shows the file, and rule ``topology-file`` judges it."""
    return job_settings is not None and has_rows(job_settings.filter(pl.col("name") == "NCCL_TOPO_FILE"))


def _weak(rows: pl.DataFrame, column: str, share: float) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, float]]:
    """Per source and kind the devices far below what most of at least three have, one that has it, and how much that is."""
    for _, group in rows.group_by("source_id", "kind", maintain_order=True):
        usual = group.group_by(column).len().sort("len", column, descending=True)
        best = float(str(usual[column][0]))
        weak = group.filter(pl.col(column) < share * best)
        if group.height >= 3 and best > 0 and weak.height and usual["len"][0] * 2 > group.height:
            yield weak, group.filter(pl.col(column) == best).head(1), best


def _dumped(nccl_topo: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.DataFrame:
    """One row per source and GPU or network card: its ``kind`` (of GPUs the compute capability, of cards the rate), ``gpu_rank`` and
    ``host``. A card for the display beside GPUs that compute is of another kind."""
    kind = text_of("GPU of sm {}", pl.col("sm").fill_null(0))
    gpus = (
        nccl_topo.filter(pl.col("element") == "gpu")
        .select("source_id", "bus_id", gpu_rank="rank", model=kind)
        .unique(["source_id", "bus_id"])
    )
    nets = nccl_topo.filter(pl.col("element") == "net").group_by("source_id", "bus_id").agg(rate=pl.col("speed_mbps").max())
    devices = nccl_topo.filter((pl.col("element") == "pci") & pl.col("bus_id").is_not_null())
    both = devices.join(gpus, on=["source_id", "bus_id"], how="left").join(nets, on=["source_id", "bus_id"], how="left")
    of = both.with_columns(kind=pl.coalesce("model", text_of("network card of {} Mb/s", "rate"))).filter(pl.col("kind").is_not_null())
    return located(of, source_hosts).sort("source_id", "line_no")


@rule(
    name="pcie-in-topology",
    code="PC03",
    cause="pcie-degraded",
    severity="error",
    at_most=8,
    explains=("low-bus-bandwidth", "straggler", "gdr-disabled"),
)
def pcie_in_topology(
    nccl_topo: pl.LazyFrame | None,
    gpu_links: pl.LazyFrame | None,
    job_settings: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    *,
    below: _SHARE = 0.7,
) -> Iterator[Finding]:
    """Devices of a dump, else GPUs of NCCL's tree, whose PCIe link carries less than that of most of their kind."""
    if _from_a_file(job_settings):
        return
    if nccl_topo is not None:
        lanes = _dumped(nccl_topo, source_hosts).with_columns(
            carried=pl.col("link_speed").str.extract(r"^([0-9.]+) ?GT/s").cast(pl.Float64)
            * pl.when(pl.col("kind").str.starts_with("GPU")).then(1).otherwise("link_width")
        )
        for weak, whole, _ in _weak(lanes.filter(pl.col("carried").is_not_null()), "carried", below):
            usual = whole.row(0, named=True)
            for row in weak.iter_rows(named=True):
                yield _on_pcie(
                    row,
                    whole,
                    f"hangs on {row['link_width']} lanes at {row['link_speed']}",
                    f"{usual['link_width']} at {usual['link_speed']}",
                )
    elif gpu_links is not None:
        tree = gpu_links.filter(pl.col("pcie_gb_s") > 0).collect()
        # One tree per host, whoever printed it.
        rows = tree.with_columns(source_id=pl.col("host").rank("dense"), at=pl.col("source_id"), kind=pl.lit("GPU"))
        for weak, whole, best in _weak(rows, "pcie_gb_s", below):
            for row in weak.with_columns(source_id="at", bus_id="gpu", gpu_rank="rank").iter_rows(named=True):
                yield _on_pcie(row, whole.with_columns(source_id="at"), f"has {row['pcie_gb_s']:g} GB/s of PCIe", f"{best:g}")


def _on_pcie(row: dict[str, object], whole: pl.DataFrame, has: str, others: str) -> Finding:
    return _finding(
        row,
        whole,
        f"{has}, its neighbours {others}",
        ("pcie", str(row["bus_id"])),
        "Compare current and largest link width and speed (nvidia-smi -q, lspci -vv), then reseat the card, its riser or its cable.",
        f"lspci -vv -s {row['bus_id']} | grep -i lnk",
    )


def _finding(row: dict[str, object], whole: pl.DataFrame, has: str, subject: tuple[str, str], remedy: str, command: str) -> Finding:
    gpu = str(row["kind"]).startswith("GPU")
    rank = int(str(row["gpu_rank"])) if row["gpu_rank"] is not None else None
    host = name_of(row["host"])
    return Finding(
        title=f"{'GPU' if gpu else 'network card'} {row['bus_id']}"
        + (f" of {host}" if host else "")
        + (f" (rank {rank})" if rank is not None else "")
        + f" {has}",
        summary="NCCL's own picture of the host says so; it builds its rings for the weakest link.",
        confidence="medium",
        ranks=given(rank),
        hosts=names_of(host),
        culprits=(Culprit(rank=rank, host=host, gpu=str(row["bus_id"]) if gpu else None, nic=None if gpu else str(row["bus_id"])),),
        subject=subject,
        evidence=(*cite([row], has), *cite(whole, "one of its neighbours")),
        remedy=remedy,
        prevention="Compare a topology dump of every host with one of its model in the job's prologue.",
        would_refute=("the slot is built so, or a topology file is in use",),
        actions=(Action("collect_more", hosts=names_of(host), command=command),),
    )
