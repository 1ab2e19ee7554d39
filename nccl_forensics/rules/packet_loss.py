"""Packets are lost on the way: retransmissions, discards, packets out of sequence, timers that run out.

## What it finds
RDMA counters of loss and of peers that do not answer, TCP retransmissions of the host or of single sockets, drops of an interface, and
retransmissions that iperf3 or tcpdump saw. Each is judged by growth between two samples, by its share of the traffic, or against the same
counter of other ports.

## Why it matters
A lost packet costs a timer. RDMA without a lossless class falls to a fraction of its rate; when the retries run out, NCCL ends the job.

## What would refute it
Adaptive routing reorders packets on purpose (out_of_sequence alone), or the counters are old and stand still during the job.

## What to do next
Read the counters twice under load. On RoCE check that PFC and ECN are set for the class that NCCL uses (NCCL_IB_TC).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.ib_counters import COUNTERS
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import homes, located
from nccl_forensics.values.others import others

_WATCHED = [c.name for c in COUNTERS.values() if c.family in ("loss", "peer", "corruption")]
#: Completions with an error and requests that came twice follow any death of a process: never a cause alone.
_FOLLOWERS = frozenset({"req_cqe_error", "resp_cqe_error", "duplicate_request", "roce_adp_retrans", "rnr_nak_retry_err"})
_TRAFFIC = ("port_xmit_packets", "unicast_xmit_packets")
_DROPS = (
    "rx_discards_phy",
    "rx_out_of_buffer",
    "rx_missed_errors",
    "rx_fifo_errors",
    "rx_crc_errors_phy",
    "rx_crc_errors",
    "tx_discards_phy",
)
#: What a receiver counts whose packets were dropped on the way.
_MISSED = [c.name for c in COUNTERS.values() if c.family == "loss" and c.weight == "degraded" and c.name != "port_xmit_discards"]
_ALLOWANCE = (
    "bw_in_allowance_exceeded",
    "bw_out_allowance_exceeded",
    "pps_allowance_exceeded",
    "conntrack_allowance_exceeded",
    "linklocal_allowance_exceeded",
)
_SENT = ("TcpOutSegs", "Tcp.segments_sent_out", "Tcp.segments_send_out")
_RESENT = ("TcpRetransSegs", "Tcp.segments_retransmitted", "Tcp.segments_retransmited")

Row = Mapping[str, object]


@rule(
    name="packet-loss",
    code="NE03",
    cause="packet-loss",
    severity="warning",
    at_most=64,
    explains=("timeout", "closed", "collective-stuck", "connection-failed", "low-bus-bandwidth", "straggler"),
)
def packet_loss(
    ib_port_counters: pl.LazyFrame | None,
    net_samples: pl.LazyFrame | None,
    sockets: pl.LazyFrame | None,
    tcp_tests: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    net_addresses: pl.LazyFrame | None = None,
    *,
    loss_share: Annotated[float, "share of packets lost or sent again that is worth a warning"] = 0.001,
    bad_share: Annotated[float, "share from which it is an error"] = 0.01,
    peers: Annotated[int, "other ports that a single sample must be compared with"] = 3,
    least: Annotated[int, "packets lost or sent again below which nothing is said"] = 100,
) -> Iterator[Finding]:
    """RDMA ports, then hosts, interfaces, sockets and tests."""
    ports = ib_port_counters.filter(pl.col("counter").is_in([*_WATCHED, *_TRAFFIC])).collect() if ib_port_counters is not None else None
    if ports is not None:
        yield from _rdma(ports, peers, loss_share)
    if net_samples is not None:
        rows = net_samples.collect()
        yield from _tcp(rows, loss_share, bad_share, least)
        yield from _interfaces(rows, loss_share, bad_share, least, _miss_packets(ports, least))
        yield from _allowances(rows)
    if sockets is not None:
        yield from _sockets(located(sockets, source_hosts))
    if tcp_tests is not None:
        routed = net_addresses.filter(pl.col("scope") == "global") if net_addresses is not None else None
        yield from _tests(located(tcp_tests, source_hosts), loss_share, bad_share, least, homes(routed, source_hosts))


def _rdma(counters: pl.DataFrame, peers: int, share: float) -> Iterator[Finding]:
    values: dict[object, list[int]] = defaultdict(list)
    packets: dict[tuple[object, ...], int] = {}
    for row in counters.iter_rows(named=True):
        values[row["counter"]].append(row["last"])
        if row["counter"] in _TRAFFIC:
            packets[_port(row)] = max(packets.get(_port(row), 0), row["growth"] or row["last"])
    ordered = {counter: sorted(every) for counter, every in values.items()}
    found: dict[tuple[object, ...], list[tuple[Row, str, Severity, Confidence]]] = defaultdict(list)
    for row in counters.iter_rows(named=True):
        if row["counter"] in _TRAFFIC:
            continue
        known, grew = COUNTERS[row["counter"]], row["growth"]
        if known.name in _FOLLOWERS:
            continue
        if grew:
            severity: Severity = "error" if known.weight == "fatal" else "warning"
            confidence: Confidence = "medium"
            words = f"{known.name} grew by {grew}: {known.meaning}"
        elif grew is None and row["last"] and known.weight in ("fatal", "degraded"):
            beside = others(ordered[row["counter"]], row["last"])
            carried = packets.get(_port(row))
            small = carried is not None and row["last"] < share * 1e-3 * carried and known.weight != "fatal"
            if beside.count < peers or row["last"] <= 10 * (beside.middle + 1) or row["last"] < max(known.threshold, 10) or small:
                continue
            severity, confidence = "warning", "low"
            usual = f"{beside.middle:g} or less" if beside.middle else "0"
            words = f"{known.name} is {row['last']}, most of the {beside.count} other ports read {usual}: {known.meaning}"
        else:
            continue
        found[_port(row)].append((row, words, severity, confidence))
    for key, items in found.items():
        items.sort(key=lambda i: (i[2] != "error", i[3] != "medium"))
        worst, words, severity, confidence = items[0]
        owner = worst["host"] or worst["node"]
        nic = name_of(worst["device"])
        port = f"port {worst['port']}" if worst["port"] is not None else "" if nic else "a port"
        name = f"{nic or ''} {port}".strip() + (f" of {owner}" if owner else "")
        yield _finding(
            f"{name}: {words}",
            "; ".join(w for _, w, _, _ in items) + ".",
            severity,
            confidence,
            name_of(worst["host"]),
            nic,
            (str(key[0]), name),
            [{**dict(r), "why": w} for r, w, _, _ in items],
            {str(r["counter"]): int(str(r["last"])) for r, _, _, _ in items},
        )


def _miss_packets(ports: pl.DataFrame | None, least: int) -> set[str]:
    """Hosts whose RDMA ports count packets that never came."""
    if ports is None:
        return set()
    missed = ports.filter(pl.col("counter").is_in(_MISSED) & (pl.coalesce("growth", "last") >= least))
    return set(missed["host"].drop_nulls())


def _port(row: Row) -> tuple[object, ...]:
    return tuple(row[k] for k in ("place", "node", "device", "port"))


def _tcp(rows: pl.DataFrame, share: float, bad: float, least: int) -> Iterator[Finding]:
    """Segments sent again over segments sent, per host: since boot, or between the first and last sample."""
    wanted = rows.filter(pl.col("counter").is_in([*_SENT, *_RESENT]) & pl.col("value").is_not_null())
    for (place,), part in wanted.group_by("place", maintain_order=True):
        host = part["host"][0]
        sent = part.filter(pl.col("counter").is_in(_SENT))["value"].to_list()
        again = part.filter(pl.col("counter").is_in(_RESENT))
        counts = again["value"].to_list()
        if not sent or not counts:
            continue
        sent_n, again_n = (max(sent) - min(sent), max(counts) - min(counts)) if len(sent) > 1 and len(counts) > 1 else (sent[0], counts[0])
        if sent_n <= 0 or again_n < least or again_n / sent_n < share:
            continue
        ratio = again_n / sent_n
        where = f" on {host}" if host else ""
        yield _finding(
            f"TCP sent {ratio:.2%} of its segments again{where}",
            f"{again_n} of {sent_n} segments were retransmitted.",
            "error" if ratio >= bad and len(sent) > 1 else "warning",
            "medium" if len(sent) > 1 else "low",
            name_of(host),
            None,
            (str(place), "tcp"),
            list(again.iter_rows(named=True)),
            {"retransmitted_share": ratio},
        )


def _interfaces(rows: pl.DataFrame, share: float, bad: float, least: int, rdma: set[str]) -> Iterator[Finding]:
    """Drops of an interface; where RDMA of that host (``rdma``) missed packets too, any that are worth a warning are an error: it sends all
    again from there on."""
    wanted = rows.filter(pl.col("counter").is_in([*_DROPS, "rx_packets", "rx_packets_phy"]) & pl.col("value").is_not_null())
    for (place, interface), part in wanted.group_by("place", "interface", maintain_order=True):
        host = part["host"][0]
        first = part.group_by("counter", maintain_order=True).agg(
            pl.col("value").min().alias("low"), pl.col("value").max().alias("high"), pl.len()
        )
        amounts = {c: (high - low if n > 1 else high) for c, low, high, n in first.iter_rows()}
        carried = max(amounts.get("rx_packets", 0), amounts.get("rx_packets_phy", 0))
        for counter in _DROPS:
            lost = amounts.get(counter, 0)
            if lost < least or not carried or lost / carried < share:
                continue
            ratio = lost / carried
            name = f"{interface or 'an interface'}" + (f" of {host}" if host else "")
            cited, missed = part.filter(pl.col("counter") == counter), host in rdma
            yield _finding(
                f"{name} lost {ratio:.2%} of its packets ({counter})",
                f"{lost} against {carried} packets received. "
                + ("RDMA of that host missed packets too: " if missed else "With RoCE this means that ")
                + "the lossless class is not set up.",
                "error" if ratio >= bad or missed else "warning",
                "medium",
                name_of(host),
                name_of(interface),
                (str(place), str(interface), counter),
                list(cited.iter_rows(named=True)),
                {counter: lost},
            )


def _allowances(rows: pl.DataFrame) -> Iterator[Finding]:
    """AWS ENA counts packets that were queued or dropped because the instance's allowance was used up."""
    wanted = rows.filter(pl.col("counter").is_in(_ALLOWANCE) & (pl.col("value") > 0))
    for (host, interface), part in wanted.group_by("host", "interface", maintain_order=True):
        names = ", ".join(f"{c} {v}" for c, v in part.select("counter", "value").iter_rows())
        owner = f" of {host}" if host else ""
        yield _finding(
            f"{interface or 'the network interface'}{owner} ran into the limits of its instance: {names}",
            "Packets were queued or dropped because the instance's allowance was used up.",
            "warning",
            "low",
            name_of(host),
            name_of(interface),
            (str(host), str(interface), "allowance"),
            list(part.iter_rows(named=True)),
            {},
        )


