"""RDMA ports, counters and links; IP interfaces, probes, sockets and packets; schedulers."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.facts.ib_counters import counter_name
from nccl_forensics.facts.link_rates import physical_state, port_state, rate
from nccl_forensics.grammar.lines import load
from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.rules.ib_link import ib_link
from nccl_forensics.store import Store
from nccl_forensics.values.hostlist import expand
from tests.corpus import ROOT, corpus

FIXTURES = ROOT / "fixtures"
GRAMMARS = {
    "ib_state": "ib_state/sample.txt",
    "ib_counters": "ib_counters/sample.txt",
    "ib_fabric": "ib_counters/sample.txt",
    "mlxlink": "mlxlink/sample.txt",
    "perftest": "perftest/sample.txt",
    "gpu_bandwidth": "gpu_bandwidth/sample.txt",
    "iperf3": "iperf3/sample.txt",
    "net": "network/sample.txt",
    "sockets": "sockets/sample.txt",
    "slurm": "slurm/sample.txt",
    "kubernetes": "kubernetes/sample.txt",
    "nccl_tests": "nccl_tests/old_layout.txt",
    "sysfs": "ib_sysfs/dump.txt",
}


def read(name: str) -> SourceReading:
    return read_source((FIXTURES / name).read_bytes())


@pytest.mark.parametrize(("grammar", "sample"), sorted(GRAMMARS.items()))
def test_both_forms_of_a_grammar_give_the_same_kinds_and_columns(grammar: str, sample: str):
    lines = [line.strip().removeprefix("#").strip() for line in (FIXTURES / sample).read_text().splitlines() if line.strip()]
    extraction = load(grammar).extract(pl.Series(lines))
    columns = {row.pop("row"): row for frame in extraction.frames.values() for row in frame.to_dicts()}
    differing = []
    for i, (line, kind) in enumerate(zip(lines, extraction.kind, strict=True)):
        parsed = load(grammar).parse(line)
        if parsed != ((kind, columns.get(i, {})) if kind else None):
            differing.append((line, kind, columns.get(i), parsed))
    assert differing == []


@pytest.mark.parametrize(
    "name", ["ib_state", "ib_counters", "mlxlink", "perftest", "gpu_bandwidth", "iperf3", "network", "sockets", "slurm", "kubernetes"]
)
def test_every_line_of_a_sample_is_a_record_a_gap_or_foreign(name: str):
    reading = read(f"{name}/sample.txt")
    assert reading.lines == reading.records + reading.gap_lines + reading.foreign
    assert reading.records > reading.foreign
    assert "gaps" not in reading.frames


@pytest.mark.parametrize(
    ("text", "word"),
    [("4: ACTIVE", "active"), ("PORT_ACTIVE (4)", "active"), ("Initializing", "init"), ("PORT_INIT (2)", "init"), ("Down", "down")],
)
def test_port_states_of_all_tools_become_one_word(text: str, word: str):
    assert port_state(text) == word


def test_rates_and_physical_states_of_all_tools_are_understood():
    assert rate("400 Gb/sec (4X NDR)") == (400.0, 4, "NDR")
    assert rate("40 (FDR10)") == (40.0, None, "FDR10")
    assert rate("Unknown") == (None, None, None)
    assert physical_state("5: LinkUp") == physical_state("LINK_UP (5)") == "linkup"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("LinkDownedCounter", "link_downed"),
        ("LinkDowned", "link_downed"),
        ("link_downed_total", "link_downed"),
        ("PortXmitWait", "port_xmit_wait"),
        ("XmtDiscards", "port_xmit_discards"),
        ("VL15_dropped", "vl15_dropped"),
        ("local_ack_timeout_err", "local_ack_timeout_err"),
    ],
)
def test_counters_have_one_name(spelling: str, name: str):
    assert counter_name(spelling) == name


def test_five_tools_tell_the_state_of_ports_in_one_table():
    ports = read("ib_state/sample.txt").frames["ib_states"]
    assert ports["tool"].to_list() == ["ibstat", "ibstat", "ibstatus", "ibv_devinfo", "rdma-link", "rdma-link", "ibdev2netdev"]
    assert ports["state"].to_list() == ["active", "down", "active", "init", "active", "active", "down"]
    assert ports["rate_gbit_s"].to_list() == [400.0, 40.0, 200.0, 400.0, None, None, None]
    assert ports.row(3, named=True)["mtu_bytes"] == 2048


def test_counters_of_hosts_switches_and_link_statistics_are_kept_apart():
    counters = read("ib_counters/sample.txt").frames["ib_counters"]
    host = counters.filter(pl.col("host") == "node01")
    assert host.select("device", "port", "counter", "value").rows()[:2] == [
        ("mlx5_0", 1, "symbol_error", 65535),
        ("mlx5_0", 1, "link_downed", 3),
    ]
    assert counters.filter(pl.col("node") == "leaf1").select("port", "counter", "value").rows() == [(12, "port_xmit_discards", 812)]
    assert counters.filter((pl.col("device") == "mlx5_1") & (pl.col("counter") == "out_of_sequence"))["value"].to_list() == [3]


def test_ibdiagnet_stages_and_errors_and_narrow_links_are_read():
    frames = read("ib_counters/sample.txt").frames
    stages = frames["ib_diagnostics"].filter(pl.col("kind") == "stage")
    assert stages.select("name", "errors").rows() == [("Discovery", 0), ("Links Check", 0), ("Speed / Width checks", 15)]
    narrow = frames["ib_links"].filter(pl.col("could_be").is_not_null())
    assert narrow.select("host", "device", "port", "width", "could_be").rows() == [("node01", "mlx5_0", 3, 1, "Could be 4X")]


def test_mlxlink_writes_no_errors_as_15e_255_and_that_is_zero():
    [row] = read("mlxlink/sample.txt").frames["link_quality"].to_dicts()
    assert (row["symbol_ber"], row["effective_ber"], row["effective_errors"], row["link_downs"]) == (0.0, 3e-12, 12, 3)
    assert (row["device"], row["phys_state"], row["rx_power_dbm"]) == ("mlx5_0", "linkup", ["1.886", "1.989", "2.281", "1.976"])


@pytest.mark.parametrize(
    "text", [b"255\n", b"4: ACTIVE\n", b"400 Gb/sec (4X NDR)\n", b"MT4129", b"N/A (no PMA)\n", b"fe80:0000:0000:0000:946d:ae03:00aa:0003\n"]
)
def test_a_tiny_file_with_one_value_is_one_row(text: bytes):
    reading = read_source(text)
    assert reading.formats == ("sysfs-value",)
    assert reading.frames["sysfs_values"].select("line_no", "value").rows() == [(1, text.decode().strip())]


@pytest.mark.parametrize("text", [b"Segmentation fault\n", b"hello\n", b"1 2\n", b"x" * 200])
def test_a_short_text_that_is_no_such_value_is_not_claimed(text: bytes):
    assert read_source(text).formats == ()


def test_dumps_of_sysfs_in_three_styles_are_read():
    reading = read("ib_sysfs/dump.txt")
    values = reading.frames["sysfs_values"]
    assert values["value"].to_list() == ["MT4129", "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "0", "N/A (no PMA)", "3", "9000"]
    [metric] = reading.frames["ib_counters"].to_dicts()
    assert (metric["host"], metric["device"], metric["counter"], metric["value"]) == ("node07", "mlx5_2", "link_downed", 4)


def test_interfaces_addresses_counters_and_probes_are_read_from_one_transcript():
    frames = read("network/sample.txt").frames
    links = frames["net_interfaces"]
    assert links.filter(pl.col("tool") == "ip").select("name", "mtu_bytes", "state").rows() == [
        ("lo", 65536, "unknown"),
        ("ens1f0np0", 9000, "up"),
        ("veth0", 1450, "down"),
    ]
    assert links.filter(pl.col("tool") == "ethtool").select("speed_mbit_s", "link_detected", "detail").rows() == [
        (100000, False, "Autoneg, No partner detected")
    ]
    assert links.filter(pl.col("tool") == "ethtool-i")["bus_id"].to_list() == ["0000:1a:00.0"]
    counters = frames["net_counters"]
    assert counters.filter(pl.col("counter") == "rx_discards_phy").select("interface", "value").rows() == [("ens1f0np0", 812)]
    assert counters.filter(pl.col("counter").str.contains("etrans")).select("tool", "value").rows() == [
        ("netstat-s", 2000),
        ("nstat", 3000),
    ]
    assert frames["pings"]["outcome"].to_list() == ["frag-needed", "too-long", "statistics", "reply", "statistics"]
    assert frames["port_probes"]["outcome"].to_list() == ["open", "refused", "timed-out"]
    assert frames["host_names"].filter(pl.col("address") == "127.0.1.1")["names"].to_list() == [["node01"]]


def test_a_socket_takes_what_the_line_below_it_says():
    frames = read("sockets/sample.txt").frames
    first = frames["sockets"].row(0, named=True)
    assert (first["pid"], first["backoff"], first["retrans_now"], first["retrans_total"], first["last_received_ms"]) == (
        1234,
        3,
        1,
        12,
        64000,
    )
    assert (first["line_no"], first["end_line"]) == (2, 3)
    assert frames["packets"]["mtu_bytes"].drop_nulls().to_list() == [1500]
    assert frames["packets"]["time_raw_ns"].null_count() == 4  # a clock without a date is no time


def test_slurm_listings_expand_host_lists_and_tell_who_cancelled():
    frames = read("slurm/sample.txt").frames
    jobs = frames["scheduler_jobs"]
    first = jobs.row(0, named=True)
    assert (first["state"], first["by"], first["exit_signal"], first["nodes"]) == (
        "CANCELLED",
        "1001",
        15,
        ["node001", "node002", "node003", "node007"],
    )
    assert jobs.filter(pl.col("step") == "0")["max_rss_bytes"].to_list() == [88.5 * 2**30]
    assert jobs.filter(pl.col("job_id") == "124").select("state", "nodes").rows() == [
        ("TIMEOUT", ["node001", "node002"]),
        ("CANCELLED", ["node001"]),
    ]
    assert jobs.filter(pl.col("tool") == "squeue")["state"].to_list() == ["COMPLETING", "PENDING"]
    [node] = frames["scheduler_nodes"].to_dicts()
    assert (node["state"], node["flags"], node["reason"], node["reason_by"]) == (
        "DOWN",
        ["DRAIN", "NOT_RESPONDING"],
        "Kill task failed",
        "root",
    )


def test_ibstat_of_one_port_indents_nothing_and_ends_with_its_last_value():
    text = "CA: 'mlx5_3'\nPort 1:\nState: Down\nPhysical state: Polling\nRate: 10\nBase lid: 0\nLink layer: InfiniBand\nTask: look at the cable\nState: Active\n"
    found = read_source(text.encode())
    [port] = found.frames["ib_states"].to_dicts()
    assert (port["device"], port["port"], port["state"], port["phys_state"], port["rate_gbit_s"]) == ("mlx5_3", 1, "down", "polling", 10.0)
    assert found.foreign == 2


def test_lines_of_ibqueryerrors_without_the_one_that_names_their_node_are_read_by_guid():
    text = "   GUID 0x506b4b0300aa port 12: [SymbolErrorCounter == 70] [LinkDownedCounter == 3 (3.000)]\n   GUID 0x506b4b0300aa port ALL: [LinkDownedCounter == 3]\n"
    found = read_source(text.encode())
    told = [("0x506b4b0300aa", 12, "symbol_error", 70), ("0x506b4b0300aa", 12, "link_downed", 3)]
    assert found.frames["ib_counters"].select("guid", "port", "counter", "value").rows() == told
    assert (found.foreign, found.gap_lines) == (0, 0)
    assert "ib_counters" not in read_source(b"GUID 0x506b4b0300aa port list of the switch\n").frames


def test_host_lists_keep_their_leading_zeros():
    assert expand("node[008-010,12],login1") == ["node008", "node009", "node010", "node12", "login1"]
    assert expand(None) == []


def test_slurm_json_of_both_generations_is_read():
    new = b'{"meta":{"slurm":{}},"jobs":[{"job_id":7,"job_state":["TIMEOUT"],"nodes":"n[1-2]","time_limit":{"set":true,"infinite":false,"number":60},'
    new += b'"exit_code":{"return_code":{"set":true,"infinite":false,"number":3},"signal":{"id":{"set":true,"number":9}}}}]}'
    [job] = read_source(new).frames["scheduler_jobs"].to_dicts()
    assert (job["state"], job["exit_code"], job["exit_signal"], job["time_limit_s"], job["nodes"]) == ("TIMEOUT", 3, 9, 3600, ["n1", "n2"])


def test_pods_events_and_a_described_pod_are_read():
    frames = read("kubernetes/sample.txt").frames
    pods = frames["pods"]
    assert pods.filter(pl.col("tool") == "get").select("pod", "status", "restarts", "node").rows() == [
        ("train-worker-0", "Running", 0, "gpu-01"),
        ("train-worker-1", "OOMKilled", 3, "gpu-02"),
    ]
    assert pods.filter(pl.col("tool") == "describe").select("reason", "exit_code", "last").rows() == [
        ("Evicted", None, False),
        ("OOMKilled", 137, False),
        ("Error", 1, True),
    ]
    assert frames["pod_events"]["reason"].to_list() == ["Evicted", "NodeNotReady", "Evicted"]


@pytest.mark.corpus
def test_real_perfquery_files_give_every_counter():
    folder = corpus("public/ib-perfquery-treydock") / "evidence"
    counters = read_source((folder / "0x7cfe9003009ce5b0.out").read_bytes()).frames["ib_counters"]
    assert counters.group_by("port").len().sort("port").rows() == [(1, 22), (2, 22)]
    assert counters.filter((pl.col("port") == 1) & (pl.col("counter") == "port_xmit_wait"))["value"].to_list() == [22730501]
    links = read_source((folder / "test.out").read_bytes()).frames["ib_links"]
    assert (links.height, links["peer"].null_count()) == (9, 2)


@pytest.mark.corpus
def test_real_dumps_of_sysfs_leave_nothing_but_values():
    for path in sorted(corpus("host/ib-sysfs").glob("*.txt")):
        reading = read_source(path.read_bytes())
        assert (reading.formats, reading.gap_lines) == (("sysfs-dump",), 0), path.name
        assert reading.foreign <= 4, path.name


@pytest.mark.corpus
def test_real_answers_of_slurmrestd_are_read_but_for_statistics_and_partitions():
    folder = corpus("host/slurm")
    assert read_source((folder / "slurmrestd.jobs.json").read_bytes()).frames["scheduler_jobs"]["state"].to_list() == [
        "RUNNING",
        "RUNNING",
        "COMPLETED",
    ]
    nodes = read_source((folder / "slurmrestd.nodes.json").read_bytes()).frames["scheduler_nodes"]
    assert nodes.filter(pl.col("reason") == "Kill task failed").height == 2
    # They say nothing of an incident.
    assert read_source((folder / "slurmrestd.diag.json").read_bytes()).formats == ()
    assert read_source((folder / "slurmrestd.partitions.json").read_bytes()).formats == ()


def test_one_line_output_of_ip_looks_like_launcher_tags_and_is_read_all_the_same():
    addresses = b"1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n"
    addresses += b"2: eth0    inet 10.0.0.11/24 brd 10.0.0.255 scope global eth0\\       valid_lft forever\n"
    found = read_source(addresses).frames["net_addresses"]
    assert found.select("interface", "address", "prefix", "scope").rows() == [
        ("lo", "127.0.0.1", 8, "host"),
        ("eth0", "10.0.0.11", 24, "global"),
    ]
    links = b"1: lo: <LOOPBACK,UP> mtu 65536 qdisc noqueue state UNKNOWN\n2: eth0: <BROADCAST,UP> mtu 9000 qdisc mq state UP\n"
    assert read_source(links).frames["net_interfaces"].select("name", "mtu_bytes").rows() == [("lo", 65536), ("eth0", 9000)]


JSON = {
    "rdma-link-json": b'[{"ifindex":1,"ifname":"mlx5_0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"eth0"}]',
    "rdma-statistic-json": b'[{"ifname":"mlx5_0","port":1,"rx_write_requests":3,"out_of_sequence":5}]',
    "ip-json": b'[{"ifindex":1,"ifname":"eth0","mtu":1500,"operstate":"UP","addr_info":[{"family":"inet","local":"10.0.0.1","prefixlen":24}]}]',
    "kubernetes-json": b'{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod","metadata":{"name":"a"},"spec":{"nodeName":"n1"},"status":{"phase":"Failed",'
    b'"containerStatuses":[{"name":"c","restartCount":2,"lastState":{"terminated":{"reason":"OOMKilled","exitCode":137,'
    b'"finishedAt":"2024-05-06T07:08:09Z"}}}]}},{"kind":"Event","involvedObject":{"kind":"Node","name":"n1"},"reason":"NodeNotReady"}]}',
    "nvbandwidth-json": b'{"nvbandwidth":{"Hostname":"a","testcases":[{"name":"x_ce","status":"Passed","bandwidth_matrix":[["N/A","276.1"],["276","N/A"]]}]}}',
    "perftest-json": b'{"test_info":{"test":"RDMA_Write_BW_Test","Device":"mlx5_0"},"results":{"MsgSize":65536,"BW_average":1.0,"sl":{sl:1}}}',
}


@pytest.mark.parametrize("name", sorted(JSON))
def test_the_json_form_of_a_tool_is_read(name: str):
    reading = read_source(JSON[name])
    assert reading.formats == (name,)
    assert reading.records > 0
    assert "gaps" not in reading.frames


def test_pods_in_json_tell_how_a_container_ended_before_it_was_restarted():
    frames = read_source(JSON["kubernetes-json"]).frames
    ended = frames["pods"].filter("last").row(0, named=True)
    assert (ended["reason"], ended["exit_code"], ended["node"], ended["time_raw_ns"]) == ("OOMKilled", 137, "n1", 1714979289000000000)
    assert frames["pod_events"].select("object", "reason").rows() == [("node/n1", "NodeNotReady")]


def samples() -> list[tuple[str, bytes]]:
    files = [
        p for folder in ("nccl_tests", "ib_sysfs", *{s.split("/")[0] for s in GRAMMARS.values()}) for p in (FIXTURES / folder).iterdir()
    ]
    return [(p.name, p.read_bytes()) for p in sorted(files) if p.suffix in (".txt", ".json")] + sorted(JSON.items())


def test_samples_cut_anywhere_never_break_a_reader():
    for name, data in samples():
        for end in range(1, len(data), max(1, len(data) // 40)):
            reading = read_source(data[:end])
            reasons = reading.frames["gaps"]["reason"].to_list() if "gaps" in reading.frames else []
            # "unreadable: <Error>: ..." is what the dispatcher writes where a reader raised.
            assert not [r for r in reasons if r.split(": ")[1:2] and r.split(": ")[1].endswith("Error") and r.startswith("unreadable")], (
                name
            )
            if reading.lines is not None:
                assert reading.lines == reading.records + reading.gap_lines + reading.foreign, name


def test_links_below_the_heading_of_a_switch_are_the_switchs_and_not_those_of_the_adapter_above() -> None:
    text = (
        "CA: node01 mlx5_0:\n"
        '      0x248a070300928186      3    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>       2   36[  ] "MF0;leaf1:MSB7700/U1" ( )\n'
        "Switch: 0x506b4b0300820910 MF0;leaf1:MSB7700/U1:\n"
        '           2    1[  ] ==(                Down/ Polling)==>             [  ] "" ( )\n'
        '           2   17[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>       4    1[  ] "node02 HCA-1" ( )\n'
    )
    links = read_source(text.encode()).frames["ib_links"]
    assert links.select("host", "device", "node", "guid", "port", "peer").rows() == [
        ("node01", "mlx5_0", "node01 mlx5_0", "0x248a070300928186", 1, "MF0;leaf1:MSB7700/U1"),
        (None, None, "MF0;leaf1:MSB7700/U1", "0x506b4b0300820910", 1, None),
        (None, None, "MF0;leaf1:MSB7700/U1", "0x506b4b0300820910", 17, "node02 HCA-1"),
    ]


def test_links_of_one_line_each_name_both_ends() -> None:
    text = (
        '0x0000000000200005 "               Spine SB7700"      9   33[  ] ==( 4X           2.5 Gbps Active/  LinkUp)==>  0x0000000000200000      2    4[  ] "leaf1" (Could be 12X Could be 10.0 Gbps)\n'
        '0x248a07030017b128 "                  node01 HCA-1"    612    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>  0xec0d9a030002b810    496   20[  ] "leaf1" ( )\n'
    )
    links = read_source(text.encode()).frames["ib_links"]
    assert links.select("host", "node", "lid", "port", "peer", "peer_lid", "peer_port", "could_be").rows() == [
        (None, "Spine SB7700", 9, 33, "leaf1", 2, 4, "Could be 12X Could be 10.0 Gbps"),
        ("node01", "node01 HCA-1", 612, 1, "leaf1", 496, 20, None),
    ]


def test_a_slow_link_that_both_ends_print_is_told_once_as_the_hosts() -> None:
    text = (
        "Switch: 0x506b4b0300820910 MF0;leaf1:MSB7700/U1:\n"
        '           2   17[  ] ==( 1X      25.78125 Gbps Active/  LinkUp)==>       4    1[  ] "node02 mlx5_0" ( Could be 4X)\n'
        "CA: node02 mlx5_0:\n"
        '      0x248a070300928186      4    1[  ] ==( 1X      25.78125 Gbps Active/  LinkUp)==>       2   17[  ] "MF0;leaf1:MSB7700/U1" ( Could be 4X)\n'
    )
    frames = read_source(text.encode()).frames
    [finding] = ib_link.check(None, None, Store.from_frames({"ib_links": frames["ib_links"]}).scan("ib_links"), None, None)
    assert finding.culprits[0].host == "node02"
