"""Matrices of nvbandwidth (text and JSON) and p2pBandwidthLatencyTest: one row per cell."""

from __future__ import annotations

import re

import orjson
import polars as pl

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import after, classify, real
from nccl_forensics.values.documents import items, mapping

_HEADING = (
    r"^\s*(?:nvbandwidth Version|Running [a-z][a-z0-9_]+\.$|SUM [a-z]|Waived: |\[P2P \(Peer|Device: \d+, .*pciBusID|P2P Connectivity Matrix"
    r"|(?:Uni|Bi)directional P2P=|P2P=(?:En|Dis)abled Latency|Device=\d+ CAN| *(?:Host|Device) to (?:Host|Device) Bandwidth,)"
)
#: ``0: NVIDIA H100 80GB HBM3: (00000000:1b:00)`` and the like, without the number; the address stands behind it.
_LISTED = re.compile(r"^(?:Device )?[0-9]{1,4}: ([^():]{1,100})")
_UNITS = {"GB/s": "gb_s", "us": "us", "ns": "ns"}


def read(text: Text) -> Reading:
    """One row per cell, waived test or error."""
    rows: list[Row] = []
    claimed: list[int] = []
    tool: str | None = None
    test: str | None = None
    unit: str | None = None
    columns: list[str] = []
    cpu = False
    gpus: set[str] = set()
    for line in classify(after(text.lines, pl.col("text").str.contains(_HEADING), reach=200), "gpu_bandwidth", strip=True):
        get, own = line.get, {**line.where, "tool": tool, "test": test, "gpu": _one(gpus)}
        match line.kind:
            case "nv_version":
                tool, gpus = "nvbandwidth", set()
            case "nv_device":
                gpus.add((get("name") or "").strip())
            case "nv_running":
                tool, test, columns, unit = "nvbandwidth", get("test"), [], None
            case "nv_title":
                unit, columns = _UNITS.get((get("title") or "").rpartition("(")[2].rstrip(")")), []
            case "nv_waived":
                rows.append({**own, "status": "waived"})
            case "nv_error":
                rows.append({**own, "status": "error", "message": line.text.strip()})
            case "p2p_banner" | "p2p_device":
                tool = "p2p"
            case "p2p_access":
                value = 1.0 if get("can") == "CAN" else 0.0
                rows.append({**own, "tool": "p2p", "test": "access", "row": get("a"), "column": get("b"), "value": value, "unit": "bool"})
            case "p2p_connectivity":
                tool, test, unit, columns, cpu = "p2p", "connectivity", "bool", [], False
            case "p2p_matrix":
                title = " ".join((get("p2p_title") or "").lower().split())
                tool, test, unit, columns, cpu = "p2p", title, _UNITS.get(get("unit") or ""), [], False
            case "p2p_header":
                columns, cpu = (get("columns") or "").split(), line.text.strip().startswith("CPU")
            case "numbers" | "columns" if test is not None and not columns and line.text.replace(" ", "").isdigit():
                columns = line.text.split()
            case "numbers" | "columns" if test is not None and columns and unit is not None:
                cells = line.text.split()
                for column, cell in zip(columns, cells[1:], strict=False):
                    name = f"{test} (cpu)" if cpu else test
                    rows.append({**own, "test": name, "row": cells[0], "column": column, "value": real(cell), "unit": unit})
            case "bw_title":
                tool, test, unit, columns = "bandwidthtest", (get("bw_title") or "").lower(), "gb_s", []
            case "numbers" if tool == "bandwidthtest" and test is not None:
                rows.append({**own, "row": "0", "value": real(line.text.split()[-1]), "unit": "gb_s"})
            case "nv_sum" | "nv_host" | "bw_result" | "bw_note":
                columns = [] if line.kind == "nv_sum" else columns
            case _:
                if line.text.strip():
                    columns = []
                continue
        claimed.append(line.number)
    return Reading(frames=filled({"gpu_bandwidth": rows}), lines=line_numbers(claimed))


def _one(gpus: set[str]) -> str | None:
    """The name of GPUs that all bear the same."""
    return next(iter(gpus)) if len(gpus) == 1 else None


def _sniff_json(head: bytes) -> bool:
    return b'"nvbandwidth"' in head and b'"testcases"' in head


def _read_json(data: bytes) -> Reading:
    """``nvbandwidth -j``: cells are strings, and text may stand before the object."""
    try:
        document = orjson.loads(data[data.index(b"{") :])
    except (orjson.JSONDecodeError, ValueError) as problem:
        return Reading(gaps=(Gap(f"unreadable: {problem}"[:200]),))
    body = mapping(mapping(document).get("nvbandwidth"))
    cases = body.get("testcases")
    if not isinstance(cases, list):
        return Reading(gaps=(Gap("unreadable: no test cases"),))
    listed = body.get("GPU Device list", body.get("GPU Device info"))
    named = [_LISTED.match(str(item)) for item in items(listed)]
    gpu = _one({found[1].strip() for found in named if found is not None})
    rows: list[Row] = []
    for i, case in enumerate(cases):
        if not isinstance(case, dict):
            continue
        unit = "ns" if "latency" in str(case.get("name")) else "gb_s"
        own: Row = {
            "record": f"nvbandwidth.testcases[{i}]",
            "tool": "nvbandwidth",
            "test": case.get("name"),
            "host": body.get("Hostname"),
            "gpu": gpu,
        }
        status = str(case.get("status", "")).lower()
        matrix = case.get("bandwidth_matrix")
        if status not in ("passed", "") or not isinstance(matrix, list):
            rows.append({**own, "status": status or None, "message": case.get("error")})
            continue
        for r, cells in enumerate(matrix):
            for c, cell in enumerate(cells if isinstance(cells, list) else [cells]):
                rows.append({**own, "row": str(r), "column": str(c), "value": real(str(cell)), "unit": unit})
    return Reading(frames=filled({"gpu_bandwidth": rows}), records=len(rows))


FORMATS = (
    TextFormat(
        name="gpu-bandwidth",
        title="nvbandwidth, p2pBandwidthLatencyTest, bandwidthTest (text)",
        tables=("gpu_bandwidth",),
        anchors=(
            "nvbandwidth Version",
            "_memcpy_",
            "P2P Connectivity Matrix",
            "directional P2P=",
            "Latency Test]",
            "Access Peer Device=",
            "PINNED Memory Transfers",
            "PAGEABLE Memory Transfers",
        ),
        read=read,
        priority=35,
    ),
    DocumentFormat(
        name="nvbandwidth-json", title="nvbandwidth (JSON, -j)", tables=("gpu_bandwidth",), sniff=_sniff_json, read=_read_json, priority=25
    ),
)
