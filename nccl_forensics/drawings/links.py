"""How the GPUs of a host reach each other: a square for each pair, row to column, the kind of link as a word and a shade."""

from __future__ import annotations

from nccl_forensics.drawings.svg import box, group, svg, text
from nccl_forensics.extras import LinkMatrix
from nccl_forensics.plain import cut, plain

_CELL_HIGH, _CELL_WIDE, _HEAD, _NAME = 26, 46, 26, 54
#: Largest host that is drawn; larger ones stay a table.
MOST = 16
#: Kinds of link by the start of their word: shade of the cell. Direct ones, those through a host bridge or memory, the network.
_KINDS = (
    ("P2P", "direct"),
    ("NV", "direct"),
    ("XGMI", "direct"),
    ("PIX", "near"),
    ("PXB", "near"),
    ("PHB", "near"),
    ("SHM", "far"),
    ("SYS", "far"),
    ("NODE", "far"),
    ("NET", "net"),
)


def kind_of(word: str) -> str:
    """direct, near, far, net, or other."""
    return next((kind for start, kind in _KINDS if word.upper().startswith(start)), "other")


def matrix(shown: LinkMatrix, statement: str) -> str:
    """The matrix; the diagonal stays empty."""
    count = len(shown.names)
    body: list[str] = []
    for n, name in enumerate(shown.names):
        short = cut(plain(name, 40), 6)
        body.append(text(_NAME - 8, _HEAD + n * _CELL_HIGH + 17, short, "mono small-digits head", "end"))
        body.append(text(_NAME + (n + 0.5) * _CELL_WIDE, 17, short, "mono small-digits head", "middle"))
    for row, words in enumerate(shown.cells):
        for column, word in enumerate(words[:count]):
            x, y = _NAME + column * _CELL_WIDE + 1, _HEAD + row * _CELL_HIGH + 1
            if row == column:
                continue
            said = plain(word, 40)
            css = f"link l-{kind_of(said)}" if said else "link l-none"
            short = cut(said.split("/")[0], 6)
            parts = [
                box(x, y, _CELL_WIDE - 2, _CELL_HIGH - 2, css, 3),
                text(x + _CELL_WIDE / 2 - 1, y + 16, short, f"mono tiny on-{kind_of(said)}", "middle"),
            ]
            body.append(group(f"{plain(shown.names[row], 40)} to {plain(shown.names[column], 40)}: {said or 'not seen'}", parts))
    return svg(_NAME + count * _CELL_WIDE, _HEAD + count * _CELL_HIGH, statement, body)
