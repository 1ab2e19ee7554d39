"""How an Ethernet card is set up and what its module reads: ``ethtool -a``, ``-g``, ``-k`` and ``-m``."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify

_OPENS = r"^(?:Pause parameters|Features|Ring parameters) for [\w.-]+:$|^\s*Identifier\s+: 0x[0-9a-f]{2} \("
_COMMAND = re.compile(r"ethtool\s+-m\s+([\w.-]+)")
_HEADS = {"pause_head": "pause", "features_head": "offload", "ring_head": "ring"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?![x\d])")
#: Light below the threshold of measurement is written as minus infinity, or as no milliwatts at all.
_DBM = re.compile(r"/\s*(-?(?:\d+(?:\.\d+)?|inf))\s*dBm")
_DARK = -40.0
#: What stands under a heading; a line of other shape ends the block. A module's lines have a blank before their colon.
_SHAPES = {
    "pause": re.compile(r"^(?:Autonegotiate|[RT]X(?: negotiated)?):\s"),
    "ring": re.compile(r"^[A-Z][A-Za-z ]*:\s"),
    "offload": re.compile(r"^\s*[a-z0-9][a-z0-9-]*: (?:on|off)\b"),
    "module": re.compile(r"^\s*\S.* ?: \S|^\s*[A-Z].*\)\s*: "),
}


def read(text: Text) -> Reading:
    """One row per setting."""
    rows: list[Row] = []
    claimed: list[int] = []
    kind: str | None = None
    interface: str | None = None
    section: str | None = None
    commands = _commands(text.lines)
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS)), "ethtool", strip=True):
        if line.kind in _HEADS:
            kind, interface, section = _HEADS[line.kind], line.get("interface"), None
        elif kind == "ring" and line.kind in ("maximums", "current"):
            section = "maximum" if line.kind == "maximums" else "current"
        elif line.kind == "setting" and (kind is None or kind == "module") and (line.get("name") or "").strip() == "Identifier":
            kind, interface, section = "module", _before(commands, line.number), None
            rows.append(_row(line, kind, interface, section))
        elif kind is not None and line.kind == "setting" and _SHAPES[kind].match(line.text):
            rows.append(_row(line, kind, interface, section))
        else:
            kind = None
            continue
        claimed.append(line.number)
    return Reading(frames=filled({"net_settings": rows}), lines=line_numbers(claimed))


def _commands(lines: pl.DataFrame) -> list[tuple[int, str]]:
    """Numbers of the lines that show an ``ethtool -m`` with its interface: its output does not name it."""
    shown = lines.filter(pl.col("text").str.contains(_COMMAND.pattern)).select("line_no", "text")
    return [(number, found.group(1)) for number, body in shown.iter_rows() if (found := _COMMAND.search(body))]


def _before(commands: list[tuple[int, str]], number: int) -> str | None:
    """The interface of a command on the line right before."""
    return next((name for at, name in commands if at == number - 1), None)


def _row(line: Line, kind: str, interface: str | None, section: str | None) -> Row:
    value = (line.get("value") or "").strip()
    fixed = "[fixed]" in value
    value = value.replace("[fixed]", "").replace("[requested on]", "").replace("[requested off]", "").strip()
    return {
        **line.where,
        "interface": interface,
        "kind": kind,
        "section": section,
        "name": re.sub(r"\s+", " ", (line.get("name") or "").strip().lower()),
        "value": value,
        "number": _number(value),
        "fixed": fixed if kind == "offload" else None,
    }


def _number(value: str) -> float | None:
    power = _DBM.search(value)
    if power:
        return _DARK if power.group(1) == "-inf" else max(_DARK, float(power.group(1)))
    found = _NUMBER.match(value)
    return float(found.group(0)) if found else None


FORMAT = TextFormat(
    name="ethtool",
    title="ethtool -a, -g, -k, -m: pause, rings, offloads, module",
    tables=("net_settings",),
    anchors=("Pause parameters for ", "Features for ", "Ring parameters for ", "Identifier "),
    read=read,
    priority=44,
)
