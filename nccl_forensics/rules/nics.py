"""Hosts that use fewer, slower or other RDMA devices than the job's other hosts, or than their GPUs need.

## What it finds
Compares the devices that NCCL lists on each host: one that is missing on some hosts, one that is slower, or a filter
(NCCL_IB_HCA) that leaves fewer NICs than the host has GPUs.

## Why it matters
All ranks run at the pace of the slowest link of the ring; one missing port of eight costs every collective.

## What would refute it
The hosts are of different models on purpose.

## What to do next
ibstat on the named host; compare with a healthy neighbour; remove the filter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite, cite_absence
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import NOBODY, hosts_of, ranks_of, where_reported
from nccl_forensics.words import first_label, folded, natural


@rule(
    name="nic-underused",
    code="NI01",
    cause="nic-underused",
    severity="error",
    at_most=16,
    # Where the devices next to the GPUs are missing, the others may be too far away for GPUDirect RDMA.
    explains=("low-bus-bandwidth", "few-channels", "gdr-disabled"),
)
def nic_underused(
    host_nics: pl.LazyFrame,
    host_ranks: pl.LazyFrame,
    settings: pl.LazyFrame | None,
    ib_ports: pl.LazyFrame | None = None,
    *,
    gpus_per_nic: Annotated[float, "GPUs per NIC above which a filtered host is called underused"] = 2.0,
) -> Iterator[Finding]:
    """Devices that some hosts lack, and filters that leave too few, unless the host lists no other."""
    per_host = {h: set(d) for h, d in host_nics.group_by("host").agg(pl.col("device")).sort("host").collect().iter_rows()}
    people = host_ranks.collect()
    gpus, known = dict(people.select("host", "n").iter_rows()), {h: tuple(ranks) for h, ranks in people.select("host", "ranks").iter_rows()}
    filters = settings.filter(pl.col("name") == "NCCL_IB_HCA").collect() if settings is not None else None
    reference = _reference(per_host)
    shown = Counter(device for devices in per_host.values() for device in devices)
    for host, devices in per_host.items():
        # Without one common name the hosts merely call their devices otherwise.
        if not reference - devices or len(devices) >= len(reference) or all(shown[device] == 1 for device in devices):
            continue
        filtered = _filtered(filters, host_ranks, host)
        # A smaller model, or one part of a host: it has as many for each of its ranks as the others, and no filter of its own.
        largest = max((gpus.get(h, 0) for h, d in per_host.items() if d >= reference), default=0)
        small = not filtered[0] and 0 < gpus.get(host, 0) < largest and len(devices) * largest >= len(reference) * gpus[host]
        yield _lacking(host, devices, reference, host_nics, filtered, known.get(host, ()), (gpus[host], largest) if small else None)
    own: dict[str | None, set[str]] = defaultdict(set)
    if filters is not None and ib_ports is not None:
        for host, device in ib_ports.filter(pl.col("device").is_not_null()).select("host", "device").collect().iter_rows():
            own[first_label(host)].add(_device(device))
    for row in filters.iter_rows(named=True) if filters is not None else ():
        left_out = _left_out(str(row["value"]))
        short = sorted(h for h in row["hosts"] if h in per_host and gpus.get(h, 0) > gpus_per_nic * len(per_host[h]))
        # A device or two beside those of the GPUs (storage, management) is what such a list is for; one longer than what is left is not.
        if left_out is not None:
            short = [h for h in short if len(left_out) > len(per_host[h])]
        short = [h for h in short if not own.get(h) or own[h] - {_device(d) for d in per_host[h]}]
        if short:
            yield _too_few(row, tuple(short), len(per_host[short[0]]), gpus[short[0]], left_out, host_nics)


def _reference(per_host: dict[str, set[str]]) -> frozenset[str]:
    """The devices that a host of the job should have: the most common set where most hosts have it; else all that any host shows."""
    everything = frozenset(set().union(*per_host.values()))
    if not per_host:
        return everything
    usual, alike = Counter(frozenset(d) for d in per_host.values()).most_common(1)[0]
    return usual if alike * 2 > len(per_host) else everything


def _lacking(
    host: str,
    devices: set[str],
    reference: frozenset[str],
    host_nics: pl.LazyFrame,
    filtered: tuple[tuple[int, ...], str | None, list[dict[str, object]]],
    everyone: tuple[int, ...],
    small: tuple[int, int] | None,
) -> Finding:
    """A host that lists fewer devices than the others. ``filtered``: what ``_filtered`` tells of it; ``everyone``: its ranks; ``small``: its
    number of ranks and that of the largest other host, where it has as many devices for each as the others."""
    gone = sorted(reference - devices)
    ranks, value, line = filtered
    # One device may be a port; several are a matter of the host as a whole, and of all its ranks.
    blamed = ranks or (everyone if len(gone) > 1 else ())
    rows = host_nics.filter(pl.col("host") != host).filter(pl.col("device").is_in(gone)).collect()
    return Finding(
        title=f"{host} uses {len(devices)} of {len(reference)} NICs: {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} missing"
        + (f" (NCCL_IB_HCA={value})" if ranks else ""),
        summary="Other hosts of the job list these devices. "
        + (
            f"NCCL_IB_HCA={value} is set there and not on the other hosts."
            if ranks
            else f"It has {small[0]} ranks of the job where they have {small[1]}, and as many NICs for each: it may be of another model."
            if small
            else "A port that is down gives no warning, it is only missing from the list; a filter of this host (NCCL_IB_HCA) looks the same."
        ),
        severity="info" if small else "error",
        confidence="low" if small else "high",
        ranks=blamed,
        hosts=(host,),
        culprits=tuple(Culprit(rank=r, host=host) for r in blamed) or tuple(Culprit(host=host, nic=d) for d in gone),
        subject=("nic", host, *gone),
        evidence=(
            *cite(rows, "another host uses this device"),
            *cite(line, "a filter that this host alone has"),
            *cite_absence(f"{', '.join(gone)} in NCCL's device list", (f"NCCL logs of {host}",)),
        ),
        remedy="Give this host the NCCL_IB_HCA of the others, or none."
        if ranks
        else "Bring the port up or replace the cable; until then every ring runs over fewer links.",
        prevention="Check that all ports are active in the job's prologue (ibstat).",
        would_refute=("the host has fewer NICs by design",),
        actions=(Action("collect_more", hosts=(host,), command=f"ibstat {gone[0]}"),),
    )


def _too_few(
    row: dict[str, object], hosts: tuple[str, ...], n: int, gpus: int, left_out: list[str] | None, host_nics: pl.LazyFrame
) -> Finding:
    """A filter of devices that leaves ``n`` of them for the GPUs of these hosts."""
    value = str(row["value"])
    return Finding(
        title=f"NCCL_IB_HCA={value} leaves {n} NIC{'s' if n != 1 else ''} for {gpus} GPUs on {', '.join(hosts[:4])}",
        summary="The filter decides how many NICs carry the traffic of all GPUs of a host."
        + ("" if left_out is None else f" It leaves out {len(left_out)}; whether these are there is not told."),
        confidence="high" if left_out is None else "medium",
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in hosts),
        subject=("NCCL_IB_HCA", value),
        evidence=(
            *cite([row], "the filter is set"),
            *cite(host_nics.filter(pl.col("host").is_in(list(hosts))).collect(), "a device that is used"),
        ),
        remedy="Remove NCCL_IB_HCA, or list every NIC that is meant to carry GPU traffic.",
        prevention="Compare the device list of NCCL with ibstat on one node after each image change.",
        would_refute=("the hosts have no other NIC",),
        actions=(Action("change-setting", hosts=hosts, command="unset NCCL_IB_HCA", confidence="high"),),
    )


def _device(name: str) -> str:
    """The device of ``mlx5_0:1``."""
    return name.partition(":")[0]


def _left_out(value: str) -> list[str] | None:
    """The names behind the ^ of a filter of devices; None for one that names the devices to use."""
    return [name for name in value.removeprefix("^").removeprefix("=").split(",") if name] if value.startswith("^") else None


def _whole_family(value: str) -> bool:
    """Whether a filter leaves out all devices that begin alike (``^mlx5_``), not single ones: without = a name stands for all that begin
    with it."""
    names = [] if value.startswith("^=") else _left_out(value) or []
    return any(not name.partition(":")[0][-1:].isdigit() or name in ("mlx4", "mlx5") for name in names)


def _filtered(
    filters: pl.DataFrame | None, host_ranks: pl.LazyFrame, host: str
) -> tuple[tuple[int, ...], str | None, list[dict[str, object]]]:
    """Ranks of this host whose filter of devices is on no other host, its value and the line that shows it; nothing if there is none."""
    known = {h: set(ranks) for h, ranks in host_ranks.select("host", "ranks").collect().iter_rows()}
    for row in filters.iter_rows(named=True) if filters is not None else ():
        if set(row["hosts"]) == {host} and known.get(host) and set(row["ranks"]) == known[host]:
            return tuple(sorted(row["ranks"])), str(row["value"]), [row]
    return (), None, []


@rule(
    name="nic-slow",
    code="NI02",
    cause="ib-link",
    severity="error",
    at_most=16,
    explains=("low-bus-bandwidth", "few-channels", "nic-underused"),
)
def nic_slow(host_nics: pl.LazyFrame) -> Iterator[Finding]:
    """Devices that run slower than the same device of the other hosts, or than their neighbours."""
    known = host_nics.filter(pl.col("speed_mbps").is_not_null() & (pl.col("speed_mbps") > 0)).collect()
    if known["speed_mbps"].n_unique() < 2:
        return
    best = dict(known.group_by("device").agg(pl.col("speed_mbps").max()).iter_rows())
    top = Counter(known["speed_mbps"].to_list()).most_common()
    usual = max(top, key=lambda item: (item[1], item[0]))[0]
    slow = [r for r in known.iter_rows(named=True) if r["speed_mbps"] < max(best[r["device"]], min(usual, best[r["device"]]))]
    if not slow:
        # A device slower than its neighbours on the same host; one that is as slow on another host (storage, management) is so by design.
        alone = known.filter((pl.len().over("device") == 1) & (pl.len().over("host") > 2))
        slow = [r for r in alone.iter_rows(named=True) if r["speed_mbps"] < usual]
        if len(slow) * 3 > known.height:
            return
    hosts = sorted({str(r["host"]) for r in slow})
    listed = Counter(known["host"].to_list())
    for host in hosts:
        mine = [r for r in slow if r["host"] == host]
        names = sorted((str(r["device"]) for r in mine), key=natural)
        speed, better = mine[0]["speed_mbps"], max(best[mine[0]["device"]], usual)
        fine = known.filter(pl.col("speed_mbps") >= better).head(1)
        yield Finding(
            title=f"{', '.join(folded(names)[:8])} on {host} run{'s' if len(names) == 1 else ''} at {speed / 1000:g} Gb/s, others at {better / 1000:g}",
            summary="Every collective that crosses such a port waits for it. "
            + (
                "All ports of this host that NCCL lists are as slow: look at what they share (adapters, switch, settings of the ports) before a cable."
                if len(names) == listed[host] > 1
                else "Its link may have trained at a lower width or speed."
            ),
            confidence="high",
            hosts=(host,),
            culprits=tuple(Culprit(host=host, nic=n) for n in names),
            subject=("nic-speed", host, *names[:8]),
            evidence=(*cite(mine[:1], "the slow device"), *cite(fine, "a device at full speed"), *cite(mine[1:], "the slow device")),
            remedy="Check cable, transceiver and port configuration; look at link width and speed on both ends (ibstat, mlxlink).",
            prevention="Check the rate of every port in the job's prologue.",
            would_refute=("the hosts have slower adapters by design",),
            actions=(Action("collect_more", hosts=(host,), command="ibstat" if len(names) > 1 else f"ibstat {names[0]}"),),
        )


@rule(name="gdr-disabled", code="NI03", cause="gdr-disabled", severity="error", at_most=8, explains=("low-bus-bandwidth",))
def gdr_disabled(
    nccl_connections: pl.LazyFrame, nccl_network: pl.LazyFrame | None, processes: pl.LazyFrame, gpu_links: pl.LazyFrame | None = None
) -> Iterator[Finding]:
    """Hosts whose RDMA connections are staged through host memory while those of other hosts are not. All alike is a warning only, unless
    NCCL says that it lacks the module, or the GPUs have NVLink or NVLink SHARP, as those with GPUDirect RDMA do."""
    people = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    rdma = nccl_connections.filter(
        (pl.col("transport") == "NET") & ~pl.col("network").str.to_lowercase().is_in(["socket"]) & pl.col("host").is_not_null()
    )
    per_host = (
        rdma.sort("source_id", "line_no")
        .group_by("host")
        .agg(
            pl.col("gdr").fill_null(False).mean().alias("share"),
            pl.col("source_id").filter(~pl.col("gdr").fill_null(False)).first(),
            pl.col("line_no").filter(~pl.col("gdr").fill_null(False)).first(),
        )
        .sort("host")
        .collect()
    )
    without = per_host.filter(pl.col("share") == 0)
    if not without.height:
        return
    some = without.height < per_host.height
    hosts = tuple(without["host"].to_list())
    # Ranks whose traffic goes through the NIC of another GPU (PXN) have no connection of their own and lack it as well.
    ranks = tuple(people.filter(pl.col("host").is_in(list(hosts))).select(pl.col("rank").unique().sort()).collect()["rank"].to_list())
    evidence = cite(without, "a connection without GPUDirect RDMA")
    able = gpu_links is not None and has_rows(gpu_links.filter((pl.col("nvlink_gb_s") > 0) & pl.col("host").is_in(list(hosts))))
    if nccl_network is not None:
        here = nccl_network.filter(pl.col("host").is_in(list(hosts)))
        off = here.filter((pl.col("item") == "gdr-nic") & (pl.col("value") == "Disabled")).sort("source_id", "line_no").head(4).collect()
        able |= off.height > 0 or has_rows(here.filter((pl.col("item") == "nvls") & (pl.col("value") == "available")))
        evidence += cite(off, "NCCL says that the NIC has no GPUDirect RDMA")
    yield Finding(
        title=f"no GPUDirect RDMA on {', '.join(hosts[:6])}" + (", while other hosts have it" if some else ""),
        summary="Data is staged in host memory: nvidia-peermem or dma-buf support is missing, or the NIC is too far from the GPU.",
        severity="error" if some or able else "warning",
        confidence="high" if some else "medium",
        ranks=ranks,
        hosts=hosts,
        culprits=tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts),
        subject=("gdr", *hosts),
        evidence=evidence,
        remedy="Load nvidia-peermem (or use a kernel and driver with dma-buf) on these hosts; check ACS/IOMMU.",
        prevention="Check lsmod | grep nvidia_peermem in the job's prologue.",
        would_refute=("the platform never had GPUDirect RDMA",),
        actions=(Action("change-setting", hosts=hosts, command="modprobe nvidia-peermem"),),
    )


#: Names of networks that are RDMA (``Using network IB``): NCCL's own, and those of plugins for InfiniBand, libfabric, UCX, SHARP and
#: Google's gIB. Any other
#: name is another network, of which the name does not tell the kind.
_RDMA = r"(?i)^g?ib|rdma|roce|ofi\b|fabric|ucx|sharp|verbs|efa"


@rule(
    name="socket-fallback",
    code="NI04",
    cause="socket-fallback",
    severity="error",
    at_most=4,
    explains=("gdr-disabled", "low-bus-bandwidth", "few-channels"),
)
def socket_fallback(
    networks: pl.LazyFrame,
    host_nics: pl.LazyFrame | None,
    host_ranks: pl.LazyFrame,
    settings: pl.LazyFrame | None = None,
    ib_ports: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Hosts that talk over sockets while others of the job use RDMA, or although NCCL lists RDMA devices or was told which of them to
    use, or their own tools show ports of InfiniBand that are active."""
    if host_ranks.collect().height < 2:
        return
    chosen = networks.collect()
    sockets = chosen.filter(pl.col("network").str.to_lowercase() == "socket")
    others = chosen.filter(pl.col("network").str.to_lowercase() != "socket")
    if not sockets.height:
        return
    devices = set(host_nics.select("host").collect()["host"].to_list()) if host_nics is not None else set()
    remote = others.filter(pl.col("network").str.contains(_RDMA))
    active = _active(ib_ports, set(sockets["host"].to_list())) if ib_ports is not None else pl.DataFrame()
    seen = remote.height > 0 or bool(devices & set(sockets["host"].to_list())) or active.height > 0
    asked = _asked_for(settings, set(sockets["host"].to_list())) if settings is not None and not seen else pl.DataFrame()
    meant = seen or others.height > 0 or asked.height > 0
    ranks = tuple(sorted({r for rs in sockets["ranks"].to_list() for r in rs}))
    hosts = tuple(sorted(set(sockets["host"].to_list())))
    yield Finding(
        title=f"{', '.join(hosts[:6])} {'talk' if len(hosts) != 1 else 'talks'} over TCP sockets"
        + (", other hosts over RDMA" if remote.height else f", other hosts over {others['network'][0]}" if others.height else ""),
        summary=f"NCCL_IB_HCA={asked['value'][0]} leaves out all RDMA devices of such a name, and NCCL found no other."
        if asked.height and str(asked["value"][0]).startswith("^")
        else f"NCCL_IB_HCA={asked['value'][0]} asks for RDMA devices, and NCCL found none of them."
        if asked.height
        else "RDMA was there or meant to be."
        if seen
        else "Other hosts of the job chose a network that these did not."
        if meant
        else "No RDMA device is listed on these hosts; if they have none, this is as it should be.",
        severity="error" if meant else "info",
        confidence="high" if seen else "medium" if meant else "low",
        ranks=ranks,
        hosts=hosts,
        subject=("socket", *hosts),
        evidence=(
            *cite(sockets, "chose the network Socket"),
            *cite(others, "chose an RDMA network" if remote.height else "chose another network"),
            *(cite(asked, "a filter of RDMA devices, of which NCCL found none to use") if asked.height else ()),
            *(cite(active, "a port of InfiniBand that is active there", at_most=4) if active.height else ()),
        ),
        remedy="Make RDMA devices visible in the container (libibverbs, /dev/infiniband) and unset NCCL_IB_DISABLE and NCCL_NET."
        + (" Compare NCCL_IB_HCA with the names that ibv_devices lists." if asked.height else ""),
        prevention="Set NCCL_NET=IB so that NCCL fails instead of falling back.",
        would_refute=("the hosts have no RDMA network",),
        actions=(Action("change-setting", hosts=hosts, command="ibv_devices; ls /dev/infiniband"),),
    )


