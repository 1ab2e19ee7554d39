"""Rules about links, loss, congestion, MTU, bandwidth, wrong results and stops from outside."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.model import Finding
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, read_bundle
from nccl_forensics.rules import all_rules
from nccl_forensics.rules.bandwidth_test_failed import bandwidth_test_failed
from nccl_forensics.rules.congestion import congestion
from nccl_forensics.rules.data_corruption import data_corruption
from nccl_forensics.rules.ib_link import ib_link
from nccl_forensics.rules.job_stopped import job_stopped
from nccl_forensics.rules.low_bus_bandwidth import low_bus_bandwidth
from nccl_forensics.rules.mtu_mismatch import mtu_mismatch
from nccl_forensics.rules.packet_loss import packet_loss
from nccl_forensics.rules.unreachable_host import unreachable_host
from nccl_forensics.store import SOURCES
from nccl_forensics.tables import TABLES
from nccl_forensics.views import Resolver
from nccl_forensics.views.ib_ports import PORTS
from nccl_forensics.views.job_signs import JOB_SIGNS
from nccl_forensics.views.nccl_facts import HOST_NICS
from tests.corpus import corpus
from tests.views.frames import rows

COUNTERS = {
    "tool": pl.String(),
    "place": pl.String(),
    "host": pl.String(),
    "node": pl.String(),
    "device": pl.String(),
    "port": pl.Int32(),
    "counter": pl.String(),
    "first": pl.Int64(),
    "last": pl.Int64(),
    "samples": pl.UInt32(),
    "growth": pl.Int64(),
    "saturated": pl.Boolean(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "record": pl.String(),
}
HOSTS = pl.DataFrame(schema={"source_id": pl.UInt32(), "host": pl.String(), "how": pl.String()})


def port(host: str, device: str = "mlx5_0", **facts: object) -> dict[str, object]:
    plain = {"state": "active", "phys_state": "linkup", "rate_gbit_s": 400.0, "width": 4, "link_layer": "infiniband", "hca_type": "MT4129"}
    return {"place": host, "host": host, "device": device, "port": 1, "source_id": 1, "line_no": 5, **plain, **facts}


def ports(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=PORTS)


def counter(host: str, name: str, last: int, growth: int | None = None, device: str = "mlx5_0", **facts: object) -> dict[str, object]:
    saturated = (name, last) in {("link_downed", 255), ("symbol_error", 65535)}
    where = {"tool": "sysfs", "place": host, "host": host, "device": device, "port": 1, "source_id": 1, "line_no": 9}
    return {**where, "counter": name, "last": last, "growth": growth, "saturated": saturated, **facts}


def counters(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=COUNTERS)


def table(name: str, *rows: dict[str, object]) -> pl.DataFrame:
    frame = TABLES[name].frame([{"line_no": 3, **r} for r in rows])
    sources = pl.Series("source_id", [r.get("source", 1) for r in rows], dtype=pl.UInt32())
    return frame.insert_column(0, sources)


def links(ib_ports: pl.DataFrame | None = None, ib_counters: pl.DataFrame | None = None, **more: pl.DataFrame) -> list[Finding]:
    return ib_link.check(ib_ports, ib_counters, more.get("ib_links"), more.get("link_quality"), HOSTS)


def test_a_port_that_is_down_on_one_host_and_active_on_the_others_is_named():
    [finding] = links(ports(port("a"), port("b"), port("c", state="down", phys_state="polling")))
    assert (finding.severity, finding.confidence) == ("error", "high")
    [culprit] = finding.culprits
    assert (culprit.host, culprit.nic, culprit.link) == ("c", "mlx5_0", "mlx5_0/1")


def test_a_port_that_is_down_and_still_bears_its_address_was_up_before():
    alone = {"state": "down", "phys_state": "polling", "lid": 868, "sm_lid": 334}
    [finding] = links(ports(port("a", **alone)))
    assert (finding.severity, finding.confidence) == ("error", "medium")
    for never in ({"lid": 65535}, {"lid": 0}, {"sm_lid": 0}, {"phys_state": "disabled"}):
        [finding] = links(ports(port("a", **(alone | never))))
        assert (finding.severity, finding.confidence) == ("warning", "low")


def test_a_port_that_is_down_everywhere_is_unused():
    down = {"state": "down", "phys_state": "disabled"}
    assert links(ports(port("a"), port("a", "mlx5_1", **down), port("b"), port("b", "mlx5_1", **down), port("c", "mlx5_1", **down))) == []


def test_half_the_rate_of_the_same_port_elsewhere_is_named_with_its_lanes():
    [finding] = links(ports(port("a"), port("b"), port("c"), port("d", rate_gbit_s=200.0, width=2)))
    assert "200 of 400 Gbit/s with 2 of 4 lanes" in finding.title
    assert finding.hosts == ("d",)


def test_a_slower_adapter_of_another_kind_on_the_host_is_quiet():
    fast = [port("a", f"mlx5_{i}") for i in range(4)]
    assert links(ports(*fast, port("a", "mlx5_bond_0", rate_gbit_s=200.0, hca_type="MT41692", link_layer="ethernet"))) == []


def test_a_slower_port_on_another_fabric_is_quiet():
    fast = [port("a", f"mlx5_{i}", sm_lid=10) for i in range(4)]
    assert links(ports(*fast, port("a", "mlx5_4", rate_gbit_s=56.0, sm_lid=43))) == []


def test_a_link_down_counter_at_its_maximum_among_zeros_is_an_error_but_not_sure():
    others = [counter(f"h{i}", "link_downed", 0) for i in range(4)]
    [finding] = links(None, counters(*others, counter("bad", "link_downed", 255)))
    assert (finding.severity, finding.confidence) == ("error", "medium")
    assert "255, where the counter stops" in finding.title
    assert finding.summary.startswith("One sample")  # what the title says is not said again


def test_one_port_alone_has_only_the_threshold_to_stand_beside():
    [finding] = links(None, counters(counter("a", "symbol_error", 37), counter("a", "link_downed", 255)))
    assert (finding.severity, finding.confidence) == ("warning", "low")
    assert "above ibqueryerrors' threshold" in finding.title
    assert links(None, counters(counter("a", "symbol_error", 3))) == []
    assert links(None, counters(counter("a", "symbol_error", 37), counter("b", "symbol_error", 29))) == []


def test_the_same_counter_high_on_all_ports_is_quiet():
    assert links(None, counters(*(counter(f"h{i}", "port_rcv_errors", 14) for i in range(6)))) == []


def test_a_counter_known_to_stand_at_15_on_healthy_ports_is_quiet():
    others = [counter(f"h{i}", "excessive_buffer_overrun_errors", 0) for i in range(4)]
    assert links(None, counters(*others, counter("h9", "excessive_buffer_overrun_errors", 15))) == []


def test_a_link_that_went_down_between_two_samples_is_sure():
    [finding] = links(None, counters(counter("a", "link_downed", 4, growth=1)))
    assert (finding.severity, finding.confidence) == ("error", "high")


def test_a_bit_error_rate_after_correction_is_bad_and_raw_errors_are_not():
    bad = table("link_quality", {"device": "mlx5_0", "effective_errors": 12, "effective_ber": 3e-12, "raw_ber": 2e-9, "opcode": 0})
    good = table(
        "link_quality", {"device": "mlx5_0", "effective_errors": 0, "effective_ber": 0.0, "raw_ber": 2e-9, "opcode": 0, "link_downs": 0}
    )
    assert [f.severity for f in links(link_quality=bad)] == ["error"]
    assert links(link_quality=good) == []


def loss(ib: pl.DataFrame | None = None, net: pl.DataFrame | None = None, socks: pl.DataFrame | None = None) -> list[Finding]:
    samples = None if net is None else net.with_columns(place="host")
    return packet_loss.check(ib, samples, socks, None, HOSTS)


def test_drops_are_an_error_where_rdma_of_that_host_missed_packets():
    drops = table(
        "net_counters",
        {"source": 0, "host": "a", "interface": "e", "counter": "rx_packets", "value": 10**6},
        {"source": 0, "host": "a", "interface": "e", "counter": "rx_discards_phy", "value": 4000},
    )
    assert [f.severity for f in loss(net=drops)] == ["warning"]
    assert "error" in [f.severity for f in loss(counters(counter("a", "out_of_sequence", 4000)), drops)]
    assert [f.severity for f in loss(counters(counter("b", "out_of_sequence", 4000)), drops)] == ["warning"]


def test_timers_that_ran_out_during_the_job_are_an_error():
    [finding] = loss(counters(counter("a", "local_ack_timeout_err", 9, growth=9)))
    assert finding.severity == "error"
    assert finding.hosts == ("a",)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ({"device": "mlx5_0", "port": 1}, "mlx5_0 port 1 of a: "),
        ({"device": None, "port": 1}, "port 1 of a: "),
        ({"device": None, "port": None}, "a port of a: "),
    ],
)
def test_a_port_without_its_adapter_is_called_by_its_number(place: dict[str, object], name: str):
    [finding] = loss(counters({**counter("a", "local_ack_timeout_err", 9, growth=9), **place}))
    assert finding.title.startswith(name)


def test_completions_with_errors_alone_follow_any_death_and_are_quiet():
    assert loss(counters(counter("a", "req_cqe_error", 50, growth=50), counter("a", "duplicate_request", 3, growth=3))) == []


def test_retransmitted_segments_count_by_their_share():
    def nstat(sent: int, again: int) -> pl.DataFrame:
        rows = ({"counter": "TcpOutSegs", "value": sent}, {"counter": "TcpRetransSegs", "value": again})
        return table("net_counters", *({"tool": "nstat", "host": "a", **r} for r in rows))

    [finding] = loss(None, nstat(100_000, 3_000))
    assert "3.00%" in finding.title
    assert finding.confidence == "low"  # since boot
    assert loss(None, nstat(10_000_000, 3_000)) == []


def test_a_socket_that_is_not_acknowledged_names_its_peer():
    row = {"state": "ESTAB", "send_q_bytes": 4096, "retrans_now": 1, "backoff": 5, "peer": "10.0.0.9:40000", "last_received_ms": 64000}
    [finding] = loss(None, None, table("sockets", {"host": "a", **row}))
    assert finding.title == "10.0.0.9 does not acknowledge a socket of a, silent for 64 s"
    assert loss(None, None, table("sockets", {"host": "a", **row, "retrans_now": 0, "backoff": None})) == []


def test_waiting_for_credits_counts_as_a_share_and_only_if_it_stands_out():
    def waits(host: str, ticks: int) -> list[dict[str, object]]:
        return [counter(host, "port_xmit_wait", ticks), counter(host, "port_xmit_data", 10**9)]

    calm = [row for i in range(4) for row in waits(f"h{i}", 10**6)]
    [finding] = congestion.check(counters(*calm, *waits("bad", 10**9)), None, HOSTS)
    assert finding.hosts == ("bad",)
    alike = [row for i in range(4) for row in waits(f"h{i}", 10**9)]
    assert congestion.check(counters(*alike), None, HOSTS) == []


def test_congestion_marks_count_by_growth_and_share():
    packets = counter("a", "port_rcv_packets", 10**6, growth=10**6)
    assert len(congestion.check(counters(packets, counter("a", "np_cnp_sent", 50_000, growth=50_000)), None, HOSTS)) == 1
    assert congestion.check(counters(packets, counter("a", "np_cnp_sent", 50, growth=50)), None, HOSTS) == []


def test_marks_on_one_port_alone_that_hold_senders_back_are_a_loss():
    def marks(host: str, count: int) -> list[dict[str, object]]:
        return [counter(host, "port_rcv_packets", 10**6, growth=10**6), counter(host, "np_ecn_marked_roce_packets", count, growth=count)]

    calm = [row for i in range(4) for row in marks(f"h{i}", 40)]
    [finding] = congestion.check(counters(*calm, *marks("bad", 90_000)), None, HOSTS)
    assert (finding.severity, finding.hosts) == ("error", ("bad",))
    few = congestion.check(counters(*calm, *marks("bad", 20_000)), None, HOSTS)
    alike = congestion.check(counters(*(row for i in range(5) for row in marks(f"h{i}", 90_000))), None, HOSTS)
    assert {f.severity for f in (*few, *alike)} == {"warning"}


def interface_counter(name: str, value: int) -> pl.DataFrame:
    return table("net_counters", {"source": 0, "host": "a", "interface": "eth2", "counter": name, "value": value})


def test_a_host_that_pauses_its_switch_for_long_is_named_and_one_that_never_did_is_not():
    [finding] = congestion.check(None, interface_counter("tx_pause_storm_warning_events", 12), HOSTS)
    assert (finding.title, finding.hosts) == ("eth2 of a pauses the network: tx_pause_storm_warning_events 12", ("a",))
    assert congestion.check(None, interface_counter("tx_pause_storm_warning_events", 0), HOSTS) == []


def test_packets_beyond_the_allowance_of_an_instance_are_told_with_its_interface():
    [finding] = loss(net=interface_counter("pps_allowance_exceeded", 5132))
    assert finding.title == "eth2 of a ran into the limits of its instance: pps_allowance_exceeded 5132"
    assert (finding.severity, finding.confidence, finding.hosts) == ("warning", "low", ("a",))
    assert loss(net=interface_counter("pps_allowance_exceeded", 0)) == []


def subnet(*mtus: int) -> list[Finding]:
    interfaces = [{"source": i, "host": f"h{i}", "name": "eth0", "mtu_bytes": m} for i, m in enumerate(mtus)]
    addresses = [
        {"source": i, "host": f"h{i}", "interface": "eth0", "family": "inet", "address": f"10.0.0.{i + 1}", "prefix": 24}
        for i in range(len(mtus))
    ]
    return mtu_mismatch.check(table("net_interfaces", *interfaces), table("net_addresses", *addresses), None, None, None, HOSTS)


def test_another_mtu_inside_one_subnet_names_the_odd_host():
    [finding] = subnet(9000, 9000, 1500)
    assert finding.hosts == ("h2",)
    assert subnet(9000, 9000, 9000) == []


def named(*rows: tuple[str, str, int, str], addressed: str = "eth9") -> list[Finding]:
    interfaces = [{"source": i, "host": h, "name": n, "mtu_bytes": m, "state": state} for i, (h, n, m, state) in enumerate(rows)]
    address = {"host": "h0", "interface": addressed, "family": "inet", "address": "10.0.0.1", "prefix": 24}
    return mtu_mismatch.check(table("net_interfaces", *interfaces), table("net_addresses", address), None, None, None, HOSTS)


def test_interfaces_of_one_name_without_addresses_name_the_odd_host_in_one_finding():
    rows = [(h, n, 1500 if h == "h2" else 9000, "up") for h in ("h0", "h1", "h2") for n in ("ens1", "ens2")]
    [finding] = named(*rows)
    assert (finding.title, finding.hosts) == ("ens1 and 1 more interfaces of h2 have MTU 1500, those of the other hosts 9000", ("h2",))
    assert finding.confidence == "high"


def test_interfaces_that_are_down_inside_a_host_or_have_addresses_of_their_own_networks_are_not_laid_side_by_side():
    assert named(("h0", "ens1", 9000, "up"), ("h1", "ens1", 1500, "down")) == []
    assert named(("h0", "docker0", 9000, "up"), ("h1", "docker0", 1500, "up")) == []
    assert named(("h0", "ens1", 9000, "up"), ("h1", "ens1", 1500, "up"), addressed="ens1") == []


def test_a_path_with_a_smaller_mtu_than_the_interface_it_begins_at_is_told():
    traced = {"tool": "tracepath", "outcome": "pmtu", "size_bytes": 8972}
    [finding] = mtu_mismatch.check(None, None, None, table("pings", {**traced, "mtu_bytes": 1500}), None, HOSTS)
    assert "carries 1500 bytes, its own interface 9000" in finding.title
    assert mtu_mismatch.check(None, None, None, table("pings", {**traced, "mtu_bytes": 9000}), None, HOSTS) == []


def test_a_full_ping_that_vanishes_while_a_small_one_returns_is_a_black_hole():
    small = {"tool": "ping", "target": "b", "outcome": "statistics", "size_bytes": 56, "received": 5}
    large = {"tool": "ping", "target": "b", "outcome": "statistics", "size_bytes": 8972, "received": 0}
    [finding] = mtu_mismatch.check(None, None, None, table("pings", small, large), None, HOSTS)
    assert "vanish" in finding.title
    assert mtu_mismatch.check(None, None, None, table("pings", {**small, "received": 0}, large), None, HOSTS) == []


def test_the_one_host_that_pauses_the_network_while_the_others_are_told_to_wait_is_the_brake():
    def told(*sent: int, got: int = 900_000, samples: int = 2) -> list[tuple[str | None, str | None]]:
        grown = [(f"h{n}", way, by) for n, own in enumerate(sent) for way, by in (("tx", own), ("rx", got))]
        values = [
            {
                "host": host,
                "interface": "eth2",
                "tool": "ethtool-S",
                "counter": f"{way}_prio3_pause",
                "value": 7 + by * sample,
                "source_id": sample,
            }
            for host, way, by in grown
            for sample in range(samples)
        ]
        found = congestion.check(None, None, None, table("net_counters", *values))
        return [(f.severity, c.host) for f in found for c in f.culprits or ()]

    assert told(0, 3, 8_000_000, 0) == [("error", "h2")]
    # All pause alike; nobody was told to wait; there is one sample; too few hosts to compare with.
    assert told(8_000_000, 7_000_000, 8_000_000, 9_000_000) == told(0, 3, 8_000_000, 0, got=12) == told(0, 3, 8_000_000, 0, samples=1) == []
    assert told(0, 8_000_000) == []


def test_who_gets_large_packets_to_another_host_is_not_at_fault_for_a_black_hole():
    rows = [
        {"host": "a", "tool": "ping", "target": t, "outcome": "statistics", "size_bytes": size, "received": got}
        for t, size, got in (("10.0.0.2", 56, 5), ("10.0.0.2", 8972, 0), ("10.0.0.3", 8972, 5))
    ]
    homes = table("net_addresses", {"host": "b", "address": "10.0.0.2"}, {"host": "c", "address": "10.0.0.3"})

    def blamed(addresses: pl.LazyFrame | None, *given: dict[str, object]) -> list[str | None]:
        [finding] = mtu_mismatch.check(None, addresses, None, table("pings", *given), None, HOSTS)
        return [c.host for c in finding.culprits]

    assert blamed(homes, *rows) == ["b"]
    assert blamed(None, *rows) == []
    assert blamed(homes, *rows[:2]) == ["a"]


def test_queue_pairs_of_nccl_tell_the_mtu_of_each_host() -> None:
    def told(*codes: int, tools: pl.DataFrame | None = None) -> list[Finding]:
        notes = [{"kind": "ib-qp", "host": f"h{n}", "a": "0", "b": "1", "value": float(c), "source_id": n} for n, c in enumerate(codes)]
        return mtu_mismatch.check(None, None, tools, None, None, HOSTS, table("nccl_notes", *notes))

    [finding] = told(5, 3, 5)
    assert (finding.title, finding.confidence) == ("device 0 (NCCL) port 1 has MTU 1024 on h1 and 4096 elsewhere", "high")
    assert [c.host for c in finding.culprits] == ["h1"]
    assert [f.confidence for f in told(5, 3)] == ["medium"]
    assert told(5, 5) == told(3) == told(5, 0) == []
    assert told(5, 3, tools=ports(port("h0", mtu_bytes=4096), port("h1", mtu_bytes=4096))) == []  # the hosts' own tools speak first


def test_an_active_mtu_that_differs_between_hosts_is_named():
    [finding] = mtu_mismatch.check(
        None, None, ports(*(port(h, mtu_bytes=m) for h, m in (("a", 4096), ("b", 4096), ("c", 2048)))), None, None, HOSTS
    )
    assert finding.hosts == ("c",)


def run(bus_bw: float, number: int = 0, hosts: tuple[str, ...] = ("n1",), **facts: object) -> tuple[dict[str, object], dict[str, object]]:
    test = {"source": number, "test": 0, "collective": "all_reduce", "ranks": 8, "hosts": list(hosts), "gpus": ["NVIDIA H100 80GB HBM3"]}
    row = {"source": number, "test": 0, "bytes": 1 << 30, "placement": "in-place", "bus_bw_gb_s": bus_bw, "wrong": 0}
    return {**test, "complete": True, **facts}, row


def slow(*runs: tuple[dict[str, object], dict[str, object]], **thresholds: float) -> list[Finding]:
    tests, rows = table("bandwidth_tests", *(t for t, _ in runs)), table("bandwidth_rows", *(r for _, r in runs))
    return low_bus_bandwidth.check(tests, rows, None, None, None, HOSTS, **thresholds)


def test_less_than_a_platform_reaches_is_an_error_that_names_its_source():
    [finding] = slow(run(230.0))
    assert "50%" in finding.title
    assert "Azure" in str(finding.metrics["expected_by"])
    assert slow(run(455.0)) == []


def test_without_an_expectation_nothing_is_said_and_a_configured_one_counts():
    unknown = run(10.0, gpus=["Some GPU"])
    assert slow(unknown) == []
    assert len(slow(unknown, expected_gb_s=100.0)) == 1


def over_nics(
    gb_s: float, nics: int, gpu: str = "NVIDIA H100 80GB HBM3", told: bool = True, logged: bool = True, state: str = "active"
) -> list[Finding]:
    """A run of 16 ranks on two hosts, of which NCCL uses ``nics`` NICs each; their speed is ``told`` by NCCL, else by the ports. Where NCCL
    left no log (not ``logged``) the ports alone are known."""
    test, row = run(gb_s, 0, ("a", "b"), gpus=[gpu], ranks=16)
    devices = [(host, f"mlx5_{i}") for host in ("a", "b") for i in range(nics)]
    listed = rows(HOST_NICS, *({"host": h, "device": d, "speed_mbps": 400000 if told else None} for h, d in devices))
    frames = table("bandwidth_tests", test), table("bandwidth_rows", row), None, None
    found = ports(*(port(h, device=d, state=state) for h, d in devices))
    return low_bus_bandwidth.check(*frames, found, HOSTS, host_nics=listed if logged else None)


def test_a_run_over_several_hosts_is_judged_by_the_nics_that_nccl_uses():
    [finding] = over_nics(95.0, 8)
    assert finding.title == "AllReduce of 16 ranks on a, b reaches 95.0 of 340 GB/s bus bandwidth (28%, broken)"
    assert (finding.severity, finding.confidence) == ("error", "medium")
    assert "8 x 400 Gbit/s" in str(finding.metrics["expected_by"])
    assert over_nics(330.0, 8) == over_nics(95.0, 2) == []
    [finding] = over_nics(95.0, 8, told=False)
    assert "8 x 400 Gbit/s" in str(finding.metrics["expected_by"]), "the ports tell their rate where NCCL does not"
    assert len(over_nics(95.0, 16)) == 1, "eight GPUs drive eight of them"


def test_without_a_log_of_nccl_only_far_less_than_the_active_ports_carry_is_told_and_not_surely():
    [finding] = over_nics(95.0, 8, logged=False)
    assert (finding.severity, finding.confidence) == ("error", "low")
    assert "the active ports on a carry (8 x 400 Gbit/s)" in str(finding.metrics["expected_by"])
    assert over_nics(200.0, 8, logged=False) == over_nics(95.0, 8, "NVIDIA A100-PCIE-40GB", logged=False) == []
    assert over_nics(95.0, 8, logged=False, state="down") == []


def test_cards_that_may_reach_their_nic_through_the_processor_are_a_warning():
    [finding] = over_nics(95.0, 8, "NVIDIA A100-PCIE-40GB")
    assert finding.severity == "warning"


def test_where_nothing_tells_of_nics_less_than_half_of_one_is_too_little_for_boards_that_have_eight():
    alone = {"hosts": ("a", "b"), "ranks": 16}
    [finding] = slow(run(3.1, **alone))
    assert finding.title == "AllReduce of 16 ranks on a, b reaches 3.1 of 11 GB/s bus bandwidth (29%, broken)"
    assert (finding.severity, finding.hosts) == ("error", ("a", "b"))
    assert slow(run(9.0, **alone)) == slow(run(3.1, **alone, gpus=["NVIDIA A100-PCIE-40GB"])) == []


def curve(*gb_s: float) -> list[Finding]:
    """A run of sizes from 32 MiB on, each twice the one before."""
    test, row = run(0.0, gpus=["X"])
    rows = [{**row, "bytes": (32 << 20) << i, "bus_bw_gb_s": g, "line_no": i + 1} for i, g in enumerate(gb_s)]
    return low_bus_bandwidth.check(table("bandwidth_tests", test), table("bandwidth_rows", *rows), None, None, None, HOSTS)


def test_a_run_that_falls_off_at_its_largest_sizes_is_told_from_where_on():
    [finding] = curve(12.0, 21.0, 30.0, 6.1, 5.9, 6.0)
    assert finding.title.startswith("all_reduce falls off from 256 MiB on: 6.0 GB/s")
    assert (finding.severity, finding.confidence) == ("error", "medium")


def test_a_run_that_dips_once_or_loses_some_is_quiet():
    assert curve(12.0, 21.0, 5.0, 30.0, 31.0) == []
    assert curve(12.0, 30.0, 25.0, 16.0, 14.0) == []
    assert curve(12.0, 30.0, 31.0, 31.0, 6.0) == []


def test_small_sizes_say_nothing_about_the_links():
    test, row = run(0.01)
    assert slow((test, {**row, "bytes": 8})) == []


def test_one_run_below_its_like_is_named_with_the_host_that_no_good_run_has():
    alike = [run(13.5, i, ("a", f"b{i}"), gpus=["X"], ranks=2) for i in range(6)]
    [finding] = slow(*alike, run(6.0, 9, ("a", "bad"), gpus=["X"], ranks=2))
    assert finding.hosts == ("bad",)
    assert finding.confidence == "high"


def all_pairs(*fast: str, slow_host: str) -> list[tuple[dict[str, object], dict[str, object]]]:
    """A send and receive between any two hosts, of which the table does not tell the name."""
    hosts = (*fast, slow_host)
    pairs = [(a, b) for i, a in enumerate(hosts) for b in hosts[i + 1 :]]
    return [run(6.0 if slow_host in p else 13.5, i, p, gpus=["X"], ranks=2, collective=None) for i, p in enumerate(pairs)]


def test_one_host_may_be_slow_in_each_of_its_pairs_and_the_name_of_the_file_tells_the_test() -> None:
    runs = all_pairs("a", "b", "c", slow_host="d")
    files = rows(SOURCES, *({"source_id": i, "path": f"logs/sendrecv_{i}.log"} for i, _ in enumerate(runs)))
    tests, found = table("bandwidth_tests", *(t for t, _ in runs)), table("bandwidth_rows", *(r for _, r in runs))
    assert {f.hosts for f in low_bus_bandwidth.check(tests, found, None, None, None, HOSTS, sources=files)} == {("d",)}
    assert low_bus_bandwidth.check(tests, found, None, None, None, HOSTS) == [], "of which test is not known"


def test_hosts_that_reach_it_in_another_run_can_carry_it():
    scan = [run(13.5 if i else 6.0, i, ("a",), gpus=["X"]) for i in range(6)]
    assert slow(*scan) == [], "one host, however often it was tested, is no fleet"
    fleet = [run(13.5, i, (f"b{i}",), gpus=["X"]) for i in range(6)]
    [finding] = slow(*fleet, run(6.0, 7, ("a",), gpus=["X"]), run(13.4, 8, ("a",), gpus=["X"]))
    assert (finding.hosts, finding.severity, finding.confidence) == (("a",), "warning", "low")
    [finding] = slow(*fleet, run(6.0, 7, ("a",), gpus=["X"]))
    assert (finding.severity, finding.confidence) == ("error", "high")


def test_a_run_of_other_data_or_with_fewer_repetitions_is_no_measure():
    fleet = [run(13.5, i, (f"b{i}",), gpus=["X"], iterations=20) for i in range(6)]
    test, row = run(6.0, 9, ("a",), gpus=["X"], iterations=20)
    assert len(slow(*fleet, (test, row))) == 1
    assert slow(*fleet, ({**test, "iterations": 1}, row)) == []
    assert slow(*fleet, (test, {**row, "dtype": "uint8"})) == []


def test_a_run_on_hosts_that_the_job_did_not_use_says_little_of_the_job():
    test, row = run(100.0, 0, ("n9",))
    frames = table("bandwidth_tests", test), table("bandwidth_rows", row)
    signs = rows(JOB_SIGNS, {"rank": 0, "host": "n1"}, {"rank": 1, "host": "n2"})
    [finding] = low_bus_bandwidth.check(*frames, None, None, None, HOSTS, None, signs, None)
    assert (finding.severity, finding.confidence) == ("warning", "low")


def test_an_rdma_test_is_judged_by_the_rate_of_its_port():
    def tested(average: float) -> list[Finding]:
        rows = table(
            "rdma_tests",
            {"host": "a", "test": 0, "name": "RDMA_Write BW Test", "device": "mlx5_0", "bytes": 65536, "average_gbit_s": average},
        )
        return low_bus_bandwidth.check(None, None, rows, None, ports(port("a")), HOSTS)

    [finding] = tested(196.0)
    assert finding.culprits[0].nic == "mlx5_0"
    assert tested(390.0) == []


def test_a_gpu_whose_cells_fall_behind_is_named():
    def matrix(*values: float) -> list[Finding]:
        rows = [
            {"tool": "nvbandwidth", "test": "host_to_device_memcpy_ce", "row": "0", "column": str(i), "unit": "gb_s", "value": v}
            for i, v in enumerate(values)
        ]
        return low_bus_bandwidth.check(None, None, None, table("gpu_bandwidth", *rows), None, HOSTS)

    [finding] = matrix(55.0, 55.1, 12.8, 55.2)
    assert finding.culprits[0].gpu == "2"
    assert matrix(55.0, 55.1, 54.8, 55.2) == []


def test_a_matrix_that_is_slow_as_a_whole_is_told_where_the_platform_is_known():
    def matrix(value: float, gpu: str | None) -> list[Finding]:
        rows = [
            {
                "tool": "nvbandwidth",
                "test": "host_to_device_memcpy_ce",
                "gpu": gpu,
                "row": "0",
                "column": str(i),
                "unit": "gb_s",
                "value": value,
            }
            for i in range(4)
        ]
        return low_bus_bandwidth.check(None, None, None, table("gpu_bandwidth", *rows), None, HOSTS)

    [finding] = matrix(26.0, "NVIDIA H100 80GB HBM3")
    assert (finding.severity, finding.confidence) == ("warning", "low")
    assert "26.0 GB/s between most pairs, 48" in finding.title
    assert matrix(55.0, "NVIDIA H100 80GB HBM3") == matrix(26.0, "NVIDIA H100 NVL") == matrix(26.0, None) == []


def test_wrong_elements_are_data_corruption():
    test, row = run(400.0)
    [finding] = data_corruption.check(table("bandwidth_tests", test), table("bandwidth_rows", row, {**row, "bytes": 1 << 20, "wrong": 17}))
    assert (finding.severity, finding.metrics["wrong"]) == ("critical", 17)
    assert data_corruption.check(table("bandwidth_tests", test), table("bandwidth_rows", {**row, "wrong": None})) == []


def test_of_hosts_that_got_wrong_results_those_that_computed_right_with_others_are_not_named():
    def wrong(*pairs: tuple[str, str, int]) -> list[tuple[str, ...]]:
        runs = [(run(400.0, i, (a, b)), n) for i, (a, b, n) in enumerate(pairs)]
        tests, counted = [t for (t, _), _ in runs], [{**r, "wrong": n} for (_, r), n in runs]
        return [f.hosts for f in data_corruption.check(table("bandwidth_tests", *tests), table("bandwidth_rows", *counted))]

    assert wrong(("a", "x", 3), ("b", "x", 5), ("a", "b", 0)) == [("x",)]
    assert wrong(("a", "x", 3), ("b", "x", 5)) == [("a", "x"), ("b", "x")]
    assert wrong(("a", "b", 3), ("a", "c", 0), ("b", "c", 0)) == [("a", "b")], "each computes right with a third: the pair is what is left"


def test_the_host_that_failed_runs_share_is_the_suspect():
    failed = {"complete": False, "error": "remote process exited or there was a network error"}
    rows = [run(1.0, i, pair, **failed)[0] for i, pair in enumerate((("a", "x"), ("b", "x"), ("c", "x")))]
    good = [run(1.0, 7, ("a", "b"))[0]]
    [finding] = bandwidth_test_failed.check(table("bandwidth_tests", *rows, *good), None, None, HOSTS)
    assert finding.hosts == ("x",)
    assert finding.severity == "error"
    assert bandwidth_test_failed.check(table("bandwidth_tests", *good), None, None, HOSTS) == []


def test_a_run_of_iperf3_that_loses_packets_is_an_error_where_a_clean_one_moved_more_than_twice_as_much() -> None:
    def found(*rates: tuple[float, int]) -> list[tuple[str, tuple[str, ...]]]:
        runs = [
            {"test": n, "stream": "5", "summary": True, "local": "10.0.0.1", "remote": f"10.0.0.{n + 2}", "bytes": 1448e7, "line_no": n}
            | {"gbit_s": rate, "retransmits": again}
            for n, (rate, again) in enumerate(rates)
        ]
        return [(f.severity, f.subject) for f in packet_loss.check(None, None, None, table("tcp_tests", *runs), HOSTS)]

    slow = ("10.0.0.1", "10.0.0.3", "iperf3")
    assert found((26.0, 10), (4.0, 50_000)) == [("error", slow)]
    assert found((26.0, 10), (20.0, 50_000)) == [("warning", slow)]
    assert found((26.0, 10), (4.0, 500)) == []
    assert [severity for severity, _ in found((26.0, 50_000), (4.0, 50_000))] == ["warning", "warning"]


def test_of_runs_of_iperf3_the_end_that_loses_with_all_others_is_named_and_streams_count_once() -> None:
    def found(*runs: tuple[str, str, int]) -> list[tuple[tuple[str, ...], str]]:
        tests = [
            {"test": n, "stream": stream, "summary": True, "local": a, "remote": b, "bytes": 1448e7, "gbit_s": 9.0, "retransmits": again}
            | {"line_no": n}
            for n, (a, b, again) in enumerate(runs)
            for stream in ("5", "7", "SUM")
        ]
        addresses = table("net_addresses", {"host": "node3", "address": "10.0.0.3", "scope": "global"})
        return [(f.hosts, f.title) for f in packet_loss.check(None, None, None, table("tcp_tests", *tests), None, addresses)]

    lossy = found(("10.0.0.1", "10.0.0.2", 0), ("10.0.0.1", "10.0.0.3", 300_000), ("10.0.0.3", "10.0.0.2", 300_000))
    assert [hosts for hosts, _ in lossy] == [("node3",), ("node3",)]
    assert lossy[0][1] == "iperf3 from 10.0.0.1 to node3 lost 3.00% of its packets"
    assert [hosts for hosts, _ in found(("10.0.0.1", "10.0.0.3", 300_000))] == [()]


def test_iperf3_without_an_answer_is_a_warning_and_a_refusal_is_no_fault() -> None:
    def found(error: str | None) -> list[tuple[str, str]]:
        tests = table("tcp_tests", {"remote": "10.0.0.2", "error": error})
        return [(f.severity, f.title) for f in bandwidth_test_failed.check(None, None, tests, HOSTS)]

    [(severity, title)] = found("unable to connect to server: Connection timed out")
    assert (severity, "at 10.0.0.2" in title) == ("warning", True)
    assert [s for s, _ in found("unable to connect to server: Connection refused")] == ["info"]
    assert found("control socket has closed unexpectedly") == found(None) == []


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        ("Failed to modify QP to RTR: Connection timed out", "error"),
        ("Failed to modify QP 138 to RTR", "warning"),
        ("Couldn't connect to node2:18515", "warning"),
    ],
)
def test_a_queue_pair_that_no_neighbour_answers_is_the_networks(error: str, severity: str) -> None:
    [finding] = bandwidth_test_failed.check(None, table("rdma_tests", {"test": 0, "error": error}), None, HOSTS)
    assert (finding.severity, finding.cause, finding.confidence) == (severity, "connection-failed", "medium")


SIGNS = pl.DataFrame({"sign": ["watchdog timeouts"]})


def stopped(state: str, signs: pl.DataFrame | None = None) -> list[Finding]:
    return job_stopped.check(
        table("scheduler_jobs", {"job_id": "7", "state": state}), None, None, None, None, signs, None, None, None, None
    )


def test_a_time_limit_without_a_failure_before_it_stopped_the_job():
    [finding] = stopped("TIMEOUT")
    assert (finding.cause, finding.severity) == ("job-stopped", "critical")


def test_a_time_limit_after_a_hang_is_only_context():
    [finding] = stopped("TIMEOUT", SIGNS)
    assert finding.severity == "info"


def test_a_preemption_explains_whatever_came_after_it():
    [finding] = stopped("PREEMPTED", SIGNS)
    assert finding.severity == "critical"


def test_a_lost_node_is_the_nodes_failure():
    [finding] = stopped("NODE_FAIL")
    assert finding.cause == "node-failed"


def test_of_a_listing_of_all_nodes_the_one_is_named_that_the_scheduler_has_as_down():
    job = table("scheduler_jobs", {"job_id": "7", "state": "NODE_FAIL", "nodes": ["n1", "n2", "n3"]})
    nodes = table("scheduler_nodes", {"node": "n2", "state": "DOWN"}, {"node": "n9", "state": "DOWN"})
    found = job_stopped.check(job, nodes, None, None, None, None, None, None, None, None)
    assert [(f.cause, f.hosts) for f in found if f.severity == "critical"] == [("node-failed", ("n2",))]
    [finding] = job_stopped.check(job, None, None, None, None, None, None, None, None, None)
    assert finding.hosts == ()


@pytest.mark.parametrize("state", ["COMPLETED", "RUNNING", "FAILED", "OUT_OF_MEMORY"])
def test_a_job_that_was_not_stopped_from_outside_is_quiet(state: str):
    assert stopped(state) == []


def test_the_word_of_slurm_in_the_jobs_output_counts_and_a_bare_cancel_less():
    limit = {"kind": "scheduler", "message": "slurmstepd: error: *** JOB 39 ON c1 CANCELLED AT 2024-05-06T07:08:09 DUE TO TIME LIMIT ***"}
    bare = {"kind": "scheduler", "message": "slurmstepd: error: *** STEP 39.0 ON c1 CANCELLED AT 2024-05-06T07:08:09 ***"}
    [by_limit] = job_stopped.check(None, None, table("worker_exits", limit, bare), None, None, None, None, None, None, None)
    [by_cancel] = job_stopped.check(None, None, table("worker_exits", bare), None, None, None, None, None, None, None)
    assert (by_limit.severity, by_limit.confidence) == ("critical", "high")
    assert (by_cancel.severity, by_cancel.confidence) == ("critical", "medium")
    # Beside a failure of the job itself srun's own cancelling of the steps says nothing.
    signs = pl.LazyFrame({"sign": ["watchdog timeouts"]})
    [beside] = job_stopped.check(None, None, table("worker_exits", bare), None, None, signs, None, None, None, None)
    assert (beside.severity, beside.confidence) == ("info", "low")


MINE = {
    "ib-link",
    "packet-loss",
    "congestion",
    "mtu-mismatch",
    "low-bus-bandwidth",
    "data-corruption",
    "bandwidth-test-failed",
    "job-stopped",
}


def found_in(folder: str) -> list[tuple[str, Finding]]:
    with open_bundle([corpus(folder)]) as bundle:
        resolver = Resolver(read_bundle(bundle, InlineEngine()))
        out: list[tuple[str, Finding]] = []
        for r in all_rules():
            if r.name in MINE and not resolver.missing(r.inputs):
                names = r.function.__code__.co_varnames[: r.function.__code__.co_argcount]
                out.extend((r.name, f) for f in r.check(*(resolver.get(n) for n in names)))
        return out


@pytest.mark.corpus
@pytest.mark.parametrize(
    "folder",
    [
        "public/ib-perfquery-treydock/evidence",
        "public/ib-superbench-loopback/evidence",
        "public/nccltests-superbench-8r-a100/evidence",
        "public/nccltests-gcp-a3mega-16r/evidence",
        "public/nccltests-polaris-2160r/evidence",
        "public/nccl222-p5-efa-16r-filename-says-2203/evidence",
        "public/nccl210-bs-n4-32r-a100-ib-allreduce/evidence",
        "public/nccl227-a100pcie-2r-nvlink-ok/evidence",
        "public/corigpu-mpi-cuda-segv/evidence",
        "host/slurm",
    ],
)
def test_real_evidence_of_sound_fabrics_gives_no_error(folder: str):
    assert [(n, f.title) for n, f in found_in(folder) if f.severity in ("critical", "error")] == []


@pytest.mark.corpus
def test_the_port_that_flapped_in_a_real_tree_of_files_is_the_only_finding():
    [(name, finding)] = found_in("public/ib-sysfs-h100-gpud/evidence")
    assert (name, finding.severity) == ("ib-link", "error")
    assert [(c.nic, c.link) for c in finding.culprits] == [("mlx5_1", "mlx5_1/1")]
    assert finding.evidence[0].line == 1


@pytest.mark.corpus
def test_real_pairwise_runs_name_the_hosts_that_fail_with_several_others():
    found = [f for n, f in found_in("public/nccltests-pairwise-failures-h100/evidence") if n == "bandwidth-test-failed"]
    assert sorted(f.hosts for f in found) == [("cnode2-008",), ("cnode2-016",)]


def reach(probes: pl.DataFrame | None = None, names: pl.DataFrame | None = None) -> list[Finding]:
    return unreachable_host.check(probes, None, names, HOSTS)


def test_a_port_that_times_out_is_told_from_one_that_refuses():
    probe = {"host": "b", "target": "a", "port": 29500}
    timed, refused = reach(table("port_probes", {**probe, "outcome": "timed-out"}, {**probe, "outcome": "refused"}))
    assert timed.title == "a port 29500 cannot be reached from b: timed-out"
    assert (timed.confidence, refused.confidence) == ("medium", "low")
    assert reach(table("port_probes", {**probe, "outcome": "open"})) == []


def test_a_host_that_takes_itself_for_loopback_is_named_and_localhost_is_not():
    [finding] = reach(None, table("host_names", {"host": "a", "address": "127.0.1.1", "names": ["a.cluster", "a"]}))
    assert finding.hosts == ("a",)
    assert reach(None, table("host_names", {"host": "a", "address": "127.0.0.1", "names": ["localhost"]})) == []


def test_a_launcher_that_was_told_to_end_is_a_stop_unless_the_job_stood_still_before() -> None:
    told = table("worker_exits", {"kind": "launcher-signal", "signal": "SIGTERM", "line_no": 1})
    [finding] = job_stopped.check(None, None, told, None, None, None, None, None, None, None)
    assert (finding.severity, finding.confidence, finding.culprits) == ("critical", "medium", ())
    assert [e.line for e in finding.evidence] == [1]
    assert job_stopped.check(None, None, told, None, None, None, None, pl.LazyFrame({"rank": [3]}), None, None) == []
    assert job_stopped.check(None, None, told, None, None, None, None, None, pl.LazyFrame({"rank": [3]}), None) == []


@pytest.mark.parametrize(
    ("moved", "place", "samples", "confidence"),
    [
        (False, "collective", 1, "low"),
        (True, "collective", 1, "medium"),
        (False, "compute", 1, "medium"),
        (False, "user-code", 2, "low"),
        (True, "user-code", 2, "medium"),
    ],
)
def test_a_stop_is_less_sure_where_somebody_had_looked_at_ranks_that_wait(moved: bool, place: str, samples: int, confidence: str) -> None:
    told = table("worker_exits", {"kind": "launcher-signal", "signal": "SIGTERM", "line_no": 1})
    seen = pl.LazyFrame(
        {"role": [None, None], "place": [place, "compute"], "moved": [False, moved], "samples": [1, samples]},
        schema_overrides={"role": pl.String()},
    )
    [finding] = job_stopped.check(None, None, told, None, None, None, None, None, None, seen)
    assert finding.confidence == confidence
    for state, sure in (("CANCELLED", confidence if confidence == "low" else "high"), ("PREEMPTED", "high")):
        listed = table("scheduler_jobs", {"job_id": "7", "state": state})
        [finding] = job_stopped.check(listed, None, None, None, None, None, None, None, None, seen)
        assert finding.confidence == sure


def quality(**row: object) -> pl.LazyFrame:
    return table("link_quality", {"device": "mlx5_0", "effective_errors": 0, "effective_ber": 0.0, "opcode": 0, **row})


def test_a_link_that_goes_down_daily_flaps_and_one_that_did_once_in_weeks_does_not() -> None:
    [finding] = ib_link.check(None, None, None, quality(link_downs=1, minutes_since_clear=600.0), None)
    assert finding.title.endswith("1 link down in 10 hours")
    assert ib_link.check(None, None, None, quality(link_downs=1, minutes_since_clear=38415.5), None) == []
    assert len(ib_link.check(None, None, None, quality(link_downs=2), None)) == 1  # since when is not told


def discovered(device: str, speed: str = "NDR", width: int = 4, host: str | None = "node1") -> dict[str, object]:
    told = {"tool": "ibnetdiscover", "peer": "leaf1", "peer_port": 3, "port": 1, "state": "active"}
    return {**told, "host": host, "node": f"{host} {device}", "device": device, "speed": speed, "width": width}


def test_a_link_slower_than_those_of_the_same_host_in_a_listing_of_the_fabric_is_a_warning():
    rows = [discovered(f"mlx5_{n}") for n in range(3)]
    [finding] = links(ib_links=table("ib_links", *rows, discovered("mlx5_9", "NDR", 1)))
    assert (finding.severity, finding.confidence) == ("warning", "low")
    assert "100 Gbit/s where 3 other ports of the host run at 400" in finding.title


def test_links_that_are_alike_too_few_to_compare_or_of_switches_are_quiet():
    rows = [discovered(f"mlx5_{n}") for n in range(3)]
    assert links(ib_links=table("ib_links", *rows)) == []
    assert links(ib_links=table("ib_links", *rows[:2], discovered("mlx5_9", "HDR"))) == []
    assert links(ib_links=table("ib_links", *rows, discovered("13", "HDR", host=None))) == []


def answer(card: str) -> dict[str, object]:
    return {"tool": "arping", "outcome": "reply", "target": "10.0.0.12", "reporter": card}


def test_an_address_for_which_two_cards_answer_is_named():
    [finding] = unreachable_host.check(None, table("pings", answer("b8:3f:d2:00:00:01"), answer("b8:3f:d2:00:00:02")), None, HOSTS)
    assert finding.title == "2 network cards answer for 10.0.0.12: b8:3f:d2:00:00:01, b8:3f:d2:00:00:02"


def test_an_address_for_which_one_card_answers_twice_is_quiet():
    assert unreachable_host.check(None, table("pings", answer("b8:3f:d2:00:00:01"), answer("b8:3f:d2:00:00:01")), None, HOSTS) == []


def test_a_port_that_was_asked_for_by_its_lid_and_is_down_is_a_warning() -> None:
    def told(*states: tuple[int, str, str]) -> list[tuple[str, str, str]]:
        rows = [
            {"source_id": 0, "line_no": n, "tool": "smpquery", "lid": 9, "port": p, "state": s, "phys_state": phys}
            for n, (p, s, phys) in enumerate(states)
        ]
        links = TABLES["ib_links"].frame(rows).with_columns(source_id=pl.lit(0, dtype=pl.UInt32())).lazy()
        return [(f.title, f.severity, f.confidence) for f in ib_link.check(None, None, links, None, None)]

    assert told((3, "active", "linkup"), (3, "down", "disabled")) == [("LID 9 port 3 is down: it is switched off", "warning", "low")]
    assert told((3, "down", "polling"), (3, "active", "linkup")) == [], "what was printed of it last"
    assert told(*((p, "down", "polling") for p in range(1, 9))) == [], "a list of all ports of a switch, of which many bear no cable"


def test_ports_that_all_wait_for_a_subnet_manager_are_the_fabrics_trouble_and_no_hosts():
    waiting = [port(f"node{n}", state="init", phys_state="linkup", link_layer="infiniband") for n in range(4)]
    [finding] = links(ports(*waiting))
    assert (finding.severity, finding.confidence, finding.culprits, finding.hosts) == ("error", "high", (), ())
    assert "no subnet manager" in finding.title
    [finding] = links(ports(*waiting[:1], *(port(f"node{n}", phys_state="linkup", link_layer="infiniband") for n in range(1, 4))))
    assert finding.hosts == ("node0",)


def test_a_link_that_trains_anew_is_an_error_and_one_that_is_up_is_quiet():
    [finding] = links(ports(port("node1", phys_state="linkerrorrecovery"), port("node2", phys_state="linkup")))
    assert (finding.severity, finding.hosts) == ("error", ("node1",))
    assert links(ports(port("node1", phys_state="linkup"), port("node2", phys_state="linkup"))) == []


def test_of_two_hosts_the_port_is_slow_that_differs_from_its_own_neighbours_too():
    fast = [port(host, f"mlx5_{n}", rate_gbit_s=400.0, width=4) for host in ("node1", "node2") for n in range(4)]
    slow = [p | {"rate_gbit_s": 100.0, "width": 1} if (p["host"], p["device"]) == ("node2", "mlx5_3") else p for p in fast]
    [finding] = links(ports(*slow))
    assert (finding.hosts, finding.severity) == (("node2",), "error")
    storage = [p | {"rate_gbit_s": 100.0} if p["device"] == "mlx5_3" else p for p in fast]
    assert links(ports(*storage)) == []
