"""Drawings of the exhibits as inline SVG. Colour never stands alone: each state has its own word, edge or mark.

Colours come from the classes of the style sheet, so that they follow light, dark and print; no style attributes, no scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from nccl_forensics.exhibits import CELL_WORDS, STATE_WORDS, ClusterExhibit, TimelineExhibit
from nccl_forensics.extras import Cell, CellState, Host, RankState
from nccl_forensics.plain import cut, plain
from nccl_forensics.words import rank_list

#: Sizes in px of the user space. A monospaced letter of 12 px is 7.23 wide.
_LABEL, _CELL, _ROW, _HEAD, _GAP = 196, 132, 46, 46, 6
_SEAT, _SEATS, _CARD, _CARDS = 32, 8, 288, 3
_LETTER = 7.3


def _text(x: float, y: float, words: str, css: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{css}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(width: float, height: float, title: str, body: Iterable[str]) -> str:
    """The drawing is hidden from screen readers: the sentence and the table beside it say the same."""
    return (
        f'<svg class="drawing" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(body)}</svg>"
    )


def timeline(exhibit: TimelineExhibit) -> str:
    """Rows are classes of ranks, columns sequence numbers; the first divergence is banded and named."""
    drawn = exhibit.drawn
    width = _LABEL + _CELL * len(drawn.columns) + 2
    detailed = any(" " in c.text for r in drawn.rows for c in r.cells)
    row_height = _ROW + (15 if detailed else 0)
    height = _HEAD + row_height * len(drawn.rows) + 4
    body: list[str] = []
    for n, column in enumerate(drawn.columns):
        x = _LABEL + n * _CELL
        first = column == drawn.first_divergence
        if first:
            body.append(f'<rect x="{x}" y="1" width="{_CELL}" height="{height - 2}" rx="6" class="band"/>')
            body.append(_text(x + _CELL / 2, 16, "first divergence", "label strong-bad", "middle"))
        body.append(_text(x + _CELL / 2, 36, f"#{column}", "mono head" if not first else "mono head strong", "middle"))
    for n, row in enumerate(drawn.rows):
        y = _HEAD + n * row_height
        names = cut(f"{'rank' if len(row.ranks) == 1 else 'ranks'} {rank_list(row.ranks, 3)}", 25)
        below = " · ".join(
            t for t in (f"{len(row.ranks):,} ranks" if len(row.ranks) > 1 and "ranks)" not in names else "", plain(row.host, 40)) if t
        )
        body.append(_text(0, y + 19, names, "row strong"))
        body.append(_text(0, y + 34, cut(below, 27), "label"))
        for k, cell in enumerate(row.cells):
            body.append(_cell(_LABEL + k * _CELL + _GAP / 2, y + 2, row_height - _GAP, cell))
    return _svg(width, height, exhibit.statement, body)


def _cell(x: float, y: float, height: float, cell: Cell) -> str:
    """Operation, what it was called with, and the state, in a line each."""
    width = _CELL - _GAP
    name = plain(cell.text, 80)
    op, _, detail = name.partition(" ")
    room = int((width - 16) / _LETTER)
    parts = [
        f"<g><title>{escape(f'{name}: {CELL_WORDS[cell.state]}' if name else CELL_WORDS[cell.state])}</title>",
        f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{height:g}" rx="4" class="cell s-{cell.state}"/>',
    ]
    if name:
        parts.append(_text(x + 8, y + 17, cut(op, room), f"mono on-{cell.state}"))
    if detail:
        parts.append(_text(x + 8, y + 32, cut(detail, room + 1), f"mono small-digits on-{cell.state}"))
    word = CELL_WORDS[cell.state]
    parts.append(_text(x + 8, y + height - 8 if name else y + height / 2 + 4, word, f"small on-{cell.state}"))
    parts.append("</g>")
    return "".join(parts)


def cluster(exhibit: ClusterExhibit) -> str:
    """One card per host, one square per rank."""
    body: list[str] = []
    top = 0.0
    for start in range(0, len(exhibit.drawn), _CARDS):
        line = exhibit.drawn[start : start + _CARDS]
        height = max(_card_height(h) for h in line)
        body += [_card(n * (_CARD + 12), top, height, host) for n, host in enumerate(line)]
        top += height + 12
    columns = min(_CARDS, len(exhibit.drawn)) or 1
    return _svg(columns * (_CARD + 12) - 12, max(1.0, top - 12), exhibit.statement, body)


def _card_height(host: Host) -> float:
    lines = max(1, -(-min(len(host.seats), 32) // _SEATS))
    return 44 + lines * (_SEAT + 3) + (18 if host.note else 0) + 6


def _card(x: float, y: float, height: float, host: Host) -> str:
    parts = [
        "<g>",
        f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" width="{_CARD - 1}" height="{height - 1:g}" rx="6" class="card{" c-" + host.state if host.state != "unknown" else ""}"/>',
        _text(x + 12, y + 24, cut(plain(host.name, 60), 28), "row strong"),
    ]
    if host.state != "unknown":
        parts.append(
            _text(
                x + _CARD - 12, y + 24, STATE_WORDS[host.state], "label strong-bad" if host.state in ("culprit", "dead") else "label", "end"
            )
        )
    for n, seat in enumerate(host.seats[:32]):
        parts.append(
            _seat(x + 12 + (n % _SEATS) * (_SEAT + 1.6), y + 38 + (n // _SEATS) * (_SEAT + 3), seat.rank, seat.state, plain(seat.gpu, 40))
        )
    if host.note or len(host.seats) > 32:
        rest = f"{len(host.seats) - 32} more ranks. " if len(host.seats) > 32 else ""
        parts.append(_text(x + 12, y + height - 10, cut(rest + plain(host.note, 80), 44), "small"))
    parts.append("</g>")
    return "".join(parts)


def _seat(x: float, y: float, rank: int, state: RankState, gpu: str) -> str:
    said = f"rank {rank}{f', GPU {gpu}' if gpu else ''}: {STATE_WORDS[state]}"
    size = _SEAT - 2
    parts = [
        f'<g><title>{escape(said)}</title><rect x="{x:g}" y="{y:g}" width="{size}" height="{size}" rx="4" class="cell s-{state}"/>',
        _text(
            x + size / 2,
            y + size / 2 + 4,
            str(rank),
            f"{'mono smaller' if rank < 1000 else 'mono small-digits' if rank < 10_000 else 'mono tiny'} on-{state}",
            "middle",
        ),
    ]
    if state == "dead":
        parts.append(
            f'<path d="M{x + 3:g} {y + 3:g}l{size - 6} {size - 6}M{x + size - 3:g} {y + 3:g}l-{size - 6} {size - 6}" class="cross"/>'
        )
    if state == "culprit":
        parts.append(f'<path d="M{x + size - 9:g} {y:g}h5a4 4 0 0 1 4 4v5z" class="corner"/>')
    parts.append("</g>")
    return "".join(parts)


def legend(states: Sequence[CellState | RankState], words: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """``(state, word)`` of the states that a drawing shows, in a fixed order."""
    order = ("culprit", "diverged", "dead", "missing", "waiting", "completed", "ok", "unknown")
    return tuple((s, words[s]) for s in order if s in states)
