"""Nodes out of service, by Slurm's sinfo and by Open MPI."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading import read_source
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
