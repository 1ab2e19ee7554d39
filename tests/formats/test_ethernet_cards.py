"""ethtool's settings and modules, ibtracert, tshark and amd-smi."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.rules.captures import capture_loss, capture_unanswered
from tests.corpus import ROOT


def read(path: str) -> SourceReading:
    return read_source((ROOT / "fixtures" / path).read_bytes())


def test_pause_rings_and_offloads_are_read_and_the_commands_are_left() -> None:
    found = read("ethtool/settings.txt")
    assert (found.formats, found.records, found.gap_lines, found.foreign) == (("ethtool",), 26, 0, 5)
    rows = found.frames["net_settings"]
    assert set(rows["interface"]) == {"ens1f0np0"}
    told = {(k, s, n): (v, x) for k, s, n, v, x in rows.select("kind", "section", "name", "value", "number").iter_rows()}
    assert told["ring", "maximum", "rx"] == ("8192", 8192.0)
    assert told["ring", "current", "rx"] == ("1024", 1024.0)
    assert told["ring", "current", "rx mini"] == ("n/a", None)
    assert told["pause", None, "autonegotiate"] == ("off", None)
    fixed = dict(rows.filter(pl.col("kind") == "offload").select("name", "fixed").iter_rows())
    assert (fixed["tx-checksum-ipv4"], fixed["tcp-segmentation-offload"]) == (True, False)


def test_a_module_takes_its_interface_from_the_command_and_light_is_in_dbm() -> None:
    rows = read("ethtool/module.txt").frames["net_settings"]
    assert set(rows["interface"]) == {"ens1f0np0"}
    numbers = dict(rows.select("name", "number").iter_rows())
    assert numbers["module temperature"] == 71.5
    assert numbers["rcvr signal avg optical power(channel 1)"] == -15.21
    assert numbers["rcvr signal avg optical power(channel 2)"] == -40.0
    assert numbers["identifier"] is None


def test_what_follows_a_block_is_not_of_it() -> None:
    found = read_source(b"Features for eth0:\nrx-checksumming: on\nsomething else\nrx-checksumming: off\n")
    assert (found.records, found.foreign) == (2, 2)


def test_a_path_is_read_hop_by_hop_with_the_ports_on_both_sides() -> None:
    found = read("ibtracert/path.txt")
    assert (found.formats, found.records, found.foreign) == (("ibtracert",), 8, 0)
    rows = found.frames["ib_routes"]
    assert rows.filter(pl.col("route") == 0).select("hop", "node", "port_in", "port_out").rows() == [
        (0, "node01 mlx5_0", 1, None),
        (1, "leaf3", 12, 1),
        (2, "spine1", 3, 17),
        (3, "node02 mlx5_0", 1, 4),
    ]
    assert rows.filter(pl.col("error").is_not_null()).select("route", "hop", "line_no").rows() == [(1, 2, 8)]


def test_what_wireshark_marked_is_counted_by_direction() -> None:
    found = read("tshark/list.txt")
    assert (found.formats, found.records, found.foreign) == (("tshark",), 9, 0)
    rows = found.frames["flows"].select(
        "source", "packets", "resent", "syns", "syn_acks", "resets", "zero_windows", "duplicate_acks", "line_no"
    )
    assert rows.rows() == [
        ("10.0.0.11", 4, 1, 1, 0, 0, 0, 0, 5),
        ("10.0.0.12", 4, 0, 0, 1, 1, 1, 1, 6),
        ("10.0.0.11", 1, 0, 0, 0, 0, 0, 0, 9),
    ]


def flows(*lines: str) -> pl.LazyFrame:
    return read_source("\n".join(lines).encode()).frames["flows"].with_columns(source_id=pl.lit(0, dtype=pl.UInt32())).lazy()


def segment(n: int, mark: str = "") -> str:
    return f"{n} {n}.0 10.0.0.1 -> 10.0.0.2 TCP 1514 {mark}4000 -> 29500 [ACK] Seq={n} Ack=1 Win=9 Len=1448"


def test_much_that_was_sent_again_in_a_text_is_found_and_cited_by_line() -> None:
    lines = [segment(n, "[TCP Retransmission] " if n % 10 == 0 else "") for n in range(1, 401)]
    [finding] = capture_loss.check(flows(*lines))
    assert "40 of 400 TCP packets from 10.0.0.1 to 10.0.0.2" in finding.title
    assert (finding.evidence[0].kind, finding.evidence[0].line) == ("line", 10)
    assert capture_loss.check(flows(*[segment(n) for n in range(1, 401)])) == []


def test_attempts_that_nobody_answered_are_found_in_a_text() -> None:
    lines = [f"{n} {n}.0 10.0.0.1 -> 10.0.0.2 TCP 74 4000 -> 29500 [SYN] Seq=0 Win=9 Len=0" for n in range(1, 5)]
    [finding] = capture_unanswered.check(flows(*lines))
    assert finding.title.startswith("10.0.0.2 port 29500 never answered 4 connection attempts")


def test_gpus_of_amd_are_read_from_both_commands() -> None:
    metric, static = read("amd_smi/metric.json").frames["gpus"], read("amd_smi/static.json").frames["gpus"]
    assert metric.select("record", "gpu_index", "temperature_c", "power_w", "pcie_width", "pcie_gen", "dram_uncorrected").rows() == [
        ("[0]", 0, 71.0, 712.0, 16, 5, 0),
        ("[1]", 1, 73.0, 705.0, 8, 5, 2),
    ]
    assert static.select("record", "bus_id", "name", "driver_version", "pcie_width_max").rows() == [
        ("gpu_data[0]", "0000:05:00.0", "AMD Instinct MI300X", "6.12.12", 16)
    ]


def test_another_document_with_gpus_is_none_of_amds() -> None:
    assert read_source(b'[{"gpu": "a", "usage": 3}]').formats == ()
