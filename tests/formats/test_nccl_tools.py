"""RAS client, Inspector, topology and graph files."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.formats import inspector, ras, ras_json, topo_xml
from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT, corpus


def test_a_ras_report_names_the_ranks_that_differ() -> None:
    found = read_source((ROOT / "fixtures" / "ras" / "mismatch.txt").read_bytes())
    assert (found.foreign, found.gap_lines, found.unmodelled) == (0, 0, 0)
    items = found.frames["nccl_ras_items"]
    assert items.select("kind", "comm_id", "op", "ranks", "rank", "launched", "gpu", "pid", "host").rows() == [
        ("DEAD", None, None, 1, None, None, "5", 22113, "10.0.0.7"),
        ("INCOMPLETE", "0xd7e31d334637d6d", None, 1, 5, None, "5", 22113, "10.0.0.7"),
        ("MISMATCH", "0xd7e31d334637d6d", "AllReduce", 30, None, 6650, None, None, None),
        ("MISMATCH", "0xd7e31d334637d6d", "AllReduce", 1, 4, 6649, "4", 22112, "10.0.0.7"),
        ("MISMATCH", "0xd7e31d334637d6d", "AllReduce", 1, 6, 0, "6 (NVML 7)", 22114, "10.0.0.7"),
    ]
    groups = found.frames["nccl_ras_groups"]
    assert groups.select("group", "ranks_per_node", "nranks", "status", "errors").rows() == [
        (0, "8", 32, "RUNNING", "INCOMPLETE,MISMATCH"),
        (1, "4-8", 8, "RUNNING", "OK"),
    ]
    assert found.frames["nccl_versions"]["version"].to_list() == ["2.28.9"]


def test_text_after_a_ras_report_is_not_the_reports() -> None:
    report = (ROOT / "fixtures" / "ras" / "mismatch.txt").read_bytes()
    found = read_source(b"before it\n" + report + b"\nsome other text\n")
    assert found.foreign == 3
    assert found.frames["nccl_ras_items"]["line_no"].min() == 25


UNEVEN = b"""NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs
          per node  per process
      1          8            1
      1          2            1

  Nodes  Processes         GPUs
(total)    (total)      (total)
      2         10           10

The outlier node:
  Node 10.0.0.7 running processes 60004,60035

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         1         2         1   RUNNING  INCOMPLETE
"""


def test_a_ras_report_of_nodes_that_are_not_alike_is_read_to_its_end() -> None:
    found = read_source(UNEVEN)
    assert (found.foreign, found.frames["gaps"].height if "gaps" in found.frames else 0) == (0, 0)
    assert found.frames["nccl_ras_groups"].select("nranks", "errors").rows() == [(2, "INCOMPLETE")]


def test_a_ras_report_cut_before_its_communicators_is_a_gap() -> None:
    found = read_source(b"\n".join((ROOT / "fixtures" / "ras" / "mismatch.txt").read_bytes().split(b"\n")[:6]) + b"\nCommunicators... (\n")
    assert found.frames["gaps"]["reason"].to_list() == ["truncated: report without communicators"]


def test_events_of_the_ras_monitor() -> None:
    found = read_source(b"[2026-03-03 12:11:38] PEER_DEAD: [10.0.0.7<4321>] considered dead\n").frames["nccl_ras_events"]
    assert found.select("event", "detail", "time_raw_ns").rows() == [("PEER_DEAD", "[10.0.0.7<4321>] considered dead", 1772539898 * 10**9)]


def test_ras_json_lists_missing_ranks_beside_the_others() -> None:
    data = b"""{"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [{"hash": "0x0d7e", "size": 2,
      "ranks": [{"rank": 0, "host": "n1", "pid": 7, "cuda_dev": 0, "status": {"async_error": 6, "abort_flag": false}, "collective_counts": {"AllReduce": 41}}],
      "missing_ranks": [{"rank": 1, "host": "n2", "pid": 8, "status": {"unresponsive": true, "considered_dead": false}}]}]}"""
    assert ras_json.sniff(data)
    frame = ras_json.read(data).frames["nccl_ras_ranks"]
    assert frame.select("comm_id", "rank", "missing", "unresponsive", "all_reduce", "async_error", "aborted").rows() == [
        ("0xd7e", 0, False, None, 41, 6, False),
        ("0xd7e", 1, True, True, None, None, None),
    ]
    assert frame["record"].to_list() == ["communicators[0].ranks[0]", "communicators[0].missing_ranks[0]"]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"nccl_version": 1, "communicators": 3}'])
def test_broken_ras_json_is_a_gap(data: bytes) -> None:
    assert len(ras_json.read(data).gaps) == 1


_INSPECTED = (
    '{"header":{"id":"0x141f","rank":0,"n_ranks":4,"nnodes":1},"metadata":{"dump_timestamp_us":1766406951178219,"hostname":"stone","pid":9},'
    '"coll_perf":{"coll":"AllReduce","coll_sn":8,"coll_msg_size_bytes":4096,"coll_exec_time_us":12,"coll_timing_source":"kernel_gpu",'
    '"coll_algobw_gbs":0.34,"coll_busbw_gbs":0.51}}'
)


def test_the_inspector_writes_one_operation_per_line_and_a_cut_line_is_a_gap() -> None:
    found = read_source(f"{_INSPECTED}\n{_INSPECTED[:200]}\n".encode())
    row = found.frames["nccl_inspector"].row(0, named=True)
    assert (row["comm_id"], row["op"], row["seq"], row["bus_bw_gb_s"], row["time_raw_ns"]) == (
        "0x141f",
        "AllReduce",
        8,
        0.51,
        1766406951178219000,
    )
    assert found.frames["nccl_inspector"].height == 1
    assert found.frames["gaps"].select("line_no", "reason").rows() == [(2, "truncated")]


def test_inspector_ids_are_spelled_as_init_lines_do() -> None:
    assert inspector.comm_id("0x00ab") == "0xab"
    assert inspector.comm_id(None) is None


_TOPOLOGY = b"""<system version="1">
  <cpu host_hash="0xd3" numaid="0" affinity="ff" arch="x86_64">
    <pci busid="0000:17:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="3" gdr="1">
        <nvlink target="0000:65:00.0" count="12" tclass="0x030200"/>
      </gpu>
    </pci>
    <nic><net name="mlx5_0" dev="0" speed="100000" port="1" gdr="0"/></nic>
  </cpu>
