"""ibnetdiscover, saquery and smpquery."""

from __future__ import annotations

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT


def fixture(name: str) -> SourceReading:
    return read_source((ROOT / "fixtures" / "ib_subnet" / name).read_bytes())


def test_a_topology_file_gives_both_ends_of_each_link() -> None:
    found = fixture("topology.txt")
    rows = found.frames["ib_links"].select("line_no", "node", "host", "device", "port", "lid", "width", "speed", "peer", "peer_port")
    assert rows.rows() == [
        (11, "MF0;leaf1:MQM9700/U1", None, None, 13, 7, 4, "NDR", "node01 mlx5_0", 1),
        (12, "MF0;leaf1:MQM9700/U1", None, None, 14, 7, 2, "NDR", "node02 mlx5_0", 1),
        (19, "node01 mlx5_0", "node01", "mlx5_0", 1, 1719, 4, "NDR", "MF0;leaf1:MQM9700/U1", 13),
    ]
    blank_or_before_the_heading = 3
    assert (found.foreign, found.gap_lines) == (blank_or_before_the_heading, 0)


def test_records_of_ports_get_their_node_by_lid_and_say_what_they_could_be() -> None:
    row = fixture("records.txt").frames["ib_links"].row(0, named=True)
    assert (row["host"], row["device"], row["port"], row["lid"]) == ("node01", "mlx5_0", 1, 1719)
    assert (row["state"], row["phys_state"], row["width"], row["speed"], row["could_be"]) == ("active", "linkup", 1, "NDR", "Could be 4X")


def test_smpquery_tells_of_the_port_in_its_heading() -> None:
    text = b"# Port info: Lid 5 port 1\nLid:.............................5\nLinkState:.......................Initialize\n"
    assert read_source(text).frames["ib_links"].select("tool", "lid", "port", "state").rows() == [("smpquery", 5, 1, "init")]
