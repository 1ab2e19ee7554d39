"""A GPU or network card runs with fewer PCIe lanes or a lower generation than it can, or its PCIe link reports errors.

## What it finds
GPUs with fewer lanes than their neighbours (nvidia-smi, lspci), network cards below their width, the kernel's own "limited by" lines,
uncorrected PCIe errors, links that went down, and storms of corrected errors.

## Why it matters
Copies to the host and GPUDirect RDMA run at the speed of that link: half the lanes are half the bandwidth, and the whole ring waits.

## What would refute it
All GPUs of the host are alike: then the slot or the cloud instance is built so. A low generation at idle is power saving.

## What to do next
Reseat the card or its riser; compare lspci -vv with a healthy node; look for AER lines of the same address.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import People, located, people, place, place_by_pace, with_placements
from nccl_forensics.rules.common.ties import Job, Tie, job_of, tied

_NS = 1_000_000_000


@rule(
    name="pcie-degraded",
    code="PC01",
    cause="pcie-degraded",
    severity="error",
    at_most=64,
    explains=("low-bus-bandwidth", "straggler", "gpu-fault", "gdr-disabled"),
)
def pcie_degraded(
    gpus: pl.LazyFrame | None,
    pcie_links: pl.LazyFrame | None,
    kernel_events: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    placements: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    job_times: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    kernel_pace: pl.LazyFrame | None = None,
    *,
    storm_per_hour: Annotated[float, "corrected errors per hour on one device that count as a storm"] = 60.0,
    busy_percent: Annotated[float, "utilization above which the PCIe generation is judged"] = 10.0,
    nic_lanes: Annotated[int, "cards with fewer lanes than this are not judged (management ports)"] = 8,
) -> Iterator[Finding]:
    """Width and generation first, then what the kernel says."""
    who = people(processes, placements)
    job = job_of(job_signs, job_times, failures)
    lanes: list[pl.DataFrame] = []
    if gpus is not None:
        frame = located(gpus, source_hosts).filter(pl.col("pcie_width").is_not_null() & pl.col("pcie_width_max").is_not_null())
        slow = (pl.col("utilization_percent").fill_null(0) > busy_percent) & (
            pl.col("pcie_gen") < pl.min_horizontal("pcie_gen_max", "pcie_gen_host_max")
        )
        lanes.append(
            frame.select(
                *_CITED,
                "host",
                "bus_id",
                "name",
                role=pl.lit("GPU"),
                width=pl.col("pcie_width"),
                width_max=pl.col("pcie_width_max"),
                slow=slow.fill_null(False),
                gen="pcie_gen",
                gen_max=pl.min_horizontal("pcie_gen_max", "pcie_gen_host_max"),
            )
        )
    if pcie_links is not None:
        frame = located(pcie_links, source_hosts)
        judged = (pl.col("role") == "gpu") | ((pl.col("role") == "nic") & (pl.col("width_max") >= nic_lanes))
        role = pl.when(pl.col("role") == "gpu").then(pl.lit("GPU")).otherwise(pl.lit("network card"))
        lanes.append(
            frame.filter(judged & pl.col("width").is_not_null()).select(
                *_CITED,
                "host",
                "bus_id",
                name="device",
                role=role,
                width="width",
                width_max="width_max",
                slow=pl.lit(False),
                gen=pl.lit(None, dtype=pl.Int32()),
                gen_max=pl.lit(None, dtype=pl.Int32()),
            )
        )
        gone = frame.filter(pl.col("gone"))
        for row in gone.iter_rows(named=True):
            found = _one(
                f"{place(row['host'], row['bus_id'])} has fallen off the bus: lspci reads only ones (rev ff)",
                f"{row['device']}.",
                [row],
                "the device answers nothing",
                severity="critical",
                confidence="high",
                host=row["host"],
                gpu=row["bus_id"] if row["role"] == "gpu" else None,
                nic=row["bus_id"] if row["role"] != "gpu" else None,
                rank=who.of_gpu(row["host"], row["bus_id"]),
                subject="gone",
                cause="gpu-fault" if row["role"] == "gpu" else None,
            )
            yield tied(found, job.tie(None, row["host"], gpu=row["bus_id"] if row["role"] == "gpu" else None, lasting=True))
    for part in lanes:
        place_by_pace(who, part.filter((pl.col("role") == "GPU") & (pl.col("width") < pl.col("width_max"))), kernel_pace, "memcpy")
        yield from with_placements((tied(f, job.place(next(iter(f.hosts), None))) for f in _width(part, who)), who)
    if kernel_events is not None:
        yield from with_placements(_kernel(located(kernel_events, source_hosts), storm_per_hour, job, who), who)


_CITED = ("source_id", "line_no", "end_line", "record")


def _width(rows: pl.DataFrame, who: People) -> Iterator[Finding]:
    latest = rows.unique(["host", "source_id", "bus_id", "width", "width_max", "slow"], maintain_order=True)
    slot = ("role", "name", "bus_id")
    whole = set(latest.filter(pl.col("width") >= pl.col("width_max")).select(slot).iter_rows())
    # A display beside GPUs that compute, or another model of card, has another slot.
    for _, group in latest.group_by("source_id", "role", "name", maintain_order=True):
        narrow = group.filter(pl.col("width") < pl.col("width_max"))
        alike = narrow["bus_id"].n_unique() == group["bus_id"].n_unique()
        for row in narrow.unique("bus_id", maintain_order=True).iter_rows(named=True):
            elsewhere = alike and tuple(row[c] for c in slot) in whole
            gpu = row["role"] == "GPU"
            at = f" of {row['host']}" if row["host"] else ""
            yield _one(
                f"{row['role']} {row['bus_id']}{at} runs with {row['width']} of {row['width_max']} PCIe lanes",
                f"{row['name'] or 'The device'} has {row['width'] / row['width_max']:.0%} of its PCIe bandwidth."
                + (
                    " The same card in the same slot of another host has all lanes."
                    if elsewhere
                    else " All devices of its kind in this listing are alike, so the slot or the instance may be built so."
                    if alike
                    else " Others of its kind on this host have all lanes."
                ),
                [row],
                "lanes in use against lanes of the device",
                severity="warning" if alike and not elsewhere else "error",
                confidence="medium" if elsewhere else "low" if alike else "high",
                host=row["host"],
                gpu=row["bus_id"] if gpu else None,
                nic=None if gpu else row["bus_id"],
                rank=who.of_gpu(row["host"], row["bus_id"]),
                subject="width",
            )
        for row in group.filter("slow").unique("bus_id", maintain_order=True).iter_rows(named=True):
            at = f" of {row['host']}" if row["host"] else ""
            yield _one(
                f"{row['role']} {row['bus_id']}{at} runs at PCIe generation {row['gen']} of {row['gen_max']} under load",
                "At idle a lower generation is power saving; this one was busy.",
                [row],
                "generation in use while the GPU was busy",
                severity="error",
                confidence="medium",
                host=row["host"],
                gpu=row["bus_id"],
                nic=None,
                rank=who.of_gpu(row["host"], row["bus_id"]),
                subject="generation",
            )


def _kernel(rows: pl.DataFrame, storm: float, job: Job, who: People) -> Iterator[Finding]:
    limited = rows.filter(pl.col("kind") == "pcie-limited")
    for (host, device), part in limited.group_by("host", "device", maintain_order=True):
        first = part.row(0, named=True)
        yield _one(
            f"{device} of {host or 'a host'} is limited to {first['value']:g} Gb/s by its PCIe link",
            f'The driver wrote at its start: "{first["message"]}".',
            part.to_dicts(),
            "the driver's own judgement",
            severity="warning",
            confidence="medium",
            host=host,
            gpu=None,
            nic=device,
            rank=None,
            subject="limited",
        )
    for (host, device), part in rows.filter(pl.col("kind") == "pcie-power").group_by("host", "device", maintain_order=True):
        yield _one(
            f"the slot of {device} of {host or 'a host'} does not give it the power that it asks for",
            f'The driver wrote: "{part["message"][0]}". The card may run slower, or switch its modules off.',
            part.to_dicts(),
            "the driver's own judgement",
            severity="warning",
            confidence="medium",
            host=host,
            gpu=None,
            nic=device,
            rank=None,
            subject="power",
        )
    worse = rows.filter(
        pl.col("kind").is_in(["pcie-down", "pcie-error", "pcie-error-bit", "pcie-recovery"]) & (pl.col("severity") == "fatal")
    )
    groups = [
        (host, device, part, _named(host, device, part, who))
        for (host, device), part in worse.group_by("host", "device", maintain_order=True)
    ]
    told = {host for host, _, _, (gpu, nic, _) in groups if gpu or nic}
    for host, device, part, (gpu, nic, rank) in groups:
        if host in told and not (gpu or nic):
            continue  # the bridge above it
        first = part.row(0, named=True)
        lost = gpu is not None and part.filter(pl.col("kind") != "pcie-error").height > 0
        found = _one(
            f"the PCIe link of {device or 'a device'} on {host or 'a host'} failed"
            + (f" (the GPU of rank {rank})" if rank is not None else ""),
            f'The kernel wrote: "{first["message"]}". ' + ("The GPU is lost." if lost else "A device below it is lost."),
            part.to_dicts(),
            "fatal PCIe event",
            severity="critical",
            confidence="high",
            host=host,
            gpu=gpu,
            nic=nic,
            rank=rank,
            subject=f"down {device}",
            cause="gpu-fault" if lost else None,
        )
        yield tied(found, job.tie(part, host, gpu=gpu, lasting=lost) if gpu else _of_bridge(job.tie(part, host)))
    of_errors = pl.col("kind").is_in(["pcie-error", "pcie-error-layer"]) & pl.col("device").is_not_null()
    again = rows.filter(of_errors & (pl.col("state") == "nonfatal"))
    for (host, device), part in again.group_by("host", "device", maintain_order=True):
        gpu, nic, rank = _named(host, device, rows.filter(pl.col("device") == device), who)
        yield _one(
            f"{device} of {host or 'a host'} reported PCIe errors that were not corrected",
            f'The kernel wrote: "{part["message"][0]}". Transfers were lost, and the link goes on: a device that does not answer in time, or '
            "an address that the IOMMU or a switch refuses.",
            part.to_dicts(),
            "uncorrected PCIe error",
            severity="warning",
            confidence="medium",
            host=host,
            gpu=gpu,
            nic=nic,
            rank=rank,
            subject="uncorrected",
        )
    corrected = rows.filter(of_errors & (pl.col("state") == "corrected"))
    for (host, device, kind), part in corrected.group_by("host", "device", "kind", maintain_order=True):
        times = part["time_raw_ns"].drop_nulls()
        if times.len() < 2 or kind != "pcie-error":
            continue
        hours = max((int(str(times.max())) - int(str(times.min()))) / _NS / 3600, 1 / 60)
        if times.len() < storm or times.len() / hours < storm:
            continue
        gpu, nic, rank = _named(host, device, rows.filter(pl.col("device") == device), who)
        yield _one(
            f"{device} of {host or 'a host'} has a storm of corrected PCIe errors ({times.len() / hours:.0f} per hour)",
            "A few a day are normal; a storm says that the link has no margin left (slot, riser, retimer, power).",
            part.head(20).to_dicts(),
            "corrected PCIe error",
            total=part.height,
            severity="warning",
            confidence="medium",
            host=host,
            gpu=gpu,
            nic=nic,
            rank=rank,
            subject="storm",
        )


def _named(host: object, device: object, rows: pl.DataFrame, who: People) -> tuple[str | None, str | None, int | None]:
    """GPU, network card and rank that an address stands for: a GPU of the job, or what its driver's name tells; a bridge is neither."""
    if device is None:
        return None, None, None
    rank = who.of_gpu(host, device)
    if rank is not None or rows["message"].str.contains(_GPU_DRIVERS).any():
        return str(device), None, rank
    return None, str(device) if rows["message"].str.contains(_CARD_DRIVERS).any() else None, None


