"""NICs that some hosts lack, that run slowly, or that are passed by."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.nics import gdr_disabled, nic_slow, nic_underused, socket_fallback, socket_fallback_of_plugin
from nccl_forensics.views.ib_ports import PORTS
from nccl_forensics.views.nccl_facts import GPU_LINKS
from tests.rules.frames import cited, errors, host_ranks, networks, nics, people, settings, told
from tests.rules.host_frames import table
from tests.views.frames import rows

BOTH, FAST = ["mlx5_0", "mlx5_1"], {"mlx5_0": 400_000, "mlx5_1": 400_000}


# ---- devices that are missing, and filters ----


def test_the_host_that_lacks_a_device_is_named_with_it() -> None:
    [finding] = nic_underused.check(nics(node1=BOTH, node2=["mlx5_0"], node3=BOTH), host_ranks(node1=[0], node2=[1], node3=[2]), None)
    assert (finding.severity, finding.confidence, finding.hosts) == ("error", "high", ("node2",))
    assert [(c.host, c.nic) for c in finding.culprits] == [("node2", "mlx5_1")]
    assert cited(finding) == [(0, 2), (2, 2), (None, None)]
    assert finding.title == "node2 uses 1 of 2 NICs: mlx5_1 is missing"


def test_a_filter_that_one_host_alone_has_names_its_ranks() -> None:
    hosts = host_ranks(node1=[0, 1], node2=[2, 3])
    filtered = settings("NCCL_IB_HCA", ("mlx5_0", [0, 1]))
    [finding] = nic_underused.check(nics(node1=["mlx5_0"], node2=BOTH), hosts, filtered)
    assert told(finding) == ("error", "high", (0, 1))
    assert finding.title == "node1 uses 1 of 2 NICs: mlx5_1 is missing (NCCL_IB_HCA=mlx5_0)"
    # A filter that all hosts have, or that some ranks of the host lack, does not tell why a device is missing.
    for everywhere in (
        filtered.with_columns(hosts=pl.lit(["node1", "node2"])),
        filtered.with_columns(ranks=pl.lit([0], dtype=pl.List(pl.Int32))),
    ):
        [finding] = nic_underused.check(nics(node1=["mlx5_0"], node2=BOTH), hosts, everywhere)
        assert [(c.host, c.nic) for c in finding.culprits] == [("node1", "mlx5_1")]


def test_a_host_that_lacks_several_devices_is_named_with_all_its_ranks() -> None:
    four = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    hosts = host_ranks(node1=[0, 1], node2=[2, 3])
    [finding] = nic_underused.check(nics(node1=four, node2=four[2:]), hosts, None)
    assert told(finding) == ("error", "high", (2, 3))
    [port] = nic_underused.check(nics(node1=four, node2=four[1:]), hosts, None)
    assert [(c.rank, c.nic) for c in port.culprits] == [(None, "mlx5_0")]


def test_a_host_with_fewer_ranks_and_as_many_nics_for_each_may_be_of_another_model() -> None:
    four = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    hosts = host_ranks(node1=[0, 1, 2, 3], node2=[4, 5])
    [finding] = nic_underused.check(nics(node1=four, node2=four[:2]), hosts, None)
    assert told(finding) == ("info", "low", (4, 5))
    [fewer] = nic_underused.check(nics(node1=four, node2=four[:1]), hosts, None)
    assert told(fewer) == ("error", "high", (4, 5))


def test_of_two_hosts_that_each_lost_another_device_both_are_named() -> None:
    three = ["mlx5_0", "mlx5_1", "mlx5_2"]
    found = nic_underused.check(nics(node1=three[:2], node2=three[1:]), host_ranks(node1=[0], node2=[1]), None)
    assert [(f.hosts, f.culprits[0].nic) for f in found] == [(("node1",), "mlx5_2"), (("node2",), "mlx5_0")]


def test_hosts_with_the_same_devices_or_with_other_names_for_them_stay_quiet() -> None:
    both = host_ranks(node1=[0], node2=[1])
    assert nic_underused.check(nics(node1=BOTH, node2=BOTH), both, None) == []
    assert nic_underused.check(nics(node1=BOTH, node2=["mlx5_4", "mlx5_5"]), both, None) == []


def test_a_filter_that_leaves_one_nic_for_many_gpus_is_named() -> None:
    inputs = nics(node1=["mlx5_0"]), host_ranks(node1=[0, 1, 2, 3])
    [finding] = nic_underused.check(*inputs, settings("NCCL_IB_HCA", ("mlx5_0", [0, 1, 2, 3])))
    assert (finding.severity, finding.confidence, finding.hosts) == ("error", "high", ("node1",))
    assert cited(finding) == [(0, 2), (0, 1)]
    assert finding.title == "NCCL_IB_HCA=mlx5_0 leaves 1 NIC for 4 GPUs on node1"
    assert nic_underused.check(*inputs, settings("NCCL_IB_HCA", ("^mlx5_9", [0, 1, 2, 3]))) == []
    one, two = (rows(PORTS, *({"host": "node1", "device": f"mlx5_{n}"} for n in range(count))) for count in (1, 2))
    alone = settings("NCCL_IB_HCA", ("mlx5_0", [0, 1, 2, 3]))
    assert nic_underused.check(*inputs, alone, one) == [], "the host has no other"
    assert len(nic_underused.check(*inputs, alone, two)) == 1
    assert nic_underused.check(*inputs, settings("NCCL_IB_HCA", ("mlx5_0", [0, 1, 2, 3])), gpus_per_nic=4.0) == []


def test_a_list_of_devices_to_leave_out_that_leaves_one_for_many_gpus_is_named_with_less_confidence() -> None:
    inputs = nics(node1=["mlx5_0"]), host_ranks(node1=[0, 1, 2, 3])
    [finding] = nic_underused.check(*inputs, settings("NCCL_IB_HCA", ("^mlx5_1,mlx5_2,mlx5_3", [0, 1, 2, 3])))
    assert (finding.severity, finding.confidence, finding.hosts) == ("error", "medium", ("node1",))
    assert finding.summary.endswith("It leaves out 3; whether these are there is not told.")
    # Two of eight GPUs' worth of devices and one for storage: the usual list.
    few = nics(node1=["mlx5_0", "mlx5_1"]), host_ranks(node1=list(range(8)))
    assert nic_underused.check(*few, settings("NCCL_IB_HCA", ("^mlx5_bond_0", list(range(8))))) == []


# ---- slow devices ----


def test_a_device_slower_than_on_the_other_hosts_is_named() -> None:
    [finding] = nic_slow.check(nics(node1=FAST, node2=FAST | {"mlx5_1": 100_000}))
    assert (finding.severity, finding.confidence, finding.cause) == ("error", "high", "ib-link")
    assert [(c.host, c.nic) for c in finding.culprits] == [("node2", "mlx5_1")]
    assert cited(finding) == [(1, 2), (0, 1)]
    assert finding.title == "mlx5_1 on node2 runs at 100 Gb/s, others at 400"


def test_on_a_single_host_a_device_slower_than_its_neighbours_is_named() -> None:
    [finding] = nic_slow.check(nics(node1=FAST | {"mlx5_2": 400_000, "mlx5_3": 200_000}))
    assert [(c.host, c.nic) for c in finding.culprits] == [("node1", "mlx5_3")]


def test_a_device_that_is_slow_on_every_host_is_so_by_design() -> None:
    storage = FAST | {"mlx5_2": 400_000, "mlx5_3": 25_000}
    assert nic_slow.check(nics(node1=storage, node2=storage)) == []


def test_devices_of_one_speed_or_of_unknown_speed_stay_quiet() -> None:
    assert nic_slow.check(nics(node1=FAST, node2=FAST)) == []
    assert nic_slow.check(nics(node1=FAST, node2=BOTH)) == []


# ---- GPUDirect RDMA ----

PEOPLE = people((0, "node1", 100), (1, "node2", 101))


def connections(*gdr: bool, network: str = "IB") -> pl.LazyFrame:
    """One connection per host: node1, node2."""
    return table(
        "nccl_connections",
        *[
            {"host": f"node{n + 1}", "pid": 100 + n, "transport": "NET", "network": network, "gdr": g, "source_id": n, "line_no": 20}
            for n, g in enumerate(gdr)
        ],
    )


def test_the_host_without_gpudirect_rdma_is_named_where_another_has_it() -> None:
    says = table("nccl_network", {"item": "gdr-nic", "value": "Disabled", "host": "node2", "source_id": 1, "line_no": 4})
    [finding] = gdr_disabled.check(connections(True, False), says, PEOPLE)
    assert told(finding) == ("error", "high", (1,))
    assert finding.hosts == ("node2",)
    assert cited(finding) == [(1, 20), (1, 4)]


def test_ranks_without_a_connection_of_their_own_lack_it_with_their_host() -> None:
    three = people((0, "node1", 100), (1, "node2", 101), (2, "node2", 102))
    [finding] = gdr_disabled.check(connections(True, False), None, three)
    assert finding.ranks == (1, 2)


def test_where_no_host_has_it_the_platform_may_never_have_had_it() -> None:
    [finding] = gdr_disabled.check(connections(False, False), None, PEOPLE)
    assert told(finding) == ("warning", "medium", (0, 1))


def test_where_nccl_lacks_the_module_or_the_gpus_have_nvlink_no_gpudirect_anywhere_is_an_error() -> None:
    says = table("nccl_network", {"item": "gdr-nic", "value": "Disabled", "host": "node2", "source_id": 1, "line_no": 4})
    [finding] = gdr_disabled.check(connections(False, False), says, PEOPLE)
    assert told(finding) == ("error", "medium", (0, 1))
    sharp = says.with_columns(item=pl.lit("nvls"), value=pl.lit("available"))
    [finding] = gdr_disabled.check(connections(False, False), sharp, PEOPLE)
    assert finding.severity == "error"
    nvlink = rows(GPU_LINKS, {"host": "node1", "gpu": "1b000", "nvlink_gb_s": 370.8, "source_id": 0, "line_no": 3})
    [finding] = gdr_disabled.check(connections(False, False), None, PEOPLE, nvlink)
    assert finding.severity == "error"
    far = says.with_columns(value=pl.lit("Enabled"))
    [finding] = gdr_disabled.check(connections(False, False), far, PEOPLE)
    assert finding.severity == "warning"


def test_gpudirect_everywhere_or_sockets_stay_quiet() -> None:
    assert gdr_disabled.check(connections(True, True), None, PEOPLE) == []
    assert gdr_disabled.check(connections(False, False, network="Socket"), None, PEOPLE) == []


# ---- sockets ----

TWO = host_ranks(node1=[0], node2=[1])


def test_the_host_on_sockets_is_named_where_another_uses_rdma() -> None:
    [finding] = socket_fallback.check(networks(node1="IB", node2="Socket"), None, TWO)
    assert told(finding) == ("error", "high", (1,))
    assert finding.hosts == ("node2",)
    assert cited(finding) == [(1, 3), (0, 3)]


def test_another_network_of_an_unknown_kind_is_no_sure_sign_of_rdma() -> None:
    [finding] = socket_fallback.check(networks(node1="TCPX_v7", node2="Socket"), None, TWO)
    assert (finding.confidence, finding.severity) == ("medium", "error")
    assert "other hosts over TCPX_v7" in finding.title
    for name in ("IB", "IBext_v8", "AWS Libfabric", "gIB", "OFI"):
        [finding] = socket_fallback.check(networks(node1=name, node2="Socket"), None, TWO)
        assert finding.confidence == "high", name


def test_sockets_in_spite_of_rdma_devices_are_an_error() -> None:
    [finding] = socket_fallback.check(networks(node1="Socket", node2="Socket"), nics(node1=["mlx5_0"]), TWO)
    assert told(finding) == ("error", "high", (0, 1))


def test_sockets_where_no_rdma_device_is_listed_are_information_only() -> None:
    [finding] = socket_fallback.check(networks(node1="Socket", node2="Socket"), None, TWO)
    assert told(finding) == ("info", "low", (0, 1))


def test_sockets_where_a_setting_asks_for_rdma_devices_are_an_error() -> None:
    both = networks(node1="Socket", node2="Socket")
    [finding] = socket_fallback.check(both, None, TWO, settings("NCCL_IB_HCA", ("mlx5_9", [0, 1])))
    assert told(finding) == ("error", "medium", (0, 1))
    assert finding.summary == "NCCL_IB_HCA=mlx5_9 asks for RDMA devices, and NCCL found none of them."
    assert cited(finding) == [(0, 3), (1, 3), (0, 2)]


def test_sockets_beside_active_ports_of_infiniband_are_an_error() -> None:
    both = networks(node1="Socket", node2="Socket")
    port = {"host": "node2.cluster", "device": "mlx5_0", "state": "active", "link_layer": "InfiniBand", "source_id": 9, "line_no": 4}

    def found(**other: object) -> list[tuple[object, ...]]:
        findings = socket_fallback.check(both, None, TWO, None, rows(PORTS, port | other))
        return [(told(f)[:2], cited(f)[-1]) for f in findings]

    assert found() == [(("error", "high"), (9, 4))]
    for other in ({"state": "down"}, {"link_layer": "Ethernet"}, {"host": "node3"}, {"host": None}):
        assert found(**other) == [(("info", "low"), (1, 3))], other


def test_a_filter_of_devices_to_leave_out_asks_for_none() -> None:
    both = networks(node1="Socket", node2="Socket")
    for other in (settings("NCCL_IB_HCA", ("^mlx5_bond_0", [0, 1])), settings("NCCL_IB_TIMEOUT", ("22", [0, 1]))):
        [finding] = socket_fallback.check(both, None, TWO, other)
        assert told(finding) == ("info", "low", (0, 1))


def test_a_filter_that_leaves_out_a_whole_kind_of_devices_is_named() -> None:
    both = networks(node1="Socket", node2="Socket")
    for value in ("^mlx5_", "^mlx5", "^mlx5_bond_0,ibp"):
        [finding] = socket_fallback.check(both, None, TWO, settings("NCCL_IB_HCA", (value, [0, 1])))
        assert told(finding) == ("error", "medium", (0, 1)), value
        assert finding.summary == f"NCCL_IB_HCA={value} leaves out all RDMA devices of such a name, and NCCL found no other."
    for value in ("^=mlx5_bond_0", "^mlx5_0,mlx5_1", "^mlx5_0:1"):
        [finding] = socket_fallback.check(both, None, TWO, settings("NCCL_IB_HCA", (value, [0, 1])))
        assert told(finding) == ("info", "low", (0, 1)), value


def test_rdma_everywhere_or_a_single_host_stay_quiet() -> None:
    assert socket_fallback.check(networks(node1="IB", node2="IB"), None, TWO) == []
    assert socket_fallback.check(networks(node1="Socket"), nics(node1=["mlx5_0"]), host_ranks(node1=[0, 1])) == []


def test_a_plugin_that_finds_no_device_before_sockets_are_used_is_named() -> None:
    said = errors({"kind": "plugin", "pid": 101, "message": "NET/OFI Couldn't find any optimal provider"})
    who = people((1, "node1", 101))

    def over(network: str) -> pl.LazyFrame:
        return table("nccl_connections", {"transport": "NET", "network": network, "line_no": 7})

    [finding] = socket_fallback_of_plugin.check(said, over("Socket"), who)
    assert told(finding) == ("error", "high", (1,))
    assert cited(finding) == [(0, 1), (0, 7)]
    assert socket_fallback_of_plugin.check(said, over("AWS Libfabric"), who) == []
    unopened = errors({"kind": "ib-device", "pid": 101, "message": "NET/IB : Unable to open device mlx5_0"})
    [finding] = socket_fallback_of_plugin.check(unopened, over("Socket"), who)
    assert finding.title == "NCCL could open no RDMA device of node1, and NCCL talks over TCP sockets"
    assert socket_fallback_of_plugin.check(unopened, over("IB"), who) == []
    assert (
        socket_fallback_of_plugin.check(errors({"kind": "plugin", "pid": 101, "message": "NET/OFI Using 4 rails"}), over("Socket"), who)
        == []
    )
