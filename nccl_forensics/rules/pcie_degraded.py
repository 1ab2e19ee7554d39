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

from collections.abc import Iterator, Mapping
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of
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
        lanes.append(_of_gpus(located(gpus, source_hosts), busy_percent))
    if pcie_links is not None:
        links = located(pcie_links, source_hosts)
        lanes.append(_of_links(links, nic_lanes))
        yield from _gone(links, job, who)
    for part in lanes:
        place_by_pace(who, part.filter((pl.col("role") == "GPU") & (pl.col("width") < pl.col("width_max"))), kernel_pace, "memcpy")
        yield from with_placements((tied(f, job.place(next(iter(f.hosts), None))) for f in _width(part, who)), who)
    if kernel_events is not None:
        events = located(kernel_events, source_hosts)
        yield from _driver_says(events)
        yield from with_placements(_failed(events, job, who), who)
        yield from with_placements(_uncorrected(events, who), who)
        yield from with_placements(_storms(events, storm_per_hour, who), who)


_CITED = ("source_id", "line_no", "end_line", "record")


def _of_gpus(gpus: pl.DataFrame, busy_percent: float) -> pl.DataFrame:
    """Lanes and generation of each GPU, as nvidia-smi and its like tell."""
    able = pl.min_horizontal("pcie_gen_max", "pcie_gen_host_max")
    slow = (pl.col("utilization_percent").fill_null(0) > busy_percent) & (pl.col("pcie_gen") < able)
    return gpus.filter(pl.col("pcie_width").is_not_null() & pl.col("pcie_width_max").is_not_null()).select(
        *_CITED,
        "host",
        "bus_id",
        "name",
        role=pl.lit("GPU"),
        width=pl.col("pcie_width"),
        width_max=pl.col("pcie_width_max"),
        slow=slow.fill_null(False),
        gen="pcie_gen",
        gen_max=able,
    )


def _of_links(links: pl.DataFrame, nic_lanes: int) -> pl.DataFrame:
    """Lanes of each GPU and network card, as lspci tells."""
    judged = (pl.col("role") == "gpu") | ((pl.col("role") == "nic") & (pl.col("width_max") >= nic_lanes))
    return links.filter(judged & pl.col("width").is_not_null()).select(
        *_CITED,
        "host",
        "bus_id",
        name="device",
        role=pl.when(pl.col("role") == "gpu").then(pl.lit("GPU")).otherwise(pl.lit("network card")),
        width="width",
        width_max="width_max",
        slow=pl.lit(False),
        gen=pl.lit(None, dtype=pl.Int32()),
        gen_max=pl.lit(None, dtype=pl.Int32()),
    )


def _gone(links: pl.DataFrame, job: Job, who: People) -> Iterator[Finding]:
    """Devices that lspci finds no more."""
    for row in links.filter(pl.col("gone")).iter_rows(named=True):
        host, address, of_gpu = row["host"], row["bus_id"], row["role"] == "gpu"
        found = _one(
            f"{place(host, address)} has fallen off the bus: lspci reads only ones (rev ff)",
            f"{row['device']}.",
            [row],
            "the device answers nothing",
            _device(host, address, who.of_gpu(host, address), gpu=of_gpu),
            "gone",
            severity="critical",
            confidence="high",
            cause="gpu-fault" if of_gpu else None,
        )
        yield tied(found, job.tie(None, host, gpu=address if of_gpu else None, lasting=True))


