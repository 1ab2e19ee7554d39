"""How Ethernet cards are set up, and what their modules say."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.nic_settings import nic_settings
from nccl_forensics.rules.optical_module import optical_module
from tests.rules.frames import cited
from tests.rules.host_frames import table

NIC = "ens1f0np0"


def settings(*rows: tuple[str, str, str, str], interface: str | None = NIC, **more: object) -> pl.LazyFrame:
    """(host, kind, name, value); a kind of ``ring.maximum`` has that section."""
    made = []
    for host, kind, name, value in rows:
        whole, _, section = kind.partition(".")
        number = float(value) if value.replace(".", "").lstrip("-").isdigit() else None
        made.append({"host": host, "interface": interface, "kind": whole, "section": section or None, "name": name, "value": value})
        made[-1] |= {"number": number, "fixed": False, **more}
    return table("net_settings", *made)


def lost(count: int, counter: str = "rx_out_of_buffer") -> pl.LazyFrame:
    return table("net_counters", {"host": "a", "interface": NIC, "counter": counter, "value": count})


def test_an_offload_that_tcp_needs_and_is_off_is_named_with_the_command() -> None:
    [finding] = nic_settings.check(settings(("a", "offload", "tcp-segmentation-offload", "off")), None, None)
    assert finding.title == "ens1f0np0 of a has tcp segmentation offload switched off"
    assert finding.actions[0].command == "ethtool -K ens1f0np0 tcp-segmentation-offload on"
    assert cited(finding) == [(0, 1)]


def test_offloads_that_are_on_fixed_or_not_needed_are_quiet() -> None:
    assert nic_settings.check(settings(("a", "offload", "tcp-segmentation-offload", "on")), None, None) == []
    assert nic_settings.check(settings(("a", "offload", "large-receive-offload", "off")), None, None) == []
    assert nic_settings.check(settings(("a", "offload", "tcp-segmentation-offload", "off"), fixed=True), None, None) == []


RINGS = (("a", "ring.maximum", "rx", "8192"), ("a", "ring.current", "rx", "1024"))


def test_a_small_ring_is_named_where_packets_found_no_room() -> None:
    [finding] = nic_settings.check(settings(*RINGS), lost(50_000), None)
    assert "ring of 1024 (of 8192)" in finding.title
    assert "rx_out_of_buffer 50000" in finding.title


def test_a_small_ring_without_losses_and_losses_with_a_large_ring_are_quiet() -> None:
    assert nic_settings.check(settings(*RINGS), lost(10), None) == []
    assert nic_settings.check(settings(*RINGS), lost(50_000, "rx_packets"), None) == []
    assert nic_settings.check(settings(RINGS[0], ("a", "ring.current", "rx", "8192")), lost(50_000), None) == []


def test_the_one_host_that_answers_pause_otherwise_is_named() -> None:
    [finding] = nic_settings.check(settings(*((h, "pause", "rx", "off" if h == "c" else "on") for h in "abcd")), None, None)
    assert finding.title == "ens1f0np0 of c differs from 3 other hosts in whether it obeys pause frames: off, not on"
    assert finding.hosts == ("c",)


def test_hosts_that_agree_two_hosts_and_a_tie_are_quiet() -> None:
    assert nic_settings.check(settings(*((h, "pause", "rx", "on") for h in "abcd")), None, None) == []
    assert nic_settings.check(settings(("a", "pause", "rx", "on"), ("b", "pause", "rx", "off")), None, None) == []
    assert nic_settings.check(settings(*((h, "pause", "rx", "on" if h in "ab" else "off") for h in "abcd")), None, None) == []


def module(*rows: tuple[str, str, float | None], interface: str | None = NIC) -> pl.LazyFrame:
    made = [{"host": "a", "interface": interface, "kind": "module", "name": n, "value": v, "number": number} for n, v, number in rows]
    return table("net_settings", *made)


def power(lane: int, dbm: float) -> tuple[str, str, float]:
    return f"rcvr signal avg optical power(channel {lane})", f"0.1 mW / {dbm} dBm", dbm


def test_alarms_of_a_module_and_its_dark_lane_are_one_finding() -> None:
    rows = (
        ("module temperature", "71.50 degrees C", 71.5),
        ("module temperature high warning", "On", None),
        ("laser rx power low alarm (channel 2)", "On", None),
        power(1, -2.1),
        power(2, -40.0),
    )
    [finding] = optical_module.check(module(*rows), None)
    assert finding.title == (
        "The module of ens1f0np0 of a reports module temperature high (warning); laser rx power low (alarm); lane 2 dark"
    )
    assert finding.culprits[0].nic == NIC
    assert cited(finding) == [(0, 2), (0, 3), (0, 5)]


def test_a_module_whose_flags_are_off_or_whose_lanes_are_all_dark_is_quiet() -> None:
    off = ("module temperature high alarm", "Off", None)
    threshold = ("module temperature high alarm threshold", "75.00 degrees C", 75.0)
    assert optical_module.check(module(off, threshold, power(1, -2.0), power(2, -2.5)), None) == []
    assert optical_module.check(module(off, power(1, -40.0), power(2, -40.0)), None) == []


def test_a_module_without_a_name_is_a_port() -> None:
    [finding] = optical_module.check(module(("module temperature high alarm", "On", None), interface=None), None)
    assert finding.title == "The module of a port of a reports module temperature high (alarm)"
