"""Hosts of sources, and RDMA ports put together from files and tools."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, read_bundle
from nccl_forensics.views import Resolver
from nccl_forensics.views.source_hosts import host_in_path, path_hosts, source_hosts
from tests.rules.host_frames import table


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("node3.tar.gz!/logs/dmesg.txt", "node3"),
        ("hosts/node03/ibstat.txt", "node03"),
        ("dmesg_node07.txt", "node07"),
        ("ip-10-0-1-2.ec2.internal/dmesg", "ip-10-0-1-2.ec2.internal"),
        ("sys-class-infiniband-h100.0/mlx5_0/ports/1/rate", None),
        ("run_1/attempt_0/3/stderr.log", None),
        ("nccl.rank12.log", None),
        ("slurm-123.out", None),
        ("traces/iteration_40/rank3_trace.json", None),
        ("pyspy_1/rank0.txt", None),
        ("k8s/events.txt", None),
        ("2024-05-06/x.txt", None),
        ("gpu-039/nvidia-smi-q.txt", "gpu-039"),
        ("gpu-03/nvidia-smi-q.txt", None),
        ("rows_rack4-node12.csv", "rack4-node12"),
        ("ip-10-3-31-17-dmesg.txt", "ip-10-3-31-17"),
    ],
)
def test_a_path_names_a_host_or_none(path: str, host: str | None):
    assert host_in_path(path) == host


def test_a_file_of_a_pair_of_known_hosts_belongs_to_neither():
    assert host_in_path("nccl_N2_c-005_c-016.log", {"c-005", "c-016"}) is None
    assert host_in_path("nccl_c-016.log", {"c-005", "c-016", "c-01"}) == "c-016"


def hosts_of(*paths: str, nccl: str) -> dict[int, tuple[str, str]]:
    """Host of each file, and how it is known, where the log of NCCL, which comes first, names one."""
    sources = pl.LazyFrame({"source_id": range(len(paths) + 1), "path": ["nccl.log", *paths]}, schema_overrides={"source_id": pl.UInt32})
    found = source_hosts(sources, path_hosts(sources), table("nccl_comms", {"source_id": 0, "host": nccl}), None, None, None, None)
    return {source: (host, how) for source, host, how in found.collect().iter_rows() if source}


def test_a_folder_that_is_called_like_the_only_known_host_but_for_its_number_is_another_host():
    assert hosts_of("host/gpu-01/dmesg.txt", nccl="gpu-02") == {1: ("gpu-01", "path")}
    assert hosts_of("host/gpu-01/dmesg.txt", "gpu-01.txt", nccl="trainer") == {1: ("trainer", "only"), 2: ("trainer", "only")}
    assert hosts_of("gpu-01.txt", nccl="gpu-02") == {1: ("gpu-02", "only")}, "the file of a GPU"
    assert hosts_of("n0024-dmesg.txt", nccl="n0023") == {1: ("n0024", "path")}
    assert hosts_of("dmesg_n0024_n0025.txt", nccl="n0023") == {1: ("n0023", "only")}, "the file of a pair"


def resolver(folder: Path, files: dict[str, str]) -> Resolver:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with open_bundle([folder]) as bundle:
        return Resolver(read_bundle(bundle, InlineEngine()))


def test_files_with_one_value_get_their_meaning_from_the_path_also_where_twins_are_read_once(tmp_path: Path):
    files = {f"{host}/mlx5_{i}/ports/1/counters/link_downed": "0\n" for host in ("node1", "node2") for i in range(2)}
    files |= {f"{host}/mlx5_0/ports/1/state": "4: ACTIVE\n" for host in ("node1", "node2")}
    files["node2/mlx5_1/ports/1/counters/link_downed"] = "7\n"
    views = resolver(tmp_path, files)
    counters = views.get("ib_port_counters")
    ports = views.get("ib_ports")
    assert counters is not None
    assert ports is not None
    assert counters.select("host", "device", "last").collect().rows() == [
        ("node1", "mlx5_0", 0),
        ("node1", "mlx5_1", 0),
        ("node2", "mlx5_0", 0),
        ("node2", "mlx5_1", 7),
    ]
    assert ports.select("host", "device", "state").collect().rows() == [("node1", "mlx5_0", "active"), ("node2", "mlx5_0", "active")]


def test_two_samples_of_a_counter_give_its_growth(tmp_path: Path):
    line = "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error:{}\n/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:1\n"
    views = resolver(tmp_path, {"node1/before.txt": line.format(5), "node1/later.txt": line.format(25)})
    counters = views.get("ib_port_counters")
    assert counters is not None
    assert counters.select("counter", "first", "last", "growth").collect().rows() == [("link_downed", 1, 1, 0), ("symbol_error", 5, 25, 20)]


def test_two_switches_of_one_name_are_told_apart_by_their_guids_and_are_no_two_samples(tmp_path: Path):
    columns = "START_PM_INFO\nNodeGUID,PortGUID,PortNumber,LinkDownedCounter\n"
    nodes = 'START_NODES\nNodeDesc,NodeType,NodeGUID\n"Quantum-2 Technologies",2,0xa1\n"Quantum-2 Technologies",2,0xa2\nEND_NODES\n\n'
    views = resolver(tmp_path, {"ibdiagnet2.db_csv": f"{nodes}{columns}0xa1,0xa1,1,12\n0xa2,0xa2,1,38\nEND_PM_INFO\n"})
    counters = views.get("ib_port_counters")
    assert counters is not None
    assert counters.select("node", "last", "growth").collect().rows() == [
        ("Quantum-2 Technologies 0xa1", 12, None),
        ("Quantum-2 Technologies 0xa2", 38, None),
    ]


def test_what_two_tools_say_of_one_port_is_one_row(tmp_path: Path):
    ibstat = "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n"
    devinfo = "hca_id:\tmlx5_0\n\tfw_ver:\t28.1\n\t\tport:\t1\n\t\t\tactive_mtu:\t4096 (5)\n"
    ports = resolver(tmp_path, {"node1/ibstat.txt": ibstat, "node1/ibv_devinfo.txt": devinfo}).get("ib_ports")
    assert ports is not None
    assert ports.select("host", "state", "rate_gbit_s", "mtu_bytes").collect().rows() == [("node1", "active", 400.0, 4096)]


def test_two_unknown_hosts_are_never_merged(tmp_path: Path):
    text = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: {}\n"
    ports = resolver(tmp_path, {"one.txt": text.format("Active"), "two.txt": text.format("Down")}).get("ib_ports")
    assert ports is not None
    assert ports.select("host", "state").collect().rows() == [(None, "active"), (None, "down")]


def test_a_known_host_is_found_as_a_word_of_its_own_only():
    known = {"node1", "h-1", "rack2.node7"}
    assert host_in_path("x/dmesg_node1.txt", known) == "node1"
    assert host_in_path("gpu-node1/dmesg.txt", known) == "node1"
    assert host_in_path("rack2.node7_dmesg", known) == "rack2.node7"
    assert host_in_path("h-12.log", {"h-1"}) is None
    assert host_in_path("h-1-2.log", {"h-1"}) is None
