"""Lists of ranks in few characters, and back without loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_forensics.values.ranklist import fold, unfold


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0-1"),
        ([0, 4], "0,4"),
        (list(range(65_536)), "0-65535"),
        (list(range(3, 64, 8)), "3-59:8"),
        ([0, 1, 2, 3, 9], "0-3,9"),
        ([0, 8, 1, 2, 3], "0,8,1-3"),
        ([5, 3, 1], "5,3,1"),
        ([2, 2, 2], "2,2,2"),
        ([0, 1, 8, 9, 16, 17], "0-1,8-9,16-17"),
    ],
)
def test_progressions_become_ranges(ranks: list[int], text: str) -> None:
    assert fold(ranks) == text
    assert unfold(text) == ranks


@given(st.lists(st.integers(0, 200)))
def test_every_list_comes_back_in_its_order(ranks: list[int]) -> None:
    assert unfold(fold(ranks)) == ranks
