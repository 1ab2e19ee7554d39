"""``comparison.html``: two runs side by side on one page that loads nothing and runs nothing."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from nccl_forensics import __version__
from nccl_forensics.changes import AREA_WORDS, Change, Differences, percent
from nccl_forensics.render import asset, render_html

_WIDTH, _ROW, _LEFT, _BAR = 720, 34, 90, 12


@dataclass(frozen=True, slots=True)
class Bar:
    """One size: where its two bars lie (pixels of the drawing) and what they say."""

    label: str
    y: int
    before: int
    after: int
    before_text: str
    after_text: str


def render(compared: Differences) -> bytes:
    """The page; only its own style is allowed, by its hash."""
    style = asset("comparison.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    charts = {change: chart for change in compared.results if (chart := _bars(change))}
    return render_html(
        "comparison.html.j2",
        {
            "policy": f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
            "style": style,
            "version": __version__,
            "compared": compared,
            "words": AREA_WORDS,
            "percent": {change: percent(change) for change in compared.every},
            "charts": charts,
            "size": {"width": _WIDTH, "left": _LEFT, "bar": _BAR, "row": _ROW},
        },
    ).encode()


def _bars(change: Change) -> list[Bar]:
    """Bus bandwidth size by size, both sides on one scale."""
    values = [(what, _number(before), _number(after), before, after) for what, before, after in change.details]
    most = max((max(b, a) for _, b, a, _, _ in values), default=0.0)
    if not most:
        return []
    scale = (_WIDTH - _LEFT - 110) / most
    return [Bar(what, n * _ROW, round(b * scale), round(a * scale), tb, ta) for n, (what, b, a, tb, ta) in enumerate(values)]


def _number(text: str) -> float:
    return float(text.split(" ", 1)[0].replace(",", ""))
