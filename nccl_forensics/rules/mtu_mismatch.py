"""MTUs differ along a path, so that small messages pass and large ones do not.

## What it finds
Interfaces of one subnet (of one name where no address is listed), or RDMA ports of the same name (or number, in NCCL's logs), with
different MTUs on different hosts; pings of full size that a router or the own interface refuses, or that vanish while small ones return.

## Why it matters
The connection comes up, the bootstrap works, and the first large transfer hangs: it looks like a hang of the program.

## What would refute it
The hosts never talk over that interface, or a router between them reassembles on purpose.

## What to do next
ping -M do -s 8972 between the named hosts, both ways; set one MTU on hosts, bonds, VLANs and switches of that network.
"""

from __future__ import annotations

import ipaddress
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import text_of
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import homes, located

#: Interfaces inside a host: their MTU says nothing about a path between hosts.
_INNER = r"^(lo|docker\d*|br-[0-9a-f]+|virbr\d*|veth.*|cni\d*|cbr\d*|flannel.*|cali.*|podman\d*|lxc.*|dummy\d*|kube-.*|tun\d*|ibmon.*)$"


@rule(
    name="mtu-mismatch",
    code="NE02",
    cause="mtu-mismatch",
    severity="error",
    at_most=32,
    explains=("timeout", "closed", "collective-stuck", "connection-failed", "packet-loss", "low-bus-bandwidth", "rank-never-joined"),
)
def mtu_mismatch(
    net_interfaces: pl.LazyFrame | None,
    net_addresses: pl.LazyFrame | None,
    ib_ports: pl.LazyFrame | None,
    pings: pl.LazyFrame | None,
    packets: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    nccl_notes: pl.LazyFrame | None = None,
    *,
    full_size: Annotated[int, "payload in bytes from which a ping tests the MTU"] = 1400,
) -> Iterator[Finding]:
    """Probes first, which prove it; then what the hosts are set to, by their tools, or where these tell no MTU by NCCL's queue pairs."""
    if pings is not None:
        yield from _probed(located(pings, source_hosts), full_size, homes(net_addresses, source_hosts))
    if packets is not None:
        yield from _refused(located(packets.filter(pl.col("mtu_bytes").is_not_null()), source_hosts))
    if net_interfaces is not None:
        interfaces = located(net_interfaces, source_hosts)
        addresses = located(net_addresses, source_hosts) if net_addresses is not None else None
        if addresses is not None:
            yield from _subnets(interfaces, addresses)
        yield from _alike(interfaces, set(addresses["interface"].to_list()) if addresses is not None else set())
    active = ib_ports.filter(pl.col("mtu_bytes").is_not_null() & (pl.col("state") == "active")).collect() if ib_ports is not None else None
    if active is not None and active.height:
        yield from _ports(active)
    elif nccl_notes is not None:
        yield from _ports(_of_queue_pairs(nccl_notes))


def _of_queue_pairs(nccl_notes: pl.LazyFrame) -> pl.DataFrame:
    """Ports as NCCL's queue pairs give them, whose lines bear the active MTU of their own end (an ``ibv_mtu``: 1 is 256 bytes, 5 is 4096).
    Of both ends the lower one is used (NCCL src/transport/net_ib.cc)."""
    pairs = nccl_notes.filter((pl.col("kind") == "ib-qp") & pl.col("value").is_between(1, 5) & pl.col("host").is_not_null())
    first = pairs.sort("value", "source_id", "line_no").unique(["host", "a", "b"], keep="first", maintain_order=True)
    return first.select(
        "host",
        "source_id",
        "line_no",
        place="host",
        device=text_of("device {} (NCCL)", "a"),
        port="b",
        link_layer=pl.lit("by its queue pairs"),
        mtu_bytes=(2 ** (7 + pl.col("value"))).cast(pl.Int64),
    ).collect()


