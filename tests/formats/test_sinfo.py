"""Nodes out of service, by Slurm's sinfo and by Open MPI."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT


def nodes(path: str) -> pl.DataFrame:
    return read_source((ROOT / "fixtures" / "sinfo" / path).read_bytes()).frames["scheduler_nodes"]


def test_sinfo_tells_the_nodes_that_are_not_in_service_and_mpirun_the_one_it_lost() -> None:
    assert nodes("sinfo.txt").select("node", "state", "flags").rows() == [("node07", "DOWN", ["NOT_RESPONDING"])]
    assert nodes("mpirun.txt").select("tool", "node", "state").rows() == [("mpirun", "node07", "DOWN")]


def test_nodes_that_are_in_service_and_drained_ones_are_told_apart() -> None:
    text = (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "gpu*         up   infinite      2  drain node[08-09]\n"
        "gpu*         up   infinite      3  alloc node[01-03]\n"
    )
    found = read_source(text.encode())
    assert found.frames["scheduler_nodes"].select("node", "flags").rows() == [("node08", ["DRAIN"]), ("node09", ["DRAIN"])]
    assert (found.records, found.foreign) == (3, 0)


def test_a_line_per_node_tells_state_and_reason_once_for_all_partitions() -> None:
    text = (
        "NODELIST    NODES PARTITION       STATE CPUS    S:C:T MEMORY REASON\n"
        "node07          1      gpu*       down*   64   2:16:2 515000 Not responding\n"
        "node07          1       all       down*   64   2:16:2 515000 Not responding\n"
        "node08          1       all        idle   64   2:16:2 515000 none\n"
    )
    found = read_source(text.encode()).frames["scheduler_nodes"]
    assert found.select("node", "state", "flags", "reason").rows() == [("node07", "DOWN", ["NOT_RESPONDING"], "Not responding")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("HOSTNAMES STATE GRES\nn1 drained* gpu:8\nn2 mixed gpu:8\n", [("n1", "IDLE", ["DRAIN", "NOT_RESPONDING"], None)]),
        (
            "REASON               USER      TIMESTAMP           NODELIST\n"
            "Xid 79 on GPU 3      root      2031-02-03T04:05:06 node[07-08]\n"
            "Not responding       slurm     2031-02-03T04:05:06 node09\n",
            [
                ("node07", "IDLE", ["DRAIN"], "Xid 79 on GPU 3"),
                ("node08", "IDLE", ["DRAIN"], "Xid 79 on GPU 3"),
                ("node09", "DOWN", ["NOT_RESPONDING"], "Not responding"),
            ],
        ),
        ("STATE REASON NODELIST\nidle none n1\ndown two words n2\n", [("n2", "DOWN", [], "two words")]),
        ("PARTITION NODES(A/I/O/T) STATE NODELIST\ngpu 0/0/1/1 down~ n3\n", [("n3", "DOWN", [], None)]),
    ],
    ids=["hosts with stars", "-R", "a reason in between", "counts of states"],
)
def test_a_list_of_columns_of_ones_own_is_read_by_its_headings(text: str, told: list[tuple[object, ...]]) -> None:
    found = read_source(text.encode())
    assert found.frames["scheduler_nodes"].select("node", "state", "flags", "reason").rows() == told
    assert found.foreign == 0


@pytest.mark.parametrize(
    "text",
    [
        "JOBID PARTITION STATE NODELIST(REASON)\n7 gpu down n1\n",
        "STATE NODELIST\nthe nodes are down now\n",
        "NODELIST STATE\nidle nodes: 7 left\ndown n1\n",
        "NODELIST CPUS\nn1 down\n",
    ],
    ids=["squeue", "a sentence", "a list that has ended", "neither state nor reason"],
)
def test_other_lists_and_sentences_tell_of_no_node(text: str) -> None:
    assert "scheduler_nodes" not in read_source(text.encode()).frames
