"""Chance that does not depend on the order of questions: every draw is a hash of the seed and of what it is drawn for."""

from __future__ import annotations

import random
import zlib

_MASK = (1 << 64) - 1


def mix(seed: int, *parts: int | str) -> int:
    """A 64-bit number for these parts (splitmix64 over each of them)."""
    state = seed & _MASK
    for part in parts:
        value = zlib.crc32(part.encode()) if isinstance(part, str) else part
        state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def share(seed: int, *parts: int | str) -> float:
    """A number in [0, 1)."""
    return mix(seed, *parts) / (_MASK + 1)


def pick(seed: int, *parts: int | str) -> random.Random:
    """A generator of its own for these parts."""
    return random.Random(mix(seed, *parts))  # noqa: S311 (to be repeated by seed, not to be secret)