def _sockets(rows: pl.DataFrame) -> Iterator[Finding]:
    """Sockets whose data is not acknowledged: the peer or the path is gone."""
    stuck = rows.filter(
        (pl.col("send_q_bytes") > 0) & ((pl.col("retrans_now") > 0) | (pl.col("backoff") > 0)) & (pl.col("state") == "ESTAB")
    )
    for (host, peer), part in stuck.with_columns(remote=pl.col("peer").str.replace(r":\d+$", "")).group_by(
        "host", "remote", maintain_order=True
    ):
        worst = part.sort("backoff", "retrans_now", descending=True, nulls_last=True).row(0, named=True)
        silent = f", silent for {worst['last_received_ms'] / 1000:.0f} s" if worst["last_received_ms"] else ""
        owner = f"{host} " if host else ""
        count = f"{part.height} sockets" if part.height > 1 else "a socket"
        yield _finding(
            f"{peer} does not acknowledge {count} of {owner or 'this host '}".rstrip() + silent,
            f"{worst['send_q_bytes']} bytes wait to be acknowledged, {worst['retrans_now'] or 0} segments are being sent again.",
            "warning",
            "medium",
            name_of(host),
            None,
            (str(host), str(peer), "socket"),
            list(part.iter_rows(named=True)),
            {"sockets": part.height},
        )


