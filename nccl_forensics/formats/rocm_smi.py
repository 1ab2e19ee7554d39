"""``rocm-smi --json``: one object per card, and the links between them. Key spelling changes between ROCm releases, so keys are looked up
by their words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats._gpu_values import clean, number
from nccl_forensics.formats._rocm_links import links_of
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, filled
from nccl_forensics.values import pci
from nccl_forensics.values.documents import mapping

_CARD = re.compile(r"^card(\d+)$")

#: Column, key prefixes in order of preference (ROCm 5.7, 6.0).
_NUMBERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("temperature_c", ("Temperature (Sensor junction)", "Temperature (Sensor edge)")),
    ("temperature_memory_c", ("Temperature (Sensor memory)",)),
    ("utilization_percent", ("GPU use (%)",)),
    ("memory_utilization_percent", ("GPU memory use (%)", "GPU Memory Allocated (VRAM%)")),
    ("power_w", ("Average Graphics Package Power", "Current Socket Graphics Package Power")),
    ("power_limit_w", ("Max Graphics Package Power",)),
    ("pcie_replays", ("PCIe Replay Count",)),
)
_TEXTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("name", ("Card series", "Card Series")),
    ("uuid", ("Unique ID",)),
    ("serial", ("Serial Number",)),
    ("vbios", ("VBIOS version",)),
)
_LINK = re.compile(r"(?<![\d.])([\d.]++)GT/s x(\d+)")


def _sniff(head: bytes) -> bool:
    told = b"Sensor" in head or b"GPU use (%)" in head or b"PCI Bus" in head or b"XGMI Error count" in head
    return head.lstrip()[:1] == b"{" and ((b'"card' in head[:2048] and told) or b'"(Topology) Link type between' in head)


@of_json("unparsed")
def read(document: object) -> Reading:
    """One row of ``gpus`` per card, and what is said of xGMI."""
    rows: list[dict[str, object]] = []
    driver = mapping(mapping(document).get("system")).get("Driver version")
    for key, card in mapping(document).items():
        named = _CARD.match(str(key))
        if not named or not isinstance(card, Mapping) or set(card) == {"XGMI Error count"}:
            continue
        cells = {str(k): str(v) for k, v in card.items()}
        row: dict[str, object] = {"record": key, "tool": "rocm-smi", "gpu_index": int(named[1]), "driver_version": driver}
        row["bus_id"] = pci.normal(clean(cells.get("PCI Bus")))
        row |= {column: number(_pick(cells, keys)) for column, keys in _NUMBERS}
        row |= {column: clean(_pick(cells, keys)) for column, keys in _TEXTS}
        link = _LINK.search(_pick(cells, ("pcie clock level",)) or "")
        if link:
            row["pcie_width"] = int(link[2])
        used, total = number(cells.get("VRAM Total Used Memory (B)")), number(cells.get("VRAM Total Memory (B)"))
        row["memory_used_mib"] = used / 2**20 if used is not None else None
        row["memory_total_mib"] = total / 2**20 if total is not None else None
        rows.append(row)
    found = {"gpus": rows, **(links_of(document) if isinstance(document, Mapping) else {})}
    if not any(found.values()):
        return Reading(gaps=(Gap("unparsed: no card"),))
    return Reading(frames=filled(found), records=sum(map(len, found.values())))


def _pick(cells: Mapping[str, str], prefixes: tuple[str, ...]) -> str | None:
    for prefix in prefixes:
        for key, value in cells.items():
            if key.startswith(prefix):
                return value
    return None


FORMAT = DocumentFormat(
    name="rocm-smi", title="rocm-smi --json", tables=("gpus", "nvlink_counters", "gpu_topology"), sniff=_sniff, read=read, priority=45
)
