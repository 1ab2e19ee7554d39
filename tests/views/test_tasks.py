"""Whether a scheduler's task is a rank."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import read_source
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.tasks import rank_of_task
from tests.views.frames import progress, rows
from tests.views.test_deaths import ended

#: Two hosts of four ranks each.
JOB = rows(PROCESSES_SCHEMA, *({"rank": r, "host": f"node{r // 4}", "pid": 100 + r} for r in range(8)))


def told(*lines: str, task: int, host: str | None, processes: pl.LazyFrame | None = None) -> int | None:
    exits = read_source("\n".join(lines).encode()).frames["worker_exits"].with_columns(source_id=pl.lit(0, dtype=pl.UInt32))
    return rank_of_task(exits, processes)(task, host)


def test_several_tasks_of_one_host_are_ranks() -> None:
    assert told("srun: error: node1: task 5: Killed", "srun: error: node1: tasks 4,6-7: Terminated", task=5, host="node1") == 5
    assert told("srun: error: node[0-1]: tasks 0-7: Exited with exit code 1", task=3, host=None) == 3


def test_one_task_a_host_may_be_a_launcher() -> None:
    assert told("srun: error: node0: task 0: Out Of Memory", task=0, host="node0") is None
    assert told("srun: error: node0: task 0: Killed", "srun: error: node1: task 1: Terminated", task=1, host="node1") is None
    assert told("srun: error: node[0-1]: tasks 0-1: Exited with exit code 1", task=1, host=None) is None


def test_a_lone_task_is_the_rank_that_other_evidence_has_on_its_host() -> None:
    line = "srun: error: node1: task 6: Segmentation fault"
    assert told(line, task=6, host="node1.cluster", processes=JOB) == 6
    assert told(line, task=6, host="node0", processes=JOB) is None, "rank 6 is on another host"
    first = "srun: error: node0: task 0: Segmentation fault"
    assert told(first, task=0, host="node0", processes=JOB) is None, "the first launcher is there too"


def test_a_task_is_the_rank_whose_dump_alone_is_missing_among_its_neighbours() -> None:
    line = "srun: error: node1: task 5: Killed"
    exits = read_source(line.encode()).frames["worker_exits"].with_columns(source_id=pl.lit(0, dtype=pl.UInt32))

    def of(*recorded: int) -> int | None:
        return rank_of_task(exits, None, progress({"0": dict.fromkeys(recorded, (3, 2))}))(5, "node1")

    assert of(0, 1, 2, 3, 4, 6, 7) == 5
    assert of(0, 1, 2, 3, 4) == 5, "the last one"
    assert of(0, 1, 2, 3, 4, 7) is None, "more are missing beside it"
    assert of(*range(8)) is None, "its dump is there: the fifth launcher"


def test_a_task_that_may_be_a_launcher_is_told_by_its_signal_and_not_by_its_code() -> None:
    def ends(line: str) -> list[tuple[object, ...]]:
        exits = read_source(line.encode()).frames["worker_exits"].with_columns(source_id=pl.lit(0, dtype=pl.UInt32))
        return [(e["rank"], e["host"], e["kind"]) for e in ended(exits.lazy())]

    assert ends("srun: error: node0: task 0: Segmentation fault") == [(None, "node0", "segfault")]
    assert ends("srun: error: node0: task 0: Exited with exit code 1") == []
