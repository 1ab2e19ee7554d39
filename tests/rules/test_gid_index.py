"""The index of a GID that no fabric routes."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.gid_index import gid_index
from tests.rules.frames import cited, settings
from tests.rules.host_frames import table


def gids(*found: tuple[int, str, str | None], host: str = "node1") -> pl.LazyFrame:
    """GIDs of one port: (index, version, address)."""
    return table("rdma_gids", *[{"host": host, "device": "mlx5_0", "port": 1, "index": i, "roce": v, "address": a} for i, v, a in found])


USUAL = ((0, "v1", None), (1, "v2", None), (2, "v1", "10.0.0.11"), (3, "v2", "10.0.0.11"))


def test_an_index_that_is_not_routable_is_named_with_the_one_that_is() -> None:
    [finding] = gid_index.check(gids(*USUAL), settings("NCCL_IB_GID_INDEX", ("1", [0, 1])), None)
    assert finding.title == "NCCL_IB_GID_INDEX=1 is not the routable address of mlx5_0:1 on node1: that is index 3"
    assert cited(finding) == [(0, 2), (0, 2), (0, 4)]


def test_an_index_that_a_port_lacks_is_named() -> None:
    [finding] = gid_index.check(gids((5, "v2", "10.0.0.11")), settings("NCCL_IB_GID_INDEX", ("3", [0, 1])), None)
    assert "that is index 5" in finding.title


def test_the_routable_index_no_setting_and_ports_without_any_are_quiet() -> None:
    assert gid_index.check(gids(*USUAL), settings("NCCL_IB_GID_INDEX", ("3", [0, 1])), None) == []
    assert gid_index.check(gids(*USUAL), settings("NCCL_ALGO", ("1", [0, 1])), None) == []
    assert gid_index.check(gids((0, "v1", None)), settings("NCCL_IB_GID_INDEX", ("3", [0, 1])), None) == []


def test_queue_pairs_that_fail_by_the_index_make_it_what_stopped_the_job_and_those_by_another_do_not() -> None:
    text = "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index {}, x"
    failed = [
        table("nccl_errors", {"kind": "ib-modify-qp", "level": "WARN", "host": host, "message": text.format(i)})
        for i, host in ((1, "node1"), (3, "node1"), (1, "node2"))
    ]
    wrong = gids(*USUAL), settings("NCCL_IB_GID_INDEX", ("1", [0, 1])), None
    told = [(f.severity, f.confidence) for rows in failed for f in gid_index.check(*wrong, rows)]
    assert told == [("critical", "high"), ("error", "medium"), ("error", "medium")]
