"""The cluster map, hosts x GPUs: cards of hosts with a square per rank, and a dense map where there are too many for cards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from nccl_forensics.drawings.svg import SANS, STATE_WORDS, box, group, svg, text
from nccl_forensics.extras import Host, Seat
from nccl_forensics.plain import cut, plain
from nccl_forensics.words import rank_list

_SEAT, _SEATS, _CARD, _CARDS, _MOST = 32, 8, 288, 3, 32
#: The dense map: squares of one rank, ranks in a line of a host, width of the label of a line.
_DOT, _PITCH, _LINE, _NAME = 5, 6, 8, 108
#: Letters of a host's name beside its squares, the air between them, and how many squares stand in a line.
_LETTERS, _AIR, _STRIP = 18, 8, 16
#: States that stand out, and how many rings a picture bears: what most ranks are needs none, its colour is seen.
_RINGED, _RINGS = ("culprit", "dead", "missing"), 64
#: Width of a ring's line that lies outside of its radius, and a little air.
_STROKE = 1.5


def cards(hosts: Sequence[Host], statement: str) -> str:
    """One card per host, one square per rank."""
    body: list[str] = []
    top = 0.0
    for start in range(0, len(hosts), _CARDS):
        line = hosts[start : start + _CARDS]
        height = max(_card_height(h) for h in line)
        body += [_card(n * (_CARD + 12), top, height, host) for n, host in enumerate(line)]
        top += height + 12
    columns = min(_CARDS, len(hosts)) or 1
    return svg(columns * (_CARD + 12) - 12, max(1.0, top - 12), statement, body)


def _card_height(host: Host) -> float:
    lines = max(1, -(-min(len(host.seats), _MOST) // _SEATS))
    return 44 + lines * (_SEAT + 3) + (18 if host.note or len(host.seats) > _MOST else 0) + 6


def _card(x: float, y: float, height: float, host: Host) -> str:
    known = host.state != "unknown"
    parts = [
        box(x + 0.5, y + 0.5, _CARD - 1, height - 1, f"card c-{host.state}" if known else "card", 6),
        text(x + 12, y + 24, cut(plain(host.name, 60), 28), "row strong"),
    ]
    if known:
        css = "label strong-bad" if host.state in ("culprit", "dead") else "label"
        parts.append(text(x + _CARD - 12, y + 24, STATE_WORDS[host.state], css, "end"))
    for n, seat in enumerate(host.seats[:_MOST]):
        parts.append(_seat(x + 12 + (n % _SEATS) * (_SEAT + 1.6), y + 38 + (n // _SEATS) * (_SEAT + 3), seat))
    rest = f"{len(host.seats) - _MOST:,} more ranks. " if len(host.seats) > _MOST else ""
    if host.note or rest:
        parts.append(text(x + 12, y + height - 10, cut(rest + plain(host.note, 80), 44), "small"))
    return f"<g>{''.join(parts)}</g>"


def _seat(x: float, y: float, seat: Seat) -> str:
    gpu = plain(seat.gpu, 40)
    size = _SEAT - 2
    digits = "mono smaller" if seat.rank < 1000 else "mono small-digits" if seat.rank < 10_000 else "mono tiny"
    parts = [
        box(x, y, size, size, f"cell s-{seat.state}"),
        text(x + size / 2, y + size / 2 + 4, str(seat.rank), f"{digits} on-{seat.state}", "middle"),
    ]
    if seat.state == "dead":
        arm = size - 6
        parts.append(f'<path d="M{x + 3:g} {y + 3:g}l{arm} {arm}M{x + size - 3:g} {y + 3:g}l-{arm} {arm}" class="cross"/>')
    if seat.state == "culprit":
        parts.append(f'<path d="M{x + size - 9:g} {y:g}h5a4 4 0 0 1 4 4v5z" class="corner"/>')
    return group(f"rank {seat.rank}{f', GPU {gpu}' if gpu else ''}: {STATE_WORDS[seat.state]}", parts)


def strip_lines(hosts: Sequence[Host]) -> int:
    """Lines that ``strips`` takes for them."""
    return sum(max(1, -(-len(host.seats) // _STRIP)) for host in hosts)


def strips(hosts: Sequence[Host], statement: str, width: float) -> str:
    """Few hosts, one line each: its name and a square per rank. For the first screen."""
    names = [cut(plain(host.name, 60), _LETTERS) for host in hosts]
    name = max((len(n) for n in names), default=0) * SANS + _AIR
    most = max((len(h.seats) for h in hosts), default=1) or 1
    per_line = min(most, _STRIP)
    pitch = min(28.0, (width - name) / per_line)
    body: list[str] = []
    y = 0.0
    for host, told in zip(hosts, names, strict=True):
        body.append(text(0, y + pitch / 2 + 4, told, "label"))
        for n, seat in enumerate(host.seats):
            x, top = name + (n % per_line) * pitch, y + (n // per_line) * pitch
            inner = [box(x, top + 1, pitch - 3, pitch - 3, f"cell s-{seat.state}", 3)]
            if pitch >= 24 and seat.rank < 10_000:
                inner.append(text(x + (pitch - 3) / 2, top + pitch / 2 + 3, str(seat.rank), f"mono tiny on-{seat.state}", "middle"))
            body.append(group(f"rank {seat.rank}: {STATE_WORDS[seat.state]}", inner))
        y += -(-len(host.seats) // per_line) * pitch + 6
    return svg(width, max(1.0, y), statement, body, "drawing fluid")


def _ringed(hosts: Sequence[Host], most: float) -> frozenset[str]:
    """States that stand out and that so many ranks at most are in; who is at fault stands out in any case."""
    counts: Counter[str] = Counter(seat.state for host in hosts for seat in host.seats)
    return frozenset(state for state in _RINGED if state == "culprit" or counts[state] <= most)


def mosaic(hosts: Sequence[Host], statement: str, width: float, height: float) -> str:
    """All ranks in the order of their hosts as one field of squares that fits; those that stand out are ringed. For the first screen."""
    seats = [seat for host in hosts for seat in host.seats]
    pitch = max(2.0, min(14.0, int((width * height / max(1, len(seats))) ** 0.5 * 4) / 4))
    dot = pitch - (0.5 if pitch < 4 else 1)
    radius = max(6.0, pitch * 0.9)
    # A ring around a square of the edge needs room as well.
    edge = math.ceil(radius + _STROKE - dot / 2)
    per_line = max(1, int((width - 2 * edge) // pitch))
    paths: dict[str, list[str]] = {}
    marks: list[str] = []
    ringed = _ringed(hosts, _RINGS)
    for n, seat in enumerate(seats):
        x, y = (n % per_line) * pitch + edge, (n // per_line) * pitch + edge
        paths.setdefault(seat.state, []).append(f"M{x:g} {y:g}h{dot:g}v{dot:g}h-{dot:g}z")
        if seat.state in ringed and len(marks) < _RINGS:
            marks.append(f'<circle cx="{x + dot / 2:g}" cy="{y + dot / 2:g}" r="{radius:g}" class="ring"/>')
    body = [f'<path class="dot d-{state}" d="{"".join(paths[state])}"/>' for state in sorted(paths)]
    lines = -(-len(seats) // per_line)
    return svg(width, lines * pitch + 2 * edge, statement, [*body, *marks], "drawing fluid")


def _blocks(hosts: Sequence[Host]) -> list[Host]:
    """Hosts as the dense map draws them: one with many ranks (or of which only the ranks are known) is several blocks."""
    out: list[Host] = []
    for host in hosts:
        step = len(host.seats) if len(host.seats) <= 2 * _LINE else _LINE
        out += [Host(host.name, host.seats[k : k + step], host.state, host.note) for k in range(0, len(host.seats), step or 1)]
    return out


def dense(hosts: Sequence[Host], statement: str, width: float, *, titles: bool = True) -> str:
    """Every host as a block of small squares, in lines of as many as fit; a block with a rank that stands out is ringed.

    Squares of one state are one path, so that 16,384 ranks take some 300 kB; ``titles`` adds one title per host.
    """
    blocks = _blocks(hosts)
    lines = max((-(-len(h.seats) // _LINE) for h in blocks), default=1) or 1
    block = _PITCH * _LINE + 6
    per_line = max(1, int((width - _NAME) // block))
    pitch = lines * _PITCH + 9
    paths: dict[str, list[str]] = {}
    marks: list[str] = []
    body: list[str] = []
    ringed = _ringed(hosts, max(_RINGS, sum(len(h.seats) for h in hosts) / 8))
    for n, host in enumerate(blocks):
        x, y = _NAME + (n % per_line) * block, 6 + (n // per_line) * pitch
        if n % per_line == 0 and (n == 0 or host.name != blocks[n - per_line].name):
            body.append(text(0, y + _DOT + 1, cut(plain(host.name, 60), int(_NAME / SANS) + 1), "label"))
        for k, seat in enumerate(host.seats):
            at = f"M{x + (k % _LINE) * _PITCH} {y + (k // _LINE) * _PITCH}h{_DOT}v{_DOT}h-{_DOT}z"
            paths.setdefault(seat.state, []).append(at)
        high = max(1, -(-len(host.seats) // _LINE)) * _PITCH
        if any(s.state in ringed for s in host.seats):
            marks.append(box(x - 3.5, y - 3.5, _LINE * _PITCH + 6, high + 6, "ring", 4))
        if titles:
            marks.append(group(_said(host), [box(x, y, _LINE * _PITCH, high, "hit", 0)]))
    body += [f'<path class="dot d-{state}" d="{"".join(paths[state])}"/>' for state in sorted(paths)]
    height = 6 + -(-len(blocks) // per_line) * pitch
    return svg(_NAME + min(per_line, len(blocks)) * block, height, statement, [*body, *marks])


def _said(host: Host) -> str:
    """``node-01: 0-6 waiting, 7 at fault``."""
    by_state: dict[str, list[int]] = {}
    for seat in host.seats:
        by_state.setdefault(seat.state, []).append(seat.rank)
    return plain(host.name, 60) + ": " + ", ".join(f"{rank_list(r, 3)} {STATE_WORDS[s]}" for s, r in sorted(by_state.items()))
