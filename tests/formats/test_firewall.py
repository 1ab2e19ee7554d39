"""iptables, nftables and policy routing."""

from __future__ import annotations

import pytest

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT


def fixture(name: str) -> SourceReading:
    return read_source((ROOT / "fixtures" / "firewall" / name).read_bytes())


COLUMNS = ("line_no", "chain", "kind", "action", "packets", "protocol", "interface", "port")


def test_a_listing_with_counts_is_read() -> None:
    assert fixture("iptables.txt").frames["firewall_rules"].select(COLUMNS).rows() == [
        (1, "INPUT", "policy", "accept", 123_000, None, None, None),
        (3, "INPUT", "rule", "drop", 1204, "tcp", "eth0", 29500),
        (4, "INPUT", "rule", "accept", 0, "all", "lo", None),
        (6, "FORWARD", "policy", "drop", 0, None, None, None),
    ]


def test_a_saved_filter_is_read_with_its_policy_and_rules() -> None:
    assert fixture("saved.txt").frames["firewall_rules"].select(COLUMNS).rows() == [
        (3, "INPUT", "policy", "drop", 12, None, None, None),
        (4, "INPUT", "rule", "accept", None, "all", "lo", None),
        (5, "INPUT", "rule", "drop", 1204, "tcp", None, 29500),
    ]


def test_nftables_is_read_by_hook() -> None:
    assert fixture("nft.txt").frames["firewall_rules"].select(COLUMNS).rows() == [
        (3, "INPUT", "policy", "drop", None, None, None, None),
        (4, "INPUT", "rule", "accept", None, "all", "lo", None),
        (5, "INPUT", "rule", "drop", 1204, "tcp", None, 29500),
    ]


def test_policy_routing_is_read_with_what_it_refuses() -> None:
    rows = fixture("rules.txt").frames["firewall_rules"].select("action", "source", "destination").rows()
    assert rows == [
        ("lookup", None, None),
        ("lookup", "10.0.1.11", None),
        ("lookup", None, None),
        ("lookup", None, None),
        ("unreachable", None, "10.0.0.0/24"),
    ]


@pytest.mark.parametrize(
    ("rest", "ports"),
    [
        ("multiport dports 29500,29600:29700", (29500, 29700)),
        ("tcp dpts:1024:65535", (1024, 65535)),
        ("state NEW", (None, None)),
    ],
)
def test_ports_are_read_as_a_range(rest: str, ports: tuple[int | None, int | None]) -> None:
    text = f"Chain INPUT (policy ACCEPT)\ntarget     prot opt source               destination\nDROP       tcp  --  10.0.0.0/8           0.0.0.0/0            {rest}\n"
    row = read_source(text.encode()).frames["firewall_rules"].row(1, named=True)
    assert ((row["port"], row["port_end"]), row["source"], row["packets"]) == (ports, "10.0.0.0/8", None)
