"""A topology file describes other links than its neighbours have, or other links than the machine.

## What it finds
NCCL_TOPO_FILE in the logs together with a topology XML in which GPUs of one host have unequal numbers of NVLinks, or fewer than in another
XML of the same GPUs.

## Why it matters
NCCL believes the file: with one GPU that seems to have few links it builds few channels, and the bandwidth falls several times.

## What would refute it
The GPU really has fewer links (nvidia-smi nvlink -s): then the hardware is the cause and the file is right.

## What to do next
Unset NCCL_TOPO_FILE and compare the number of channels; write a fresh file with NCCL_TOPO_DUMP_FILE.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import values_in
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.values import pci


@rule(
    name="topology-file",
    code="SE06",
    cause="bad-setting",
    severity="error",
    at_most=2,
    explains=("few-channels", "low-bus-bandwidth", "nvlink-fault"),
)
def topology_file(job_settings: pl.LazyFrame, nccl_topo: pl.LazyFrame, comms: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """One finding for all topology files in which the same GPUs have fewer links than the others. A file that has none of the GPUs that
    ranks name as theirs is that of another machine."""
    used = job_settings.filter(pl.col("name") == "NCCL_TOPO_FILE").collect()
    if not used.height:
        return
    links = (
        nccl_topo.filter((pl.col("element") == "nvlink") & pl.col("count").is_not_null())
        .group_by("source_id", "bus_id")
        .agg(pl.col("count").sum().alias("links"), pl.col("record").first(), pl.col("line_no").first())
        .sort("source_id", "bus_id")
        .collect()
    )
    ends = nccl_topo.filter((pl.col("element") == "nvlink") & pl.col("target").is_not_null()).select(
        "source_id", "bus_id", "target", "count"
    )
    both = ends.join(ends, left_on=["source_id", "bus_id", "target"], right_on=["source_id", "target", "bus_id"], suffix="_back")
    torn = values_in(both, "source_id", pl.col("count") != pl.col("count_back"))
    ours = {pci.normal(bus) for bus in comms.select("bus_id").collect()["bus_id"].drop_nulls()} if comms is not None else set()
    told: dict[tuple[str, bool], list[pl.DataFrame]] = {}
    for (source,), part in links.group_by("source_id", maintain_order=True):
        best = int(str(part["links"].max() or 0))
        weak = part.filter(pl.col("links") < best)
        if not weak.height or part.height < 2 or (ours and ours.isdisjoint(pci.normal(bus) for bus in part["bus_id"])):
            continue
        names = ", ".join(str(g) for g in weak["bus_id"].to_list()[:4])
        count = weak["links"][0]
        what = f"gives {names} {count} NVLink{'s' if count != 1 else ''} where other GPUs have {best}"
        told.setdefault((what, source in torn), []).append(weak.with_columns(source_id=pl.lit(source, dtype=pl.UInt32())))
    for (what, wrong), files in told.items():  # a file and the dump of what NCCL made of it say the same
        yield Finding(
            title=f"NCCL_TOPO_FILE is set, and the topology {what}",
            summary="NCCL builds its channels for the weakest GPU of the file."
            + (" The two ends of one link disagree in their number: no hardware is like that, the file is wrong." if wrong else ""),
            confidence="high" if wrong else "medium",
            subject=("NCCL_TOPO_FILE", ", ".join(str(g) for g in files[0]["bus_id"].to_list()[:4])),
            evidence=(
                *cite(used, "the topology file is forced"),
                *(item for weak in files for item in cite(weak, "fewer NVLinks in this file")),
            ),
            remedy="Unset NCCL_TOPO_FILE, or replace the file with a fresh dump of this machine (NCCL_TOPO_DUMP_FILE).",
            prevention="Keep topology files per machine type under version control and check them against a dump.",
            would_refute=("nvidia-smi nvlink -s shows the same missing links",),
            actions=(Action("change-setting", command="unset NCCL_TOPO_FILE"),),
        )