def _width(rows: pl.DataFrame, who: People) -> Iterator[Finding]:
    latest = rows.unique(["host", "source_id", "bus_id", "width", "width_max", "slow"], maintain_order=True)
    slot = ("role", "name", "bus_id")
    whole = set(latest.filter(pl.col("width") >= pl.col("width_max")).select(slot).iter_rows())
    # A display beside GPUs that compute, or another model of card, has another slot.
    for _, group in latest.group_by("source_id", "role", "name", maintain_order=True):
        narrow = group.filter(pl.col("width") < pl.col("width_max"))
        alike = narrow["bus_id"].n_unique() == group["bus_id"].n_unique()
        for row in narrow.unique("bus_id", maintain_order=True).iter_rows(named=True):
            yield _narrow(row, who, alike=alike, elsewhere=alike and tuple(row[c] for c in slot) in whole)
        for row in group.filter("slow").unique("bus_id", maintain_order=True).iter_rows(named=True):
            yield _one(
                f"{_card(row)} runs at PCIe generation {row['gen']} of {row['gen_max']} under load",
                "At idle a lower generation is power saving; this one was busy.",
                [row],
                "generation in use while the GPU was busy",
                _device(row["host"], row["bus_id"], who.of_gpu(row["host"], row["bus_id"])),
                "generation",
                severity="error",
            )


def _card(row: Mapping[str, object]) -> str:
    return f"{row['role']} {row['bus_id']}" + (f" of {row['host']}" if row["host"] else "")


def _narrow(row: dict[str, object], who: People, *, alike: bool, elsewhere: bool) -> Finding:
    """``alike``: all devices of its kind in the listing are so; ``elsewhere``: and the same one of another host is not."""
    confidence: Confidence
    if elsewhere:
        compared, confidence = "The same card in the same slot of another host has all lanes.", "medium"
    elif alike:
        compared, confidence = "All devices of its kind in this listing are alike, so the slot or the instance may be built so.", "low"
    else:
        compared, confidence = "Others of its kind on this host have all lanes.", "high"
    return _one(
        f"{_card(row)} runs with {row['width']} of {row['width_max']} PCIe lanes",
        f"{row['name'] or 'The device'} has {int(str(row['width'])) / int(str(row['width_max'])):.0%} of its PCIe bandwidth. {compared}",
        [row],
        "lanes in use against lanes of the device",
        _device(row["host"], row["bus_id"], who.of_gpu(row["host"], row["bus_id"]), gpu=row["role"] == "GPU"),
        "width",
        severity="warning" if alike and not elsewhere else "error",
        confidence=confidence,
    )


def _driver_says(rows: pl.DataFrame) -> Iterator[Finding]:
    """What the drivers of network cards say of their slots."""
    for kind, subject in (("pcie-limited", "limited"), ("pcie-power", "power")):
        for (host, device), part in rows.filter(pl.col("kind") == kind).group_by("host", "device", maintain_order=True):
            first = part.row(0, named=True)
            where = f"{device} of {host or 'a host'}"
            if subject == "limited":
                title = f"{where} is limited to {first['value']:g} Gb/s by its PCIe link"
                summary = f'The driver wrote at its start: "{first["message"]}".'
            else:
                title = f"the slot of {where} does not give it the power that it asks for"
                summary = f'The driver wrote: "{first["message"]}". The card may run slower, or switch its modules off.'
            yield _one(title, summary, part.to_dicts(), "the driver's own judgement", _device(host, device, None, gpu=False), subject)


def _failed(rows: pl.DataFrame, job: Job, who: People) -> Iterator[Finding]:
    """Links that the kernel gave up, not those of the bridges above them."""
    fatal = pl.col("kind").is_in(["pcie-down", "pcie-error", "pcie-error-bit", "pcie-recovery"]) & (pl.col("severity") == "fatal")
    groups = [
        (part, _named(host, device, part, who), device)
        for (host, device), part in rows.filter(fatal).group_by("host", "device", maintain_order=True)
    ]
    told = {of.host for _, of, _ in groups if of.gpu or of.nic}
    for part, of, device in groups:
        if of.host in told and not (of.gpu or of.nic):
            continue  # the bridge above it
        lost = of.gpu is not None and part.filter(pl.col("kind") != "pcie-error").height > 0
        found = _one(
            f"the PCIe link of {device or 'a device'} on {of.host or 'a host'} failed"
            + (f" (the GPU of rank {of.rank})" if of.rank is not None else ""),
            f'The kernel wrote: "{part["message"][0]}". ' + ("The GPU is lost." if lost else "A device below it is lost."),
            part.to_dicts(),
            "fatal PCIe event",
            of,
            f"down {device}",
            severity="critical",
            confidence="high",
            cause="gpu-fault" if lost else None,
        )
        yield tied(found, job.tie(part, of.host, gpu=of.gpu, lasting=lost) if of.gpu else _of_bridge(job.tie(part, of.host)))


