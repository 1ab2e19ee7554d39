"""The rank of the job that raised an exception, by whatever tells it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.raised import raised
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from tests.rules.host_frames import table
from tests.views.frames import rows

#: Two hosts of two ranks each.
JOB = rows(
    PROCESSES_SCHEMA,
    *({"rank": r, "local_rank": r % 2, "host": f"node{r // 2}.local", "pid": 100 + r % 2, "source_id": 90} for r in range(4)),
)
IN_SOURCE = rows(SOURCE_RANKS_SCHEMA, {"source_id": 7, "rank": 1})
IN_HOST = pl.LazyFrame({"source_id": [4], "host": ["node0"]}, schema={"source_id": pl.UInt32(), "host": pl.String()})


def ranks(*exceptions: dict[str, object], **more: pl.LazyFrame | None) -> list[int | None]:
    told = table("exceptions", *exceptions)
    names = ("processes", "source_ranks", "source_hosts", "comms", "worker_exits")
    frame = raised(told, *(more.get(name, JOB if name == "processes" else None) for name in names))
    return frame.collect()["rank"].to_list()


def test_the_text_itself_then_the_launchers_rank_speak_first() -> None:
    told = {"rank": 3, "hint_rank": 0, "hint_scope": "global", "pid": 100, "hint_host": "node0", "source_id": 7}
    assert ranks(told, told | {"rank": None}) == [3, 0]


def test_a_pid_is_a_rank_with_its_host_and_nobody_without_where_two_hosts_have_it() -> None:
    assert ranks({"pid": 101, "hint_host": "node1"}, {"pid": 101}) == [3, None]


def test_a_local_rank_is_one_of_its_host() -> None:
    told = {"hint_rank": 1, "hint_scope": "local", "source_id": 4}
    assert ranks(told | {"hint_host": "node1"}) == [3]
    assert ranks(told) == [None], "one of two hosts"
    assert ranks(told, source_hosts=IN_HOST) == [1], "its file is of one host"
    assert ranks(told | {"hint_host": "node5"}) == [None], "nobody of this host is known"


def test_the_number_of_a_task_is_that_of_the_process_whose_nccl_lines_bear_it() -> None:
    lines = [{"rank": r, "nranks": 2, "host": "node0", "pid": 100 + r, "hint_rank": 5 - r, "hint_scope": "task"} for r in range(2)]
    told = {"hint_rank": 5, "hint_scope": "task"}
    assert ranks(told, comms=rows(COMMS_SCHEMA, *lines)) == [0]
    assert ranks(told, comms=rows(COMMS_SCHEMA, *({**line, "hint_rank": 5} for line in lines))) == [None], "a task of two ranks"


def test_the_number_of_a_task_is_a_rank_where_several_tasks_ended_on_one_host() -> None:
    told = {"hint_rank": 2, "hint_scope": "task"}
    ends = [{"kind": "task", "rank": n, "host": "node0", "exit_code": 1} for n in range(2)]
    assert ranks(told, processes=None, worker_exits=table("worker_exits", *ends)) == [2]
    lone = [end | {"host": f"node{n}"} for n, end in enumerate(ends)]
    assert ranks(told, processes=None, worker_exits=table("worker_exits", *lone)) == [None], "each may have started several"


def test_at_last_the_source_tells() -> None:
    assert ranks({"source_id": 7}, {"source_id": 8}, source_ranks=IN_SOURCE) == [1, None]


def test_the_output_of_a_launcher_is_of_no_rank_though_one_alone_bears_its_rank_there() -> None:
    ends = [{"source_id": 7, "pid": 100 + r, "kind": "failed"} for r in range(2)]
    assert ranks({"source_id": 7}, source_ranks=IN_SOURCE, worker_exits=table("worker_exits", *ends)) == [None]
    assert ranks({"source_id": 7}, source_ranks=IN_SOURCE, worker_exits=table("worker_exits", *ends[:1])) == [1]