def _active(ib_ports: pl.LazyFrame, hosts: set[str | None]) -> pl.DataFrame:
    """Ports of InfiniBand that are up on one of these hosts. Of Ethernet, they may be the interfaces of the sockets themselves."""
    up = ib_ports.filter(pl.col("state").str.starts_with("active") & (pl.col("link_layer").str.to_lowercase() == "infiniband")).collect()
    labels = {first_label(host) for host in hosts}
    return up.filter(pl.Series([host is not None and first_label(host) in labels for host in up["host"]], dtype=pl.Boolean()))


def _asked_for(settings: pl.LazyFrame, hosts: set[str]) -> pl.DataFrame:
    """Values of NCCL_IB_HCA on these hosts that name the devices to use, or leave out all of a kind: whoever writes either has such
    devices."""
    rows = settings.filter((pl.col("name") == "NCCL_IB_HCA") & (pl.col("value") != "")).sort("value")
    known = rows.filter(pl.col("hosts").list.set_intersection(sorted(hosts)).list.len() > 0).collect()
    wanted = [not value.startswith("^") or _whole_family(value) for value in known["value"].to_list()]
    return known.filter(pl.Series(wanted, dtype=pl.Boolean()))


#: aws-ofi-nccl (src/nccl_ofi_net.c, find_ofi_provider) and libfabric's fi_getinfo, where no device of the wanted kind is found; NCCL's own
#: network, which sees a device in sysfs and may not open it (src/transport/net_ib.cc).
_NO_PROVIDER = (
    r"(?i)could ?n(?:'|o)t find any optimal provider|provider efa output empty list|OFI fi_getinfo\(\) call failed|no eligible providers"
    r"|^NET/IB : Unable to open device"
)


