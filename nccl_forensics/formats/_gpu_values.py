"""From what nvidia-smi writes in a cell to a value: units, N/A in all its spellings, booleans, and cells that mean an ill GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics.facts.gpu import THROTTLE_BITS
from nccl_forensics.facts.gpu_fields import FABRIC_FINE, FIELDS, THROTTLE_NAMES, THROTTLE_SECTIONS, GpuField
from nccl_forensics.values import pci

_ABSENT = frozenset(
    {
        "",
        "-",
        "n/a",
        "not supported",
        "unknown",
        "requested functionality has been deprecated",
        "insufficient permissions",
        "not found",
        "function not found",
    }
)
_ILL = ("unknown error", "err!", "gpu requires reset", "gpu is lost", "requires reset")
_NUMBER = re.compile(r"^-?\d+(?:\.\d+)?")
_TRUE = frozenset({"enabled", "yes", "active", "on", "true", "1"})
_FALSE = frozenset({"disabled", "no", "not active", "off", "false", "0"})


def clean(value: str | None) -> str | None:
    """The text of a cell, or None where it says that there is none or that the GPU did not answer."""
    if value is None:
        return None
    text = value.strip()
    bare = text.strip("[]").strip().lower()
    return None if bare in _ABSENT or any(word in bare for word in _ILL) else text


def problem(value: str | None) -> str | None:
    """The cell's text where it means that the GPU did not answer."""
    text = (value or "").strip()
    return text.strip("[]") if any(word in text.lower() for word in _ILL) else None


def number(value: str | None) -> float | None:
    """Leading number of a cell; the unit behind it is fixed by the column."""
    text = clean(value)
    found = _NUMBER.match(text) if text else None
    return float(found.group()) if found else None


def boolean(value: str | None) -> bool | None:
    """Enabled, Yes, Active, 1 against Disabled, No, Not Active, 0."""
    text = (clean(value) or "").lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _value(field: GpuField, raw: str | None) -> object:
    if field.column == "recovery_action" and (raw or "").strip().strip("[]") == "None":
        return "None"
    if field.type == "number":
        return number(raw)
    if field.type == "bool":
        return boolean(raw)
    text = clean(raw)
    return pci.normal(text) if field.column == "bus_id" else text


def _first(field: GpuField, names: tuple[str, ...], cells: Mapping[str, str]) -> object:
    if field.type == "bool":
        said = [v for name in names if (v := boolean(cells.get(name))) is not None]
        return any(said) if said else None
    for name in names:
        if " + " in name:
            parts = [number(cells.get(part)) for part in name.split(" + ")]
            if all(p is not None for p in parts):
                return sum(p for p in parts if p is not None)
        elif name in cells:
            value = _value(field, cells[name])
            if value is not None:
                return value
    return None


def gpu_row(cells: Mapping[str, str], source: str) -> dict[str, object]:
    """A row of ``gpus`` from cells by their names; ``source`` (text, xml, csv) says whose names they are."""
    row: dict[str, object] = {}
    for field in FIELDS:
        names: tuple[str, ...] = getattr(field, source)
        value = _first(field, names, cells)
        if value is not None:
            row[field.column] = value
    row["throttle"] = _throttle(cells)
    row["fabric_health"] = _fabric_health(cells)
    ill = sorted({f"{name.rsplit('/', 1)[-1]}: {text}" for name, cell in cells.items() if (text := problem(cell))})
    if ill:
        row["problem"] = "; ".join(ill[:3])
    return row


def _throttle(cells: Mapping[str, str]) -> list[str] | None:
    active: list[str] = []
    said = False
    for name, cell in cells.items():
        section = next((s for s in THROTTLE_SECTIONS if name.startswith(s)), None)
        if section is None:
            continue
        last = name[len(section) :].rsplit("/", 1)[-1].lower().replace(" ", "_")
        if last == "active":
            text = clean(cell)
            if text and re.fullmatch(r"0[xX][0-9A-Fa-f]{1,16}", text):
                said = True
                mask = int(text, 16)
                active.extend(word for bit, word in THROTTLE_BITS.items() if mask & bit and word not in active)
            continue
        word = THROTTLE_NAMES.get(last.removeprefix("clocks_event_reason_").removeprefix("clocks_throttle_reason_"))
        state = boolean(cell)
        if word is not None and state is not None:
            said = True
            if state and word not in active:
                active.append(word)
    order = list(THROTTLE_BITS.values())
    return sorted(active, key=order.index) if said else None


def _fabric_health(cells: Mapping[str, str]) -> list[str] | None:
    items: list[str] = []
    for name, cell in cells.items():
        if name.lower().startswith(("fabric/health/", "fabric.health.")):
            text = clean(cell)
            if text and text.lower() not in FABRIC_FINE:
                items.append(f"{name.replace('.', '/').rsplit('/', 1)[-1]}: {text}")
    return sorted(items) or None
