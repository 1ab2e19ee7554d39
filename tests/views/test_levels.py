"""Whether ranks stand level."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.levels import stand_by_themselves, still_enqueuing, without_a_role
from nccl_forensics.views.stuck import STUCK
from tests.views.frames import groups, progress, rows


@pytest.mark.parametrize(("ends", "working"), [((9, 9, 9), False), ((9, 8, 7), True), ((9, 9, 8), False)])
def test_hosts_of_a_job_that_stands_stop_at_one_place(ends: tuple[int, int, int], working: bool) -> None:
    state = progress({"pg:0": {rank: (end, 5) for rank, end in enumerate(ends)} | {3: (5, 5)}})
    assert still_enqueuing(state, groups({"pg:0": [0, 1, 2, 3]}), 1)[0] is working


def test_ranks_that_have_not_finished_the_same_are_not_compared() -> None:
    state = progress({"pg:0": {0: (9, 5), 1: (8, 4), 2: (7, 3)}})
    assert still_enqueuing(state, groups({"pg:0": [0, 1, 2]}), 1) == (False, False)


@pytest.mark.parametrize(("elsewhere", "named", "working"), [(3, 2, True), (2, 2, False), (1, 1, False)])
def test_more_hosts_elsewhere_than_ranks_that_are_waited_for_are_no_exception(elsewhere: int, named: int, working: bool) -> None:
    state = progress({"pg:0": {rank: (9 if rank < elsewhere else 6, 5) for rank in range(30)} | {30: (5, 5)}})
    assert still_enqueuing(state, groups({"pg:0": list(range(31))}), named) == (working, True)


@pytest.mark.parametrize(("named", "working"), [(3, True), (2, False)])
def test_a_job_in_which_fewer_wait_than_are_waited_for_goes_on(named: int, working: bool) -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5)} | dict.fromkeys(range(2, 9), (5, 5))})
    assert still_enqueuing(state, groups({"pg:0": list(range(9))}), named) == (working, False)


def test_who_has_a_send_open_waits_as_well() -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5)} | dict.fromkeys(range(2, 9), (5, 5))})
    sends = state.with_columns(first_open=pl.when(pl.col("rank") < 5).then(pl.lit(7, pl.Int64)))
    assert still_enqueuing(sends, groups({"pg:0": list(range(9))}), 3) == (False, False)


def test_of_dumps_that_hold_only_what_is_open_those_are_compared_that_have_the_same_open_first() -> None:
    reached = progress({"pg:0": {0: (9, 5), 1: (9, 5), 2: (8, 3), 3: (7, 2)}}).with_columns(last_done=pl.lit(None, pl.Int64))
    assert still_enqueuing(reached, groups({"pg:0": [0, 1, 2, 3]}), 1) == (False, False)


@pytest.mark.parametrize(("inside", "held", "alone"), [([0, 1, 2], False, True), ([0, 1], False, False), ([0, 1, 2], True, False)])
def test_a_group_stands_by_itself_where_all_members_are_in_it_and_nothing_before_holds_them_up(
    inside: list[int], held: bool, alone: bool
) -> None:
    group = {"domain": "fr", "group_key": "pg:0", "seq": 9, "op": "all_reduce", "ranks": inside, "size": 3, "held": held}
    assert stand_by_themselves(rows(STUCK, group)) is alone


@pytest.mark.parametrize(
    ("tensor", "first", "waiting"),
    [
        ([0, 1], 1, True),  # ranks 2 and 3 have made no call of that role, of which all others have a communicator
        ([0, 1, 2], 1, False),  # one of them has
        ([0], 1, False),  # not all others have: stages differ
        ([0, 1], 5, False),  # what they called before is not kept
    ],
)
def test_those_who_lack_the_first_call_of_a_role_may_wait_for_each_other_in_it(tensor: list[int], first: int, waiting: bool) -> None:
    every = progress({"pg:0": dict.fromkeys(range(4), (6, 6)), "pg:1": dict.fromkeys(tensor, (1, 0))}).with_columns(
        first_seq=pl.when(pl.col("group_key") == "pg:0").then(pl.lit(first, pl.Int64)).otherwise(pl.lit(1, pl.Int64))
    )
    known = groups({"pg:0": [0, 1, 2, 3], "pg:1": [0, 1]}).with_columns(
        group_desc=pl.when(pl.col("group_key") == "pg:0").then(pl.lit("default_pg")).otherwise(pl.lit("tp"))
    )
    assert without_a_role(every, known, {2, 3}) is waiting
