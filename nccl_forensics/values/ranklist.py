"""Lists of ranks in few characters: ``0-7`` is eight ranks, ``3-59:8`` every eighth from 3 to 59, ``0-3,9`` five ranks.

A dump of the Flight Recorder lists the members of each of its groups, the whole job among them: kept as lists, the dumps of 65,536 ranks
would hold 4 billion numbers. Groups are nearly always arithmetic progressions.
"""

from __future__ import annotations

from collections.abc import Sequence

#: No job has more ranks. What states more is damaged or made up: nobody counts up to it.
MOST_RANKS = 1_000_000


def fold(ranks: Sequence[int]) -> str:
    """The text of a list, in its order. Ranks are 0 or greater."""
    parts: list[str] = []
    start, count = 0, len(ranks)
    while start < count:
        end = start + 1
        step = ranks[end] - ranks[start] if end < count else 0
        if step > 0:
            while end + 1 < count and ranks[end + 1] - ranks[end] == step:
                end += 1
        length = end - start + 1 if step > 0 else 1
        if length >= 3 or (length == 2 and step == 1):
            parts.append(f"{ranks[start]}-{ranks[end]}" + (f":{step}" if step > 1 else ""))
            start = end + 1
        else:
            parts.append(str(ranks[start]))
            start += 1
    return ",".join(parts)


def unfold(text: str) -> list[int]:
    """The list of a text that ``fold`` made."""
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        ranks.extend(range(int(first), int(last) + 1, int(step or 1)) if dash else (int(first),))
    return ranks


def as_ranks(value: object) -> list[int]:
    """Ranks of a cell of a frame that holds a list; none where it holds nothing."""
    return [int(str(r)) for r in value] if isinstance(value, list | tuple) else []


__all__ = ["MOST_RANKS", "as_ranks", "fold", "unfold"]