def _tests(rows: pl.DataFrame, share: float, bad: float, least: int, names: Mapping[str, str]) -> Iterator[Finding]:
    """Runs of iperf3. A run that moved less than half of what one without loss did paid for what it lost."""
    segments = pl.coalesce("packets", pl.col("bytes") / pl.coalesce("mss_bytes", pl.lit(1448)))
    lost = pl.coalesce("lost_packets", "retransmits")
    whole = rows.filter(pl.col("summary") & pl.col("stream").is_not_null()).with_columns(segments=segments, lost=lost)
    whole = whole.filter((pl.col("segments") > 0) & pl.col("lost").is_not_null()).with_columns(ratio=pl.col("lost") / pl.col("segments"))
    in_all = pl.col("stream") == "SUM"
    whole = whole.filter(in_all | ~in_all.any().over("source_id", "test"))
    lossy = (pl.col("lost") >= least) & (pl.col("ratio") >= share)
    good = whole.filter(pl.col("ratio") < share)
    best = max(good["gbit_s"].drop_nulls().to_list(), default=0.0)
    partners: dict[object, set[object]] = defaultdict(set)
    for local, remote in whole.filter(lossy).select("local", "remote").iter_rows():
        partners[local].add(remote)
        partners[remote].add(local)
    fine = {end for ends in good.select("local", "remote").iter_rows() for end in ends}
    for row in whole.filter(lossy).iter_rows(named=True):
        ratio = row["ratio"]
        slow = row["gbit_s"] is not None and 2 * row["gbit_s"] < best
        # An end that loses with several others, and never does well, is the one; of a single pair nothing tells which.
        ends = [end for end in (row["local"], row["remote"]) if end is not None]
        suspects = [end for end in ends if end not in fine and len(partners[end]) > 1]
        ill = suspects[0] if len(suspects) == 1 else None
        host = names.get(str(ill)) if ill is not None else str(row["host"]) if row["host"] and row["local"] not in fine else None
        ran = [
            names.get(str(end), str(end)) if end is not None else other
            for end, other in ((row["local"], "here"), (row["remote"], "its peer"))
        ]
        yield _finding(
            f"iperf3 from {' to '.join(ran)} lost {ratio:.2%} of its packets",
            f"{row['lost']} of about {row['segments']:.0f} packets, at {row['gbit_s'] or 0:.3g} Gbit/s."
            + (f" A run that lost fewer reached {best:.3g}." if slow else "")
            + (
                f" All that lose have {names.get(str(ill), str(ill))} in common, and it has no run without loss." if ill is not None else ""
            ),
            "error" if ratio >= bad or slow else "warning",
            "medium",
            host,
            None,
            (str(row["local"]), str(row["remote"]), "iperf3"),
            [row],
            {"lost_share": ratio},
        )


def _finding(
    title: str,
    summary: str,
    severity: Severity,
    confidence: Confidence,
    host: str | None,
    nic: str | None,
    subject: tuple[str, ...],
    rows: list[dict[str, object]],
    metrics: Mapping[str, float | int | str | None],
) -> Finding:
    hosts = names_of(host)
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence=confidence,
        hosts=hosts,
        culprits=(Culprit(host=host, nic=nic),) if host or nic else (),
        subject=subject,
        evidence=cite(rows, "lost or sent again"),
        evidence_total=len(rows),
        remedy="Find where packets are dropped: cable, switch buffer, class without flow control, or a peer that stopped reading.",
        prevention="Watch the loss counters of every port while jobs run.",
        would_refute=("the counters stand still under load",),
        actions=(Action("collect_more", hosts=hosts, command="rdma statistic show; ethtool -S IFACE; nstat -az (twice, a minute apart)"),),
        metrics=dict(metrics),
    )
