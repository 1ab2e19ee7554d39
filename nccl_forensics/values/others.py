"""What a value stands beside: the others of a sorted list, told without going through them for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Others:
    """How many they are; the lowest, the middle and the highest of them (0 where there is none)."""

    count: int
    low: float
    middle: float
    high: float


def others(ordered: Sequence[float], own: float) -> Others:
    """All of the sorted values but one that equals ``own``, which is among them."""
    left_out, count = bisect_left(ordered, own), len(ordered) - 1
    if count < 1:
        return Others(0, 0, 0, 0)

    def at(place: int) -> float:
        return ordered[place if place < left_out else place + 1]

    return Others(count, at(0), (at((count - 1) // 2) + at(count // 2)) / 2, at(count - 1))
