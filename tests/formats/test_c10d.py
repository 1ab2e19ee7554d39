"""Log lines of torch.distributed."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.formats.c10d import fingerprint
from nccl_forensics.grammar.lines import load
from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT, corpus

MESSAGES = (ROOT / "fixtures" / "framework" / "c10d_messages.txt").read_text().rstrip("\n").split("\n")
NCCL = "[rank3]:[E709 17:05:38.162555850 ProcessGroupNCCL.cpp:632] "


def read(*lines: str) -> SourceReading:
    return read_source("\n".join(lines).encode() + b"\n")


def row(table: str, *lines: str) -> dict[str, object]:
    """The one row of a table, without what is missing."""
    [found] = read(*lines).frames[table].to_dicts()
    return {k: v for k, v in found.items() if v is not None}


def test_every_message_but_the_unknown_one_has_a_kind():
    kinds = load("c10d").extract(pl.Series(MESSAGES)).kind
    assert [m for m, k in zip(MESSAGES, kinds, strict=True) if k is None] == ["Something new that nobody knows"]


def test_lark_and_the_columns_read_the_messages_alike():
    grammar = load("c10d")
    extraction = grammar.extract(pl.Series(MESSAGES))
    for number, message in enumerate(MESSAGES):
        parsed = grammar.parse(message)
        kind = extraction.kind[number]
        if parsed is None:
            assert kind is None
            continue
        [columns] = extraction.frames[str(kind)].filter(pl.col("row") == number).drop("row").to_dicts()
        assert (kind, columns) == parsed


def test_a_timeout_tells_work_and_times():
    found = row("watchdog", NCCL + MESSAGES[0])
    assert found.pop("message") == MESSAGES[0]
    assert found == {
        "line_no": 1,
        "time_raw_ns": 16391138162555850,
        "time_kind": "local-unzoned",
        "hint_rank": 3,
        "hint_scope": "global",
        "kind": "timeout",
        "pg_rank": 0,
        "seq": 20585,
        "op": "ALLREDUCE",
        "numel_in": 1259621,
        "numel_out": 1259621,
        "timeout_ms": 600000,
        "elapsed_ms": 600000,
    }


@pytest.mark.parametrize(
    ("prefix", "time"),
    [
        ("[E1118 20:32:23.955028747 ProcessGroupNCCL.cpp:629] ", 27808343955028747),
        ("[E709 17:05:38.162555850 ProcessGroupNCCL.cpp:632] ", 16391138162555850),
        ("[E ProcessGroupNCCL.cpp:475] ", None),
        ("E0607 16:10:35.739390 515217 ProcessGroupNCCL.cpp:173] ", 13623035739390000),
    ],
)
def test_every_prefix_of_torch_is_read(prefix: str, time: int | None):
    assert row("watchdog", prefix + MESSAGES[0]).get("time_raw_ns") == time


def test_the_counters_of_a_failure_tell_how_far_the_rank_came():
    found = row("watchdog", NCCL + MESSAGES[4])
    assert {k: found[k] for k in ("kind", "pg_id", "pg_name", "pg_desc", "seq", "last_enqueued", "last_started", "last_completed")} == {
        "kind": "failure",
        "pg_id": 0,
        "pg_name": "0",
        "pg_desc": "default_pg",
        "seq": 20585,
        "last_enqueued": 20589,
        "last_started": 20585,
        "last_completed": 20584,
    }


def test_a_store_that_never_answered_is_told_from_other_words_of_its_sockets():
    said = "[c10d] The client socket has timed out after 600000ms while trying to connect to (172.17.0.9, 50437)."
    assert row("watchdog", f"[E616 02:08:15.931416442 socket.cpp:1023] {said}")["kind"] == "store-timeout"
    warned = "[W616 02:08:15.931416442 socket.cpp:752] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 97 - x)."
    assert "watchdog" not in read(warned).frames


def test_the_end_of_a_watchdog_is_an_error_in_older_words_too():
    assert (
        row("watchdog", "[E ProcessGroupNCCL.cpp:916] [Rank 0] NCCL watchdog thread terminated with exception: CUDA error: unknown error")[
            "kind"
        ]
        == "error"
    )


def test_an_exception_of_a_collective_is_an_error_and_only_what_the_gpu_says_is_told_apart():
    remote, gpu = (m for m in MESSAGES if "async exception" in m)
    found = row("watchdog", NCCL + remote)
    assert {k: found[k] for k in ("kind", "seq", "op", "pg_rank")} == {"kind": "error", "seq": 412, "op": "ALLREDUCE", "pg_rank": 5}
    assert "exceptions" not in read(NCCL + remote).frames
    assert row("exceptions", NCCL + gpu)["signature"] == "cuda-error"


def test_a_counter_that_was_never_set_is_missing():
    assert "last_completed" not in row("watchdog", "[rank7]:[E ProcessGroupNCCL.cpp:1537] " + MESSAGES[5])


def test_a_dump_signal_names_the_rank_that_timed_out():
    assert row("watchdog", NCCL + MESSAGES[9])["blamed_ranks"] == [3]
    assert "blamed_ranks" not in row("watchdog", NCCL + MESSAGES[8])


def test_the_watchdogs_end_tells_the_work_again_where_its_first_line_was_torn():
    found = row("watchdog", NCCL + MESSAGES[13])
    assert (found["kind"], found["seq"], found["op"]) == ("error", 1, "ALLGATHER")


def test_the_stack_of_a_failed_collective_belongs_to_its_line():
    reading = read(
        NCCL + "Stack trace of the failed collective: ",
        "#0 all_reduce from /venv/torch/distributed/distributed_c10d.py:2700",
        "#1 step from /home/u/train.py:39",
        "",
        "something else",
    )
    assert reading.frames["watchdog"]["frames"].to_list() == [
        "all_reduce (/venv/torch/distributed/distributed_c10d.py:2700)\nstep (/home/u/train.py:39)"
    ]
    assert (reading.records, reading.foreign) == (3, 2)


DESYNC = (
    "\t - [0] Timeout at collective: ALLREDUCE, #42",
    "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
    "\t   - [3] joined but didn't finish collective #41 (count from 1)",
    "\t     [5,6] finished collective #41, but didn't join collective #42 (count from 1)",
    "\t - Snapshot of ranks' latest states:",
    "\t   #41 started ranks:",
    "\t     [3] started BROADCAST",
    "\t   #41 finished ranks:",
    "\t     [5, 6] finished BROADCAST",
    "\t   #42 started ranks:",
    "\t     [0, 1, 2] started ALLREDUCE",
)


def test_a_timeout_into_which_another_process_wrote_keeps_its_call():
    head = "[rank1]:[E616 13:41:10.909476913 ProcessGroupNCCL.cpp:565] [Rank 1] Watchdog caught collective oper"
    call = "ation timeout: WorkNCCL(SeqNum=2109, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=16, Timeout(ms)=1800000) ran for 1800007 milliseconds before timing out."
    other = "CACHE` is deprecated and will be removed in v5 of Transform"
    for words in ("", other):
        [row] = read_source(f"{head}{words}{call}".encode()).frames["watchdog"].select("kind", "pg_rank", "seq", "op", "numel_in").rows()
        assert row == ("timeout", 1, 2109, "_ALLGATHER_BASE", 8)
    reading = read_source(f"{head}{other}".encode())
    assert "watchdog" not in reading.frames
    assert reading.unmodelled == 1


def test_a_desync_report_names_who_did_not_come_and_who_did_not_finish():
    reading = read(NCCL + "[Rank 0] Watchdog says", *DESYNC)
    found = reading.frames["watchdog"].select("kind", "blamed_ranks", "seq", "op").rows()
    assert found == [
        ("desync-timeout", None, 42, "ALLREDUCE"),
        ("desync-stuck", [3], 41, None),
        ("desync-missing", [5, 6], 41, None),
    ]
    assert (reading.foreign, reading.unmodelled) == (0, 1)


def test_ranks_that_never_joined_are_named():
    line = "\t - To our best knowledge, ranks [3, 11] are the lagging ranks that caused this timeout. They never joined any collectives"
    assert row("watchdog", line)["blamed_ranks"] == [3, 11]


def test_a_barrier_names_all_ranks_that_are_missing():
    found = row("reports", "[rank0]:[E1121 00:16:47.953886477 ProcessGroupGloo.cpp:67] " + MESSAGES[17])
    assert (found["kind"], found["rank"], found["ranks"], found["timeout_ms"]) == ("barrier-missing", 0, [2, 4], 12000)


def test_a_barrier_that_a_rank_reached_accuses_nobody():
    found = row("reports", "[rank1]:[E1121 00:16:47.953886477 ProcessGroupGloo.cpp:67] " + MESSAGES[20])
    assert (found["kind"], found["rank"], found.get("ranks")) == ("barrier-ok", 1, None)


def test_a_fingerprint_is_read_with_and_without_its_comma():
    assert fingerprint("SequenceNumber=17, OpType=BROADCAST, TensorShape=[2, 3], TensorDtypes=Float, TensorDeviceTypes=x") == {
        "SequenceNumber": "17",
        "OpType": "BROADCAST",
        "TensorShape": "[2, 3]",
        "TensorDtypes": "Float",
    }
    assert fingerprint("SequenceNumber=5OpType=BARRIER)") == {"SequenceNumber": "5", "OpType": "BARRIER"}


def test_ddps_data_block_belongs_to_its_line():
    reading = read("[rank0]:[I1121 00:12:24.588699256 logger.cpp:223] " + MESSAGES[25], "broadcast_buffers: 1", "device_ids: ", "", "x")
    assert reading.frames["reports"]["kind"].to_list() == ["ddp-init"]
    assert (reading.records, reading.foreign) == (3, 2)


def test_a_prefix_with_an_unknown_message_counts_as_unmodelled():
    reading = read(NCCL + MESSAGES[-1])
    assert (reading.records, reading.unmodelled, reading.foreign) == (1, 1, 0)


def test_a_secret_in_a_message_is_masked():
    assert "hunter2" not in str(row("watchdog", NCCL + "Process group watchdog thread terminated with exception: password=hunter2"))


def test_lines_of_the_lab_have_no_unknown_messages():
    paths = sorted(corpus("lab").glob("*/evidence/logs/**/stderr.log"))
    assert paths
    for path in paths:
        assert "unmodelled" not in read_source(path.read_bytes()).frames, path


def test_the_watchdog_of_a_real_hang_tells_every_rank():
    found = read_source(corpus("public/nccl220-polaris-8r-ofi-hang-20250626/evidence/with_aws.log").read_bytes()).frames["watchdog"]
    failures = found.filter(pl.col("kind") == "failure")
    assert sorted(failures["hint_rank"]) == list(range(8))
    assert failures["last_completed"].null_count() == 8  # garbage of a counter that was never set
    assert found.filter(pl.col("kind") == "error")["op"].to_list() == ["ALLGATHER"] * 8


def test_a_rank_that_ended_without_taking_its_groups_down_was_there() -> None:
    lines = (
        "[rank3]:[W509 08:42:55.639483648 ProcessGroupNCCL.cpp:1524] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
        "[rank1]:[W509 08:42:55.639483648 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal exit",
        "[rank2]:[W509 08:42:55.639483648 ProcessGroupNCCL.cpp:1524] Warning: destroy me",
    )
    found = read_source("\n".join(lines).encode()).frames["watchdog"]
    assert found.select("kind", "hint_rank").rows() == [("undestroyed", 3), ("undestroyed", 1)]
