"""What little damage does to a value: texts that a flipped bit or a cut would turn into each other."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+")


def one_bit(a: str, b: str) -> bool:
    """Whether two texts differ by no more than one bit of a character, or of one number as a computer stores it."""
    if len(a) == len(b):
        apart = [ord(x) ^ ord(y) for x, y in zip(a, b, strict=True) if x != y]
        if len(apart) <= 1 and all(bits.bit_count() <= 1 for bits in apart):
            return True
    if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
        return False
    numbers = [int(x) ^ int(y) for x, y in zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True) if x != y]
    return len(numbers) <= 1 and all(bits.bit_count() <= 1 for bits in numbers)


def cut_off(short: str, whole: str) -> bool:
    """Whether ``short`` is what a cut left of ``whole``."""
    return 0 < len(short) < len(whole) and whole.startswith(short)
