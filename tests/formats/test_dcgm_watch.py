"""DCGM's policies, figures of jobs, NVLink counters and diagnostics of several nodes."""

from __future__ import annotations

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT


def fixture(name: str) -> SourceReading:
    return read_source((ROOT / "fixtures" / "dcgm" / name).read_bytes())


def test_violations_of_a_policy_are_read_with_their_time_and_count() -> None:
    found = fixture("policy.txt")
    assert found.frames["xids"].select("line_no", "code", "time_raw_ns").rows() == [(3, 79, 1714979289_000000000)]
    assert found.frames["dcgm_results"].select("line_no", "test", "status", "number").rows() == [
        (5, "double-bit ECC errors", "fail", 2.0),
        (8, "NVLink errors", "warn", 17.0),
    ]
    assert (found.records, found.foreign) == (8, 1)


def test_figures_of_a_job_are_read_for_their_gpu_and_what_is_not_supported_is_none() -> None:
    found = fixture("stats.txt").frames["dcgm_results"]
    assert found.select("test", "status", "number", "gpu_index").rows() == [
        ("double-bit ECC errors", "fail", 1.0, 0),
        ("PCIe replays", "pass", 0.0, 0),
        ("Xids", "warn", 1.0, 0),
        ("slowdown by heat", "pass", 0.0, 0),
    ]


def test_nvlink_counters_of_dcgm_bear_the_names_of_nvidia_smi() -> None:
    found = fixture("nvlink_errors.txt").frames["nvlink_counters"]
    assert found.select("gpu_index", "link", "counter", "value").rows() == [
        (0, 0, "CRC Errors", 0.0),
        (0, 0, "CRC Data Errors", 3.0),
        (0, 0, "Replay Errors", 0.0),
        (0, 0, "Recovery Errors", 1.0),
    ]


def test_nvlink_counters_below_a_heading_for_their_link_are_read_alike() -> None:
    box = "| GPU ID: 2 | NVLINK Error Counts |\n| Link 5 |  |\n| -> Recovery Error | 4 |\n"
    found = read_source(box.encode()).frames["nvlink_counters"]
    assert found.select("gpu_index", "link", "counter", "value").rows() == [(2, 5, "Recovery Errors", 4.0)]


def test_a_diagnostic_of_several_nodes_names_the_host_of_each_result() -> None:
    found = fixture("mndiag.json").frames["dcgm_results"]
    assert found.select("host", "test", "gpu_index", "status", "version").rows() == [
        ("node1", "mnubergemm", 3, "pass", "4.3.0"),
        ("node2", "mnubergemm", 3, "fail", "4.3.0"),
    ]


def test_a_box_of_another_tool_in_the_same_text_is_left_to_its_own_format() -> None:
    both = (ROOT / "fixtures" / "dcgm" / "stats.txt").read_bytes() + b"\n" + (ROOT / "fixtures" / "dcgm" / "health.txt").read_bytes()
    found = read_source(both)
    assert {"dcgm", "dcgm-stats"} <= set(found.formats)
    assert "failure" in found.frames["dcgm_results"]["status"].to_list()


def test_counts_of_nvlinks_are_the_same_in_json():
    cell = '"CRC FLIT Error": {"value": "0"}, "Replay Error": {"value": "17"}'
    text = (
        f'{{"body": {{"Link 0": {{"children": {{{cell}}}}}, "Link 1": {{"children": {{}}}}}}, "header": ["NVLINK Error Counts", "GPU 3"]}}'
    )
    found = read_source(text.encode())
    told = found.frames["nvlink_counters"].select("gpu_index", "link", "counter", "value", "record").rows()
    assert told == [
        (3, 0, "CRC Errors", 0.0, "body.Link 0.children.CRC FLIT Error"),
        (3, 0, "Replay Errors", 17.0, "body.Link 0.children.Replay Error"),
    ]
    assert read_source(text[:60].encode() + b' "NVLINK Error Counts"').frames["gaps"].height == 1
