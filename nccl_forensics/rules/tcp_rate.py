"""TCP carries much less than the interface that it goes over.

## What it finds
Runs of iperf3 whose rate stays far below the speed of the interface that holds their local address, where the run was able to fill it: one stream
up to 25 Gbit/s, four and more above.

## Why it matters
A well-tuned path carries about 94 % of its line rate. NCCL over sockets, checkpoints and data loading go over the same path.

## What would refute it
Other traffic at that time, a limit that was asked for (`-b`), a narrower hop on the way that is there by design.

## What to do next
Repeat with `-P 8` and in the other direction (`-R`); then look at retransmissions, the MTU along the path, and the rings and queues of both cards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located

#: What a single stream can fill, bounded by one core, and how many fill more.
_ONE_STREAM_GBIT_S, _STREAMS = 25.0, 4


@rule(name="tcp-below-line-rate", code="BW06", cause="low-bus-bandwidth", severity="warning", at_most=32)
def tcp_below_line_rate(
    tcp_tests: pl.LazyFrame,
    net_addresses: pl.LazyFrame,
    net_interfaces: pl.LazyFrame,
    source_hosts: pl.LazyFrame | None,
    *,
    line_share: Annotated[float, "share of the interface's speed that a run must reach"] = 0.75,
    bad_share: Annotated[float, "share below which the loss is an error"] = 0.5,
) -> Iterator[Finding]:
    """One finding per run: what its receiver got in all, else what its sender sent."""
    speeds = _speeds(net_addresses, net_interfaces, source_hosts)
    rows = located(tcp_tests, source_hosts).filter(pl.col("packets").is_null() & pl.col("local").is_not_null())
    streams = rows.filter(pl.col("stream").fill_null("SUM") != "SUM").group_by("source_id", "test").agg(n=pl.col("stream").n_unique())
    whole = (
        rows.filter(pl.col("summary") & pl.col("gbit_s").is_not_null())
        .join(streams, on=["source_id", "test"], how="left")
        .with_columns(of_all=pl.col("stream") == "SUM", got=pl.col("role") == "receiver")
        .filter(pl.col("of_all") | (pl.col("n").fill_null(1) == 1))
        .sort("source_id", "test", "of_all", "got", descending=[False, False, True, True], maintain_order=True)
        .group_by("source_id", "test", maintain_order=True)
        .first()
    )
    for row in whole.iter_rows(named=True):
        name, speed = speeds.get(str(row["local"]), (None, None))
        if name is None or speed is None or (speed > _ONE_STREAM_GBIT_S and (row["n"] or 1) < _STREAMS):
            continue
        share = row["gbit_s"] / speed
        if share >= line_share:
            continue
        hosts = names_of(row["host"])
        yield Finding(
            title=f"iperf3 from {row['local']} to {row['remote'] or 'its peer'} reaches {row['gbit_s']:.3g} of {speed:g} Gbit/s of {name} ({share:.0%})",
            summary=f"{row['retransmits']} segments were sent again." if row["retransmits"] else "About 94 % can be had.",
            severity="error" if share < bad_share else "warning",
            confidence="medium",
            hosts=hosts,
            culprits=(Culprit(host=hosts[0] if hosts else None, nic=name),),
            subject=(*hosts, name, str(row["remote"])),
            evidence=cite([row], "the rate of the run"),
            remedy="Compare MTU, rings, queues and offloads of both cards, and look for a slower hop on the way.",
            prevention="Run iperf3 between all pairs of racks before a release of the network.",
            would_refute=("other traffic went over the path at that time", "the run was limited on purpose"),
            actions=(Action("collect-more", hosts=hosts, command=f"iperf3 -c {row['remote'] or 'PEER'} -P 8 -t 30; ethtool -S {name}"),),
            metrics={"gbit_s": row["gbit_s"], "line_gbit_s": speed},
        )


def _speeds(
    net_addresses: pl.LazyFrame, net_interfaces: pl.LazyFrame, source_hosts: pl.LazyFrame | None
) -> dict[str, tuple[str | None, float | None]]:
    """Name and speed of the interface by address; an address that two interfaces bear tells none."""
    known: dict[tuple[object, object], float] = {}
    told = located(net_interfaces.filter(pl.col("speed_mbit_s") > 0), source_hosts)
    for host, name, speed in told.select("host", "name", "speed_mbit_s").iter_rows():
        known[(host, name)] = speed / 1000
    found: dict[str, tuple[str | None, float | None]] = {}
    for host, name, address in (
        located(net_addresses, source_hosts).select("host", "interface", "address").unique(maintain_order=True).iter_rows()
    ):
        found[str(address)] = (str(name), known.get((host, name))) if str(address) not in found else (None, None)
    return found
