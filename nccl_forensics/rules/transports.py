"""Traffic inside a host that goes through host memory or the network although its GPUs could talk directly.

## What it finds
Connections between ranks of one host over SHM or NET where NVLink or other pairs show that direct copies are possible, NCCL's own lines that
P2P is disabled, and communicators with few channels on GPUs whose links could feed many (by NCCL's log, or by profiler traces).

## Why it matters
Copies through host memory run at a fraction of NVLink's bandwidth, and every collective pays for it.

## What would refute it
The GPUs have no direct path (consumer cards, no NVLink, different containers on purpose).

## What to do next
Look at ACS and IOMMU (lspci, dmesg), at the container's IPC and /dev/shm settings, and at NCCL_P2P_* settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.bandwidth import LARGE_BYTES
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule

#: What tutorials write of a pair without direct copies, in NCCL's place.
_OFF = "P2P/Disabled"
#: The ways around direct copies.
_AROUND = {"SHM": "shared memory", "NET": "the network", _OFF: "host memory"}


def _local(nccl_connections: pl.LazyFrame, comms: pl.LazyFrame) -> pl.DataFrame:
    """Connections between GPUs of one host, per host and transport, with the ranks that connected."""
    world = comms.filter(pl.col("nranks") == pl.col("nranks").max())
    hosts = world.select("rank", "host").unique(["rank"], keep="any")
    source = hosts.rename({"rank": "src", "host": "src_host"})
    target = hosts.rename({"rank": "dst", "host": "dst_host"})
    # Ranks of smaller communicators count from 0 again: where a process has several, its lines do not tell whose ranks they mean. But P2P
    # and SHM connect GPUs of one host, and who prints them sends (NCCL 2.27 src/transport/p2p.cc, shm.cc; P2P between hosts says MNNVL).
    process = ["host", "pid"]
    single = comms.group_by(process).agg(pl.col("nranks").n_unique().alias("n")).filter(pl.col("n") == 1).select(process)
    own = world.select(*process, "rank").unique().unique(process, keep="none").join(single, on=process, how="anti")
    alone = (
        nccl_connections.join(single, on=process)
        .join(source, on="src")
        .join(target, on="dst")
        .filter((pl.col("src_host") == pl.col("dst_host")) & (pl.col("src") != pl.col("dst")))
        .select("host", "transport", "network", "source_id", "line_no", rank=pl.concat_list("src", "dst"))
    )
    between_hosts = pl.col("detail").fill_null("").str.contains("MNNVL", literal=True)
    inside = pl.col("transport").is_in(["P2P", "SHM"]) & (pl.col("src") != pl.col("dst")) & ~between_hosts
    several = (
        nccl_connections.filter(inside)
        .join(own, on=process)
        .select("host", "transport", "network", "source_id", "line_no", rank=pl.concat_list("rank"))
    )
    return (
        pl.concat([alone, several])
        .sort("source_id", "line_no")
        .group_by("host", "transport")
        .agg(
            pl.len().alias("n"),
            pl.col("rank").explode().unique().sort().alias("ranks"),
            pl.col("network").drop_nulls().unique().sort().alias("networks"),
            pl.col("source_id").first(),
            pl.col("line_no").first(),
        )
        .sort("host", "transport")
        .collect()
    )


@rule(
    name="p2p-disabled",
    code="TR01",
    cause="p2p-disabled",
    severity="error",
    at_most=8,
    explains=("few-channels", "low-bus-bandwidth", "socket-fallback"),
)
def p2p_disabled(
    nccl_connections: pl.LazyFrame,
    comms: pl.LazyFrame,
    gpu_links: pl.LazyFrame | None,
    nccl_network: pl.LazyFrame | None,
    nccl_placement: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Hosts whose local pairs avoid direct copies; an error where NVLink or another host shows that they could, where the driver forbids it
    to GPUs that are connected, or where they use TCP inside what NCCL counts as one host: then shared memory was refused as well, as between
    containers. Else a warning."""
    local = _local(nccl_connections, comms)
    one = nccl_placement is not None and nccl_placement.select(pl.col("nodes").max()).collect().item() == 1
    nvlink: set[object] = set()
    if gpu_links is not None:
        nvlink = set(gpu_links.filter(pl.col("nvlink_gb_s") > 0).select("host").collect()["host"].to_list())
    said = pl.DataFrame()
    if nccl_network is not None:
        said = nccl_network.filter(pl.col("item").is_in(["p2p-disabled", "p2p-not-enabled"])).sort("source_id", "line_no").collect()
    direct = set(local.filter(pl.col("transport") == "P2P")["host"].to_list())
    for (host,), part in local.filter(pl.col("transport").is_in(list(_AROUND))).group_by("host", maintain_order=True):
        if host in direct and host not in nvlink:
            continue  # pairs across sockets go through memory by design where NVLink is absent
        lines = said.filter(pl.col("host") == host) if said.height else said
        proof = host in nvlink or bool(direct - {host})
        if host in direct and not lines.height:
            continue
        ranks = tuple(sorted({r for rs in part["ranks"].to_list() for r in rs}))
        how = " and ".join(_AROUND[t] for t in part["transport"].to_list())
        refused = bool(lines.height and (lines["item"] == "p2p-disabled").any()) or _OFF in part["transport"].to_list()
        apart = one and any(networks == ["Socket"] for networks in part["networks"].to_list())
        yield Finding(
            title=f"GPUs of {host} talk through {how}"
            + (", although they have NVLink" if host in nvlink else ", while other hosts use direct copies" if proof else ""),
            summary="NCCL chose no direct path between GPUs of this host."
            + (" It says so itself: P2P is disabled between connected GPUs." if lines.height else "")
            + (" Nor did it find shared memory, although it counts one host: their containers do not share /dev/shm." if apart else ""),
            severity="error" if proof or refused or apart else "warning" if lines.height else "info",
            confidence="high" if proof else "medium" if lines.height or refused or apart else "low",
            ranks=ranks,
            hosts=(str(host),),
            culprits=tuple(Culprit(rank=r, host=str(host)) for r in ranks),
            subject=("p2p", str(host)),
            evidence=(
                *cite(part, "a connection inside the host"),
                *(cite(lines, "NCCL says that direct copies are off", at_most=4) if lines.height else ()),
            ),
            remedy="Check NCCL_P2P_* settings, ACS and IOMMU on this host, and that its containers share IPC and /dev/shm.",
            prevention="Compare the transport of local pairs with a healthy host after each image or BIOS change.",
            would_refute=("the GPUs of this host have no direct path",),
            actions=(Action("change-setting", hosts=(str(host),), command="lspci -vvv | grep -i acsctl; dmesg | grep -i iommu"),),
        )


