"""What NCCL's text says about devices, networks and NVLinks."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.nccl_facts import HOST_NICS, bootstrapped, gpu_links, host_nics, host_ranks, networks
from tests.rules.host_frames import table
from tests.views.frames import rows

PEOPLE = rows(
    PROCESSES_SCHEMA,
    *[{"rank": r, "host": f"node{r // 2 + 1}", "pid": 100 + r, "bus_id": f"{r % 2}b000", "line_no": 1} for r in range(4)],
)


def by(rank: int, **more: object) -> dict[str, object]:
    return {"host": f"node{rank // 2 + 1}", "pid": 100 + rank, "source_id": rank} | more


# ---- devices and networks ----


def test_devices_are_listed_once_per_host_with_their_speed() -> None:
    lines = [
        by(r, item="ib-device", name="mlx5_0", port=1, link="IB", speed_mbps=None if r == 0 else 400_000, line_no=5) for r in (0, 1, 2)
    ]
    found = host_nics(table("nccl_network", *lines)).collect()
    assert found.select("host", "device", "speed_mbps", "source_id").rows() == [
        ("node1", "mlx5_0", 400_000, 0),
        ("node2", "mlx5_0", 400_000, 2),
    ]


def test_without_a_device_the_columns_keep_their_types() -> None:
    socket = table("nccl_network", by(0, item="using", name="Socket", line_no=9))
    assert dict(host_nics(socket).collect().schema) == HOST_NICS


def test_a_process_that_is_alone_in_its_communicator_chose_no_network_for_the_job() -> None:
    lines = table("nccl_network", *[by(r, item="using", name="Socket" if r == 1 else "IB", line_no=9) for r in range(3)])
    members = [by(r, comm_key="0xb" if r == 1 else "0xa", nranks=1 if r == 1 else 3) for r in range(3)]
    assert networks(lines, PEOPLE, rows(COMMS_SCHEMA, *members)).collect()["network"].to_list() == ["IB", "IB"]
    assert networks(lines, PEOPLE, rows(COMMS_SCHEMA, members[1])).collect().height == 3, "nobody else has one"


def test_a_device_listed_with_its_port_and_without_is_one_and_bears_its_speed() -> None:
    lines = [
        by(0, item="ib-device", name="mlx5_0:1", port=0, link="IB", line_no=5),
        by(0, item="ib-device", name="mlx5_0", port=0, speed_mbps=400_000, line_no=6),
    ]
    assert host_nics(table("nccl_network", *lines)).collect().select("device", "speed_mbps").rows() == [("mlx5_0", 400_000)]


def test_the_ports_of_one_device_are_two() -> None:
    listed = [by(0, item="ib-device", name=f"mlx5_0:{n}", port=n - 1, link="IB", line_no=5) for n in (1, 2)]
    told = [by(0, item="ib-device", name="mlx5_0", port=n, speed_mbps=100_000 * (n + 1), line_no=6 + n) for n in (0, 1)]
    found = host_nics(table("nccl_network", *listed, *told)).collect()
    assert found.select("device", "speed_mbps").rows() == [("mlx5_0:1", 100_000), ("mlx5_0:2", 200_000)]


def dumped(*rates: tuple[str, float]) -> pl.LazyFrame:
    """Lines of a topology dump of node1: the NIC's name in it and its rate in GB/s, from line 20 on."""
    return table("nccl_notes", *[by(0, kind="net-link", a=nic, value=rate, line_no=20 + n) for n, (nic, rate) in enumerate(rates)])


def test_the_topology_dump_tells_the_speed_where_no_line_of_the_device_does() -> None:
    lines = [
        by(0, item="ib-device", name="mlx5_0:1", port=0, link="IB", line_no=5),
        by(0, item="ib-device", name="mlx5_1:1", port=1, link="IB", line_no=5, speed_mbps=400_000),
    ]
    found = host_nics(table("nccl_network", *lines), dumped(("0-0", 12.5), ("0-1", 12.5)))
    assert found.select("device", "speed_mbps", "line_no").collect().rows() == [("mlx5_0", 100_000, 20), ("mlx5_1", 400_000, 5)]


@pytest.mark.parametrize("names", [("0", "A"), ("0-0", "0-a"), ("100000000000000", "10000000000000A")], ids=["2.19", "2.23", "2.21"])
def test_a_dump_numbers_devices_in_hexadecimal_alone_or_after_their_system(names: tuple[str, str]) -> None:
    lines = [by(0, item="ib-device", name=f"mlx5_{port}:1", port=port, link="IB", line_no=5) for port in (0, 10)]
    found = host_nics(table("nccl_network", *lines), dumped(*zip(names, (12.5, 25.0), strict=True)))
    assert found.select("device", "speed_mbps").collect().rows() == [("mlx5_0", 100_000), ("mlx5_10", 200_000)]


@pytest.mark.parametrize(
    "rates",
    [
        (("0-0", 12.5), ("1-0", 12.5)),
        (("100000000000000", 12.5), ("200000000000000", 12.5)),
        (("0", 12.5), ("0", 50.0)),
    ],
    ids=["of several systems", "of several systems in one number", "that differ"],
)
def test_a_dump_that_does_not_say_which_it_is_tells_no_speed(rates: tuple[tuple[str, float], ...]) -> None:
    lines = by(0, item="ib-device", name="mlx5_0:1", port=0, link="IB", line_no=5)
    found = host_nics(table("nccl_network", lines), dumped(*rates))
    assert found.select("device", "speed_mbps", "line_no").collect().rows() == [("mlx5_0", None, 5)]


