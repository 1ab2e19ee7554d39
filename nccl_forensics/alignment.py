"""Aligning one rank's operations with its peers': was a collective skipped, or another one called in its place?

Training repeats itself. What should have come next is therefore known from the steps before, and a rank whose next operations are
the peers' *later* ones has skipped; one that goes on in step after its odd call has called something else.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

_Call = TypeVar("_Call", bound=Hashable)

#: How far a rank may have jumped ahead.
REACH = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """How a rank that differs from its peers is read. ``skipped`` counts the operations it left out."""

    kind: Literal["skipped", "different", "extra"]
    skipped: int
    sure: bool
    why: str
    #: The operations it went on with are on record of its peers, not only foretold.
    seen: bool = False


def expect(history: Sequence[Hashable], count: int) -> list[Hashable]:
    """The next ``count`` operations after ``history``, as the latest repetition of its last operations foretells; none if the last one is
    new."""
    start, length = _context(history)
    line = list(history)
    behind = start + length  # what followed that end of the line follows it again: no other place stays alike for longer
    while length and len(line) < len(history) + count:
        line.append(line[behind])
        behind += 1
    return line[len(history) :]


def foretold_from(history: Sequence[Hashable]) -> int:
    """The place in ``history`` from which ``expect`` foretells what comes."""
    return sum(_context(history))


def candidates(history: Sequence[_Call]) -> list[_Call]:
    """What may come next, the likeliest first: what followed at each of the places where the longest end of the line was seen before."""
    places, length = _contexts(history)
    return list(dict.fromkeys(history[start + length] for start in places))


def _context(line: Sequence[Hashable]) -> tuple[int, int]:
    """The last of the places where the longest end of the line was seen before, and its length: 0 where the last operation is new."""
    places, length = _contexts(line)
    return (places[0] if places else 0, length)


def _contexts(line: Sequence[Hashable]) -> tuple[list[int], int]:
    """Where the longest end of the line was seen before, the last place first, and its length.

    However long: amid a run of the same operations, a layer's after a layer's, only what came before the run tells how much of it is left.
    """
    # How much of the line's end stands at each place before, from the last on (the Z function of the line from behind).
    back = line[::-1]
    n = len(back)
    alike = [0] * n
    left = right = longest = 0
    places: list[int] = []
    for at in range(1, n):
        length = min(right - at, alike[at - left]) if at < right else 0
        while at + length < n and back[length] == back[at + length]:
            length += 1
        alike[at] = length
        if at + length > right:
            left, right = at, at + length
        if length > longest:
            longest, places = length, []
        if longest and length == longest:
            places.append(n - at - longest)
    return places, longest


def opens_in_a_run(line: Sequence[Hashable]) -> bool:
    """Whether what is foretold is the end of a run with which the line begins, or rests on its first two operations at most: of a line
    whose beginning is lost they may be the end of a longer run, and how long that was is not known. What only goes on with the run is
    foretold."""
    start, length = _context(line)
    n = start + length
    opening = line[:n]
    return 0 < n <= 2 or any(opening[p:] == opening[: n - p] and line[n] != line[n - p] for p in range(1, (n + 1) // 2 + 1) if p < n)


def read_divergence(history: Sequence[Hashable], peers: Sequence[Hashable], own: Sequence[Hashable]) -> Reading:
    """How to read ``own`` against ``peers``, both from the first position where they differ; ``history`` is what both did before."""
    foretold = list(peers) + expect([*history, *peers], REACH)
    first = own[0]
    best: tuple[int, int] | None = None  # (operations that agree after the jump, skipped)
    for k in range(1, min(len(foretold), REACH)):
        if foretold[k] != first:
            continue
        agree = _agree(own, foretold[k:])
        if best is None or agree > best[0]:
            best = (agree, k)
    in_step = _agree(own[1:], foretold[1:]) if len(own) > 1 else 0
    inserted = _agree(own[1:], foretold) if len(own) > 1 else 0
    if inserted >= 2 and inserted > in_step and (best is None or inserted > best[0]):
        return Reading("extra", 0, True, "it called one more operation and then went on like its peers")
    # A call made twice, and then the very calls of all peers, is less to believe in than a jump over all that they did, which the steps
    # before must foretell.
    twice = bool(history) and first == history[-1] and len(peers) >= 2 and list(own[1:]) == list(peers)
    if twice and best is not None and best[1] >= len(peers):
        return Reading("extra", 0, False, "it made the call before once more, and then the very calls of its peers")
    if best is None:
        # Of a first step nobody knows what comes after the peers' last call.
        told = len(own) > 1 or len(foretold) > len(peers)
        return Reading("different", 0, told, "what it called is not what its peers call next at any later position")
    agree, k = best
    # Who left a call out has one less, or is in the next step already.
    if len(own) > 1 and len(peers) > 1 and [own[1], own[0], *own[2:]] == list(peers):
        return Reading("different", 0, True, "it made the same two calls as its peers in the other order, and as many calls as they")
    # Both readings may fit: one odd call and then in step, or a jump. The one that explains more of what followed wins.
    if len(own) > 1 and in_step + 1 > agree:
        return Reading("different", 0, True, "after the odd call it goes on in step with its peers")
    known = len(peers) > k
    return Reading(
        "skipped",
        k,
        # One call alone, far ahead in what nobody has come to: another call that happens to be like it is as good a reading.
        agree >= 2 or known or (k == 1 and len(history) >= 2),
        ("its next operation is the one" if agree == 1 else f"its next {agree} operations are those")
        + f" that its peers do {k} later"
        + ("" if known else " (as foretold by the steps before)"),
        known and agree >= 2,
    )


def fits_later(history: Sequence[Hashable], peers: Sequence[Hashable], own: Sequence[Hashable]) -> bool:
    """Whether all that a rank called is what its peers call later, on record or as the steps before foretell: of two calls that take turns
    one left out, and then the usual two, look like the two in the other order."""
    foretold = list(peers) + expect([*history, *peers], REACH)
    return any(foretold[k : k + len(own)] == list(own) for k in range(1, min(len(foretold), REACH)))


def fewer_by(own: Sequence[Hashable], peers: Sequence[Hashable]) -> int | None:
    """How many operations less than its peers a rank has made whose own are just the last of theirs; None where they are not."""
    fewer = len(peers) - len(own)
    return fewer if fewer > 0 and own and list(own) == list(peers[fewer:]) else None


def came_behind(history: Sequence[Hashable], one: Hashable, other: Hashable) -> bool:
    """Whether the other operation came right behind the one before, as what is called in every second step does: too seldom to be
    foretold."""
    return any((a, b) == (one, other) for a, b in pairwise(history))


def _agree(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def deviants(signatures: Mapping[int, Hashable], expected: Hashable | None, of: int = 0) -> tuple[tuple[int, ...], Hashable, bool]:
    """(ranks that deviate, what the others did, whether that is certain) at one position, for a group of so many ranks.

    The majority is right, unless there is none: then what the steps before foretell is right; else nobody can be named for certain. Of a
    group of which the lines of many end before, the most may be few.
    """
    votes: dict[Hashable, list[int]] = {}
    for rank in sorted(signatures):
        votes.setdefault(signatures[rank], []).append(rank)
    ordered = sorted(votes.items(), key=lambda item: (-len(item[1]), item[1][0]))
    (top, most) = ordered[0]
    few = len(signatures) < of and len(most) * 2 <= of and len(votes.get(expected, ())) > 1
    tie = len(ordered) > 1 and (len(ordered[1][1]) == len(most) or (few and top != expected))
    if tie and expected in votes:
        others = tuple(r for r in sorted(signatures) if signatures[r] != expected)
        return others, expected, True
    others = tuple(r for r in sorted(signatures) if signatures[r] != top)
    return others, top, not tie
