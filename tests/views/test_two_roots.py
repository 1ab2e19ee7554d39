"""Calls with a root that some never leave."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from nccl_forensics.views.deaths import DEATHS
from nccl_forensics.views.divergence import DIVERGENCES
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.matching import PROGRESS
from nccl_forensics.views.process_groups import GROUPS
from nccl_forensics.views.two_roots import two_roots
from tests.views.frames import rows


def parted(
    inside: tuple[int, ...] = (1, 3),
    *,
    op: str = "broadcast",
    later: str = "all_gather",
    looked: int = 4,
    seen: dict[int, str] | None = None,
    at: int = 8,
    size: int = 4,
    parts: pl.LazyFrame | None = None,
    dead: bool = False,
) -> pl.LazyFrame:
    """Of four ranks those ``inside`` stand in #7, the others in their next call, #``at``; stacks of the first ``looked``, or as ``seen``."""
    calls = {rank: op if rank in inside else later for rank in range(4)}
    state: list[dict[str, object]] = [
        {"domain": "fr", "group_key": "pg:0", "rank": rank, "last_seq": seq, "first_pending": seq, "last_op": call}
        | {"source_id": rank, "record": f"entries[{seq - 1}]"}
        for rank, call in calls.items()
        for seq in [7 if rank in inside else at]
    ]
    stood = (calls | (seen or {})).items()
    stacks: list[dict[str, object]] = [
        {"rank": r, "op": call, "place": "collective", "witness": "stack"} for r, call in stood if r < looked
    ]
    group: dict[str, object] = {"domain": "fr", "group_key": "pg:0", "group_name": "0", "members": list(range(size))}
    ends = rows(DEATHS, {"rank": 3, "own": True}) if dead else None
    return two_roots(rows(PROGRESS, *state), rows(GROUPS, group), rows(LAST_CALLS, *stacks), parts, ends)


def test_those_that_stand_in_a_call_that_all_entered_and_others_left_are_told() -> None:
    [row] = parted().collect().to_dicts()
    assert (row["ranks"], row["beyond"], row["seq"], row["op"], row["next_op"]) == ([1, 3], [0, 2], 7, "broadcast", "all_gather")
    [row] = parted((2,), op="gather", later="broadcast").collect().to_dicts()
    assert (row["ranks"], row["op"]) == ([2], "gather")


@pytest.mark.parametrize(
    "other",
    [
        {"op": "all_reduce"},  # nobody leaves it before all have come
        {"later": "broadcast"},  # one may have left out a call of several that are alike
        {"inside": (0, 1, 2, 3)},
        {"looked": 3},
        {"seen": {2: "broadcast"}},  # when its stack was taken it was not where its recorder had been: the job goes on
        {"at": 9},
        {"size": 5},
        {"parts": rows(DIVERGENCES, {"group_key": "pg:0"})},
        {"dead": True},
    ],
    ids=["no root", "alike", "all", "no stack", "moves", "further", "a member is missing", "another size", "one died"],
)
def test_where_something_else_may_be_the_matter_nothing_is_told(other: dict[str, Any]) -> None:
    assert parted(**other).collect().height == 0
