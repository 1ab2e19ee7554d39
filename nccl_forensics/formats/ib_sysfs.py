"""/sys/class/infiniband and /sys/class/net: trees of tiny files, dumps of them as text, and node_exporter's text of the same counters.

A source is one file and knows no path, so a file with one value becomes one row, and the view joins it with the path of the source.
"""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.facts.ib_counters import counter_name
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, labels_of, real
from nccl_forensics.tables import TABLES

_LONGEST = 128
#: Numbers, ``4: ACTIVE``, rates, GUIDs and GIDs, adapter, board and firmware names: what such a file holds.
_VALUE = re.compile(
    rb"^\s*(?:-?\d{1,20}|\d{1,2}: [A-Za-z_ -]{2,40}|\d+(?:\.\d+)? Gb/sec \([^)\n]{2,20}\)|InfiniBand|Ethernet|0x[0-9a-fA-F]{1,16}"
    rb"|(?:[0-9a-fA-F]{2,4}:){3,19}[0-9a-fA-F]{2,4}|MT[_0-9]{4,20}|\d+\.\d+\.\d{3,4}|N/A \(no PMA\)|RoCE v[12]|IB/RoCE v1|up|down|full|half|unknown"
    rb"|[\w.-]{1,60} mlx\d_\w{1,10})\s*$"
)


def _sniff(head: bytes) -> bool:
    return len(head) <= _LONGEST and _VALUE.match(head) is not None


def _read_value(data: bytes) -> Reading:
    value = data.decode("utf-8", "replace").strip()
    frame = TABLES["sysfs_values"].frame(
        [{"line_no": data[: len(data) - len(data.lstrip())].count(b"\n") + 1, "path": None, "value": value}]
    )
    return Reading(frames={"sysfs_values": frame}, records=1)


def _read_dump(text: Text) -> Reading:
    headed = text.lines["text"].str.contains("==> ", literal=True)
    picked = text.hits
    if headed.any():
        block = after(text.lines, pl.col("text").str.contains("==> ", literal=True), reach=3)
        picked = pl.concat([picked, block]).unique("line_no").sort("line_no")
    values: list[dict[str, object]] = []
    counters: list[dict[str, object]] = []
    claimed: list[int] = []
    gaps: list[Gap] = []
    heading: Line | None = None
    for line in classify(picked, "sysfs", strip=True):
        if line.kind == "heading":
            heading = line
            claimed.append(line.number)
        elif line.kind == "entry":
            values.append({"line_no": line.number, "path": line.get("path"), "value": (line.get("value") or "").strip()})
            claimed.append(line.number)
        elif line.kind == "metric":
            labels = labels_of(line.get("labels") or "")
            number = real(line.get("number"))
            if number is None or "device" not in labels:
                gaps.append(Gap("unparsed: no device or no number", line.number, text=line.text))
                continue
            counters.append(
                {
                    **line.where,
                    "tool": "node-exporter",
                    "host": labels.get("instance", "").rpartition(":")[0] or labels.get("instance") or labels.get("nodename"),
                    "device": labels["device"],
                    "port": real(labels.get("port")),
                    "counter": counter_name(line.get("counter") or ""),
                    "value": int(number),
                }
            )
            claimed.append(line.number)
        elif heading is not None and line.text.strip() and line.number - heading.number <= 2:
            values.append({"line_no": line.number, "path": heading.get("path"), "value": line.text.strip()})
            claimed.append(line.number)
            heading = None
        elif heading is not None and not line.text.strip():
            claimed.append(line.number)
    found = {"sysfs_values": values, "ib_counters": counters}
    return Reading(frames=filled(found), lines=line_numbers(claimed), gaps=tuple(gaps))


FORMATS = (
    DocumentFormat(
        name="sysfs-value",
        title="One file of /sys/class/infiniband or /sys/class/net",
        tables=("sysfs_values",),
        sniff=_sniff,
        read=_read_value,
        priority=90,
    ),
    TextFormat(
        name="sysfs-dump",
        title="Dump of /sys/class/infiniband or /sys/class/net as text, or node_exporter's counters",
        tables=("sysfs_values", "ib_counters"),
        anchors=("infiniband/", "/ports/", "class/net/", "node_infiniband_"),
        read=_read_dump,
        priority=40,
    ),
)
