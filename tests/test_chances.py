"""Tails of binomials."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from nccl_forensics.values.chances import tail


@pytest.mark.parametrize(("trials", "least", "members"), [(10, 3, 4), (1, 1, 8), (200, 20, 16), (2000, 5, 4096), (2000, 1500, 3)])
def test_a_tail_is_what_exact_numbers_give(trials: int, least: int, members: int) -> None:
    exact = sum(Fraction(comb(trials, n) * (members - 1) ** (trials - n), members**trials) for n in range(least, trials + 1))
    assert tail(trials, least, 1 / members) == pytest.approx(float(exact), rel=1e-6)


def test_the_ends_of_a_tail() -> None:
    assert tail(10, 0, 0.5) == 1.0
    assert tail(10, 11, 0.5) == 0.0


def test_a_million_trials_are_bounded_from_above() -> None:
    """What the dumps of thousands of ranks hold of late arrivals."""
    assert tail(1_000_000, 100, 1 / 4096) == 1.0
    assert tail(1_000_000, 5_000, 1 / 4096) < 1e-100
    assert tail(2001, 1500, 1 / 3) >= tail(2000, 1500, 1 / 3)
