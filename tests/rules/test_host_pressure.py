"""Hosts whose processes wait."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.model import Finding
from nccl_forensics.rules.host_pressure import host_pressure
from tests.rules.frames import cited


def check(name: str, number: float) -> list[Finding]:
    row = {"host": "node7", "name": name, "value": "", "number": number, "source_id": 0, "line_no": 1}
    return host_pressure.check(pl.LazyFrame([row], schema_overrides={"source_id": pl.UInt32(), "line_no": pl.UInt32()}))


def test_a_host_that_waits_for_memory_is_named() -> None:
    [finding] = check("memory-pressure-full", 25.1)
    assert finding.title == "all processes of node7 waited 25 % of a minute for memory: pages are reclaimed or swapped in"
    assert (finding.severity, finding.cause, cited(finding)) == ("warning", "host-stall", [(0, 1)])
    assert "for storage" in check("io-pressure-full", 50.0)[0].title
    assert check("swap-in-kb-s", 20480.0)[0].title == "node7 swaps 20.0 MiB a second"


@pytest.mark.parametrize(
    ("name", "number"),
    [("memory-pressure-full", 5.0), ("memory-pressure-some", 60.0), ("io-pressure-full", 30.0), ("swap-out-kb-s", 4.0), ("blocked", 16.0)],
)
def test_short_waits_and_waits_of_some_processes_are_quiet(name: str, number: float) -> None:
    assert check(name, number) == []
