"""A host's own routing table refuses a network.

## What it finds
Routes of the kinds unreachable, blackhole and prohibit that hold an address of another host of the evidence.

## Why it matters
Connections to these addresses fail at once, or vanish: rendezvous and NCCL's sockets give up after their retries.

## What would refute it
A more specific route leads to the address all the same.

## What to do next
ip route get <address> on the named host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place

_MOST_ADDRESSES = 4096


@rule(name="blocked-route", code="NE09", cause="connection-failed", severity="warning", at_most=16, explains=("rank-never-joined",))
def blocked_route(net_routes: pl.LazyFrame, net_addresses: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None) -> Iterator[Finding]:
    """One finding per route that refuses an address of another host."""
    if net_addresses is None:
        return
    known = located(net_addresses.filter((pl.col("scope") == "global") & pl.col("address").is_not_null()), source_hosts)
    peers = known.select("host", "address").unique(maintain_order=True).head(_MOST_ADDRESSES).rows()
    refusing = located(net_routes.filter(pl.col("kind").is_in(["unreachable", "blackhole", "prohibit"])), source_hosts)
    routed = located(net_routes.filter(pl.col("kind").is_null()), source_hosts)
    for row in refusing.iter_rows(named=True):
        network = _network(row["destination"])
        if network is None:
            continue
        own = [n for n in (_network(d) for d in routed.filter(pl.col("source_id") == row["source_id"])["destination"].to_list()) if n]
        hit = [
            (h, a)
            for h, a in peers
            if h != row["host"] and (ip := _address(a)) in network and not any(ip in n and n.prefixlen > network.prefixlen for n in own)
        ]
        if not hit:
            continue
        listed = ", ".join(f"{a}{f' ({h})' if h else ''}" for h, a in hit[:4])
        host = row["host"]
        yield Finding(
            title=f"{place(host)} has a route of kind {row['kind']} for {row['destination']}, in which {listed} lies",
            summary="Packets to that network are refused by the host itself.",
            confidence="medium",
            hosts=names_of(host),
            culprits=(Culprit(host=name_of(host)),),
            subject=("route", str(host), str(row["destination"])),
            evidence=cite([row], "the route"),
            remedy="Remove the route, or name the interface that leads to the peers (NCCL_SOCKET_IFNAME).",
            would_refute=("a more specific route that is not in the listing",),
            actions=(Action("fix_config", hosts=names_of(host), command=f"ip route get {hit[0][1]}", confidence="low"),),
        )


def _network(text: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return None if text in (None, "default") else ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        return None


def _address(text: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(str(text))
    except ValueError:
        return None
