"""Pieces of inline SVG and the words of states. Colour never stands alone: each state has its own word, edge or mark.

Colours come from the classes of the style sheet, so that they follow light, dark and print; no style attributes, no scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

STATE_WORDS = {
    "completed": "completed",
    "waiting": "waiting",
    "diverged": "diverged",
    "missing": "missing",
    "unknown": "not known",
    "culprit": "at fault",
    "dead": "dead",
    "ok": "no fault seen",
}
#: States of one position of a group.
CELL_WORDS = {**STATE_WORDS, "missing": "never entered", "unknown": "not recorded"}
_ORDER = ("culprit", "diverged", "dead", "missing", "waiting", "completed", "ok", "unknown")
#: A monospaced letter of 12 px and a proportional one of 13 px are about this wide.
MONO, SANS = 7.3, 6.9


def text(x: float, y: float, words: str, css: str, anchor: str = "start") -> str:
    """One line of text."""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" class="{css}"{at}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, css: str, radius: float = 4) -> str:
    """A rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{css}"/>'


def group(title: str, parts: Iterable[str]) -> str:
    """Parts with a title that a pointer shows."""
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def svg(width: float, height: float, title: str, body: Iterable[str], css: str = "drawing") -> str:
    """The drawing as a whole; its title is what a screen reader says, the table beside it says the same in full."""
    return (
        f'<svg class="{css}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(body)}</svg>'
    )


def legend(states: Iterable[str], words: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """``(state, word)`` of the states that a drawing shows, in a fixed order."""
    there = set(states)
    return tuple((s, words[s]) for s in _ORDER if s in there)
