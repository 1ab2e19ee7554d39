"""Ranks that went past a collective that the others wait in."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.jumps import passed_over
from tests.views.frames import operations

BEHIND = {"rank": 2, "kind": "behind", "domain": "fr", "group_key": "pg:7", "seq": 5, "op": "all_to_all", "waiters": [0, 1], "source_id": 0}


def called(orders: dict[int, list[tuple[str, str, int]]]) -> pl.LazyFrame:
    """For each rank its calls in order: group, its description, position."""
    return pl.concat(
        [
            operations({rank: ["all_reduce"]}, group=group, first=seq).with_columns(
                order=pl.lit(order, dtype=pl.Int64), group_desc=pl.lit(desc), record=pl.lit(f"entries[{order}]")
            )
            for rank, calls in orders.items()
            for order, (group, desc, seq) in enumerate(calls)
        ]
    )


FOUR, FIVE = ("pg:7", "expert", 4), ("pg:7", "expert", 5)


def data(rank: int) -> tuple[str, str, int]:
    """Each rank has a data-parallel group of its own."""
    return (f"pg:2{rank}", "data", 9)


def test_a_later_call_that_the_others_made_after_the_missing_one_shows_that_it_was_left_out() -> None:
    waiters = {r: [FOUR, FIVE, data(r)] for r in (0, 1)}
    found = passed_over([BEHIND], called(waiters | {2: [FOUR, data(2)]}))
    assert list(found) == [2]
    fact, ahead = found[2]
    assert (fact["seq"], fact["own_source_id"], fact["own_record"], ahead) == (5, 2, "entries[0]", "pg:22")


def test_a_call_that_the_others_made_before_the_missing_one_shows_nothing() -> None:
    waiters = {r: [FOUR, data(r), FIVE] for r in (0, 1)}
    assert passed_over([BEHIND], called(waiters | {2: [FOUR, data(2)]})) == {}


def test_a_rank_that_called_nothing_more_may_still_come() -> None:
    waiters = {r: [FOUR, FIVE, data(r)] for r in (0, 1)}
    assert passed_over([BEHIND], called(waiters | {2: [FOUR]})) == {}
    # Nor is anything known of one that never called anything in the group.
    assert passed_over([BEHIND], called(waiters | {2: [data(2)]})) == {}


def test_where_the_others_do_not_agree_on_the_order_nothing_is_claimed() -> None:
    assert passed_over([BEHIND], called({0: [FIVE, data(0)], 1: [data(1), FIVE], 2: [FOUR, data(2)]})) == {}
