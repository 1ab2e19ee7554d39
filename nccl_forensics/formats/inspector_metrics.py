"""The NCCL Inspector's metrics for Prometheus (NCCL 2.29.7 and later): averages by communicator, operation and bucket of sizes."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import labels_of, real, whole

_METRIC = re.compile(
    r"^nccl_(bus_bandwidth_gbs|collective_exec_time_microseconds|p2p_bus_bandwidth_gbs|p2p_exec_time_microseconds)\{([^{}]{1,2000})\} (\S{1,40})(?: \d{1,20})?$"
)
_COMMENT = re.compile(r"^# (?:HELP|TYPE) nccl_(?:bus_bandwidth|collective_exec|p2p_)")


def read(text: Text) -> Reading:
    """One row per metric. A bucket of sizes is no size, so ``size_bytes`` stays empty."""
    rows: list[Row] = []
    used: list[int] = []
    gaps: list[Gap] = []
    for number, line in text.hits.select("line_no", "text").iter_rows():
        if _COMMENT.match(line):
            used.append(number)
            continue
        found = _METRIC.match(line)
        if not found:
            continue
        value, labels = real(found[3]), labels_of(found[2])
        if value is None:
            gaps.append(Gap("unparsed: no number", number, text=line[:200]))
            continue
        used.append(number)
        told: Row = {"host": labels.get("node"), "comm_name": labels.get("comm_name"), "timing_source": "metric"}
        told |= {"nranks": whole(labels.get("nranks")), "nodes": whole(labels.get("n_nodes"))}
        told |= {"op": labels.get("collective") or labels.get("p2p_operation")}
        column = "bus_bw_gb_s" if "bandwidth" in found[1] else "time_us"
        rows.append({"line_no": number, **told, column: value})
    return Reading(frames=filled({"nccl_inspector": rows}), lines=line_numbers(used), gaps=tuple(gaps))


FORMAT = TextFormat(
    name="nccl-inspector-metrics",
    title="NCCL Inspector (metrics for Prometheus)",
    tables=("nccl_inspector",),
    anchors=(
        "nccl_bus_bandwidth_gbs",
        "nccl_collective_exec_time_microseconds",
        "nccl_p2p_bus_bandwidth_gbs",
        "nccl_p2p_exec_time_microseconds",
    ),
    read=read,
    priority=16,
)
