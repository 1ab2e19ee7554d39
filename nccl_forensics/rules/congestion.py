"""Ports wait for credits or are told to slow down: the fabric is congested, or one receiver does not drain.

## What it finds
Ports that spent a large share of their time waiting to send (port_xmit_wait), congestion notifications and ECN marks that grew, and hosts
that send pause frames themselves: their own memory or PCIe does not take what the network brings.

## Why it matters
Congestion spreads: one slow receiver holds back every sender behind the same switch, and bandwidth falls on hosts without any fault.

## What would refute it
Absolute counts: healthy fabrics wait billions of ticks. Only the share of the traffic, growth, or a clear outlier says something.

## What to do next
Find the receiver that all waiting ports send to. On RoCE check ECN and PFC thresholds; on InfiniBand check adaptive routing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located
from nccl_forensics.values.others import others

_MARKS = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored")
#: A port that sent less than 4 MB tells nothing by its share.
_IDLE_WORDS = 1_000_000
_COUNTERS = ("port_xmit_wait", "port_xmit_data", "port_rcv_packets", "port_xmit_packets", *_MARKS)


@rule(
    name="congestion",
    code="NE04",
    cause="congestion",
    severity="warning",
    at_most=32,
    explains=("low-bus-bandwidth", "straggler", "packet-loss"),
)
def congestion(
    ib_port_counters: pl.LazyFrame | None,
    net_counters: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    net_samples: pl.LazyFrame | None = None,
    *,
    wait_share: Annotated[float, "share of a port's ticks spent waiting for credits"] = 0.2,
    marked_share: Annotated[float, "share of packets that carry a congestion mark, between two samples"] = 0.01,
    heavy_share: Annotated[
        float, "share of packets with a mark from which senders are held back for good, if other ports have none"
    ] = 0.05,
    outlier: Annotated[float, "times the median of the other ports from which a single sample stands out"] = 10.0,
    peers: Annotated[int, "other ports that a single sample must be compared with"] = 3,
    pauses: Annotated[int, "pause frames of a host between two samples that are worth a word"] = 100_000,
) -> Iterator[Finding]:
    """RDMA ports by waiting and by marks, then hosts that send pause storms, or that alone send pauses which hold the others back."""
    if ib_port_counters is not None:
        counters = ib_port_counters.filter(pl.col("counter").is_in(_COUNTERS)).collect()
        yield from _rdma(counters, wait_share, (marked_share, heavy_share), outlier, peers)
    if net_counters is not None:
        yield from _pauses(located(net_counters, source_hosts))
    if net_samples is not None:
        yield from _brakes(net_samples, pauses, outlier, peers)


def _rdma(counters: pl.DataFrame, wait_share: float, marked: tuple[float, float], outlier: float, peers: int) -> Iterator[Finding]:
    ports: dict[tuple[object, ...], dict[str, Mapping[str, object]]] = defaultdict(dict)
    for row in counters.iter_rows(named=True):
        ports[tuple(row[k] for k in ("place", "host", "node", "device", "port"))][row["counter"]] = row
    shares: dict[tuple[object, ...], tuple[float, bool]] = {}
    for key, rows in ports.items():
        wait, data = rows.get("port_xmit_wait"), rows.get("port_xmit_data")
        if wait is None or data is None or wait["saturated"]:
            continue
        grew = wait["growth"] is not None and data["growth"] is not None
        waited, sent = (int(str(r["growth" if grew else "last"])) for r in (wait, data))
        if sent >= _IDLE_WORDS:
            shares[key] = (waited / (waited + sent), grew)
    all_shares = sorted(share for share, _ in shares.values())
    for key, (share, grew) in shares.items():
        stands_out = _stands_out(share, all_shares, outlier, peers)
        if share < wait_share or not (grew or stands_out):
            continue
        sure: Confidence = "medium" if grew and (stands_out or len(shares) == 1) else "low"
        yield _finding(
            key,
            f"waited for credits during {share:.0%} of what it sent",
            "Something behind it does not take the traffic." + ("" if grew else " One sample since the last reset: not tied to this job."),
            sure,
            [ports[key]["port_xmit_wait"]],
            {"wait_share": share},
            # Between two samples of the job itself, time not sent is a loss; one sample may be of any other time.
            severity="error" if grew else "warning",
        )
    marked_share, heavy_share = marked
    marks = {key: {c: _share(rows, c) for c in _MARKS if c in rows} for key, rows in ports.items()}
    marked_shares: dict[str, list[float]] = defaultdict(list)
    for own in marks.values():
        for counter, (grew_by, carried) in own.items():
            if carried:
                marked_shares[counter].append(grew_by / carried)
    ordered = {counter: sorted(every) for counter, every in marked_shares.items()}
    for key, rows in ports.items():
        for counter, (grew_by, carried) in marks[key].items():
            share = grew_by / carried if carried else 0.0
            if not (grew_by and ((counter == "rp_cnp_ignored") or (carried and share >= marked_share))):
                continue
            heavy = share >= heavy_share and _stands_out(share, ordered[counter], outlier, peers)
            yield _finding(
                key,
                f"counts congestion: {counter} grew by {grew_by}" + (f", {share:.1%} of its packets" if carried else ""),
                "The ports beside it count none: what sends to this one is held back all the time." if heavy else "",
                "medium",
                [rows[counter]],
                {counter: grew_by},
                severity="error" if heavy else "warning",
            )


def _stands_out(share: float, ordered: list[float], outlier: float, peers: int) -> bool:
    """Whether a share lies far above those of the other ports, of which there are enough."""
    beside = others(ordered, share)
    return beside.count >= peers and share > outlier * max(beside.middle, 1e-6)


def _share(rows: Mapping[str, Mapping[str, object]], counter: str) -> tuple[int, int]:
    """Growth of a counter, and packets that the port carried meanwhile; 0 where there are no two samples."""
    carried = (int(str(rows[c]["growth"] or 0)) for c in ("port_rcv_packets", "port_xmit_packets") if c in rows)
    return int(str(rows[counter]["growth"] or 0)), max(carried, default=0)


def _pauses(rows: pl.DataFrame) -> Iterator[Finding]:
    """Hosts that are the brake themselves, by mlx5's own warning counters."""
    storms = rows.filter(pl.col("counter").is_in(["tx_pause_storm_warning_events", "tx_pause_storm_error_events"]) & (pl.col("value") > 0))
    for (host, interface), part in storms.group_by("host", "interface", maintain_order=True):
        said = ", ".join(f"{c} {v}" for c, v in part.select("counter", "value").iter_rows())
        yield _finding(
            (host, host, None, interface, None),
            f"pauses the network: {said}",
            "The host does not drain what it receives, and pauses the switch for long times.",
            "medium",
            list(part.iter_rows(named=True)),
            {},
        )


