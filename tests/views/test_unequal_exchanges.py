"""All-to-alls whose inputs and outputs do not sum up to the same."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.process_groups import GROUPS
from nccl_forensics.views.stuck import STUCK
from nccl_forensics.views.unequal_exchanges import unequal_exchanges
from tests.views.frames import rows


def found(sizes: list[tuple[int, int]], *, of: int | None = None, minor: int = 4, op: str = "all_to_all") -> list[tuple[object, ...]]:
    """What is told of members that each send and await so many elements in #7 of a group of so many."""
    told = exchanged(sizes, of, minor, op)
    return told.select("odd", "own", "usual", "sent", "awaited", "record").collect().rows()


def exchanged(
    sizes: list[tuple[int, int]], of: int | None = None, minor: int = 4, op: str = "all_to_all", *, ended: bool = False
) -> pl.LazyFrame:
    """``ended``: after a call of eight for eight, all members have finished #7."""
    ranks = list(range(len(sizes)))
    calls = [
        {"domain": "fr", "group_key": "pg:4", "rank": rank, "seq": 7, "op": op, "shape": f"[[{sent}, 2]]", "out_shape": f"[[{awaited}, 2]]"}
        | {"source_id": rank, "record": f"entries[{rank}]", "is_p2p": False, "done": ended}
        for rank, (sent, awaited) in enumerate(sizes)
    ]
    calls += [c | {"seq": 6, "shape": "[[8, 2]]", "out_shape": "[[8, 2]]", "done": True} for c in calls]
    waited = {"domain": "fr", "group_key": "pg:4", "seq": 7, "op": op, "ranks": ranks, "size": of or len(ranks)}
    dumps = pl.LazyFrame({"use": ["chosen"], "version_major": [2], "version_minor": [minor]})
    group = {"domain": "fr", "group_key": "pg:4", "members": list(range(of or len(ranks)))}
    return unequal_exchanges(rows(STUCK, *([] if ended else [waited])), rows(OPERATIONS, *calls), dumps, rows(GROUPS, group))


def test_the_member_that_sends_less_than_all_others_by_what_is_missing_is_odd() -> None:
    assert found([(8, 9), (8, 7), (6, 8)]) == [(2, 12, 16, 44, 48, "entries[2]")]
    assert found([(8, 9), (8, 7), (9, 11), (7, 8)]) == [(None, None, None, 64, 70, "entries[0]")], "sizes differ anyway"


@pytest.mark.parametrize(
    ("sizes", "more"),
    [
        ([(8, 9), (8, 7), (6, 6)], {}),  # they sum up
        ([(8, 9), (8, 7), (6, 8)], {"of": 4}),  # one member left no dump
        ([(8, 9), (8, 7), (6, 8)], {"minor": 3}),  # sizes that nobody trusts
        ([(8, 9), (8, 7), (6, 8)], {"op": "all_gather_base"}),
    ],
)
def test_sizes_that_sum_up_or_that_are_not_all_known_tell_nothing(sizes: list[tuple[int, int]], more: dict[str, Any]) -> None:
    assert found(sizes, **more) == []


def test_a_call_that_ended_is_told_where_one_member_alone_sent_less_than_was_awaited() -> None:
    def told(*sizes: tuple[int, int], **more: Any) -> list[tuple[object, ...]]:
        return exchanged(list(sizes), ended=True, **more).select("odd", "seq", "sent", "awaited", "ended").collect().rows()

    assert told((8, 8), (8, 8), (6, 8)) == [(2, 7, 44, 48, True)]
    # One takes less than before because one sends less, as counts tell it to; one has no record; of two either may be the odd one.
    assert told((8, 6), (8, 8), (6, 8)) == []
    assert told((8, 8), (8, 8), (6, 8), of=4) == []
    assert told((8, 8), (6, 8)) == []


def test_members_that_bring_many_sizes_bring_what_they_may() -> None:
    sizes = [(8 + n, 8 + n) for n in range(9)]
    assert exchanged([*sizes, (5, 8)], ended=True).collect().height == 0