@rule(
    name="socket-fallback-of-plugin",
    code="NI05",
    cause="socket-fallback",
    severity="error",
    at_most=1,
    explains=("gdr-disabled", "low-bus-bandwidth", "few-channels"),
)
def socket_fallback_of_plugin(
    nccl_errors: pl.LazyFrame, nccl_connections: pl.LazyFrame, processes: pl.LazyFrame | None
) -> Iterator[Finding]:
    """At most one finding: a network plugin that was loaded found no device, or NCCL could open none that it saw, and connections between
    hosts go over sockets."""
    refused = nccl_errors.filter(pl.col("message").fill_null("").str.contains(_NO_PROVIDER))
    over = nccl_connections.filter((pl.col("transport") == "NET") & (pl.col("network") == "Socket")).sort("source_id", "line_no")
    some = over.head(4).collect()
    if not some.height:
        return
    people = processes if processes is not None else NOBODY
    told = where_reported(refused, people)
    if not told.height:
        return
    hosts, ranks = hosts_of(told), ranks_of(told)
    own = told["message"].str.starts_with("NET/IB").all()
    yield Finding(
        title=(
            f"NCCL could open no RDMA device of {', '.join(hosts[:6]) or 'a host'}"
            if own
            else f"the network plugin of {', '.join(hosts[:6]) or 'a host'} found no device"
        )
        + ", and NCCL talks over TCP sockets",
        summary=("The devices are there: " if own else "The plugin was installed to be used: ")
        + "NCCL goes on without, at a fraction of the bandwidth.",
        confidence="high",
        ranks=ranks,
        hosts=hosts,
        culprits=tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts),
        subject=("plugin", *hosts),
        evidence=(
            *cite(told, "the device was not opened" if own else "the plugin found no device"),
            *cite(some, "a connection over sockets"),
        ),
        evidence_total=told.height + some.height,
        remedy="Make the plugin's devices visible (fi_info -p efa; /dev/infiniband in the container; security group that lets the hosts talk to each "
        "other), and its library the one that the loader finds first.",
        prevention="Set NCCL_NET to the plugin's name, so that NCCL fails instead of falling back.",
        would_refute=("the instances have no such device",),
        actions=(Action("change-setting", hosts=hosts, ranks=ranks, command="fi_info; ls /dev/infiniband"),),
    )
