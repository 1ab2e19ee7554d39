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


def kinds(*exceptions: dict[str, object], **more: pl.LazyFrame | None) -> list[str]:
    names = ("comms", "worker_exits", "training_steps", "training_ends")
    told = table("exceptions", *({"kind": "python", "rank": 1, "source_id": 7, "line_no": 5} | e for e in exceptions))
    return raised(told, None, None, None, *(more.get(name) for name in names)).collect()["kind"].to_list()


#: A module that was missing as the program was loaded, the same where it had come into a function, and another exception.
LOADED = {"type": "ModuleNotFoundError", "frames": "<module> (/w/fused.py:3)\n<module> (/w/train.py:9)"}
CALLED = {"type": "ModuleNotFoundError", "frames": "save (/w/save.py:3)\n<module> (/w/train.py:9)"}
MARKED = LOADED | {"marked": True}


def begun(line: int, source: int = 7, *pids: int) -> pl.LazyFrame:
    told = {"rank": 1, "nranks": 2, "host": "node0", "source_id": source, "line_no": line}
    return rows(COMMS_SCHEMA, *(told | {"pid": pid} for pid in pids or (100,)))


def test_what_a_rank_printed_before_its_first_communicator_did_not_end_it() -> None:
    assert kinds(LOADED, CALLED, MARKED, comms=begun(9)) == ["survived", "survived", "python"]
    assert kinds(LOADED, CALLED, comms=begun(2)) == ["survived", "python"], "nothing loads in a job that runs"
    assert kinds(LOADED, CALLED, comms=begun(9, 8)) == ["survived", "python"], "the other file has lines of its own"
    assert kinds(LOADED, comms=begun(9, 7, 100, 101)) == ["python"], "another life of it began later"
    assert kinds(LOADED | {"rank": 0}, comms=begun(9)) == ["python"]


def test_a_module_that_was_missing_to_nobody_knows_whom_ended_nobody_where_all_came_to_their_communicator() -> None:
    nobody = LOADED | {"rank": None}
    both = pl.concat([begun(9), begun(9, 8).with_columns(rank=pl.lit(0, dtype=pl.Int32()), pid=pl.lit(101, dtype=pl.Int64()))])
    assert kinds(nobody, CALLED | {"rank": None}, comms=both) == ["survived", "python"]
    assert kinds(nobody, comms=begun(9)) == ["python"]
    assert kinds(nobody, comms=pl.concat([both, begun(9, 7, 103)])) == ["python"], "one came in two lives"


def test_a_module_that_was_missing_before_the_job_trains_or_any_exception_before_it_says_that_it_is_done_ended_nobody() -> None:
    later = {"source_id": 7, "line_no": 30}
    assert kinds(LOADED, LOADED | {"rank": None}, CALLED, MARKED, training_steps=table("training_steps", later)) == [
        "survived",
        "survived",
        "python",
        "python",
    ]
    assert kinds(LOADED, CALLED, training_ends=table("training_ends", later)) == ["survived", "survived"]
    assert kinds(LOADED, CALLED, training_ends=table("training_ends", later | {"line_no": 2})) == ["python", "python"]
    assert kinds(LOADED, training_steps=table("training_steps", later | {"source_id": 6})) == ["python"]


def test_the_output_of_a_launcher_is_of_no_rank_though_one_alone_bears_its_rank_there() -> None:
    ends = [{"source_id": 7, "pid": 100 + r, "kind": "failed"} for r in range(2)]
    assert ranks({"source_id": 7}, source_ranks=IN_SOURCE, worker_exits=table("worker_exits", *ends)) == [None]
    assert ranks({"source_id": 7}, source_ranks=IN_SOURCE, worker_exits=table("worker_exits", *ends[:1])) == [1]