def _probed(rows: pl.DataFrame, full: int, home: Mapping[str, str]) -> Iterator[Finding]:
    refused = rows.filter(pl.col("outcome") == "frag-needed")
    for (host, target), part in refused.group_by("host", "target", maintain_order=True):
        row = part.row(0, named=True)
        yield _finding(
            f"the path{_from(host)} to {target or 'the peer'} carries {row['mtu_bytes']} bytes, less than what is sent",
            f"{row['reporter'] or 'A router'} refused a packet of {(row['size_bytes'] or 0) + 28} bytes: its next link has MTU {row['mtu_bytes']}.",
            "error",
            "high",
            names_of(host),
            (str(host), str(target)),
            list(part.iter_rows(named=True)),
        )
    traced = rows.filter((pl.col("outcome") == "pmtu") & (pl.col("size_bytes") + 28 > pl.col("mtu_bytes")))
    for row in traced.iter_rows(named=True):
        yield _finding(
            f"a path{_from(row['host'])} carries {row['mtu_bytes']} bytes, its own interface {row['size_bytes'] + 28}",
            "tracepath found a link with a smaller MTU on the way.",
            "error",
            "medium",
            names_of(row["host"]),
            (str(row["host"]), "tracepath", str(row["mtu_bytes"])),
            [row],
        )
    ended = rows.filter((pl.col("outcome") == "statistics") & (pl.col("tool") == "ping"))
    replies = ended.filter((pl.col("received") > 0) & (pl.col("size_bytes") < full))
    large = ended.filter((pl.col("received") > 0) & (pl.col("size_bytes") >= full)).select("host", "target", "size_bytes").rows()
    small = {(h, t) for h, t in replies.select("host", "target").iter_rows()}
    told = {
        (h, t)
        for h, t in rows.filter(pl.col("outcome").is_in(["frag-needed", "too-long", "unreachable"])).select("host", "target").iter_rows()
    }
    for row in ended.filter((pl.col("received") == 0) & (pl.col("size_bytes") >= full)).iter_rows(named=True):
        key = (row["host"], row["target"])
        if key in small and key not in told:
            # Who gets packets of that size to another host is not at fault: the far end, or the way to it, is.
            whole = [t for h, t, size in large if h == row["host"] and t != row["target"] and size >= row["size_bytes"]]
            far = home.get(str(row["target"])) if whole else None
            yield _finding(
                f"packets of {row['size_bytes'] + 28} bytes vanish on the path{_from(row['host'])} to {row['target']}, small ones return",
                "Nobody reports that they are too long (a path MTU black hole): TCP and RoCE hang on large messages."
                + (f" They reach {whole[0]}." if whole else ""),
                "error",
                "high",
                names_of(far if whole else row["host"]),
                (str(row["host"]), str(row["target"])),
                [row],
            )


def _refused(rows: pl.DataFrame) -> Iterator[Finding]:
    for (source, mtu), part in rows.group_by("source", "mtu_bytes", maintain_order=True):
        yield _finding(
            f"{source} refuses packets that are longer than {mtu} bytes",
            str(part["message"][0]),
            "error",
            "medium",
            names_of(part["host"][0]),
            (str(source),),
            list(part.iter_rows(named=True)),
        )


def _subnets(interfaces: pl.DataFrame, addresses: pl.DataFrame) -> Iterator[Finding]:
    mtus = {(r["source_id"], r["name"]): r for r in interfaces.filter(pl.col("mtu_bytes").is_not_null()).iter_rows(named=True)}
    outer = addresses.filter(
        (pl.col("family") == "inet") & pl.col("prefix").is_not_null() & ~pl.col("interface").fill_null("lo").str.contains(_INNER)
    )
    groups: dict[str, dict[str, Mapping[str, object]]] = defaultdict(dict)
    for row in outer.iter_rows(named=True):
        interface = mtus.get((row["source_id"], row["interface"]))
        if interface is None or not row["host"]:
            continue
        try:
            subnet = str(ipaddress.ip_network(f"{row['address']}/{row['prefix']}", strict=False))
        except ValueError:
            continue
        if row["prefix"] < 32 and not row["address"].startswith(("127.", "169.254.")):
            groups[subnet][f"{row['host']} {row['interface']}"] = {**interface, "host": row["host"]}
    for subnet, members in sorted(groups.items()):
        found = _odd(members)
        if found and len({str(m["host"]) for m in members.values()}) > 1:
            usual, odd = found
            names = ", ".join(f"{name} has {members[name]['mtu_bytes']}" for name in odd[:4])
            yield _finding(
                f"MTUs differ inside {subnet}: {names}, the others {usual}",
                f"{len(members)} interfaces of {len({str(m['host']) for m in members.values()})} hosts are in this subnet.",
                "error",
                "high" if len(members) > 2 else "medium",
                tuple(sorted({str(members[n]["host"]) for n in odd})),
                (subnet,),
                [{**members[n], "why": f"MTU {members[n]['mtu_bytes']}"} for n in (*odd, *(n for n in members if n not in odd))],
                tuple(Culprit(host=str(members[n]["host"]), nic=str(members[n]["name"])) for n in odd),
            )