#: Drivers that begin the kernel's lines about a device.
_GPU_DRIVERS, _CARD_DRIVERS = r"^(?:nvidia|amdgpu)\b", r"^(?:mlx[45]_core|bnxt_en|ice|i40e|ixgbe|ena|efa)\b"


def _of_bridge(tie: Tie) -> Tie:
    """What hangs below a bridge is not told: a disk that somebody pulled, or a GPU."""
    return "open" if tie == "own" else tie


def _one(
    title: str,
    summary: str,
    rows: list[dict[str, object]],
    why: str,
    *,
    severity: Severity,
    confidence: Confidence,
    host: object,
    gpu: object,
    nic: object,
    rank: int | None,
    subject: str,
    cause: str | None = None,
    total: int | None = None,
) -> Finding:
    hosts = (str(host),) if host else ()
    return Finding(
        title=title,
        summary=summary,
        cause=cause,
        severity=severity,
        confidence=confidence,
        ranks=(rank,) if rank is not None else (),
        hosts=hosts,
        culprits=(Culprit(rank=rank, host=str(host) if host else None, gpu=str(gpu) if gpu else None, nic=str(nic) if nic else None),),
        subject=(str(host or ""), str(gpu or nic or ""), subject),
        evidence=cite(rows, why),
        evidence_total=len(rows) if total is None else total,
        remedy="Reseat the card or its riser and compare with a healthy node; check the BIOS setting of the slot.",
        prevention="Compare width, speed and error counters of every PCIe link with a healthy node's in the job's prologue (lspci -vv).",
        would_refute=("all devices of the kind are built so on this host",),
        actions=(
            Action(
                "drain_and_reset" if severity == "critical" else "collect_more",
                hosts=hosts,
                gpus=(str(gpu),) if gpu else (),
                command="lspci -vv | grep -E 'LnkCap|LnkSta'",
            ),
        ),
    )
