"""Fabric manager, DCGM, lspci and rocm-smi."""

from __future__ import annotations

import pytest

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import corpus


def read(text: str) -> SourceReading:
    return read_source(text.encode())


HEAD = "[Feb 25 2025 13:59:45] [ERROR] [tid 1803] "


def test_the_fabric_manager_repeats_a_switch_error():
    result = read(HEAD + "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33")
    assert result.frames["sxids"].select("code", "bus_id", "link", "fatal", "reporter").rows() == [
        (20034, "0000:86:00.0", 33, True, "fabric-manager")
    ]
    assert result.frames["fabric_events"]["time_raw_ns"].to_list() == [1740491985000000000]


@pytest.mark.parametrize(
    ("text", "kind", "severity"),
    [
        ("failed to find the GPU handle 5410063 in the multicast team request setup 61302854.", "multicast-handle", "fatal"),
        ("detected number of NVSwitches don't match with any supported system topology, aborting fabric manager", "topology", "fatal"),
        ("request to query NVSwitch device information failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]", "noise", "benign"),
        ("fabric manager version mismatch with driver", "version-mismatch", "fatal"),
        ("GPU 3 NVLinks are degraded", "degraded", "degraded"),
        ("something new", "other", "suspect"),
    ],
)
def test_what_the_fabric_manager_says_is_weighed(text: str, kind: str, severity: str):
    assert read(HEAD + text).frames["fabric_events"].select("kind", "severity").rows() == [(kind, severity)]


DIAG_3 = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.1.8                                          |
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
| Persistence Mode          | Fail                                           |
| Error                     | Persistence mode for GPU 0 is currently disab  |
|                           | led.                                           |
+-----  Integration  -------+------------------------------------------------+
| PCIe                      | Fail - GPUs: 0, 3                              |
| Memory                    | Pass - All                                     |
+---------------------------+------------------------------------------------+
"""


def test_a_boxed_diagnostic_gives_a_row_per_test_and_gpu_and_joins_wrapped_text():
    frame = read(DIAG_3).frames["dcgm_results"]
    assert frame.select("category", "test", "status", "gpu_index").rows() == [
        ("Deployment", "Denylist", "pass", None),
        ("Deployment", "Persistence Mode", "fail", None),
        ("Integration", "PCIe", "fail", 0),
        ("Integration", "PCIe", "fail", 3),
        ("Integration", "Memory", "pass", None),
    ]
    assert frame["message"][1] == "Persistence mode for GPU 0 is currently disabled."
    assert set(frame["version"]) == {"3.1.8"}


def test_the_rows_of_dcgm_4_replace_the_sum_of_their_test():
    box = "\n".join(
        (
            "+---------------------------+------------------------------------------------+",
            "| Diagnostic                | Result                                         |",
            "+===========================+================================================+",
            "|-----  Hardware  ----------+------------------------------------------------|",
            "| memory                    | Fail                                           |",
            "|                           | GPU0: Pass                                     |",
            "|                           | GPU1: Fail                                     |",
            "+---------------------------+------------------------------------------------+",
        )
    )
    assert read(box).frames["dcgm_results"].select("test", "gpu_index", "status").rows() == [("memory", 0, "pass"), ("memory", 1, "fail")]


@pytest.mark.parametrize(
    "body",
    [
        '{"DCGM GPU Diagnostic":{"test_categories":[{"category":"Hardware","tests":[{"name":"Memory","results":[{"gpu_ids":"2","status":"Fail","warnings":"ecc errors"}]}]}]},"version":"3.1.8"}',
        '{"DCGM Diagnostic":{"test_categories":[{"category":"Hardware","tests":[{"name":"Memory","results":[{"entity_group":"GPU","entity_id":2,"status":"Fail","warnings":[{"warning":"ecc errors"}]}]}]}]},"metadata":{"version":"3.1.8"}}',
    ],
)
def test_both_json_schemas_of_a_diagnostic_give_the_same_row(body: str):
    result = read("Successfully ran diagnostic for group.\n" + body) if body.startswith('{"DCGM GPU') else read(body)
    frame = result.frames["dcgm_results"]
    assert frame.select("category", "test", "status", "gpu_index", "message", "version").rows() == [
        ("Hardware", "Memory", "fail", 2, "ecc errors", "3.1.8")
    ]


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["dcgm_diag_schema.json", "dcgm_mndiag_schema.json"])
def test_a_json_schema_of_the_diagnostic_is_no_result(name: str):
    # The corpus keeps the schemas only: they describe results and hold none, so no format may claim them.
    assert read_source(corpus(f"host/dcgm/{name}").read_bytes()).formats == ()


LSPCI = """17:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\tSubsystem: NVIDIA Corporation Device 16c1
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+
0001:3b:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x16
5d:00.0 3D controller: NVIDIA Corporation Device 2330 (rev ff) (prog-if ff)
\t!!! Unknown header type 7f
"""


def test_lspci_gives_width_speed_and_devices_that_are_gone():
    frame = read(LSPCI).frames["pcie_links"]
    assert frame.select("bus_id", "role", "width", "width_max", "speed_gt_s", "acs", "gone").rows() == [
        ("0000:17:00.0", "gpu", 8, 16, 16.0, "SrcValid ReqRedir", False),
        ("0001:3b:00.0", "nic", 16, 16, 32.0, None, False),
        ("0000:5d:00.0", "gpu", None, None, None, None, True),
    ]


@pytest.mark.corpus
def test_the_gpus_of_a_real_h100_node_have_all_lanes():
    frame = read_source(corpus("host/lspci/lspci-vvv.gpu-nic-blocks.txt").read_bytes()).frames["pcie_links"]
    gpus = frame.filter(frame["role"] == "gpu")
    assert gpus.height == 8
    assert set(gpus["width"]) == {16}


@pytest.mark.corpus
def test_real_rocm_listings_give_a_row_per_card():
    cards = {"rocm-smi.mi100_rocm571.json": 6, "rocm-smi.mi100_rocm602.json": 4, "rocm-smi.vega-20-WKS-GL-XE.json": 1}
    for name, count in cards.items():
        frame = read_source(corpus(f"host/rocm-smi/{name}").read_bytes()).frames["gpus"]
        assert frame.height == count
        assert frame["bus_id"].null_count() == 0
        assert frame["temperature_c"].null_count() == 0


@pytest.mark.corpus
def test_a_real_fabric_manager_log_is_read_and_its_one_error_found():
    result = read_source(corpus("host/fabricmanager/fabricmanager.log").read_bytes())
    assert result.frames["fabric_events"].filter(result.frames["fabric_events"]["severity"] != "info")["number"].to_list() == [12028]
    blank = 24
    assert (result.foreign, result.gap_lines) == (blank, 0)
