"""xGMI in rocm-smi's text and JSON."""

from __future__ import annotations

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT


def fixture(name: str) -> SourceReading:
    return read_source((ROOT / "fixtures" / "rocm_smi" / name).read_bytes())


def test_errors_and_kinds_of_links_are_read_from_text() -> None:
    errors = fixture("errors.txt").frames["nvlink_counters"]
    assert errors.select("line_no", "gpu_index", "counter", "value").rows() == [(3, 0, "xGMI errors", 0.0), (4, 1, "xGMI errors", 2.0)]
    pairs = fixture("topology.txt").frames["gpu_topology"]
    assert pairs.select("a", "b", "relation").rows() == [
        ("GPU0", "GPU0", "X"),
        ("GPU0", "GPU1", "XGMI"),
        ("GPU1", "GPU0", "PCIE"),
        ("GPU1", "GPU1", "X"),
    ]


def test_what_the_driver_says_beside_a_count_is_no_hindrance() -> None:
    line = b"GPU[3]\t\t: XGMI Error count: 1 (Single error detected since last read)\n"
    assert read_source(line).frames["nvlink_counters"].select("gpu_index", "value").rows() == [(3, 1.0)]


def test_the_json_tells_the_same() -> None:
    found = fixture("links.json")
    assert found.frames["nvlink_counters"].select("record", "gpu_index", "value").rows() == [("card0", 0, 0.0), ("card1", 1, 1.0)]
    assert found.frames["gpu_topology"].select("a", "b", "relation").rows() == [("GPU0", "GPU1", "XGMI"), ("GPU1", "GPU0", "XGMI")]