_OF_ERRORS = pl.col("kind").is_in(["pcie-error", "pcie-error-layer"]) & pl.col("device").is_not_null()


def _uncorrected(rows: pl.DataFrame, who: People) -> Iterator[Finding]:
    for (host, device), part in rows.filter(_OF_ERRORS & (pl.col("state") == "nonfatal")).group_by("host", "device", maintain_order=True):
        yield _one(
            f"{device} of {host or 'a host'} reported PCIe errors that were not corrected",
            f'The kernel wrote: "{part["message"][0]}". Transfers were lost, and the link goes on: a device that does not answer in time, or '
            "an address that the IOMMU or a switch refuses.",
            part.to_dicts(),
            "uncorrected PCIe error",
            _named(host, device, rows.filter(pl.col("device") == device), who),
            "uncorrected",
        )


def _storms(rows: pl.DataFrame, per_hour: float, who: People) -> Iterator[Finding]:
    """Devices with so many corrected errors an hour, and so many in all."""
    corrected = rows.filter(_OF_ERRORS & (pl.col("kind") == "pcie-error") & (pl.col("state") == "corrected"))
    for (host, device), part in corrected.group_by("host", "device", maintain_order=True):
        times = part["time_raw_ns"].drop_nulls()
        if times.len() < max(2, per_hour):
            continue
        rate = times.len() / max((int(str(times.max())) - int(str(times.min()))) / _NS / 3600, 1 / 60)
        if rate < per_hour:
            continue
        yield _one(
            f"{device} of {host or 'a host'} has a storm of corrected PCIe errors ({rate:.0f} per hour)",
            "A few a day are normal; a storm says that the link has no margin left (slot, riser, retimer, power).",
            part.head(20).to_dicts(),
            "corrected PCIe error",
            _named(host, device, rows.filter(pl.col("device") == device), who),
            "storm",
            total=part.height,
        )


def _device(host: object, address: object, rank: int | None, *, gpu: bool = True) -> Culprit:
    """A GPU, or a network card."""
    name = name_of(address)
    return Culprit(rank=rank, host=name_of(host), gpu=name if gpu else None, nic=None if gpu else name)


def _named(host: object, device: object, rows: pl.DataFrame, who: People) -> Culprit:
    """GPU or network card, and rank, that an address stands for: a GPU of the job, or what its driver's name tells; a bridge is neither."""
    rank = who.of_gpu(host, device)
    if device is not None and (rank is not None or rows["message"].str.contains(_GPU_DRIVERS).any()):
        return _device(host, device, rank)
    card = device is not None and rows["message"].str.contains(_CARD_DRIVERS).any()
    return _device(host, device if card else None, None, gpu=False)


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
    device: Culprit,
    subject: str,
    *,
    severity: Severity = "warning",
    confidence: Confidence = "medium",
    cause: str | None = None,
    total: int | None = None,
) -> Finding:
    hosts = (device.host,) if device.host else ()
    return Finding(
        title=title,
        summary=summary,
        cause=cause,
        severity=severity,
        confidence=confidence,
        ranks=(device.rank,) if device.rank is not None else (),
        hosts=hosts,
        culprits=(device,),
        subject=(device.host or "", device.gpu or device.nic or "", subject),
        evidence=cite(rows, why),
        evidence_total=len(rows) if total is None else total,
        remedy="Reseat the card or its riser and compare with a healthy node; check the BIOS setting of the slot.",
        prevention="Compare width, speed and error counters of every PCIe link with a healthy node's in the job's prologue (lspci -vv).",
        would_refute=("all devices of the kind are built so on this host",),
        actions=(
            Action(
                "drain_and_reset" if severity == "critical" else "collect_more",
                hosts=hosts,
                gpus=(device.gpu,) if device.gpu else (),
                command="lspci -vv | grep -E 'LnkCap|LnkSta'",
            ),
        ),
    )
