"""Watchdogs that name one position and do not agree on the call."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.watchdog_mismatch import (
    collective_mismatch_by_watchdog,
    collective_skipped_by_watchdog,
    shape_mismatch_by_watchdog,
)
from nccl_forensics.views.watchdogs import CALLS, watchdog_calls, watchdog_progress
from tests.rules.frames import cited, divergences, told
from tests.rules.host_frames import table
from tests.views.frames import operations, rows


def calls(*found: tuple[int, str, int], seq: int = 9) -> pl.LazyFrame:
    """(rank, operation, elements) of the group mesh_dp."""
    return rows(
        CALLS,
        *(
            {
                "group_key": "pg:1",
                "group_desc": "mesh_dp",
                "rank": rank,
                "pg_rank": rank,
                "seq": seq,
                "op": op,
                "numel_in": size,
                "numel_out": size,
                "source_id": rank,
                "line_no": 3,
            }
            for rank, op, size in found
        ),
    )


def test_the_rank_with_another_number_of_elements_is_named() -> None:
    [finding] = shape_mismatch_by_watchdog.check(calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 6), (2, "ALLREDUCE", 4)), None)
    assert told(finding) == ("critical", "medium", (1,))
    assert cited(finding) == [(1, 3), (0, 3), (2, 3)]
    assert collective_mismatch_by_watchdog.check(calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 6), (2, "ALLREDUCE", 4)), None) == []


def test_the_rank_in_another_collective_is_named() -> None:
    frame = calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 4), (2, "BROADCAST", 4))
    [finding] = collective_mismatch_by_watchdog.check(frame, None)
    assert told(finding) == ("critical", "medium", (2,))
    assert shape_mismatch_by_watchdog.check(frame, None) == []


def test_without_a_majority_nobody_is_named() -> None:
    [finding] = shape_mismatch_by_watchdog.check(calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 6)), None)
    assert told(finding) == ("critical", "low", ())


@pytest.mark.parametrize(
    "frame",
    [
        calls((0, "ALLTOALL_BASE", 4), (1, "ALLTOALL_BASE", 6), (2, "ALLTOALL_BASE", 4)),  # sizes differ by right
        calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 4), (2, "ALLREDUCE", 4)),
        pl.concat([calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 4)), calls((2, "ALLREDUCE", 6), seq=10)]),  # another position
        calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 6), (2, "ALLREDUCE", 4)).with_columns(pg_rank=pl.lit(0, dtype=pl.Int32)),
    ],
    ids=["uneven", "alike", "elsewhere", "two groups of one name"],
)
def test_what_is_no_mismatch_is_quiet(frame: pl.LazyFrame) -> None:
    assert shape_mismatch_by_watchdog.check(frame, None) == []


def test_operations_seen_elsewhere_speak_instead() -> None:
    frame = calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 6), (2, "ALLREDUCE", 4))
    assert shape_mismatch_by_watchdog.check(frame, divergences("missing", [1], [0, 2])) == []


def test_the_lines_of_a_rank_are_joined_by_their_number() -> None:
    # The line of the timeout names the sizes, a later one the group.
    text = "".join(
        f"[rank{rank}]:[E113 16:58:40.052347996 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn={size}, NumelOut={size}, Timeout(ms)=300000) ran for 300033 milliseconds before timing out.\n"
        f"[rank{rank}]:[E113 16:58:40.052577996 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID 1(mesh_dp) Rank {rank}] failure detected by watchdog at "
        f"work sequence id: 9 PG status: last enqueued work: 12, last completed work: 8\n"
        for rank, size in ((0, 4), (1, 6), (2, 4))
    )
    watchdog = read_source(text.encode()).frames["watchdog"].with_columns(source_id=pl.lit(0, dtype=pl.UInt32))
    found = watchdog_calls(watchdog.lazy()).collect()
    assert found.select("group_key", "group_desc", "rank", "seq", "numel_in", "line_no").rows() == [
        ("pg:1", "mesh_dp", 0, 9, 4, 1),
        ("pg:1", "mesh_dp", 1, 9, 6, 3),
        ("pg:1", "mesh_dp", 2, 9, 4, 5),
    ]


@pytest.mark.parametrize("op", ["SEND", "RECV", "COALESCED"])
def test_a_group_with_sends_and_receives_tells_no_progress(op: str) -> None:
    # Each pair counts its own: 169 of one pair is not before 173 of another.
    line = {"kind": "timeout", "hint_scope": "global", "source_id": 0}
    rows_of = [
        {"hint_rank": 0, "pg_name": "49", "op": op, "seq": 169, "line_no": 1},
        {"hint_rank": 1, "pg_name": "49", "op": "ALLREDUCE", "seq": 173, "line_no": 2},
        {"hint_rank": 1, "pg_name": "0", "op": "ALLREDUCE", "seq": 9, "line_no": 3},
    ]
    found = watchdog_progress(table("watchdog", *(line | row for row in rows_of))).collect()
    assert found.select("group_key", "rank", "first_pending").rows() == [("pg:0", 1, 9)]


def test_parts_of_a_split_communicator_that_share_a_name_are_not_compared() -> None:
    """Ranks 0 and 4 are both rank 0 of a group of this name: that one is at 9 and the other at 10 tells nothing of either."""
    line = {"kind": "timeout", "hint_scope": "global", "source_id": 0, "op": "ALLREDUCE"}
    lines = [{"hint_rank": r, "pg_name": "4", "pg_rank": r % 4, "seq": 9 + (r < 4), "line_no": r + 1} for r in range(8)]
    assert watchdog_progress(table("watchdog", *(line | row for row in lines))).collect().is_empty()
    assert watchdog_progress(table("watchdog", *(line | row for row in lines[:4]))).collect()["rank"].to_list() == [0, 1, 2, 3]


def recorded(*sizes: int, ranks: tuple[int, ...] = (0, 2)) -> pl.LazyFrame:
    """What the recorders of ranks hold of the group from position 8 on: all-reduces of these sizes."""
    return operations({rank: [f"all_reduce [[{size}]]" for size in sizes] for rank in ranks}, group="pg:1", first=8)


CALLED = calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 6), (2, "ALLREDUCE", 4))


def test_a_rank_that_timed_out_in_a_later_call_of_the_others_left_out_what_lies_between() -> None:
    [finding] = collective_skipped_by_watchdog.check(CALLED, None, recorded(9, 4, 5, 6))
    assert told(finding) == ("critical", "medium", (1,))
    assert cited(finding) == [(1, 3), (0, "entries[3]"), (0, 3), (2, 3)]
    assert finding.title.startswith("rank 1 skipped ALLREDUCE #9 of process group mesh_dp (1)")


@pytest.mark.parametrize(
    ("frame", "ops"),
    [
        (CALLED, recorded(9, 4, 5)),  # no such call later
        (CALLED, recorded(9, 6, 5, 6)),  # the recorders hold it at the position itself
        (CALLED, recorded(9, 4, 5, 6, ranks=(1,))),  # only its own recorder, which holds what it did
        (calls((0, "ALLREDUCE", 4), (1, "ALLREDUCE", 6)), recorded(9, 4, 5, 6)),  # no majority
    ],
)
def test_otherwise_no_skip_is_read_from_watchdogs(frame: pl.LazyFrame, ops: pl.LazyFrame) -> None:
    assert collective_skipped_by_watchdog.check(frame, None, ops) == []


def test_watchdogs_that_tell_no_sizes_do_not_tell_which_call_was_left_out() -> None:
    frame = CALLED.with_columns(numel_in=pl.lit(None, dtype=pl.Int64))
    assert collective_skipped_by_watchdog.check(frame, None, recorded(9, 4, 5, 6)) == []
