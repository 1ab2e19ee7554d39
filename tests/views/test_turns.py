"""Ranks that have only not come to a call."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.jumps import jumped_groups
from nccl_forensics.views.turns import in_turn
from tests.views.frames import groups, progress

_PAIRS = {"pg:1": [0, 1], "pg:2": [2, 3]}


@pytest.mark.parametrize(
    ("beside", "turn"),
    [
        ((6, 6), {1}),  # ranks 2 and 3 finished #6 of their pair and stand in the call: #6 comes first, and rank 1 is in it
        ((5, 5), set()),  # they have not come to #6: it is of the next step
        ((6, 5), set()),  # they have not finished it: it may come after the call
    ],
)
def test_who_stands_in_what_all_others_finished_before_the_call_has_left_nothing_out(beside: tuple[int, int], turn: set[int]) -> None:
    # Rank 1 has not come to #4 of all and stands in #6 of its pair, to which rank 0 has not come.
    state = progress({"pg:0": {0: (4, 3), 1: (3, 3), 2: (4, 3), 3: (4, 3)}, "pg:1": {0: (5, 5), 1: (6, 5)}, "pg:2": {2: beside, 3: beside}})
    role = pl.when(pl.col("group_key") == "pg:0").then(pl.lit("default_pg")).otherwise(pl.lit("dp"))
    known = groups({"pg:0": [0, 1, 2, 3]} | _PAIRS).with_columns(group_desc=role)
    jumped = jumped_groups(state, None)
    assert set(jumped) == {1}
    assert in_turn(jumped, state, known) == turn
    assert in_turn(jumped, state, known.with_columns(group_desc=pl.lit(None, dtype=pl.String()))) == set(), "no roles"
