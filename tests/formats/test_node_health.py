"""What the node health check (NHC) and NVSentinel say of nodes."""

from __future__ import annotations

import json

from nccl_forensics.reading.source import SourceReading, read_source


def read(*lines: str) -> SourceReading:
    return read_source("\n".join(lines).encode() + b"\n")


def event(**more: object) -> str:
    told = {"agent": "gpu-health-monitor", "componentClass": "GPU", "checkName": "GpuMemWatch", "isFatal": True, "nodeName": "n7"}
    event = told | {"entitiesImpacted": [{"entityType": "GPU", "entityValue": "3"}], "generatedTimestamp": {"seconds": 1770000000}} | more
    return json.dumps({"time": "2026-02-02T02:40:00Z", "level": "INFO", "msg": "Health events received", "events": {"events": [event]}})


def test_a_failed_check_tells_the_gpu_and_what_it_found() -> None:
    found = read(
        "ERROR:  nhc:  Health check failed:  check_nvlink_status: GPU 5 has nvlinks inactive: 3 4. FaultCode: NHC2016",
        "ERROR:  nhc:  Health check failed:  check_gpu_ecc: GPU id 2: Row remap pending. FaultCode: NHC2007",
        "ERROR:  nhc:  Health check failed:  Check check_gpu_number 8 returned 1",
    )
    assert found.frames["dcgm_results"].select("line_no", "test", "gpu_index", "status").rows() == [
        (1, "check_nvlink_status", 5, "fail"),
        (2, "check_gpu_ecc", 2, "fail"),
        (3, "check_gpu_number", None, "fail"),
    ]


def test_a_lost_gpu_and_a_flapping_port_have_tables_of_their_own() -> None:
    found = read(
        "ERROR:  nhc:  Health check failed:  check_nvsmi:  /usr/bin/nvidia-smi:  The GPU has fallen off the bus or is inaccessible.",
        "nhc[1013]: Health check failed:  check_ib_link_flapping: flapping within 6 hours. Devices: mlx5_3. FaultCode: NHC2005",
    )
    assert found.frames["gpu_tool_errors"].select("tool", "kind").rows() == [("nhc", "gpu-lost")]
    assert found.frames["ib_diagnostics"].select("tool", "kind", "name").rows() == [("nhc", "error", "mlx5_3")]


def test_checks_that_did_not_run_and_checks_of_other_things_blame_nothing() -> None:
    found = read(
        "ERROR:  nhc:  Health check failed:  check_gpu_bw: Missing one or more dependencies. FaultCode: NHCNA",
        "ERROR:  nhc:  Health check failed:  Script timed out.",
        "ERROR:  nhc:  Health check failed:  check_fs_mount:  /scratch not mounted",
    )
    assert (found.frames, found.records) == ({}, 3)


def test_an_event_that_several_services_pass_on_counts_once() -> None:
    told = event(checkName="GpuXidError", message="GPU has fallen off the bus (XID 79).", errorCode=["DCGM_FR_GPU_FALLEN_OFF_BUS"])
    found = read(told, told.replace("Health events received", "Successfully got item"))
    assert found.frames["xids"].select("host", "code", "gpu_index", "time_raw_ns").rows() == [("n7", 79, 3, 1770000000 * 10**9)]


def test_events_without_an_xid_are_results_of_a_test_and_fail_only_where_they_are_fatal() -> None:
    found = read(event(message="row remap failed"), event(checkName="GpuThermalWatch", isFatal=False, message="warm"))
    assert found.frames["dcgm_results"].select("host", "test", "status").rows() == [
        ("n7", "GpuMemWatch", "fail"),
        ("n7", "GpuThermalWatch", "warn"),
    ]


def test_an_event_that_says_healthy_is_read_and_blames_nothing() -> None:
    found = read(event(isHealthy=True, isFatal=False, message="No Health Failures"))
    assert (found.frames, found.records) == ({}, 1)


def test_conditions_of_a_node_tell_each_xid_with_its_address() -> None:
    found = read(
        'INFO Found condition node=n9 condition="{Type:SysLogsXIDError Message:ErrorCode:119 PCI:0002:00:00 GPU_UUID:GPU-2222aaaa '
        "kernel: Timeout of GSP Recommended Action=COMPONENT_RESET;ErrorCode:94 PCI:0003:00:00 kernel: Contained "
        'Recommended Action=CONTACT_SUPPORT;}"'
    )
    assert found.frames["xids"].select("host", "code", "bus_id").rows() == [("n9", 119, "0002:00:00.0"), ("n9", 94, "0003:00:00.0")]


def test_an_errors_code_in_prose_is_no_condition() -> None:
    assert read("see ErrorCode:79 in the table of codes", 'the field "checkName" of an event').frames == {}
