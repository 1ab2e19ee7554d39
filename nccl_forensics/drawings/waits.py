"""The wait-for graph across process groups: classes of ranks as boxes, arrows to those that they wait for, the end of the waiting at the
right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nccl_forensics.drawings.svg import MONO, box, group, svg, text
from nccl_forensics.plain import cut

#: Three columns are as wide as the text of a page.
_WIDTH, _HEIGHT, _X, _Y = 238, 62, 64, 20


@dataclass(frozen=True, slots=True)
class Box:
    """A class of ranks: its name, what it does, and whether it ends the waiting (``culprit``) or waits (``waiting``)."""

    name: str
    lines: tuple[str, ...]
    state: str


def graph(boxes: Sequence[Box], arrows: Sequence[tuple[int, int]], statement: str) -> str:
    """Boxes in columns by their distance from the end of the waiting; arrows point at whom they wait for."""
    columns = _columns(len(boxes), arrows)
    last = max(columns, default=0)
    by_column: dict[int, list[int]] = {}
    for n, column in enumerate(columns):
        by_column.setdefault(column, []).append(n)
    tallest = max((len(own) for own in by_column.values()), default=1)
    height = tallest * (_HEIGHT + _Y) - _Y + 8
    place: dict[int, tuple[float, float]] = {}
    for column, own in by_column.items():
        top = (height - (len(own) * (_HEIGHT + _Y) - _Y)) / 2
        for k, n in enumerate(own):
            place[n] = ((last - column) * (_WIDTH + _X) + 2, top + k * (_HEIGHT + _Y))
    body = [_arrow(place[a], place[b], columns[a] > columns[b]) for a, b in arrows]
    body += [_box(*place[n], one) for n, one in enumerate(boxes)]
    return svg((last + 1) * (_WIDTH + _X) - _X + 4, height, statement, body)


def _columns(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """Distance of each box from a box that waits for nobody; in circles, from the first box of the circle."""
    out: dict[int, set[int]] = {n: set() for n in range(count)}
    into: dict[int, set[int]] = {n: set() for n in range(count)}
    for a, b in arrows:
        if a != b:
            out[a].add(b)
            into[b].add(a)
    distance: dict[int, int] = {n: 0 for n in range(count) if not out[n]}
    left = [n for n in range(count) if n not in distance]
    frontier = sorted(distance)
    while len(distance) < count:
        if not frontier:
            start = next(n for n in left if n not in distance)
            distance[start] = 0
            frontier = [start]
        following = []
        for n in frontier:
            for m in sorted(into[n]):
                if m not in distance:
                    distance[m] = distance[n] + 1
                    following.append(m)
        frontier = following
    return [distance[n] for n in range(count)]


def _box(x: float, y: float, one: Box) -> str:
    room = int((_WIDTH - 20) / MONO)
    parts = [
        box(x, y, _WIDTH, _HEIGHT, f"node n-{one.state}", 8),
        text(x + 12, y + 21, cut(one.name, 29), f"row strong on-node-{one.state}"),
    ]
    for k, line in enumerate(one.lines[:2]):
        parts.append(text(x + 12, y + 38 + 15 * k, cut(line, room + 3), f"mono small-digits on-node-{one.state}"))
    return group(" · ".join([one.name, *one.lines]), parts)


def _arrow(start: tuple[float, float], end: tuple[float, float], forward: bool) -> str:
    """From the right edge of a box to the left edge of another; one that does not go to the right bends around."""
    y1, y2 = start[1] + _HEIGHT / 2, end[1] + _HEIGHT / 2
    if forward:
        x1, x2 = start[0] + _WIDTH, end[0]
        bend = min(60.0, (x2 - x1) / 2)
        path = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2 - 9:g} {y2:g}"
        head = f"M{x2 - 10:g} {y2 - 5:g}L{x2 - 1:g} {y2:g}L{x2 - 10:g} {y2 + 5:g}z"
    else:
        x1, x2 = start[0] + _WIDTH, end[0] + _WIDTH
        out = max(x1, x2) + 34
        path = f"M{x1:g} {y1:g}C{out:g} {y1:g} {out:g} {y2:g} {x2 + 9:g} {y2:g}"
        head = f"M{x2 + 10:g} {y2 - 5:g}L{x2 + 1:g} {y2:g}L{x2 + 10:g} {y2 + 5:g}z"
    return f'<path d="{path}" class="wire"/><path d="{head}" class="tip"/>'
