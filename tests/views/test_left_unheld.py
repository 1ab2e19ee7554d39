"""Sends and receives that gloo does not record, by the numbers of the collectives between them."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.p2p_deadlock import p2p_deadlock
from nccl_forensics.views.left_unheld import LEFT_UNHELD, left_unheld
from nccl_forensics.views.stalls import STALLS
from tests.rules.host_frames import check, table
from tests.views.frames import operations, rows


def left(*between: list[int], backend: str = "gloo", sites: bool = True) -> list[tuple[object, ...]]:
    """For each rank how many sends and receives lie before each all_reduce."""
    made = operations({rank: ["all_reduce [[1]]"] * len(calls) for rank, calls in enumerate(between)})
    made = made.with_columns(call_site=pl.lit("step (train.py:9)" if sites else None, pl.String()))
    entries = [
        {"source_id": rank, "record": f"entries[{n}]", "op_id": n + 1 + sum(calls[: n + 1]), "backend": backend, "is_p2p": False}
        for rank, calls in enumerate(between)
        for n in range(len(calls))
    ]
    return left_unheld(made, table("fr_entries", *entries)).collect().select("rank", "seq", "usual", "made").rows()


USUAL = [4, 4, 4, 4, 4]


def test_who_came_to_a_call_with_fewer_sends_behind_it_than_ever_left_some_out() -> None:
    assert left(USUAL, [4, 4, 4, 4, 0], USUAL[:4]) == [(1, 5, 4, 0)]
    assert left([2, 2, 2, 2, 2], [4, 4, 4, 4, 3], USUAL, sites=False) == [(1, 5, 4, 3)]
    assert left([2, 4, 4], [9, 4, 4, 4, 3], [2, 4, 4]) == [(1, 5, 4, 3)], "what it made to be set up does not count"


def test_two_steps_are_a_habit_where_two_others_came_to_the_same_call_as_ever() -> None:
    assert left([2, 2, 2], [4, 4, 1], USUAL[:3]) == [(1, 3, 4, 1)]
    assert left(USUAL[:2], [4, 4, 1], USUAL[:3]) == [], "one other"
    assert left([3, 2, 2], [9, 4, 1], USUAL[:3]) == [], "one step before"


def test_other_numbers_without_a_habit_or_of_half_of_the_ranks_tell_nothing() -> None:
    assert left(USUAL, [4, 4, 4, 4, 5], USUAL) == []
    assert left(USUAL, [4, 3, 4, 4, 2], USUAL) == []
    assert left(USUAL[:2], [4, 1], USUAL[:2]) == []
    assert left([4, 4, 4, 4, 0], [4, 4, 4, 4, 0], USUAL, USUAL) == []
    # Recorders of NCCL hold sends and receives themselves.
    assert left(USUAL, [4, 4, 4, 4, 0], USUAL, backend="nccl") == []


def test_the_one_that_went_on_is_named_where_others_wait_in_a_send_or_receive() -> None:
    gone = rows(
        LEFT_UNHELD, {"rank": 1, "seq": 6, "op": "all_reduce", "usual": 4, "made": 0, "call_site": "step (train.py:9)", "source_id": 1}
    )
    in_send = {
        "cause": "p2p-deadlock",
        "confidence": "high",
        "place": "p2p",
        "user_frame": "swap (train.py:5)",
        "partners": [0, 2],
        "why": "so",
    }

    def named(frame: pl.LazyFrame, **more: object) -> list[tuple[int, ...]]:
        stalled = rows(STALLS, *({"rank": r} | in_send | more for r in (0, 2)))
        return [tuple(c.rank for c in f.culprits) for f in check(p2p_deadlock, stalls=stalled, left_unheld=frame)]

    assert named(gone) == [(1,)]
    # A wait for a request leaves no frame, and looks like work of its host.
    assert named(gone, cause="host-stall", place="user-code") == [(1,)]
    assert named(gone, cause="host-stall", place="checkpoint") == []
    assert named(rows(LEFT_UNHELD)) == [(0, 2)]
