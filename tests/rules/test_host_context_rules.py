"""Rules over diagnostics, memory, shared GPUs, routes, NCCL's choices, peer access and differences between hosts."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.blocked_route import blocked_route
from nccl_forensics.rules.fabric_diagnostics import fabric_diagnostics
from nccl_forensics.rules.gpu_sharing import gpu_shared
from nccl_forensics.rules.host_differences import host_differs
from nccl_forensics.rules.host_memory import host_memory_low
from nccl_forensics.rules.nccl_choices import nccl_slow_choice
from nccl_forensics.rules.peer_access import peer_access
from tests.rules.frames import cited, people, settings
from tests.rules.host_frames import table

# ---- ibdiagnet ----


def test_errors_of_a_fabric_tool_name_their_nodes_and_stages() -> None:
    lines = [
        {"tool": "ibdiagnet", "kind": "error", "name": "node01/U1/P1", "message": "Symbol BER exceeds threshold"},
        {"tool": "ibdiagnet", "kind": "stage", "name": "Port Counters", "errors": 2},
        {"tool": "ibdiagnet", "kind": "stage", "name": "Discovery", "errors": 0},
    ]
    [finding] = fabric_diagnostics.check(table("ib_diagnostics", *lines))
    assert finding.title == "ibdiagnet reports 1 error on node01/U1/P1: Symbol BER exceeds threshold"
    assert finding.summary == "Errors by stage: Port Counters: 2."
    assert cited(finding) == [(0, 1), (0, 2)]
    [alone] = fabric_diagnostics.check(table("ib_diagnostics", lines[1]))
    assert alone.confidence == "low"


def test_warnings_and_stages_without_errors_are_quiet() -> None:
    quiet = [{"kind": "stage", "name": "Discovery", "errors": 0, "warnings": 3}, {"kind": "warning", "message": "x"}, {"kind": "summary"}]
    assert fabric_diagnostics.check(table("ib_diagnostics", *quiet)) == []


# ---- memory ----


def memory(available_kb: int) -> pl.LazyFrame:
    return table(
        "memory",
        {"name": "MemTotal", "value_kb": 1_000_000.0, "host": "node7"},
        {"name": "MemAvailable", "value_kb": float(available_kb), "host": "node7"},
    )


def test_a_host_without_memory_is_named() -> None:
    [finding] = host_memory_low.check(memory(10_000), None)
    assert (finding.hosts, finding.severity) == (("node7",), "warning")
    assert cited(finding) == [(0, 2), (0, 1)]


def test_a_host_with_memory_and_one_of_which_half_is_known_are_quiet() -> None:
    assert host_memory_low.check(memory(30_000), None) == []
    assert host_memory_low.check(table("memory", {"name": "MemAvailable", "value_kb": 1.0}), None) == []


# ---- shared GPUs ----

RANKS = people((0, "node1", 100), (1, "node1", 101))


def on_gpu(pid: int, used: float = 5000.0, **more: object) -> dict[str, object]:
    return {"host": "node1", "uuid": "GPU-a", "pid": pid, "name": "python", "used_mib": used, "type": "C", **more}


def test_a_strange_process_beside_a_rank_is_named() -> None:
    [finding] = gpu_shared.check(table("gpu_processes", on_gpu(100), on_gpu(999)), RANKS, None)
    assert finding.ranks == (0,)
    assert "python (pid 999, 5000 MiB)" in finding.title


def test_ranks_small_agents_displays_and_gpus_without_a_rank_are_quiet() -> None:
    assert gpu_shared.check(table("gpu_processes", on_gpu(100), on_gpu(101)), RANKS, None) == []
    assert gpu_shared.check(table("gpu_processes", on_gpu(100), on_gpu(999, 200.0)), RANKS, None) == []
    assert gpu_shared.check(table("gpu_processes", on_gpu(100), on_gpu(999, type="G")), RANKS, None) == []
    assert gpu_shared.check(table("gpu_processes", on_gpu(999)), RANKS, None) == []


# ---- routes ----

PEERS = table("net_addresses", {"host": "node2", "address": "10.0.1.12", "scope": "global"})


def route(destination: str, kind: str | None = "blackhole") -> dict[str, object]:
    return {"host": "node1", "destination": destination, "kind": kind}


def test_a_route_that_refuses_a_peer_is_named() -> None:
    [finding] = blocked_route.check(table("net_routes", route("10.0.1.0/24")), PEERS, None)
    assert "node1 has a route of kind blackhole for 10.0.1.0/24, in which 10.0.1.12 (node2) lies" in finding.title


def test_routes_that_refuse_others_or_have_a_better_way_are_quiet() -> None:
    assert blocked_route.check(table("net_routes", route("10.9.0.0/16")), PEERS, None) == []
    assert blocked_route.check(table("net_routes", route("10.0.0.0/8"), route("10.0.1.0/24", None)), PEERS, None) == []
    assert blocked_route.check(table("net_routes", route("default", None), route("nonsense")), PEERS, None) == []


# ---- NCCL's choices ----


def chosen(size: int, proto: str) -> pl.LazyFrame:
    return table("nccl_tuning", {"op": "AllReduce", "bytes": size, "algo": "RING", "proto": proto})


def test_large_messages_with_ll_are_told() -> None:
    [finding] = nccl_slow_choice.check(chosen(1 << 30, "LL"), None, None, None)
    assert finding.title == "NCCL runs messages of 1024 MiB with the LL protocol"


def test_small_messages_other_protocols_and_forced_ones_are_quiet() -> None:
    assert nccl_slow_choice.check(chosen(4096, "LL"), None, None, None) == []
    assert nccl_slow_choice.check(chosen(1 << 30, "LL128"), None, None, None) == []
    assert nccl_slow_choice.check(chosen(1 << 30, "LL"), None, None, settings("NCCL_PROTO", ("LL", [0]))) == []


def graph(**more: object) -> pl.LazyFrame:
    usual = {
        "record": "graph[0]",
        "line_no": 2,
        "id": 0,
        "pattern": 4,
        "channels": 8,
        "bw_intra": 20.0,
        "type_intra": "NVL",
        "gpus": ["0", "1"],
    }
    return table("nccl_graphs", {**usual, **more})


LINKED = table("nccl_topo", {"element": "nvlink", "count": 18, "line_no": 3})


def test_a_ring_beside_the_nvlinks_is_told() -> None:
    [finding] = nccl_slow_choice.check(None, graph(type_intra="SYS"), LINKED, None)
    assert "8 channels of 20 GB/s over SYS inside a host that has NVLink" in finding.title
    [starved] = nccl_slow_choice.check(None, graph(bw_intra=0.24, type_intra="PHB"), None, None)
    assert starved.confidence == "low"


def test_a_ring_over_nvlink_and_one_over_pcie_where_there_is_nothing_else_are_quiet() -> None:
    assert nccl_slow_choice.check(None, graph(), LINKED, None) == []
    assert nccl_slow_choice.check(None, graph(type_intra="PHB", bw_intra=6.0), None, None) == []
    assert nccl_slow_choice.check(None, graph(channels=0, bw_intra=0.0), LINKED, None) == []


# ---- peer access ----


def cell(test: str, row: int, column: int, value: float, unit: str = "gb_s") -> dict[str, object]:
    return {"host": "node1", "tool": "p2p", "test": test, "row": str(row), "column": str(column), "value": value, "unit": unit}


def speeds(with_access: float) -> list[dict[str, object]]:
    on, off = "unidirectional p2p=enabled bandwidth (p2p writes)", "unidirectional p2p=disabled bandwidth"
    return [c for a, b in ((0, 1), (1, 0)) for c in (cell(on, a, b, with_access), cell(off, a, b, 30.0))]


def test_pairs_without_access_among_others_are_named() -> None:
    [finding] = peer_access.check(table("gpu_bandwidth", cell("access", 0, 1, 1.0, "bool"), cell("access", 1, 0, 0.0, "bool")), None)
    assert "1 of 2 GPU pairs may not copy to each other on node1 (GPU 1 -> GPU 0)" in finding.title


def test_latencies_of_a_redirected_copy_and_access_without_gain_are_told() -> None:
    timed = "p2p=enabled latency (p2p writes)"
    [slow] = peer_access.check(table("gpu_bandwidth", cell(timed, 0, 1, 49_000.0, "us")), None)
    assert "after up to 49000 us" in slow.title
    [useless] = peer_access.check(table("gpu_bandwidth", *speeds(30.4)), None)
    assert "bring no bandwidth" in useless.title


def test_access_that_works_and_hosts_without_any_are_quiet() -> None:
    assert peer_access.check(table("gpu_bandwidth", *speeds(270.0), cell("p2p=enabled latency", 0, 1, 2.1, "us")), None) == []
    nobody = [cell("access", 0, 1, 0.0, "bool"), cell("access", 1, 0, 0.0, "bool"), *speeds(30.0)]
    assert peer_access.check(table("gpu_bandwidth", *nobody), None) == []


# ---- differences between hosts ----


def fact(host: str, kind: str, name: str, value: str, number: float | None = None) -> dict[str, object]:
    return {"host": host, "kind": kind, "name": name, "value": value, "number": number}


HOSTS = [f"node{i}" for i in range(4)]


def test_the_host_with_another_driver_is_named() -> None:
    said = [fact(h, "version", "nvidia-driver", "550.1" if h != "node3" else "535.2") for h in HOSTS]
    [finding] = host_differs.check(table("host_facts", *said), None, None)
    assert finding.title == "node3 has driver 535.2, 3 other hosts have 550.1"
    assert cited(finding)[0] == (0, 4)
    bios = [{"host": h, "name": "H100", "vbios": "96.00" if h != "node1" else "95.00"} for h in HOSTS]
    [finding] = host_differs.check(None, table("gpus", *bios), None)
    assert finding.hosts == ("node1",)


def test_two_hosts_alike_hosts_and_halves_have_no_odd_one() -> None:
    def said(*values: str) -> pl.LazyFrame:
        return table("host_facts", *[fact(h, "version", "kernel", v) for h, v in zip(HOSTS, values, strict=False)])

    assert host_differs.check(said("5.15", "6.8"), None, None) == []
    assert host_differs.check(said("5.15", "5.15", "5.15", "5.15"), None, None) == []
    assert host_differs.check(said("5.15", "5.15", "6.8", "6.8"), None, None) == []


def test_a_host_that_lacks_a_module_of_the_others_is_named_with_what_it_is_for() -> None:
    loaded = [fact(h, "module", m, "loaded") for h in HOSTS for m in ("nvidia", *(["nvidia_peermem"] if h != "node2" else []))]
    [finding] = host_differs.check(table("host_facts", *loaded), None, None)
    assert (finding.cause, finding.hosts) == ("gdr-disabled", ("node2",))
    nobody = [fact(h, "module", "nvidia", "loaded") for h in HOSTS]
    assert host_differs.check(table("host_facts", *nobody), None, None) == []


@pytest.mark.parametrize(
    ("row", "cause", "severity"),
    [
        (fact("node1", "clock", "synchronized", "no"), "environment-mismatch", "info"),
        (fact("node1", "clock", "offset", "3 s slow", -3.0), "environment-mismatch", "info"),
        (fact("node1", "bmc", "Critical Interrupt #0x12", "PCI SERR"), "pcie-degraded", "warning"),
        (fact("node1", "bmc", "Power Supply #0x51", "Failure detected"), "gpu-throttled", "warning"),
        (fact("node1", "sensor", "Inlet Temp", "47 degrees C: ucr"), "gpu-throttled", "warning"),
        (fact("node1", "sensor", "Fan 3", "0 RPM: lnr"), "gpu-throttled", "warning"),
        (fact("node1", "load", "iowait-percent", "73.0", 73.0), "host-stall", "warning"),
    ],
)
def test_a_host_in_trouble_says_so_itself(row: dict[str, object], cause: str, severity: str) -> None:
    [finding] = host_differs.check(table("host_facts", row), None, None)
    assert (finding.cause, finding.severity, finding.hosts) == (cause, severity, ("node1",))


@pytest.mark.parametrize(
    "row",
    [
        fact("node1", "clock", "synchronized", "yes"),
        fact("node1", "clock", "offset", "0.001 s fast", 0.001),
        fact("node1", "bmc", "Power Supply #0x51", "Presence detected"),
        fact("node1", "sensor", "Inlet Temp", "24 degrees C: ok"),
        fact("node1", "sensor", "Fan 3", "4200 RPM: nc"),
        fact("node1", "load", "iowait-percent", "3.0", 3.0),
    ],
)
def test_a_host_without_trouble_is_quiet(row: dict[str, object]) -> None:
    assert host_differs.check(table("host_facts", row), None, None) == []


def test_a_port_that_fails_a_health_check_is_an_error_and_a_fabrics_link_is_not() -> None:
    line = {"kind": "error", "name": "mlx5_3", "message": "flapping within 6 hours"}
    [checked] = fabric_diagnostics.check(table("ib_diagnostics", line | {"tool": "nhc"}))
    [other] = fabric_diagnostics.check(table("ib_diagnostics", line | {"tool": "ibdiagnet"}))
    assert (checked.severity, other.severity) == ("error", "warning")
