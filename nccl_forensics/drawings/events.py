"""Events of processes, hosts and fabric on one time axis: a lane for each kind, pauses without any event shortened and marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nccl_forensics.drawings.svg import SANS, group, svg, text
from nccl_forensics.plain import cut

_LABEL, _WIDTH, _LANE, _TOP = 128, 884, 34, 30
_ROOM = _WIDTH - _LABEL - 24
#: A pause counts for at most this share of the axis.
_LONGEST = 0.22


@dataclass(frozen=True, slots=True)
class Mark:
    """One event: when (ns), in which lane, what, and whether it is evidence of the verdict."""

    at_ns: int
    lane: str
    title: str
    decisive: bool
    count: int


def axis(marks: Sequence[Mark], statement: str) -> str:
    """Lanes in the order in which they first have an event."""
    times = sorted({m.at_ns for m in marks})
    place, breaks = _places(times)
    lanes = list(dict.fromkeys(m.lane for m in sorted(marks, key=lambda m: m.at_ns)))
    height = _TOP + _LANE * len(lanes) + 30
    body: list[str] = []
    for n, lane in enumerate(lanes):
        y = _TOP + n * _LANE + _LANE / 2
        body.append(text(0, y + 4, cut(lane, 20), "label"))
        body.append(f'<path d="M{_LABEL} {y:g}H{_WIDTH}" class="rule"/>')
    for x, words in breaks:
        body.append(
            f'<path d="M{x - 4:g} {_TOP - 4}v{_LANE * len(lanes) + 4}M{x + 4:g} {_TOP - 4}v{_LANE * len(lanes) + 4}" class="pause"/>'
        )
        body.append(text(x, 16, words, "label", "middle"))
    ordered = sorted(marks, key=lambda m: (m.decisive, m.at_ns))
    body += [_mark(place[m.at_ns], _TOP + lanes.index(m.lane) * _LANE + _LANE / 2, m) for m in ordered]
    body += _ticks(times, place, height)
    return svg(_WIDTH, height, statement, body)


def _places(times: Sequence[int]) -> tuple[dict[int, float], list[tuple[float, str]]]:
    """Where each time stands, and the pauses that are drawn shorter than they are with what they last."""
    gaps = [b - a for a, b in pairwise(times)]
    total = sum(gaps)
    if not total:
        return dict.fromkeys(times, _LABEL + 12 + _ROOM / 2), []
    longest = total
    for _ in range(40):
        # The cap shrinks until a pause takes at most its share of what is drawn.
        drawn = sum(min(g, longest) for g in gaps)
        if longest <= _LONGEST * drawn or sum(g > longest for g in gaps) * _LONGEST >= 1:
            break
        longest = int(longest * 0.8) or 1
    scale = _ROOM / sum(min(g, longest) for g in gaps)
    x = _LABEL + 12.0
    place, breaks = {times[0]: x}, []
    for time, gap in zip(times[1:], gaps, strict=True):
        width = min(gap, longest) * scale
        if gap > longest * 1.5 and width > 30:
            breaks.append((x + width / 2, _lasted(gap)))
        x += width
        place[time] = x
    return place, breaks


def _lasted(ns: int) -> str:
    seconds = ns / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _mark(x: float, y: float, mark: Mark) -> str:
    size = 5 if mark.count == 1 else 7
    if mark.decisive:
        shape = f'<path d="M{x:g} {y - 9:g}l9 9l-9 9l-9-9z" class="event decisive"/>'
    else:
        shape = f'<circle cx="{x:g}" cy="{y:g}" r="{size}" class="event"/>'
    return group(mark.title, [shape])


def _ticks(times: Sequence[int], place: dict[int, float], height: float) -> list[str]:
    """The time of day at events that stand far enough from the tick before."""
    out: list[str] = []
    last = -1e9
    room = 9 * SANS
    for time in times:
        x = place[time]
        if x - last < room + 14:
            continue
        seconds = time // 1_000_000_000 % 86_400
        words = f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
        if out and f">{words}<" in out[-1]:
            continue
        last = x
        anchor = "end" if x > _WIDTH - 30 else "middle"
        out.append(f'<path d="M{x:g} {height - 28:g}v6" class="rule"/>')
        out.append(text(x, height - 8, words, "mono small-digits head", anchor))
    return out
