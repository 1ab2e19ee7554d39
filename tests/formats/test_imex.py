"""nvidia-imex-ctl and the log of IMEX."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT


def fixture(name: str) -> SourceReading:
    return read_source((ROOT / "fixtures" / "imex" / name).read_bytes())


def test_a_listing_gives_its_nodes_with_whom_they_do_not_reach_and_the_state_of_the_domain() -> None:
    found = fixture("domain.txt")
    assert found.frames["imex_nodes"].select("line_no", "node", "address", "state", "version", "domain_state", "broken").rows() == [
        (13, 0, "10.115.131.8", "READY", "570.172.08", "DEGRADED", ["1 invalid"]),
        (14, 1, "10.115.131.9", "UNAVAILABLE", None, "DEGRADED", ["0 invalid", "1 invalid", "2 invalid"]),
        (15, 2, "10.115.131.10", "READY", "570.172.08", "DEGRADED", ["1 invalid"]),
    ]
    assert found.frames["imex_nodes"]["time_raw_ns"].unique().to_list() == [1747030090_000000000]


def test_the_node_that_was_asked_bears_a_star() -> None:
    row = read_source(b"Node #0   * 10.0.0.1 *       - READY                - Version: 580.82.07\n").frames["imex_nodes"].row(0, named=True)
    assert (row["address"], row["state"], row["version"]) == ("10.0.0.1", "READY", "580.82.07")


def test_the_json_tells_the_same() -> None:
    rows = fixture("domain.json").frames["imex_nodes"].select("record", "node", "name", "state", "domain_state", "broken").rows()
    assert rows == [
        ("nodes.0", 0, "gpu-a", "READY", "DEGRADED", ["1 never-connected"]),
        ("nodes.1", 1, None, "UNAVAILABLE", "DEGRADED", ["0 invalid", "1 invalid"]),
    ]
    assert read_source(b'{"nodes": [], "connections": "CONNECTED"}').frames["gaps"]["reason"].to_list() == ["unparsed: no nodes"]


def test_the_log_of_imex_has_the_fabric_managers_form() -> None:
    events = fixture("nvidia-imex.log").frames["fabric_events"]
    assert events.filter(pl.col("severity") != "info").select("line_no", "kind").rows() == [(5, "imex-disconnect")]
