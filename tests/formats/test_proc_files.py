"""Files of /proc, open files, probes, and nvidia-smi pmon."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT


def frames(path: str) -> dict[str, pl.DataFrame]:
    return dict(read_source((ROOT / "fixtures" / path).read_bytes()).frames)


def test_counters_of_interfaces_bear_the_kernels_names() -> None:
    rows = frames("proc_files/net_dev")["net_counters"].filter(pl.col("interface") == "eth0")
    told = dict(rows.select("counter", "value").rows())
    assert (told["rx_packets"], told["rx_errors"], told["rx_dropped"], told["tx_bytes"]) == (123456, 5, 17, 987654321)


def test_counters_of_the_ip_stack_bear_the_names_of_nstat() -> None:
    rows = frames("proc_files/net_netstat")["net_counters"].select("line_no", "counter", "value").rows()
    assert rows[:2] == [(2, "TcpExtSyncookiesSent", 0), (2, "TcpExtListenOverflows", 12)]
    snmp = b"Tcp: RtoAlgorithm RtoMin OutSegs RetransSegs\nTcp: 1 200 1000 12\n"
    told = read_source(snmp).frames["net_counters"].select("counter", "value").rows()
    assert ("TcpRetransSegs", 12) in told


def test_a_gpu_of_which_the_driver_knows_nothing_is_read_as_silent() -> None:
    found = frames("proc_files/information")
    assert found["gpus"].select("bus_id", "uuid", "vbios", "name").rows() == [("0000:3b:00.0", None, None, "NVIDIA H100 80GB HBM3")]
    assert found["gpu_tool_errors"].select("kind", "bus_id").rows() == [("gpu-silent", "0000:3b:00.0")]
    healthy = b"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nVideo BIOS: \t 96.00.89.00.01\nBus Location: \t 0000:3b:00.0\n"
    assert set(read_source(healthy).frames) == {"gpus"}


def test_parameters_of_the_driver_that_matter_are_facts() -> None:
    assert frames("proc_files/params")["host_facts"].select("name", "value").rows() == [("driver parameter EnableGpuFirmware", "18")]


def test_lsof_tells_sockets_and_fuser_the_processes_on_gpus() -> None:
    assert frames("open_files/lsof.txt")["sockets"].select("state", "local", "peer", "process", "pid").rows() == [
        ("LISTEN", "*:29500", None, "python", 123456),
        ("ESTAB", "10.0.0.11:29500", "10.0.0.12:45678", "python", 123456),
    ]
    assert frames("open_files/fuser.txt")["gpu_processes"].select("gpu_index", "pid", "name").rows() == [
        (0, 123456, "python"),
        (0, 123999, "python"),
    ]
    device = b"COMMAND    PID USER   FD   TYPE DEVICE SIZE/OFF NODE NAME\npython  4711 root   9u   CHR  195,3      0t0  512 /dev/nvidia3\n"
    assert read_source(device).frames["gpu_processes"].select("gpu_index", "pid").rows() == [(3, 4711)]


def test_probes_below_tcp_are_read() -> None:
    assert frames("rdma_probes/rping.txt")["pings"].select("line_no", "tool", "outcome").rows() == [
        (1, "rdma_cm", "unreachable"),
        (2, "rdma_cm", "unreachable"),
    ]
    answers = frames("rdma_probes/arping.txt")["pings"]
    assert answers["reporter"].to_list() == ["b8:3f:d2:aa:bb:cc", "b8:3f:d2:aa:bb:dd"]


def test_pmon_tells_the_processes_of_each_gpu() -> None:
    assert frames("nvidia_smi/pmon.txt")["gpu_processes"].select("gpu_index", "pid", "type", "name").rows() == [(0, 123456, "C", "python")]
