"""Claims of who is who, of some strength each, and what follows from several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

#: Strength of a claim. The gap between CONTENT and NAME matters: only content can outvote another content claim.
CONTENT, PREFIX, WORD, NUMBER = 4, 3, 2, 1

#: Strength, rank and how it is told.
Claim = tuple[int, int, str]


class Settled(NamedTuple):
    """The rank that claims come down to: None where equals differ or nothing is claimed. ``how``: what says it; ``conflict``: what says
    otherwise."""

    rank: int | None
    strength: int | None
    conflict: str | None
    how: str | None


def settle(claims: Iterable[Claim]) -> Settled:
    """What is claimed most strongly; of equals what most say, and nothing where as many say otherwise."""
    ordered = sorted(claims, key=lambda c: -c[0])
    if not ordered:
        return Settled(None, None, None, None)
    top, first, first_how = ordered[0]
    if all(rank == first for _, rank, _ in ordered):
        return Settled(first, top, None, first_how)
    best: dict[int, int] = defaultdict(int)
    for strength, rank, _ in ordered:
        if strength == top:
            best[rank] += 1
    chosen = min(best, key=lambda r: (-best[r], r))
    others = sorted({f"rank {r} by {how}" for _, r, how in ordered if r != chosen})
    conflict = f"rank {chosen} against {', '.join(others)}" if others else None
    if len(best) > 1 and list(best.values()).count(best[chosen]) > 1:
        return Settled(None, top, conflict, None)
    return Settled(chosen, top, conflict, next(how for _, rank, how in ordered if rank == chosen))