def _alike(interfaces: pl.DataFrame, addressed: Set[str]) -> Iterator[Finding]:
    """Interfaces of one name of which no host lists an address: hosts of one make give theirs the same role."""
    up = interfaces.filter(
        pl.col("mtu_bytes").is_not_null()
        & pl.col("host").is_not_null()
        & (pl.col("state") == "up")
        & ~pl.col("name").is_in(list(addressed))
        & ~pl.col("name").str.contains(_INNER)
    )
    told: dict[tuple[object, ...], list[Mapping[str, object]]] = defaultdict(list)
    for (_,), part in up.unique(["name", "host"], maintain_order=True).group_by("name", maintain_order=True):
        members = {str(r["host"]): r for r in part.iter_rows(named=True)}
        found = _odd(members)
        if found:
            usual, odd = found
            told[(usual, *odd)] += [members[n] for n in (*odd, *(n for n in members if n not in odd))]
    for (usual, *hosts), rows in told.items():
        odd_rows = [r for r in rows if r["host"] in hosts]
        names = sorted({str(r["name"]) for r in rows})
        yield _finding(
            f"{names[0]}{f' and {len(names) - 1} more interfaces' if names[1:] else ''} of {', '.join(map(str, hosts[:4]))}"
            f" have MTU {odd_rows[0]['mtu_bytes']}, those of the other hosts {usual}",
            "Interfaces of one name, of which no address is listed.",
            "error",
            "high" if len({r["host"] for r in rows}) > 2 else "medium",
            tuple(map(str, hosts)),
            ("alike", *names[:1], *map(str, hosts)),
            [{**r, "why": f"MTU {r['mtu_bytes']}"} for r in rows],
            tuple(Culprit(host=str(r["host"]), nic=str(r["name"])) for r in odd_rows),
        )


def _ports(ports: pl.DataFrame) -> Iterator[Finding]:
    for (device, port, layer), part in ports.group_by("device", "port", "link_layer", maintain_order=True):
        members = {str(r["place"]): r for r in part.iter_rows(named=True)}
        found = _odd(members)
        if found:
            usual, odd = found
            hosts = tuple(str(members[n]["host"]) for n in odd if members[n]["host"])
            yield _finding(
                f"{device} port {port} has MTU {members[odd[0]]['mtu_bytes']} on {', '.join(hosts[:4]) or odd[0]} and {usual} elsewhere",
                f"{len(members)} hosts have this port ({layer}).",
                "error",
                "high" if len(members) > 2 else "medium",
                hosts,
                (str(device), str(port)),
                [{**members[n], "why": f"active MTU {members[n]['mtu_bytes']}"} for n in (*odd, *(n for n in members if n not in odd))],
                tuple(Culprit(host=str(members[n]["host"]) if members[n]["host"] else None, nic=str(device)) for n in odd),
            )


def _odd(members: Mapping[str, Mapping[str, object]]) -> tuple[object, list[str]] | None:
    """The usual MTU and the members that have another; of two equally frequent ones the smaller is the odd one."""
    tally = Tally(int(str(m["mtu_bytes"])) for m in members.values())
    if len(tally) < 2:
        return None
    usual = max(tally, key=lambda m: (tally[m], m))
    return usual, sorted(n for n, m in members.items() if m["mtu_bytes"] != usual)


def _from(host: object) -> str:
    return f" from {host}" if host else ""


def _finding(
    title: str,
    summary: str,
    severity: Severity,
    confidence: Confidence,
    hosts: tuple[str, ...],
    subject: tuple[str, ...],
    rows: list[Mapping[str, object]],
    culprits: tuple[Culprit, ...] = (),
) -> Finding:
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence=confidence,
        hosts=hosts,
        culprits=culprits or tuple(Culprit(host=h) for h in hosts),
        subject=subject,
        evidence=cite(rows, "the MTU that the path or host has"),
        evidence_total=len(rows),
        remedy="Set one MTU on every host, bond, VLAN and switch port of that network.",
        prevention="Send one full-size ping with DF set between all hosts in the job's prologue.",
        would_refute=("the job does not use this network",),
        actions=(Action("fix_config", hosts=hosts, command="ping -M do -s 8972 PEER", confidence=confidence),),
    )