#: Frames by which an interface asks its neighbour to wait, and that it was sent, as mlx5 counts them (its ethtool counters).
_PAUSE = r"^(tx|rx)_(?:prio\d_|global_)pause$"


def _brakes(samples: pl.LazyFrame, least: int, outlier: float, peers: int) -> Iterator[Finding]:
    """Hosts that between two samples sent far more pauses than any other did, while the others were sent some."""
    told = samples.filter((pl.col("tool") == "ethtool-S") & pl.col("host").is_not_null() & pl.col("counter").str.contains(_PAUSE))
    grew = (
        told.with_columns(way=pl.col("counter").str.slice(0, 2))
        .sort("value", "source_id", "line_no")
        .group_by("host", "interface", "counter", "way", maintain_order=True)
        .agg(pl.col("source_id", "line_no").last(), by=pl.col("value").last() - pl.col("value").first(), n=pl.len())
        .filter(pl.col("n") > 1)
        .sort("by", "host", "interface", "counter", descending=[True, False, False, False])
        .unique(["host", "way"], keep="first", maintain_order=True)
        .collect()
    )
    sent, got = (grew.filter(pl.col("way") == way) for way in ("tx", "rx"))
    ordered = sorted(sent["by"].cast(pl.Float64).to_list())
    for row in sent.filter(pl.col("by") >= least).iter_rows(named=True):
        held = got.filter((pl.col("host") != row["host"]) & (pl.col("by") >= least))
        if held.height >= peers and _stands_out(float(row["by"]), ordered, outlier, peers):
            yield _finding(
                (row["host"], row["host"], None, row["interface"], None),
                f"pauses the network: {row['counter']} grew by {row['by']}",
                f"It does not drain what it receives; {held.height} other hosts were told to wait meanwhile, and sent next to no pauses themselves.",
                "medium",
                [row, *held.iter_rows(named=True)],
                {"pauses": row["by"]},
                severity="error",
            )


def _finding(
    key: tuple[object, ...],
    what: str,
    summary: str,
    confidence: Confidence,
    rows: list[Mapping[str, object]],
    metrics: Mapping[str, float | int | str | None],
    severity: Severity = "warning",
) -> Finding:
    place, host, node, device, port = key
    owner = host or node
    name = f"{device or 'a port'}" + (f" port {port}" if port is not None else "") + (f" of {owner}" if owner else "")
    hosts = names_of(host)
    return Finding(
        title=f"{name} {what}",
        summary=summary,
        severity=severity,
        confidence=confidence,
        hosts=hosts,
        culprits=(Culprit(host=name_of(host), nic=name_of(device)),) if host or device else (),
        subject=(str(place), str(device), str(port)),
        evidence=cite(rows, what),
        evidence_total=len(rows),
        remedy="Find the receiver that does not drain, and check flow control and routing of the class that NCCL uses.",
        prevention="Watch waiting and marks per port, as a share of the traffic.",
        would_refute=("other ports of the job wait as much: then the fabric is loaded evenly",),
        actions=(Action("collect_more", hosts=hosts, command="perfquery -x (twice, a minute apart)"),),
        metrics=dict(metrics),
    )
