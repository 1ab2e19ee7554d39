"""``lspci -vv``: PCIe link width and speed of GPUs, NICs and switches, and ACS.

``LnkSta`` is judged by numbers; the words ``(downgraded)`` and ``(ok)`` came with pciutils 3.6. Error bits (``UESta``, ``CESta``) are
sticky since boot and say nothing about when.
"""

from __future__ import annotations

import re

from nccl_forensics.formats.base import LineWalk, Reading, Row, Text, TextFormat, line_numbers
from nccl_forensics.tables import TABLES
from nccl_forensics.values import pci

_DEVICE = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([A-Z0-9][^:]{2,60}): (.{1,200})$")
_CAP = re.compile(r"^\s+LnkCap:\s+Port #\d+, Speed ([\d.]+)GT/s, Width x(\d+)")
_STA = re.compile(r"^\s+LnkSta:\s+Speed ([\d.]+)GT/s[^,]{0,20}, Width x(\d+)")
_ACS = re.compile(r"^\s+ACSCtl:\s+(.{1,120})$")


def read(text: Text) -> Reading:
    """One row per device that shows a PCIe link."""
    walk = LineWalk(text)
    rows: list[Row] = []
    current: Row | None = None
    for i, line in enumerate(walk.texts):
        head = _DEVICE.match(line)
        if head:
            current = {
                **walk.hints[i],
                "line_no": walk.numbers[i],
                "bus_id": pci.normal(head[1]),
                "device": f"{head[2]}: {head[3]}"[:160],
                "role": _role(head[2], head[3]),
                "gone": "(rev ff)" in line,
            }
            rows.append(current)
            walk.use(i)
        elif current is not None and line.startswith(("\t", " ")) and line.strip():
            walk.use(i)
            cap, sta, acs = _CAP.match(line), _STA.match(line), _ACS.match(line)
            if cap:
                current |= {"speed_max_gt_s": float(cap[1]), "width_max": int(cap[2])}
            elif sta:
                current |= {"speed_gt_s": float(sta[1]), "width": int(sta[2]), "end_line": walk.numbers[i]}
            elif acs:
                current["acs"] = " ".join(w.rstrip("+") for w in acs[1].split() if w.endswith("+")) or None
        elif line.strip():
            current = None
    kept = [r for r in rows if r.get("width") is not None or r.get("gone") or r.get("acs")]
    if not any(r.get("width") is not None or r.get("gone") for r in rows):
        return Reading()
    return Reading(frames={"pcie_links": TABLES["pcie_links"].frame(kept)}, lines=line_numbers(walk.used))


def _role(kind: str, name: str) -> str:
    if kind.startswith(("3D controller", "VGA compatible", "Display controller", "Processing accelerators")):
        return "gpu" if "NVIDIA" in name or "AMD" in name or "Advanced Micro Devices" in name else "other"
    if kind.startswith(("Infiniband controller", "InfiniBand controller", "Ethernet controller", "Network controller")):
        return "nic"
    if kind.startswith("Bridge") and "NVIDIA" in name:
        return "nvswitch"
    return "bridge" if "bridge" in kind.lower() else "other"


FORMAT = TextFormat(
    name="lspci", title="lspci -vv", tables=("pcie_links",), anchors=("LnkSta:\t", "LnkSta: ", "(rev ff)"), read=read, priority=45
)
