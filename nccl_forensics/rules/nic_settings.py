"""An Ethernet card is set up to be slow, or otherwise than the same card of the other hosts.

## What it finds
From ethtool: offloads switched off that TCP needs at high rates; receive rings far below what the card can hold, on a card that counts
packets for which it had no buffer; pause frames, rings or offloads that differ between hosts on interfaces of one name.

## Why it matters
Without segmentation offload a core has to cut every packet itself: TCP stays at a fraction of the line rate. A small ring overflows in
bursts, and each loss costs a retransmission. RDMA over Ethernet needs one answer to pause on the whole path: one host that answers
otherwise drops packets, or stops others.

## What would refute it
The interface carries no traffic of the job, or the hosts are meant to differ (login nodes, storage).

## What to do next
Set the odd host like its peers, in the configuration that is applied at boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place

#: Offloads without which TCP does not reach the rates of today's cards.
_NEEDED = ("tcp-segmentation-offload", "generic-receive-offload", "generic-segmentation-offload")
#: Settings that must agree between hosts, with what they are called in a sentence.
_SHARED = {
    ("pause", "rx"): "whether it obeys pause frames",
    ("pause", "tx"): "whether it sends pause frames",
    ("ring", "rx"): "the size of its receive ring",
    ("ring", "tx"): "the size of its send ring",
    **{("offload", name): name.replace("-", " ") for name in _NEEDED},
}
_NO_BUFFER = r"out_of_buffer|no_buffer|missed_errors|fifo_errors|discards_phy$|rx_dropped$"


@rule(name="nic-settings", code="NE15", cause="bad-setting", severity="warning", at_most=48, explains=("packet-loss",))
def nic_settings(
    net_settings: pl.LazyFrame,
    net_counters: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    *,
    ring_share: Annotated[float, "share of the largest receive ring below which a ring counts as small"] = 0.5,
    lost_least: Annotated[int, "packets without a buffer from which a small ring is to blame"] = 1000,
) -> Iterator[Finding]:
    """Offloads, then rings, then hosts that differ; at most one finding per host, interface and setting."""
    rows = located(net_settings, source_hosts).filter(pl.col("interface").is_not_null() & pl.col("section").fill_null("").ne("maximum"))
    yield from _offloads(rows)
    if net_counters is not None:
        yield from _rings(located(net_settings, source_hosts), located(net_counters, source_hosts), ring_share, lost_least)
    yield from _odd_hosts(rows)


def _finding(
    title: str, summary: str, host: object, interface: object, subject: tuple[str, ...], rows: pl.DataFrame, command: str
) -> Finding:
    return Finding(
        title=title,
        summary=summary,
        confidence="medium",
        hosts=names_of(host),
        culprits=(Culprit(host=name_of(host), nic=str(interface)),),
        subject=(str(host or ""), str(interface), *subject),
        evidence=cite(rows, "the setting"),
        evidence_total=rows.height,
        remedy="Set the card like those of the other hosts, where it is configured at boot.",
        prevention="Compare ethtool -a, -g and -k of all hosts before they take jobs.",
        would_refute=("the interface carries no traffic of the job",),
        actions=(Action("fix_config", hosts=names_of(host), command=command),),
    )


def _offloads(rows: pl.DataFrame) -> Iterator[Finding]:
    off = rows.filter((pl.col("kind") == "offload") & pl.col("name").is_in(_NEEDED) & (pl.col("value") == "off") & ~pl.col("fixed"))
    for (host, interface), part in off.group_by("host", "interface", maintain_order=True):
        names = list(dict.fromkeys(part["name"].to_list()))
        yield _finding(
            f"{interface} of {place(host)} has {', '.join(n.replace('-', ' ') for n in names)} switched off",
            "TCP then stays at a fraction of the line rate, at one busy core.",
            host,
            interface,
            ("offload", *names),
            part,
            f"ethtool -K {interface} " + " ".join(f"{n} on" for n in names),
        )


def _rings(rows: pl.DataFrame, counters: pl.DataFrame, share: float, least: int) -> Iterator[Finding]:
    """Receive rings below what the card can hold, where packets were lost for want of a buffer."""
    rings = rows.filter((pl.col("kind") == "ring") & (pl.col("name") == "rx") & pl.col("number").is_not_null())
    lost = counters.filter(pl.col("counter").str.contains(_NO_BUFFER) & (pl.col("value") >= least))
    for (host, interface), part in rings.group_by("host", "interface", maintain_order=True):
        sizes = dict(part.select("section", "number").iter_rows())
        largest, size = sizes.get("maximum"), sizes.get("current")
        if largest is None or size is None or size >= share * largest:
            continue
        same = pl.col("interface") == interface
        missed = lost.filter(same & pl.col("host").eq_missing(pl.lit(host, dtype=pl.String())))
        if missed.is_empty():
            continue
        counter, count = missed.sort("value", descending=True).select("counter", "value").row(0)
        yield _finding(
            f"{interface} of {place(host)} receives into a ring of {size:.0f} (of {largest:.0f}) and had no room for packets: {counter} {count}",
            "A burst fills a small ring before the host empties it; what comes then is lost.",
            host,
            interface,
            ("ring", "rx"),
            pl.concat([part, missed], how="diagonal_relaxed"),
            f"ethtool -G {interface} rx {largest:.0f}",
        )


def _odd_hosts(rows: pl.DataFrame) -> Iterator[Finding]:
    """A setting in which a minority of hosts differs from the others on an interface of the same name."""
    told = (pl.col("kind") == "offload") & (pl.col("value") == "off")  # by a finding of its own
    known = rows.filter(pl.col("host").is_not_null() & pl.col("value").is_not_null())
    for (kind, name, interface), part in known.group_by("kind", "name", "interface", maintain_order=True):
        words = _SHARED.get((str(kind), str(name)))
        last = part.unique("host", keep="last", maintain_order=True)
        values = last.group_by("value", maintain_order=True).agg(pl.len().alias("hosts")).sort("hosts", descending=True)
        if words is None or last.height < 3 or values.height < 2 or values["hosts"][0] * 2 <= last.height:
            continue
        usual = str(values["value"][0])
        for row in last.filter((pl.col("value") != usual) & ~told).iter_rows(named=True):
            yield _finding(
                f"{interface} of {row['host']} differs from {values['hosts'][0]} other hosts in {words}: {row['value']}, not {usual}",
                "Cards of one job are set up alike, unless somebody forgot this one.",
                row["host"],
                interface,
                (str(kind), str(name), "differs"),
                pl.concat([last.filter(pl.col("host") == row["host"]), last.filter(pl.col("value") == usual).head(2)]),
                f"ethtool -{ {'pause': 'a', 'ring': 'g', 'offload': 'k'}[str(kind)] } {interface}",
            )
