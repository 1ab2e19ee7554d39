"""A host's packet filter drops what the job's ranks send it.

## What it finds
Rules of iptables or nftables that drop or reject TCP at a port of the job (the rendezvous port, a port that somebody probed) or from an address
of another host of the evidence, and rules of policy routing that refuse such an address.

## Why it matters
Rendezvous and NCCL's bootstrap connect every rank to others at ports that are chosen when the job starts: a filter between them shows as
timeouts without any error on the host that drops.

## What would refute it
A rule before it accepts the same packets; the filter was changed after the job; no packet was counted while the job ran.

## What to do next
nc -zv HOST PORT from a peer while the job runs; let all TCP pass between the hosts of a job.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place
from nccl_forensics.values.units import is_number

#: PyTorch's rendezvous where nobody chose another (torch.distributed.run).
_RENDEZVOUS = 29500
_MOST_ADDRESSES = 4096
_REFUSING = ("drop", "reject", "unreachable", "blackhole", "prohibit")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@rule(name="firewall", code="NE18", cause="connection-failed", severity="warning", at_most=16, explains=("rank-never-joined",))
def firewall(
    firewall_rules: pl.LazyFrame,
    environment: pl.LazyFrame | None,
    port_probes: pl.LazyFrame | None,
    net_addresses: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
) -> Iterator[Finding]:
    """One finding per rule that refuses a port or a peer of the job."""
    rows = located(firewall_rules, source_hosts)
    ports = _ports(environment, port_probes)
    peers = _peers(net_addresses, source_hosts)
    refusing = rows.filter(
        (pl.col("kind") == "rule")
        & pl.col("action").is_in(list(_REFUSING))
        & (pl.col("chain").is_in(["INPUT", "OUTPUT"]) | (pl.col("tool") == "ip-rule"))
        & pl.col("protocol").fill_null("all").is_in(["tcp", "all"])
        & pl.col("interface").ne_missing("lo")
    )
    for row in refusing.iter_rows(named=True):
        why = _meets(row, ports, peers)
        if why is None or row["packets"] == 0:
            continue
        before = rows.filter(
            (pl.col("source_id") == row["source_id"])
            & pl.col("chain").eq_missing(row["chain"])
            & (pl.col("line_no") < row["line_no"])
            & (pl.col("action") == "accept")
            & (pl.col("kind") == "rule")
        )
        if any(_lets_pass(earlier, row, ports) for earlier in before.iter_rows(named=True)):
            continue
        host = row["host"]
        counted = f"; {row['packets']} packets met it" if row["packets"] else ""
        sure: Confidence = "medium" if row["packets"] else "low"
        yield Finding(
            title=f"{place(host)} refuses {why} ({row['tool']}: {row['action']}){counted}",
            summary=f'The rule says: "{row["detail"] or row["action"]}". Whoever connects sees a timeout (drop) or a refusal (reject).',
            confidence=sure,
            hosts=names_of(host),
            culprits=(Culprit(host=name_of(host)),),
            subject=("firewall", str(host), str(row["chain"]), why),
            evidence=cite([row], "the rule"),
            remedy="Let all TCP ports pass between the hosts of a job: NCCL and rendezvous choose theirs when the job starts.",
            prevention="Probe a high port between all hosts in the job's prologue.",
            would_refute=("a rule before it accepts the same packets", "the filter was changed after the job"),
            actions=(Action("fix_config", hosts=names_of(host), command="iptables -L -n -v; nft list ruleset", confidence="low"),),
        )


def _ports(environment: pl.LazyFrame | None, port_probes: pl.LazyFrame | None) -> dict[int, str]:
    """Ports that the job uses, with what for."""
    found: dict[int, str] = {}
    if environment is not None:
        told = environment.filter(pl.col("name") == "MASTER_PORT").select(pl.col("value").unique().sort()).collect()["value"].to_list()
        found |= {int(port): "the rendezvous port" for port in told if port and is_number(port)}
    if not found:
        found[_RENDEZVOUS] = "PyTorch's usual rendezvous port"
    if port_probes is not None:
        tried = port_probes.filter(pl.col("outcome").is_in(["timed-out", "refused", "no-route"])).select("port").drop_nulls().collect()
        found |= {int(port): "a port that a probe did not reach" for port in tried["port"].unique().sort().to_list() if port not in found}
    return found


def _peers(net_addresses: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None) -> list[tuple[object, str]]:
    if net_addresses is None:
        return []
    known = located(net_addresses.filter((pl.col("scope") == "global") & pl.col("address").is_not_null()), source_hosts)
    return known.select("host", "address").unique(maintain_order=True).head(_MOST_ADDRESSES).rows()


def _meets(row: dict[str, object], ports: dict[int, str], peers: list[tuple[object, str]]) -> str | None:
    """What of the job a rule refuses, in words; None if nothing."""
    if row["tool"] == "ip-rule":
        network = _network(row["destination"])
        hit = [(h, a) for h, a in peers if network is not None and h != row["host"] and _inside(a, network)]
        return f"{hit[0][1]}{f' ({hit[0][0]})' if hit[0][0] else ''}" if hit else None
    named = next((p for p in ports if row["port"] is not None and int(str(row["port"])) <= p <= int(str(row["port_end"]))), None)
    source = _network(row["source"])
    if row["source"] is not None and source is None:
        return None  # a name or a set: whose packets it means is not known
    if source is not None:
        hit = [(h, a) for h, a in peers if h != row["host"] and _inside(a, source)]
        if not hit or (row["port"] is not None and named is None):
            return None
        return f"packets from {hit[0][1]}{f' ({hit[0][0]})' if hit[0][0] else ''}"
    return f"TCP port {named}, {ports[named]}," if named is not None else None


def _lets_pass(earlier: dict[str, object], row: dict[str, object], ports: dict[int, str]) -> bool:
    """Whether a rule before accepts all that this one would refuse of the job; one with further conditions is not counted on."""
    detail = str(earlier["detail"] or "").lower()
    if earlier["interface"] is not None or "state" in detail or "icmp" in detail or earlier["protocol"] not in ("all", "tcp", None):
        return False
    same_source = earlier["source"] is None or earlier["source"] == row["source"]
    covers = earlier["port"] is None or any(int(str(earlier["port"])) <= p <= int(str(earlier["port_end"])) for p in ports)
    return same_source and covers


def _network(text: object) -> Network | None:
    try:
        return None if text is None else ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        return None


def _inside(address: str, network: Network) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False
