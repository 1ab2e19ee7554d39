"""Two alone in a group that have not made the same calls."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.calls import Calls
from nccl_forensics.views.of_two import odd_of_two
from nccl_forensics.views.stall_causes import cause_of
from tests.views.frames import operations

FACT: dict[str, object] = {"domain": "nccl", "group_key": "0xa", "op": "all_reduce", "seq": 4, "waiters": [0], "seen_by": "progress"}
CITED = {"source_id": 0, "line_no": 9, "record": None, "own_source_id": 1, "own_line_no": 7, "own_record": None}


def told(first: int, second: int, *others: tuple[int, int], domain: str = "nccl") -> dict[int, tuple[object, object]]:
    """Who is odd where rank 1 is behind rank 0, which wait for each other, and by which line; each pair of ranks made so many calls."""
    pairs = [(first, second), *others]
    calls = [
        operations({2 * n: ["all_reduce [8]"] * own[0], 2 * n + 1: ["all_reduce [8]"] * own[1]}, group=f"0x{n + 10:x}", domain=domain)
        for n, own in enumerate(pairs)
    ]
    counts = Calls.of(pl.concat(calls)).counts
    found = odd_of_two({1: (FACT | CITED | {"domain": domain}, "0xf")}, counts)
    return {r: (fact.get("once_more") or fact.get("either"), fact["line_no"]) for r, (fact, _) in found.items()}


def test_the_one_whose_calls_are_not_those_of_all_others_in_groups_of_two_is_odd() -> None:
    assert told(4, 3, (3, 3), (3, 3)) == {0: (True, 7)}, "the one that waits called once too often"
    assert told(4, 3, (4, 4), (4, 4)) == {1: (None, 9)}, "the one behind left one out"


@pytest.mark.parametrize("others", [[], [(3, 3), (4, 4)], [(5, 5)]])
def test_where_the_others_do_not_tell_it_may_be_either(others: list[tuple[int, int]]) -> None:
    assert told(4, 3, *others) == {1: (0, 9)}


def test_recorders_hold_ends_of_what_ranks_called_and_are_not_counted() -> None:
    assert told(4, 3, (3, 3), (3, 3), domain="fr") == {1: (None, 9)}


def test_a_jump_between_two_calls_of_one_line_is_not_sure_to_leave_one_out() -> None:
    row = FACT | {"ahead": "0xf", "domain": "fr", "kind": "jumped"}
    [plain, loop, over] = [
        cause_of(1, row | more, {}, None) for more in ({}, {"one_loop": True}, {"one_loop": True, "no_swap": "it is over"})
    ]
    assert plain is not None
    assert loop is not None
    assert over is not None
    assert (plain.confidence, loop.confidence, over.confidence) == ("high", "medium", "high")
    assert (loop.cause, loop.alternative) == ("collective-skipped", "group-deadlock")


def test_who_jumped_to_a_call_by_a_branch_of_its_own_took_two_groups_in_another_order() -> None:
    row = FACT | {"ahead": "0xf", "domain": "fr", "kind": "jumped", "another_path": True}
    [order, before, over] = [cause_of(1, row | more, {}, None) for more in ({}, {"own_branch": True}, {"no_swap": "it is over"})]
    assert order is not None
    assert before is not None
    assert (before.cause, before.confidence) == ("group-deadlock", "high")
    assert over is not None
    assert (order.cause, order.confidence, order.alternative) == ("group-deadlock", "medium", "collective-skipped")
    assert (over.cause, over.alternative, over.against) == ("collective-skipped", "group-deadlock", "it is over")


def test_which_of_two_it_was_is_said_surely_only_where_others_tell() -> None:
    row = FACT | {"ahead": "0xf"}
    odd = cause_of(0, row | {"kind": "once-more"}, {}, None)
    either = cause_of(1, row | {"kind": "jumped", "either": 0}, {}, None)
    assert odd is not None
    assert either is not None
    assert (odd.cause, odd.confidence) == ("collective-mismatch", "medium")
    assert (either.cause, either.confidence) == ("collective-skipped", "low")
    assert "or rank 0 called it once too often" in either.why
