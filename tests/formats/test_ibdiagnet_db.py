"""ibdiagnet's file of the whole fabric."""

from __future__ import annotations

import pytest

from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.rules.ib_link import ib_link
from nccl_forensics.store import Store
from tests.corpus import ROOT

SAMPLE = (ROOT / "fixtures" / "ibdiagnet_db" / "ibdiagnet2.db_csv").read_text(encoding="utf-8")
LINES = SAMPLE.splitlines()


def reading(text: str = SAMPLE) -> SourceReading:
    return read_source(text.encode())


def rows(found: SourceReading, table: str, *columns: str) -> list[tuple[object, ...]]:
    return found.frames[table].select(columns).rows() if table in found.frames else []


def test_of_two_widths_of_a_counter_the_one_that_does_not_stop_is_taken() -> None:
    found = reading()
    assert (found.formats, found.foreign) == (("ibdiagnet-db",), 0)
    counters = {(r[0], r[1]): (r[2], r[3]) for r in rows(found, "ib_counters", "host", "counter", "value", "line_no") if r[0]}
    value, line = counters["node03", "symbol_error"]
    assert (value, LINES[int(str(line)) - 1].split(",")[0]) == (81234, "0xa088c20300000103")
    assert counters["node03", "link_downed"][0] == 312
    assert counters["node01", "port_xmit_wait"][0] == 101


def test_a_switch_is_a_node_and_no_host_and_numbers_may_be_hexadecimal() -> None:
    name = "MF0;leaf01, row 3:MQM9700/U1"
    waits = [r for r in rows(reading(), "ib_counters", "node", "host", "device", "port", "counter", "value") if r[4] == "port_xmit_wait"]
    assert [r for r in waits if r[1] is None] == [(name, None, None, port, "port_xmit_wait", 31) for port in range(1, 6)]


def test_ports_of_adapters_have_state_rate_and_mtu() -> None:
    states = rows(reading(), "ib_states", "host", "device", "port", "state", "phys_state", "rate_gbit_s", "speed", "mtu_bytes", "lid")
    assert states[1:3] == [
        ("node02", "mlx5_0", 1, "active", "linkup", 400.0, "NDR", 4096, 12),
        ("node03", "mlx5_0", 1, "active", "linkup", 200.0, "HDR", 4096, 13),
    ]


def test_a_link_below_what_both_ends_enable_could_be_faster() -> None:
    links = rows(reading(), "ib_links", "host", "peer_port", "width", "speed", "could_be")
    assert links[1:3] == [("node02", 2, 4, "100", None), ("node03", 3, 4, "50", "Could be 100 Gbps")]


@pytest.mark.parametrize(
    ("line", "before", "after"),
    [
        (20, ",3841,1024,", ",1793,1024,"),  # the switch has NDR switched off
        (15, ",4,3841,5,5,", ",1,3841,5,5,"),  # the port is down
    ],
)
def test_a_link_that_cannot_be_faster_is_not_called_slow(line: int, before: str, after: str) -> None:
    changed = [text.replace(before, after) if i == line - 1 else text for i, text in enumerate(LINES)]
    assert changed != LINES
    assert {r[0] for r in rows(reading("\n".join(changed) + "\n"), "ib_links", "could_be")} == {None}


def test_what_it_counts_reaches_the_rule_of_links() -> None:
    frames = reading().frames
    found = Store.from_frames({n: frames[n] for n in ("ib_counters", "ib_states", "ib_links")})
    assert [f.severity for f in ib_link.check(None, None, found.scan("ib_links"), None, None)] == ["error"]


def test_a_file_that_breaks_off_keeps_what_was_there() -> None:
    cut = SAMPLE[: SAMPLE.index("END_PM_INFO") - 40]
    found = reading(cut)
    assert {"ib_counters", "ib_states", "ib_links"} <= set(found.frames)
    assert [str(reason).split(":")[0] for (reason,) in rows(found, "gaps", "reason")] == ["truncated"]


@pytest.mark.parametrize("text", ["START_NODES\nEND_NODES\n", "START_NODES\nName,Kind\n1,2\nEND_NODES\n", "# START_NODES\nNodeGuid\n"])
def test_other_texts_with_sections_are_not_claimed(text: str) -> None:
    assert "ibdiagnet-db" not in reading(text).formats


def test_columns_without_numbers_and_unknown_guids_harm_nothing() -> None:
    text = "START_PM_INFO\nNodeGUID,PortNumber,LinkDownedCounter\n0x1,x,y\n0x2,1,7\nEND_PM_INFO\nSTART_LINKS\nNodeGuid1,PortNum1\n0x1,1\nEND_LINKS\n"
    assert rows(reading(text), "ib_counters", "node", "port", "value") == [("0x2", 1, 7)]