def test_merged_devices_and_other_lines_are_no_devices() -> None:
    lines = by(0, item="ib-virtual", name="mlx5_0+mlx5_1"), by(0, item="bootstrap", name="eth0")
    assert host_nics(table("nccl_network", *lines)).collect().height == 0


def test_ranks_are_counted_per_host() -> None:
    assert host_ranks(PEOPLE).collect().rows() == [("node1", [0, 1], 2), ("node2", [2, 3], 2)]


def test_the_network_that_each_host_chose_knows_its_ranks() -> None:
    lines = [by(r, item="using", name="Socket" if r > 1 else "IB", line_no=7) for r in range(4)]
    found = networks(table("nccl_network", *lines), PEOPLE).collect()
    assert found.select("host", "network", "ranks").rows() == [("node1", "IB", [0, 1]), ("node2", "Socket", [2, 3])]


# ---- NVLinks ----


def gpu(rank: int, line: int, bus: str, in_dump: int | None = None) -> dict[str, object]:
    return by(rank, kind="gpu-link", a=f"GPU/0-{bus}", b=None if in_dump is None else str(in_dump), value=24.0, line_no=line)


def nvlink(rank: int, line: int, value: float) -> dict[str, object]:
    return by(rank, kind="nvlink", value=value, line_no=line)


def test_the_nvlinks_below_a_gpu_are_summed() -> None:
    tree = [gpu(0, 1, "0b000"), nvlink(0, 2, 100.0), nvlink(0, 3, 85.0), gpu(0, 4, "1B000"), nvlink(0, 5, 100.0)]
    found = gpu_links(table("nccl_notes", *tree), PEOPLE).collect()
    assert found.select("gpu", "rank", "nvlink_gb_s", "pcie_gb_s").rows() == [("0b000", 0, 185.0, 24.0), ("1b000", 1, 100.0, 24.0)]


def test_a_tree_that_every_process_prints_counts_once_per_host() -> None:
    tree = [line for r in (0, 1, 2) for line in (gpu(r, 1, "0b000"), nvlink(r, 2, 100.0))]
    found = gpu_links(table("nccl_notes", *tree), PEOPLE).collect()
    assert found.select("host", "rank", "nvlink_gb_s").rows() == [("node1", 0, 100.0), ("node2", 2, 100.0)]


def test_a_tree_that_one_process_prints_twice_counts_once() -> None:
    tree = [gpu(0, 1, "0b000"), nvlink(0, 2, 100.0), gpu(0, 3, "0b000"), nvlink(0, 4, 100.0)]
    assert gpu_links(table("nccl_notes", *tree), PEOPLE).collect()["nvlink_gb_s"].to_list() == [100.0]


def test_trees_of_two_processes_in_one_log_are_not_mixed() -> None:
    tree = [gpu(0, 1, "0b000"), gpu(1, 2, "1b000"), nvlink(0, 3, 100.0), nvlink(1, 4, 50.0)]
    found = gpu_links(table("nccl_notes", *[line | {"source_id": 0} for line in tree]), PEOPLE).collect()
    assert found["nvlink_gb_s"].to_list() == [100.0, 50.0]


@pytest.mark.parametrize(("first", "unseen"), [(0, 2), (4, None)])
def test_the_dump_names_the_rank_of_a_gpu_whose_process_left_nothing_if_it_agrees_on_the_others(first: int, unseen: int | None) -> None:
    buses = ["0b000", "1b000", "2b000"]
    tree = [gpu(0, 1 + i, bus, first + i) for i, bus in enumerate(buses)]
    assert gpu_links(table("nccl_notes", *tree), PEOPLE).collect()["rank"].to_list() == [0, 1, unseen]


def test_no_lines_give_no_rows() -> None:
    assert isinstance(gpu_links(table("nccl_notes"), PEOPLE), pl.LazyFrame)
    assert gpu_links(table("nccl_notes"), PEOPLE).collect().height == 0


# ---- past the bootstrap ----


def test_a_communicator_is_past_its_bootstrap_with_the_first_line_that_only_then_appears() -> None:
    members = rows(
        COMMS_SCHEMA,
        *[by(r, comm_key="0xc0", nranks=4, line_no=10) for r in (0, 1)],
        by(1, comm_key="0xc1", nranks=2, line_no=30),
    )
    notes = table("nccl_notes", by(0, kind="affinity", line_no=20), by(1, kind="affinity", line_no=12), by(0, kind="driver", line_no=11))
    found = bootstrapped(members, notes, None, None, None, None).collect()
    assert found.rows() == [("0xc0", 0, 20)]


def test_the_times_of_a_bootstrap_that_failed_do_not_say_that_all_came() -> None:
    members = rows(COMMS_SCHEMA, *[by(r, comm_key="0xc0", nranks=4, line_no=10) for r in (0, 1)])
    notes = table("nccl_notes", by(0, kind="bootstrap-timings", line_no=20))
    failed = table("nccl_errors", by(0, kind="propagation", file="bootstrap.cc", code=6, line_no=19))
    assert bootstrapped(members, notes, None, None, None, None, failed).collect().is_empty()
    others = table("nccl_errors", by(1, kind="propagation", file="bootstrap.cc", code=6, line_no=19))
    assert bootstrapped(members, notes, None, None, None, None, others).collect().height == 1


def test_a_line_before_the_init_or_of_another_process_says_nothing_about_it() -> None:
    members = rows(COMMS_SCHEMA, by(0, comm_key="0xc0", nranks=4, line_no=10))
    rings = table("nccl_rings", by(0, line_no=9), by(2, line_no=40))
    assert bootstrapped(members, None, None, rings, None, None).collect().is_empty()
    assert bootstrapped(members, None, None, None, None, None).collect().is_empty()
