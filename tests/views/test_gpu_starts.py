"""Ranks whose GPU has not come to what its peers have begun."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.calls import OPERATIONS, Calls
from nccl_forensics.views.gpu_starts import not_begun
from tests.views.frames import rows


def opened(rank: int, group: str, seq: int, state: str, order: int, **more: object) -> dict[str, object]:
    """An operation that a recorder says is not completed."""
    told = {"domain": "fr", "group_key": group, "group_name": group, "op": "all_reduce", "is_p2p": False, "pending": True, "done": False}
    return told | {"rank": rank, "seq": seq, "state": state, "order": order, "source_id": rank, "record": f"entries[{order}]"} | more


def named(*found: dict[str, object]) -> dict[int, object]:
    return {rank: row["waiters"] for rank, row in not_begun(Calls.of(rows(OPERATIONS, *found))).items()}


WAITING = [opened(rank, "tp", 5, "started", 9) for rank in (0, 1, 2)]


def test_a_rank_whose_gpu_has_begun_nothing_of_what_is_open_holds_up_those_that_have() -> None:
    behind = [opened(3, "tp", 5, "scheduled", 9), opened(3, "dp", 2, "scheduled", 10)]
    elsewhere = [opened(4, "dp", 2, "started", 7)]
    assert named(*WAITING, *behind, *elsewhere) == {3: [0, 1, 2]}
    send = opened(3, "pp", 31, "scheduled", 8, op="send", is_p2p=True)
    assert named(*WAITING, send, *behind) == {3: [0, 1, 2]}, "nor has it begun the send before it"
    assert named(*WAITING, send | {"state": "started"}, *behind) == {}, "it waits in its send"


def test_a_rank_that_has_begun_another_operation_waits_itself() -> None:
    assert named(*WAITING, opened(3, "dp", 2, "started", 8), opened(3, "tp", 5, "scheduled", 9)) == {}


def test_a_full_ring_that_begins_amid_open_operations_may_have_lost_what_the_rank_waits_in() -> None:
    late = [opened(3, "tp", 5, "scheduled", 9), opened(3, "dp", 2, "scheduled", 10)]
    before = opened(3, "tp", 4, "completed", 8, pending=False, done=True)
    others = [opened(rank, "tp", 4, "completed", 8, pending=False, done=True) for rank in (0, 1, 2)]
    assert named(*WAITING, *others, *late, before) == {3: [0, 1, 2]}
    assert named(*WAITING, *others, *late) == {}
    assert named(*WAITING, *late) == {3: [0, 1, 2]}, "dumps of open operations alone"


def test_nothing_is_told_where_begins_are_not_marked_or_most_have_not_begun() -> None:
    assert named(*[opened(rank, "tp", 5, "scheduled", 9) for rank in range(4)]) == {}
    assert named(opened(0, "tp", 5, "started", 9), *[opened(rank, "tp", 5, "scheduled", 9) for rank in (1, 2)]) == {}


def test_of_two_alone_the_one_that_has_not_begun_is_told() -> None:
    assert named(opened(0, "tp", 5, "started", 9), opened(1, "tp", 5, "scheduled", 9)) == {1: [0]}
    assert named(opened(0, "tp", 5, "started", 9), opened(1, "pp", 5, "scheduled", 9, op="recv", is_p2p=True)) == {}


def test_an_open_frame_without_ranks_tells_nothing() -> None:
    assert not_begun(Calls.of(pl.LazyFrame(schema=OPERATIONS))) == {}
