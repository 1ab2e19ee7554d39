"""Whether ranks stand level."""

from __future__ import annotations

import pytest

from nccl_forensics.views.levels import still_enqueuing
from tests.views.frames import groups, progress


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
