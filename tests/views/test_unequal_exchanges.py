"""All-to-alls whose inputs and outputs do not sum up to the same."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.stuck import STUCK
from nccl_forensics.views.unequal_exchanges import unequal_exchanges
from tests.views.frames import rows


def found(sizes: list[tuple[int, int]], *, of: int | None = None, minor: int = 4, op: str = "all_to_all") -> list[tuple[object, ...]]:
    """What is told of members that each send and await so many elements in #7 of a group of so many."""
    told = exchanged(sizes, of, minor, op)
    return told.select("odd", "own", "usual", "sent", "awaited", "record").collect().rows()


def exchanged(sizes: list[tuple[int, int]], of: int | None = None, minor: int = 4, op: str = "all_to_all") -> pl.LazyFrame:
    ranks = list(range(len(sizes)))
    calls = [
        {"domain": "fr", "group_key": "pg:4", "rank": rank, "seq": 7, "op": op, "shape": f"[[{sent}, 2]]", "out_shape": f"[[{awaited}, 2]]"}
        | {"source_id": rank, "record": f"entries[{rank}]"}
        for rank, (sent, awaited) in enumerate(sizes)
    ]
    waited = {"domain": "fr", "group_key": "pg:4", "seq": 7, "op": op, "ranks": ranks, "size": of or len(ranks)}
    dumps = pl.LazyFrame({"use": ["chosen"], "version_major": [2], "version_minor": [minor]})
    return unequal_exchanges(rows(STUCK, waited), rows(OPERATIONS, *calls), dumps)


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