</system>"""


def test_a_topology_gives_links_with_the_device_they_belong_to() -> None:
    assert topo_xml.sniff(_TOPOLOGY)
    frame = topo_xml.read(_TOPOLOGY).frames["nccl_topo"]
    nvlink = frame.row(by_predicate=pl.col("element") == "nvlink", named=True)
    assert (nvlink["bus_id"], nvlink["target"], nvlink["count"], nvlink["line_no"]) == ("0000:17:00.0", "0000:65:00.0", 12, 5)
    net = frame.row(by_predicate=pl.col("element") == "net", named=True)
    assert (net["name"], net["speed_mbps"], net["gdr"], net["numa"]) == ("mlx5_0", 100000, False, 0)
    gpu = frame.row(by_predicate=pl.col("element") == "gpu", named=True)
    assert (gpu["rank"], gpu["sm"], gpu["record"]) == (3, 80, "system/cpu[0]/pci[0]/gpu[0]")


def test_a_topology_cut_off_keeps_what_it_holds_and_says_so() -> None:
    reading = topo_xml.read(_TOPOLOGY[: _TOPOLOGY.index(b"</pci>")])
    assert reading.frames["nccl_topo"]["element"].to_list() == ["cpu", "pci", "gpu", "nvlink"]
    assert [gap.reason.split(":")[0] for gap in reading.gaps] == ["truncated"]


def test_a_document_with_entities_is_refused() -> None:
    assert topo_xml.read(b'<!DOCTYPE a [<!ENTITY b "c">]><system version="1">&b;</system>').frames == {}


def test_a_graph_dump_gives_pattern_and_types() -> None:
    data = b'<graphs version="1"><graph id="0" pattern="4" nchannels="2" speedintra="12" speedinter="12.5" typeintra="SYS" typeinter="PIX"><channel><gpu dev="0"/><gpu dev="1"/></channel></graph></graphs>'
    row = topo_xml.read(data).frames["nccl_graphs"].row(0, named=True)
    assert (row["pattern"], row["channels"], row["bw_inter"], row["type_intra"], row["gpus"]) == (4, 2, 12.5, "SYS", ["0", "1"])


@pytest.mark.corpus
def test_real_topologies_and_graphs_are_read_without_a_gap() -> None:
    paths = [*sorted(corpus("host/nccl-topo").glob("*.xml")), *sorted(corpus("public/topo-xml-azure/evidence").glob("*.xml"))]
    assert len(paths) >= 8
    for path in paths:
        data = path.read_bytes()
        assert topo_xml.sniff(data[: 64 << 10]), path.name
        reading = topo_xml.read(data)
        assert reading.gaps == (), path.name
        assert reading.records > 0


@pytest.mark.corpus
def test_a_real_inspector_log_is_read_whole() -> None:
    path = next(iter(sorted(corpus("public/nccl228-inspector-allreduce-4r/evidence").glob("*.log"))))
    data = path.read_bytes()
    found = read_source(data)
    assert found.frames["nccl_inspector"].height == data.count(b'"coll_perf"')
    assert found.gap_lines == 0


def test_the_ras_anchors_stand_in_a_report() -> None:
    text = (ROOT / "fixtures" / "ras" / "mismatch.txt").read_text(encoding="utf-8")
    assert sum(anchor in text for anchor in ras.FORMAT.anchors) == 2


def test_lines_of_json_of_rccl_tests_are_rows_of_one_test_for_each_collective() -> None:
    found = read_source((ROOT / "fixtures" / "nccl_tests" / "rccl_lines.txt").read_bytes())
    assert (found.formats, found.gap_lines, found.foreign) == (("rccl-tests-lines",), 1, 0)
    assert found.frames["bandwidth_tests"].select("collective", "ranks", "last_bytes").rows() == [
        ("all_reduce", 4, 1024),
        ("alltoall", 4, 1048576),
    ]
    rows = found.frames["bandwidth_rows"].select("line_no", "test", "bytes", "dtype", "red_op", "placement", "bus_bw_gb_s", "wrong").rows()
    assert rows == [
        (1, 0, 1024, "float", "sum", "out-of-place", 0.0768, 0),
        (2, 0, 1024, "float", "sum", "in-place", 0.074927, None),
        (3, 1, 1048576, "int8", None, "out-of-place", 15.72864, 2),
    ]