@rule(name="few-channels", code="TR02", cause="few-channels", severity="error", at_most=4, explains=("low-bus-bandwidth",))
def few_channels(
    local_channels: pl.LazyFrame | None,
    trace_bandwidth: pl.LazyFrame | None = None,
    *,
    enough: Annotated[int, "channels from which a communicator over NVLink is not called short of them"] = 8,
    nvlink_gb_s: Annotated[float, "NVLink bandwidth per GPU from which many channels are expected"] = 200.0,
    traced_share: Annotated[float, "share of the expected bus bandwidth below which few channels in profiler traces count"] = 0.6,
    large_bytes: Annotated[int, "size from which a traced AllReduce uses all channels that there are"] = LARGE_BYTES,
) -> Iterator[Finding]:
    """Communicators of one host, over fast NVLink, with fewer channels than such links feed, or with one on whatever links: by NCCL's log,
    or by profiler traces, where its kernels have one block per channel and the largest AllReduces run far below what the platform
    reaches."""
    short = pl.DataFrame()
    if local_channels is not None:
        # A process has communicators of its host and such as span hosts, which have no more channels than the adapters feed: the most
        # counts.
        most = pl.col("coll").max().over("host")
        # NCCL uses each ring that it finds twice (src/graph/connect.cc), so that a single channel is a limit on any links.
        alone = pl.col("nvlink_gb_s").is_null() & (most == 1)
        short = local_channels.filter(alone | ((most < enough) & (pl.col("nvlink_gb_s") >= nvlink_gb_s))).collect()
    traced = _short_in_traces(trace_bandwidth, enough, traced_share, large_bytes)
    seen = (
        cite(traced, f"the kernels of the largest traced AllReduces have fewer than {enough} blocks, one per channel")
        if traced.height
        else ()
    )
    if short.height:
        lowest = int(str(short["coll"].min()))
        hosts = tuple(sorted(set(short["host"].to_list())))
        known = short["nvlink_gb_s"].null_count() == 0
        more = f"NVLink could feed {enough} and more" if known else "NCCL makes two of each ring that it finds"
        yield Finding(
            title=f"{lowest} channel{'s' if lowest != 1 else ''} on {', '.join(hosts[:4])}, where {more}",
            summary="NCCL's search found few rings: a topology file, a degraded link or a limit stands behind it."
            if known
            else "A limit stands behind it: NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, or that of the communicator's own configuration.",
            confidence="medium",
            hosts=hosts,
            culprits=tuple(Culprit(host=h) for h in hosts),
            subject=("channels", *hosts),
            evidence=(*cite(short, "channel count of a communicator"), *seen),
            evidence_total=short.height + len(seen),
            remedy="Compare with a healthy run of the same node type: NCCL_TOPO_FILE, NCCL_MAX_NCHANNELS, NVLink state.",
            prevention="Record the channel count of each run and compare.",
            would_refute=("a healthy run of the same node type has as few",),
            actions=(Action("collect-more", hosts=hosts, command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH; nvidia-smi nvlink -s"),),
        )
    elif traced.height:
        row = traced.row(0, named=True)
        yield Finding(
            title=f"NCCL's kernels use {row['channels']} channel{'s' if row['channels'] != 1 else ''}, and the largest AllReduces reach "
            f"{row['best_bus_bw_gb_s']:.0f} of {row['expected_gb_s']:.0f} GB/s bus bandwidth",
            summary="By profiler traces alone: one block of the kernel per channel, in AllReduces large enough to use all channels.",
            severity="warning",
            confidence="medium",
            subject=("traces", str(row["group_desc"] or row["group_name"] or row["group_key"])),
            evidence=seen,
            evidence_total=traced.height,
            remedy="Look for NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS and NCCL_TOPO_FILE in the job's environment, and compare with a healthy run.",
            prevention="Record the channel count of each run and compare.",
            would_refute=("a healthy run of the same node type has as few",),
            actions=(Action("collect-more", command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH; nvidia-smi nvlink -s"),),
            metrics={"channels": row["channels"], "bus_bw_gb_s": round(row["best_bus_bw_gb_s"], 2), "expected_gb_s": row["expected_gb_s"]},
        )


def _short_in_traces(trace_bandwidth: pl.LazyFrame | None, enough: int, share: float, large: int) -> pl.DataFrame:
    """Sizes of traced AllReduces, worst first, whose kernels have few blocks and whose best one is slow; all ranks of the group were
    traced.

    The platform's expectation is known for GPUs over NVLink only. Few blocks alone say nothing: newer kernels need fewer.
    """
    if trace_bandwidth is None:
        return pl.DataFrame()
    return (
        trace_bandwidth.filter(
            (pl.col("collective") == "all_reduce")
            & (pl.col("backend") == "nccl")
            & (pl.col("bytes") >= large)
            & (pl.col("count") >= 3)
            & (pl.col("ranks_seen") == pl.col("ranks"))
            & (pl.col("channels") < enough)
            & (pl.col("best_bus_bw_gb_s") < share * pl.col("expected_gb_s"))
        )
        .sort("best_bus_bw_gb_s", "group_key", "bytes")
        .collect()
    )
