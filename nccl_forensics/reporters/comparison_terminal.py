"""A comparison on a terminal: what came out, what explains it, what else differs, and what neither side shows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from nccl_forensics.changes import AREA_WORDS, Change, Differences, percent
from nccl_forensics.plain import cut_columns

_STYLES = {"worse": "1;31", "better": "1;32", "neutral": "1"}
_MARKS = {"worse": "▼", "better": "▲", "neutral": "·"}
#: Differences that a screen shows of each kind; the rest is in the other reports.
_SHOWN = {"results": 8, "explains": 12, "others": 8, "one_sided": 8}


def render(compared: Differences, *, color: bool, width: int) -> str:
    """Lines of at most ``width`` columns; ends with a newline. Without ``color`` there is no escape sequence in it."""

    def paint(text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if color and text else text

    lines: list[str] = []

    def section(title: str, changes: Sequence[Change], at_most: int) -> None:
        if not changes:
            return
        lines.extend(["", paint(title, "1")])
        for change in changes[:at_most]:
            head = f"  {_MARKS[change.direction]} {AREA_WORDS.get(change.area, change.area)}: {change.subject}"
            lines.append(paint(cut_columns(head, width), _STYLES[change.direction]))
            lines.extend(f"      {line}" for line in _values(change, width - 6))
            for said in (change.note, _places(change)):
                lines.extend(paint(f"      {line}", "2") for line in textwrap.wrap(said, width - 6, break_on_hyphens=False)[:2])
        if len(changes) > at_most:
            lines.append(f"  … and {len(changes) - at_most} more")

    for word, side in (("before", compared.before), ("after ", compared.after)):
        lines.append(cut_columns(f"{word}  {side.title}: {side.outcome or side.status}{f', {side.cause}' if side.cause else ''}", width))
    section("What came out", compared.results, _SHOWN["results"])
    section("What explains it, most telling first", compared.explains, _SHOWN["explains"])
    section("What else differs", compared.others, _SHOWN["others"])
    section("Shown by one side only: unknown on the other, not equal", compared.one_sided, _SHOWN["one_sided"])
    if compared.unknown:
        lines += ["", paint("Unknown on both sides", "1")]
        for text in compared.unknown:
            lines += textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)[:3]
    lines += ["", paint(f"{len(compared.equal)} things that both sides show are equal", "2")]
    return "\n".join(lines) + "\n"


def _values(change: Change, width: int) -> list[str]:
    before = change.before if change.before is not None else "not shown"
    after = change.after if change.after is not None else "not shown"
    one = f"{before} → {after}{percent(change)}"
    if len(one) <= width:
        return [one]
    return [cut_columns(f"before: {before}", width), cut_columns(f"after:  {after}{percent(change)}", width)]


def _places(change: Change) -> str:
    places = [f"{word} {where}" for word, where in (("before", change.before_where), ("after", change.after_where)) if where]
    return ", ".join(places)
