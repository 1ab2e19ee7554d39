"""xGMI of AMD's GPUs: ``rocm-smi --showtopo`` and ``--showxgmierr`` as text."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats._rocm_links import XGMI
from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import after, classify, whole

_OPENS = r"ROCm System Management Interface|XGMI Error|Link Type between|Weight between|Hops between|Numa Nodes"


def read(text: Text) -> Reading:
    """Errors by GPU, and the kind of link of every pair."""
    rows: dict[str, list[Row]] = {"nvlink_counters": [], "gpu_topology": []}
    claimed: list[int] = []
    title: str | None = None
    columns: list[str] = []
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS)), "rocm_smi", strip=True):
        match line.kind:
            case "heading":
                title, columns = line.get("title"), []
            case "xgmi_errors":
                told: Row = {"gpu_index": whole(line.get("gpu")), "counter": XGMI, "value": whole(line.get("count"))}
                rows["nvlink_counters"].append({**line.where, **told, "raw": line.get("count")})
            case "columns":
                columns = (line.get("columns") or "").split()
            case "matrix_row" if columns:
                if title == "Link Type between two GPUs":
                    a = line.get("row_gpu")
                    cells = zip(columns, (line.get("cells") or "").split(), strict=False)
                    rows["gpu_topology"] += [{**line.where, "a": a, "b": b, "relation": "X" if b == a else cell} for b, cell in cells]
            case "numa" | "numa_affinity" | "rule":
                pass
            case _:
                continue
        claimed.append(line.number)
    return Reading(frames=filled(rows), lines=line_numbers(claimed if any(rows.values()) else []))


FORMAT = TextFormat(
    name="rocm-smi-links",
    title="rocm-smi --showtopo, --showxgmierr (text)",
    tables=("nvlink_counters", "gpu_topology"),
    anchors=("XGMI Error count: ", "Link Type between two GPUs"),
    read=read,
    priority=44,
)
