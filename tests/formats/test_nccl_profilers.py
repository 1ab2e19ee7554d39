"""The RAS monitor's JSON, the Inspector's metrics, and the example profiler."""

from __future__ import annotations

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT


def fixture(name: str) -> SourceReading:
    return read_source((ROOT / "fixtures" / "nccl_profilers" / name).read_bytes())


def test_events_of_the_monitor_stand_back_to_back_and_are_cited_by_their_lines() -> None:
    found = fixture("ras_monitor.json").frames["nccl_ras_events"]
    assert found.select("line_no", "end_line", "event", "detail").rows() == [
        (1, 7, "PEER_DEAD", "[node2:1234 cuda 0] declared dead"),
        (8, 14, "PEER_RETRY", "[10.0.0.2<4711>] x"),
    ]
    cut = (ROOT / "fixtures" / "nccl_profilers" / "ras_monitor.json").read_bytes()[:-30]
    assert read_source(cut).frames["gaps"].select("line_no").rows() == [(8,)]


def test_metrics_of_the_inspector_are_averages_of_an_operation() -> None:
    found = fixture("inspector.prom")
    assert found.frames["nccl_inspector"].select("line_no", "host", "op", "nranks", "bus_bw_gb_s", "time_us", "timing_source").rows() == [
        (3, "node1", "AllReduce", 16, 365.2, None, "metric"),
        (4, "node1", "AllReduce", 16, None, 23456.0, "metric"),
    ]
    assert found.foreign == 0


def test_operations_of_the_example_profiler_are_those_with_an_end() -> None:
    found = fixture("profile_0x11f71fb08cb_3.json")
    assert found.frames["nccl_inspector"].select("record", "rank", "op", "seq", "comm_id", "time_us").rows() == [
        ("[0]", 3, "AllReduce", 12, "0x11f71fb04cb", 800.0)
    ]
    data = (ROOT / "fixtures" / "nccl_profilers" / "profile_0x11f71fb08cb_3.json").read_bytes()
    open_end = read_source(data[: data.rindex(b"{}]")])
    assert open_end.frames["nccl_inspector"].height == 1
    assert open_end.frames["gaps"]["reason"].to_list() == ["truncated"]
