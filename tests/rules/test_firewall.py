"""Packet filters between the ranks of a job."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.model import Finding
from nccl_forensics.rules.firewall import firewall
from tests.rules.frames import cited
from tests.rules.host_frames import table


def dropping(**more: object) -> dict[str, object]:
    told = {"tool": "iptables", "chain": "INPUT", "kind": "rule", "action": "drop", "protocol": "tcp", "packets": 12, "host": "node7"}
    return {**told, "port": 29500, "port_end": 29500, **more}


def check(
    *rows: dict[str, object], port: str | None = None, peers: pl.LazyFrame | None = None, probes: pl.LazyFrame | None = None
) -> list[Finding]:
    environment = table("environment", {"name": "MASTER_PORT", "value": port}) if port else None
    return firewall.check(table("firewall_rules", *rows), environment, probes, peers, None)


PEERS = table("net_addresses", {"host": "node8", "address": "10.0.0.12", "scope": "global", "source_id": 1})


def test_a_dropped_rendezvous_port_is_named_with_its_host() -> None:
    [finding] = check(dropping())
    assert finding.title == "node7 refuses TCP port 29500, PyTorch's usual rendezvous port, (iptables: drop); 12 packets met it"
    assert (finding.severity, finding.confidence, cited(finding)) == ("warning", "medium", [(0, 1)])
    [told] = check(dropping(port=6000, port_end=7000), port="6379")
    assert "TCP port 6379, the rendezvous port," in told.title


def test_a_port_that_a_probe_did_not_reach_counts_as_one_of_the_job_and_one_that_it_reached_does_not() -> None:
    rule = dropping(port=41000, port_end=42000)
    [finding] = check(rule, probes=table("port_probes", {"host": "node8", "target": "node7", "port": 41234, "outcome": "timed-out"}))
    assert "TCP port 41234, a port that a probe did not reach," in finding.title
    assert check(rule, probes=table("port_probes", {"host": "node8", "target": "node7", "port": 41234, "outcome": "open"})) == []


def test_packets_dropped_from_a_peer_and_a_rule_of_routing_that_refuses_one_are_named() -> None:
    [finding] = check(dropping(port=None, port_end=None, source="10.0.0.0/24", protocol="all"), peers=PEERS)
    assert "packets from 10.0.0.12 (node8)" in finding.title
    [routed] = check(
        {"tool": "ip-rule", "kind": "rule", "action": "unreachable", "destination": "10.0.0.0/24", "host": "node7"}, peers=PEERS
    )
    assert routed.confidence == "low"


@pytest.mark.parametrize(
    "more",
    [
        {"packets": 0},
        {"port": 22, "port_end": 22},
        {"port": None, "port_end": None},
        {"chain": "DOCKER-USER"},
        {"chain": "FORWARD"},
        {"action": "accept"},
        {"protocol": "udp"},
        {"interface": "lo"},
        {"source": "192.168.0.0/16"},
        {"kind": "policy"},
    ],
)
def test_what_does_not_meet_the_job_is_quiet(more: dict[str, object]) -> None:
    assert check(dropping(**more), peers=PEERS) == []


def test_what_a_rule_before_accepts_is_quiet() -> None:
    assert check(dropping(action="accept", port=None, port_end=None), dropping()) == []
    assert len(check(dropping(action="accept", port=None, port_end=None, detail="state RELATED,ESTABLISHED"), dropping())) == 1
