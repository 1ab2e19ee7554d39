"""The divergence of a group: rows are classes of ranks, columns sequence numbers; the first divergence is banded and named."""

from __future__ import annotations

from nccl_forensics.drawings.svg import CELL_WORDS, MONO, box, group, svg, text
from nccl_forensics.extras import Cell, GroupTimeline, TimelineRow
from nccl_forensics.plain import cut, plain
from nccl_forensics.words import rank_list

_LABEL, _CELL, _HEAD, _GAP = 190, 139, 46, 6
_BEFORE, _COLUMNS = 3, 5
_SMALL_WIDTH, _SMALL_COLUMNS, _SMALL_ROWS = 344, 4, 4


def around(timeline: GroupTimeline, before: int, count: int) -> tuple[int, ...]:
    """So many columns, the divergence among them with so many before it."""
    columns = timeline.columns
    at = columns.index(timeline.first_divergence) if timeline.first_divergence in columns else len(columns) - 1
    start = max(0, min(at - before, len(columns) - count))
    return columns[start : start + count]


def cell_of(timeline: GroupTimeline, row: TimelineRow, column: int) -> Cell:
    """The row's cell in a column."""
    position = timeline.columns.index(column)
    return row.cells[position] if position < len(row.cells) else Cell("", "unknown")


def timeline(shown: GroupTimeline, statement: str) -> str:
    """The columns around the divergence with what each class of ranks called."""
    columns = around(shown, _BEFORE, _COLUMNS)
    rows = [(row, [cell_of(shown, row, c) for c in columns]) for row in shown.rows]
    lines = 1 + max((len(_lines(c)) for _, cells in rows for c in cells), default=1)
    height_of_row = 16 + 15 * max(2, lines)
    width, height = _LABEL + _CELL * len(columns) + 2, _HEAD + height_of_row * len(rows) + 4
    body: list[str] = []
    for n, column in enumerate(columns):
        x = _LABEL + n * _CELL
        first = column == shown.first_divergence
        if first:
            body.append(box(x, 1, _CELL, height - 2, "band", 6))
            body.append(text(x + _CELL / 2, 16, "first divergence", "label strong-bad", "middle"))
        body.append(text(x + _CELL / 2, 36, f"#{column}", "mono head strong" if first else "mono head", "middle"))
    for n, (row, cells) in enumerate(rows):
        y = _HEAD + n * height_of_row
        name, below = _who(row)
        body.append(text(0, y + 20, name, "row strong"))
        body.append(text(0, y + 36, cut(below, 28), "label"))
        body += [_cell(_LABEL + k * _CELL + _GAP / 2, y + 2, height_of_row - _GAP, cell) for k, cell in enumerate(cells)]
    return svg(width, height, statement, body)


def _who(row: TimelineRow) -> tuple[str, str]:
    name = cut(f"{'rank' if len(row.ranks) == 1 else 'ranks'} {rank_list(row.ranks, 3)}", 25)
    count = f"{len(row.ranks):,} ranks" if len(row.ranks) > 1 and "ranks)" not in name else ""
    return name, " · ".join(t for t in (count, plain(row.host, 40)) if t)


def _lines(cell: Cell) -> list[str]:
    """Operation, what it was called with, and where in the code."""
    op, _, detail = plain(cell.text, 80).partition(" ")
    return [t for t in (op, detail, _place(plain(cell.site, 160))) if t]


def _place(site: str) -> str:
    """``file:line`` of ``function (file:line)``."""
    return site.rpartition(" (")[2].rstrip(")")


def _cell(x: float, y: float, height: float, cell: Cell) -> str:
    width = _CELL - _GAP
    word = CELL_WORDS[cell.state]
    lines = _lines(cell)
    room = int((width - 14) / MONO)
    parts = [box(x, y, width, height, f"cell s-{cell.state}")]
    for n, line in enumerate(lines):
        css = "mono" if n == 0 else "mono small-digits"
        parts.append(text(x + 8, y + 17 + 15 * n, cut(line, room if n == 0 else room + 2), f"{css} on-{cell.state}"))
    parts.append(text(x + 8, y + height - 8 if lines else y + height / 2 + 4, word, f"small on-{cell.state}"))
    return group(" · ".join(t for t in (plain(cell.text, 80), plain(cell.site, 160), word) if t), parts)


def glance(shown: GroupTimeline, statement: str) -> str:
    """The same at a glance, for the first screen: a label over each row, operations alone in the cells."""
    columns = around(shown, _SMALL_COLUMNS - 2, _SMALL_COLUMNS)
    ordered = sorted(shown.rows, key=lambda r: (not any(c.state in ("diverged", "missing") for c in r.cells), -len(r.ranks)))
    rows = [r for r in shown.rows if r in ordered[:_SMALL_ROWS]]
    # Always as wide, so that labels and digits are as big beside each other whatever is drawn.
    width, height = _SMALL_WIDTH, 40 + 56 * len(rows)
    wide = width / max(len(columns), 1)
    body: list[str] = []
    for n, column in enumerate(columns):
        first = column == shown.first_divergence
        if first:
            body.append(box(n * wide, 0, wide, height, "band", 6))
            body.append(text((n + 0.5) * wide, 14, "parted here", "label strong-bad", "middle"))
        body.append(
            text((n + 0.5) * wide, 31, f"#{column}", "mono small-digits head strong" if first else "mono small-digits head", "middle")
        )
    for n, row in enumerate(rows):
        y = 38 + n * 56
        cells = [cell_of(shown, row, c) for c in columns]
        at = next((c for c, column in zip(cells, columns, strict=True) if column == shown.first_divergence), cells[-1])
        name, _ = _who(row)
        said = " · ".join(t for t in (f"{len(row.ranks):,} ranks" if len(row.ranks) > 1 else "", CELL_WORDS[at.state]) if t)
        # The number of ranks stands at the right.
        body.append(text(2, y + 13, cut(name.partition(" (")[0], max(8, int((width - 12 - 6.2 * len(said)) / 6.8))), "label strong"))
        body.append(text(width - 2, y + 13, said, "label strong-bad" if at.state in ("diverged", "missing") else "label", "end"))
        for k, cell in enumerate(cells):
            x = k * wide + 2
            op = plain(cell.text, 80).partition(" ")[0]
            inner = [box(x, y + 19, wide - 4, 28, f"cell s-{cell.state}")]
            room = int((wide - 10) / 6.4)
            inner.append(
                text(
                    x + (wide - 4) / 2,
                    y + 37,
                    cut(op or ("never" if cell.state == "missing" else "?"), room),
                    f"mono small-digits on-{cell.state}",
                    "middle",
                )
            )
            body.append(group(f"{op} {CELL_WORDS[cell.state]}".strip(), inner))
    return svg(width, height, statement, body, "drawing fluid")


__all__ = ["around", "cell_of", "glance", "timeline"]
