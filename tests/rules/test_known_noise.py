"""Noise is listed with its reason and never a fault."""

from __future__ import annotations

from nccl_forensics.rules.known_noise import known_noise
from tests.rules.frames import cited
from tests.rules.host_frames import table


def test_noise_is_one_entry_per_reason() -> None:
    line = {"severity": "benign", "kind": "noise", "detail": "harmless because", "message": "ACCESS_REG failed", "host": "node7"}
    [finding] = known_noise.check(table("kernel_events", line, line), None, None)
    assert (finding.severity, finding.hosts, finding.evidence_total) == ("info", ("node7",), 2)
    assert finding.summary == "harmless because."
    assert cited(finding) == [(0, 1), (0, 2)]


def test_the_fabric_managers_noise_is_listed_too() -> None:
    [finding] = known_noise.check(
        None, table("fabric_events", {"severity": "benign", "detail": "no switch", "message": "Nothing to do"}), None
    )
    assert finding.title == "ignored: 1 line like 'Nothing to do'"


def test_what_is_no_noise_is_not_listed() -> None:
    assert known_noise.check(table("kernel_events", {"severity": "suspect", "kind": "nic-link", "message": "Link down"}), None, None) == []
