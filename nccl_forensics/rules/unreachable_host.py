"""A probe says that a host or port of the job cannot be reached.

## What it finds
Tries to connect (nc, ncat) that were refused, timed out or found no route, pings that a router called unreachable, names that do not
resolve, addresses for which two network cards answer (arping), and a host that resolves its own name to the loopback address.

## Why it matters
Rendezvous and NCCL's bootstrap need every host to reach every other: one closed path keeps the whole job from starting.

## What would refute it
The probe ran after the job had ended: then nobody listens any more, and a refusal is what one expects.

## What to do next
Refused: nobody listens there, look whether rank 0 lives and for the port. Timed out: firewall or route. No route: address or interface.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located
from nccl_forensics.words import first_label

_MEANING = {
    "refused": "nobody listens there: rank 0 is not up, or it is another port",
    "timed-out": "nothing answers: a firewall, a missing route or a dead host",
    "no-route": "there is no way to it: wrong address or interface, or a rule that rejects",
    "unknown-host": "its name does not resolve",
    "unreachable": "a router or the own host says that it cannot be reached",
}


@rule(name="unreachable-host", code="NE05", cause="connection-failed", severity="warning", at_most=32, explains=("rank-never-joined",))
def unreachable_host(
    port_probes: pl.LazyFrame | None, pings: pl.LazyFrame | None, host_names: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None
) -> Iterator[Finding]:
    """One finding per prober, target and outcome; then hosts that take themselves for loopback."""
    parts: list[pl.DataFrame] = []
    columns = ["source_id", "line_no", "host", "target", "port", "outcome"]
    if port_probes is not None:
        parts.append(located(port_probes, source_hosts).select(columns))
    if pings is not None:
        parts.append(located(pings, source_hosts).with_columns(port=pl.lit(None, dtype=pl.Int32())).select(columns))
    if parts:
        failed = pl.concat(parts).filter(pl.col("outcome").is_in(list(_MEANING)))
        for (host, target, port, outcome), part in failed.group_by("host", "target", "port", "outcome", maintain_order=True):
            peer = f"{target or 'a host'}" + (f" port {port}" if port is not None else "")
            yield Finding(
                title=f"{peer} cannot be reached{f' from {host}' if host else ''}: {outcome}",
                summary=f"{_MEANING[str(outcome)].capitalize()}.",
                confidence="medium" if outcome in ("timed-out", "no-route", "unknown-host") else "low",
                hosts=names_of(host),
                culprits=(Culprit(host=str(target)),) if target and not str(target)[0].isdigit() else (),
                subject=("probe", str(target), str(port), str(outcome)),
                evidence=cite(part, str(outcome)),
                evidence_total=part.height,
                remedy="Open the path between all hosts of the job for the rendezvous port and for NCCL's ephemeral ports.",
                prevention="Probe the rendezvous port from every host in the job's prologue.",
                would_refute=("the probe ran after the job had ended",),
                actions=(Action("fix_config", command=f"nc -zv {target or 'HOST'} {port or 'PORT'}"),),
            )
    if pings is not None:
        yield from _answered_twice(located(pings.filter(pl.col("tool") == "arping"), source_hosts))
    if host_names is not None:
        yield from _loopback(located(host_names, source_hosts))


def _answered_twice(rows: pl.DataFrame) -> Iterator[Finding]:
    """Addresses for which two network cards answer: whoever connects reaches now one host, now the other."""
    for (_, target), part in rows.filter(pl.col("outcome") == "reply").group_by("source_id", "target", maintain_order=True):
        cards = part["reporter"].drop_nulls().unique(maintain_order=True).to_list()
        if len(cards) < 2:
            continue
        yield Finding(
            title=f"{len(cards)} network cards answer for {target}: {', '.join(cards[:3])}",
            summary="Two hosts have the same address, or one answers on the wrong card (arp_ignore): connections end up at the wrong place.",
            confidence="medium",
            subject=("duplicate", str(target)),
            evidence=cite(part, "answer of a card"),
            remedy="Give each host an address of its own; where one host answers on two cards, set net.ipv4.conf.all.arp_ignore=1.",
            prevention="Look for addresses that two cards answer for when hosts are set up (arping -D).",
            would_refute=("the cards belong to one bond",),
            actions=(Action("fix_config", command=f"arping -D -I IFACE {target}"),),
        )


def _loopback(rows: pl.DataFrame) -> Iterator[Finding]:
    looped = rows.filter(pl.col("address").str.starts_with("127.") & pl.col("host").is_not_null())
    for row in looped.iter_rows(named=True):
        own = first_label(row["host"])
        if own is None or own == "localhost" or own not in {first_label(n) for n in row["names"] or ()}:
            continue
        yield Finding(
            title=f"{own} resolves its own name to {row['address']}",
            summary="What it tells the others to connect to is their own loopback: rendezvous and Gloo then fail with refused or timed out.",
            confidence="low",
            hosts=(own,),
            culprits=(Culprit(host=own),),
            subject=("loopback", own),
            evidence=cite([row], "own name on the loopback address"),
            remedy="Remove the name from the loopback line of /etc/hosts, or name interface and address explicitly (GLOO_SOCKET_IFNAME, MASTER_ADDR).",
            prevention="Check in the job's prologue that each host resolves its own name to an address that the others reach.",
            would_refute=("the job names its addresses explicitly",),
            actions=(Action("fix_config", hosts=(own,), command="getent hosts $(hostname)"),),
        )
