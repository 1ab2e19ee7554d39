"""GIDs of RDMA ports."""

from __future__ import annotations

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT


def test_gids_are_read_with_their_index_version_and_address() -> None:
    found = read_source((ROOT / "fixtures" / "show_gids" / "sample.txt").read_bytes())
    assert (found.formats, found.foreign) == (("show-gids",), 0)
    assert found.frames["rdma_gids"].select("device", "port", "index", "address", "roce", "netdev").rows() == [
        ("mlx5_0", 1, 0, None, "v1", "ens1f0np0"),
        ("mlx5_0", 1, 3, "10.0.0.11", "v2", "ens1f0np0"),
    ]


def test_another_table_with_an_index_is_none() -> None:
    assert read_source(b"NAME INDEX GID\nx 1 2\n").formats == ()
