"""Ranks that hold nothing of a group in which others stand."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.looked_at import looked_at_earlier, moved_between, never_called
from tests.views.frames import operations, progress, rows

WORLD = {r: (4 if r == 2 else 3) for r in range(5)}
PART = dict.fromkeys((0, 1, 3, 4), 0)
MEMBERS = pl.LazyFrame({"domain": ["nccl"], "group_key": ["0xb"], "members": [[0, 1, 2, 3, 4]]})


def found(part: dict[int, int], **comm: object) -> list[tuple[int, int]]:
    """Rank and last position, where ranks of the job have made these calls in a communicator of all, and this is so of each member."""
    state = progress({key: {r: (last, None) for r, last in ranks.items()} for key, ranks in (("0xa", WORLD), ("0xb", part))})
    state = state.with_columns(domain=pl.lit("nccl"), first_seq=pl.lit(0, dtype=pl.Int64))
    comms = rows(COMMS_SCHEMA, *({"comm_key": "0xb", "rank": r, "completed": True} | comm for r in range(5)))
    return never_called(state, MEMBERS, comms).select("rank", "last_seq").collect().rows()


def test_a_rank_that_made_no_call_where_all_others_made_as_many_stands_before_the_first() -> None:
    assert found(PART) == [(2, -1)]
    assert found(dict.fromkeys(PART, 6)) == [(2, -1)], "calls are logged as they are made, whoever waits"


def test_others_that_are_no_more_or_not_level_tell_nothing() -> None:
    assert found({0: 0, 1: 0}) == []
    assert found(PART | {4: 1}) == []


def test_a_communicator_that_never_came_up_or_was_taken_down_tells_nothing() -> None:
    assert found(PART, completed=False) == []
    assert found(PART, ended="destroy-complete") == []


def test_counters_of_what_is_over_tell_a_recorder_that_was_looked_at_earlier_where_the_group_knows_nothing_but_calls_of_all() -> None:
    # Dumps of what is open alone: rank 0 stood in #5, and by the counters of the others #9 is over, which it had not come to.
    state = progress({"pg:0": {0: (6, 4), 1: (9, 9), 2: (9, 9)}})

    def earlier(*calls: str) -> list[int]:
        return looked_at_earlier(operations({0: list(calls)}, first=5), state).collect()["rank"].to_list()

    assert earlier("all_reduce", "all_gather") == [0]
    assert earlier("all_reduce", "broadcast") == [], "whoever sends may be ahead"


def test_a_job_moved_between_two_looks_where_one_rank_finished_what_another_cannot_have_come_to() -> None:
    calls = {1: ["all_reduce"] * 6}

    def before(opened: int, *made: str) -> list[int]:
        state = progress({"pg:0": {0: (opened, opened - 1), 1: (6, 6), 2: (6, 5)}})
        return moved_between(operations({1: list(made)} if made else calls, done=6), state).collect()["rank"].to_list()

    assert before(4) == before(5) == [0]
    assert before(6) == [], "a GPU that stands in the very operation that its peers have left"
    assert before(4, *["broadcast"] * 6) == [], "whoever sends may be ahead"
    assert moved_between(None, progress({"pg:0": {0: (4, 3), 1: (6, 6)}})).collect().is_empty()
