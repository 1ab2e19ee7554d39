"""Could damaged evidence look the same? What a divergence rests on, where a lost, doubled or swapped line or a flipped bit would do too.

A Flight Recorder numbers its entries, so a hole in them shows. Lines of an NCCL log are counted by us: one that was lost (a full pipe, two
writers on one file, a copy that was cut) moves all that follow and looks like a call left out. The rank's own opCount tells the two apart
where it counts the calls in question: a call that was not made leaves no hole in it. Until NCCL 2.26 it counts every launch, from 2.27 on
only those with work for the proxy (NCCL 2.27 src/enqueue.cc), none at all on one host with NVLink.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise

Row = Mapping[str, object]
Signature = Callable[[Row], Hashable]

#: Operations after a differing one that must agree again for it to be no matter of lines in another order.
_IN_STEP = 2
#: Lines lost or doubled at one place that are reckoned with.
_SHIFTS = 4


def counted(line: Mapping[int, Row], at: int, skipped: Sequence[Hashable], signature: Signature) -> bool | None:
    """Whether a rank's own opCount confirms that it made no call between those at ``at - 1`` and ``at``; False where it counts such a call;
    None where it does not tell. ``skipped``: what the peers called there."""
    advance = _advance(line, at)
    if advance is None or not skipped:
        return None
    habits = _habits(line, at, signature)
    expected = habits.get(signature(line[at - 1]))
    if expected is None:
        return None
    if advance == expected:
        return True if sum(habits.get(s) or 0 for s in skipped) > 0 else None
    return False if advance > expected else None


def repeated(line: Mapping[int, Row], at: int, signature: Signature) -> bool:
    """Whether the call at ``at`` is the one before it written twice: the rank's opCount, which counts such calls, stands still."""
    if _advance(line, at) != 0 or signature(line[at]) != signature(line[at - 1]):
        return False
    return bool(_habits(line, at, signature).get(signature(line[at])))


def followed(line: Mapping[int, Row], at: int, signature: Signature) -> bool:
    """Whether the rank's opCount counts the call before ``at`` and moves on to ``at`` as it always does: nothing is lost or doubled
    there."""
    advance = _advance(line, at)
    return bool(advance) and _habits(line, at, signature).get(signature(line[at - 1])) == advance


def moved_alike(line: Mapping[int, Row], peers: Sequence[Mapping[int, Row]], at: int) -> bool:
    """Whether opCount moves to ``at`` as far as on some peer, whose line before it is there: then this rank's own lacks none either. The
    first calls of a communicator, for example, may share a number on every rank (0, 0, 1, 2, seen with NCCL 2.22.3)."""
    advance = _advance(line, at)
    return advance is not None and any(_advance(peer, at) == advance for peer in peers)


def _advance(line: Mapping[int, Row], at: int) -> int | None:
    if at not in line or at - 1 not in line:
        return None
    before, here = line[at - 1]["op_count"], line[at]["op_count"]
    return int(str(here)) - int(str(before)) if before is not None and here is not None else None


def _habits(line: Mapping[int, Row], at: int, signature: Signature) -> dict[Hashable, int]:
    """How far opCount moves after each kind of call on this rank, where it always is the same; the step in question left out."""
    seen: dict[Hashable, set[int]] = {}
    for one, two in pairwise(sorted(line)):
        if two == one + 1 and two != at and (step := _advance(line, two)) is not None:
            seen.setdefault(signature(line[one]), set()).add(step)
    return {kind: steps.pop() for kind, steps in seen.items() if len(steps) == 1}


def in_step(own: Mapping[int, Row], peers: Sequence[Mapping[int, Row]], at: int, signature: Signature) -> bool:
    """Whether a rank calls what all its peers call at the next positions after ``at``, ``_IN_STEP`` of them at least."""
    after = range(at + 1, at + 1 + _IN_STEP)
    return all(n in own and all(n in p and signature(p[n]) == signature(own[n]) for p in peers) for n in after)


def shifted(own: Mapping[int, Row], peer: Mapping[int, Row], at: int, signature: Signature) -> bool:
    """Whether a few lines lost or doubled before ``at`` would make the rank's next calls those of the peer."""
    after = [n for n in sorted(own) if n >= at][: _IN_STEP + 1]
    for by in (*range(-_SHIFTS, 0), *range(1, _SHIFTS + 1)):
        met = [(own[n], peer[n + by]) for n in after if n + by in peer]
        if met and all(signature(a) == signature(b) for a, b in met):
            return True
    return False


def unheard_of(call: Row, lines: Mapping[int, Mapping[int, Row]], rank: int, at: int, signature: Signature) -> bool:
    """Whether nobody made such a call at another position: then no line that was lost, doubled or moved put it there."""
    mine = signature(call)
    return not any(signature(row) == mine for r, line in lines.items() for n, row in line.items() if (r, n) != (rank, at))


def holed(line: Mapping[int, Row], at: int) -> bool:
    """Whether a recorder's numbers around ``at`` do not follow each other in the order of its entries, as they would if one was damaged."""
    near = [n for n in sorted(line) if at - 2 <= n <= at + 2]
    orders = [int(str(line[n]["order"])) for n in near if line[n]["order"] is not None]
    return any(two != one + 1 for one, two in pairwise(near)) or orders != sorted(orders)
