"""Text from evidence made harmless for a reader's eyes and terminal: every report passes all foreign text through here.

Escape sequences, control characters, marks that change the reading direction and invisible characters are shown, never obeyed.
"""

from __future__ import annotations

import re
import unicodedata

#: Colour sequences of terminals (SGR); they carry no meaning for a report, so they go. Any other escape is made visible.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_HARMLESS = re.compile(r"[ -~]*")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: So many combining marks may stand on one letter (Vietnamese and Hebrew need two or three); more is a prank.
_MARKS = 3


def plain(text: object, limit: int | None = None) -> str:
    """One line of visible text, cut to ``limit`` characters with an ellipsis. ``None`` gives the empty string."""
    if text is None:
        return ""
    raw = str(text)
    if limit is not None and len(raw) > 8 * limit + 512:
        raw = raw[: 8 * limit + 512]
    if _HARMLESS.fullmatch(raw) is None:
        raw = _shown(_COLOUR.sub("", raw))
    return raw if limit is None else cut(raw, limit)


def _shown(text: str) -> str:
    out: list[str] = []
    marks = 0
    for char in text.rstrip("\r\n"):
        if " " <= char <= "~":
            marks = 0
            out.append(char)
            continue
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MARKS:
            continue
        if category == "Zs":
            out.append(" ")
        elif char == "\t":
            out.append("    ")
        elif char == "\n":
            out.append(" ⏎ ")
        elif category in _HIDDEN:
            code = ord(char)
            out.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
        else:
            out.append(char)
    return "".join(out)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters; an ellipsis stands for the rest."""
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + "…"


def columns(text: str) -> int:
    """Terminal columns that a text takes: wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.category(c) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut_columns(text: str, limit: int) -> str:
    """At most ``limit`` terminal columns; an ellipsis stands for the rest."""
    if columns(text) <= limit:
        return text
    out: list[str] = []
    left = max(0, limit - 1)
    for char in text:
        left -= columns(char)
        if left < 0:
            break
        out.append(char)
    return "".join(out).rstrip() + "…"
