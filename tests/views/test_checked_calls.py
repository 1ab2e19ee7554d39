"""Calls that torch.distributed compared between the ranks before it made them."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.checked_calls import CHECKED_CALLS, checked_calls
from nccl_forensics.views.last_calls import last_calls
from nccl_forensics.views.matching import operations
from tests.rules.host_frames import table
from tests.views.frames import rows

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
DUMPS = {"source_id": pl.UInt32(), "rank": pl.Int32(), "use": pl.String()}


def checked(*calls: str, seqs: tuple[int, ...] = (9, 9, 9), word: str = "all_gather") -> list[tuple[object, ...]]:
    entries = [
        {
            **{"source_id": rank, "record": "entries[4]", "record_id": 4, "collective_seq_id": seq, "op": word, "pg_name": "0"},
            "frames": f"{call} ({TORCH}:3245)\n{call}_all (/opt/job/train.py:{10 + rank})",
        }
        for rank, (call, seq) in enumerate(zip(calls, seqs, strict=True))
    ]
    chosen = rows(DUMPS, *[{"source_id": r, "rank": r, "use": "chosen"} for r in range(3)])
    known = table("fr_entries", *entries)
    found = checked_calls(operations(known, chosen, None, None, None, None), known)
    return found.collect().select("rank", "op", "user_frame").rows()


def test_the_frames_of_a_check_tell_which_call_each_rank_was_about_to_make() -> None:
    assert checked("all_reduce", "broadcast", "all_reduce") == [
        (0, "all_reduce", "all_reduce_all (train.py:10)"),
        (1, "broadcast", "broadcast_all (train.py:11)"),
        (2, "all_reduce", "all_reduce_all (train.py:12)"),
    ]


def test_one_rank_may_be_about_to_make_the_very_call_that_the_check_makes() -> None:
    assert [op for _, op, _ in checked("all_reduce", "all_gather", "all_reduce")] == ["all_reduce", "all_gather", "all_reduce"]


def test_recorded_operations_are_no_checks() -> None:
    assert checked("all_gather", "all_gather", "all_gather") == []


def test_ranks_in_different_places_are_not_compared() -> None:
    assert checked("all_reduce", "broadcast", "all_reduce", seqs=(9, 11, 9)) == []


def test_a_check_is_a_witness_where_there_is_neither_stack_nor_traceback() -> None:
    row = {"rank": 1, "op": "broadcast", "user_frame": "sync (train.py:55)", "reason": "frame 0", "source_id": 1, "record": "entries[4]"}
    found = last_calls(None, None, rows(CHECKED_CALLS, row)).collect()
    assert found.select("rank", "place", "op", "witness", "record").rows() == [(1, "collective", "broadcast", "record", "entries[4]")]
