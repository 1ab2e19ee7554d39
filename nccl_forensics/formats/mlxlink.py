"""mlxlink: quality of one port. ``15E-255`` is its way to write no errors at all, and raw errors in the billions are healthy with FEC."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.facts.link_rates import lanes, physical_state, port_state
from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import after, classify, real, whole
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import mapping

_DEVICE = re.compile(r"mlxlink\b.*?-d +(\S+)")
_NO_ERRORS = 1e-200
_INTEGERS = {
    "status opcode": "opcode",
    "effective physical errors": "effective_errors",
    "symbol errors": "symbol_errors",
    "link down counter": "link_downs",
    "link error recovery counter": "recoveries",
}
_RATES = {"effective physical ber": "effective_ber", "symbol ber": "symbol_ber", "raw physical ber": "raw_ber"}
_TEXTS = {
    "speed": "speed",
    "fec": "fec",
    "recommendation": "recommendation",
    "vendor part number": "part",
    "vendor serial number": "serial",
}


def read(text: Text) -> Reading:
    """One row per port."""
    rows: list[Row] = []
    claimed: list[int] = []
    devices = {
        number: found.group(1)
        for number, body in text.lines.filter(pl.col("text").str.contains("mlxlink", literal=True)).select("line_no", "text").iter_rows()
        if (found := _DEVICE.search(body))
    }
    row: Row | None = None
    for line in classify(after(text.lines, pl.col("text").str.contains(r"^\s*Operational Info"), reach=200), "mlxlink", strip=True):
        if line.kind == "title" and line.text.strip().startswith("Operational Info"):
            device = max((n for n in devices if n < line.number), default=None)
            row = {**line.where, "device": devices[device] if device is not None else None}
            rows.append(row)
        elif row is not None and line.kind == "value":
            _value(row, (line.get("key") or "").strip().lower(), line.get("value"))
        elif row is None or line.kind is None:
            if line.text.strip():
                row = None
            continue
        claimed.append(line.number)
    return Reading(frames=filled({"link_quality": rows}), lines=line_numbers(claimed))


def _value(row: Row, key: str, value: str | None) -> None:
    if value is None or value.strip() in ("N/A", "n/a"):
        return
    bare = value.split("[")[0].strip()
    if key in _INTEGERS:
        row[_INTEGERS[key]] = whole(bare)
    elif key in _RATES:
        rate = real(bare)
        row[_RATES[key]] = 0.0 if rate is not None and rate < _NO_ERRORS else rate
    elif key in _TEXTS:
        row[_TEXTS[key]] = value.strip()
    elif key == "state":
        row["state"] = port_state(value)
    elif key == "physical state":
        row["phys_state"] = (
            physical_state(value) if value.startswith(("Link", "Poll", "Dis", "Sleep", "Port", "Phy")) else value.strip().lower()
        )
    elif key == "width":
        row["width"] = lanes(value)
    elif key.startswith("time since last clear"):
        row["minutes_since_clear"] = real(bare)
    elif key.startswith("temperature"):
        row["temperature_c"] = real(bare)
    elif key.startswith("rx power current"):
        row["rx_power_dbm"] = [p.strip() for p in bare.split(",") if p.strip()]


def _sniff_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"Operational Info"' in head and b'"output"' in head


@of_json("unparsed", record="result")
def read_json(document: object) -> Reading:
    """``mlxlink --json``: the same titles and keys as the text, below ``result.output``."""
    output = mapping(mapping(document).get("result")).get("output")
    if not isinstance(output, dict):
        return Reading(gaps=(Gap("unparsed: no output", record="result"),))
    row: Row = {"record": "result.output"}
    for block in output.values():
        for key, value in mapping(block).items():
            if isinstance(value, str | int | float):
                _value(row, str(key).strip().lower(), str(value))
    return Reading(frames={"link_quality": TABLES["link_quality"].frame([row])}, records=1)


FORMATS = (
    TextFormat(name="mlxlink", title="mlxlink", tables=("link_quality",), anchors=("Operational Info",), read=read, priority=41),
    DocumentFormat(
        name="mlxlink-json", title="mlxlink (JSON, --json)", tables=("link_quality",), sniff=_sniff_json, read=read_json, priority=25
    ),
)
