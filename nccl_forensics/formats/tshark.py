"""The packet list of tshark as text: what Wireshark's analysis marked, counted by direction of each conversation."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, classify, whole

_PACKET = r"^\s*\d+\s+\d[\d:. -]*\d\s+[0-9a-f.:]+ (?:→|->) [0-9a-f.:]+ [A-Z]\S* \d+ "
_PORTS = re.compile(r"(?:^|\] )(\d+) (?:→|->) (\d+) \[([A-Z, ]+)\]")
_ROCE = re.compile(r"\bQP=0x([0-9a-f]+)")
_LEN = re.compile(r"\bLen=(\d+)")
#: Marks of Wireshark's TCP analysis, without the space that some versions write between words.
_RESENT = ("[TCP Retransmission]", "[TCP Fast Retransmission]", "[TCP Spurious Retransmission]")


def read(text: Text) -> Reading:
    """One row per direction of a conversation, cited by its first line that tells something."""
    flows: dict[tuple[object, ...], Row] = {}
    claimed: list[int] = []
    for line in classify(text.hits.filter(pl.col("text").str.contains(_PACKET)), "tshark", strip=True):
        if line.kind != "packet":
            continue
        claimed.append(line.number)
        _count(flows, line)
    rows = [{k: v for k, v in row.items() if k != "telling"} for row in flows.values()]
    return Reading(frames=filled({"flows": rows}), lines=line_numbers(claimed))


def _count(flows: dict[tuple[object, ...], Row], line: Line) -> None:
    get = line.get
    info = get("info") or ""
    ends, pair = _PORTS.search(info), _ROCE.search(info)
    protocol = "tcp" if ends else "roce" if get("protocol") in ("RRoCE", "RoCE") else None
    if protocol is None:
        return
    source_port, port = (int(ends.group(1)), int(ends.group(2))) if ends else (None, None)
    queue = int(pair.group(1), 16) if pair else None
    key = (protocol, get("source"), source_port, get("destination"), port, queue)
    counts = ("packets", "bytes", "resent", "syns", "syn_acks", "resets", "fins", "zero_windows", "duplicate_acks", "naks", "cnps")
    row = flows.setdefault(
        key,
        {
            **line.where,
            "protocol": protocol,
            "source": get("source"),
            "source_port": source_port,
            "destination": get("destination"),
            "destination_port": port,
            "queue_pair": queue,
            **dict.fromkeys(counts, 0),
            "telling": False,
        },
    )
    flags = {flag.strip() for flag in ends.group(3).split(",")} if ends else set()
    size = _LEN.search(info)
    marks = {
        "resent": any(mark in info for mark in _RESENT),
        "syns": "SYN" in flags and "ACK" not in flags,
        "syn_acks": {"SYN", "ACK"} <= flags,
        "resets": "RST" in flags,
        "fins": "FIN" in flags,
        "zero_windows": "[TCP ZeroWindow]" in info,
        "duplicate_acks": "[TCP Dup ACK" in info,
        "naks": protocol == "roce" and "NAK" in info,
        "cnps": protocol == "roce" and "CNP" in info,
    }
    for name, marked in {**marks, "packets": True}.items():
        row[name] = int(str(row[name])) + int(marked)
    row["bytes"] = int(str(row["bytes"])) + ((whole(size.group(1)) or 0) if size else 0)
    if not row["telling"] and any(marks[name] for name in ("resent", "resets", "zero_windows", "duplicate_acks", "naks", "cnps")):
        row.update(line.where, telling=True)


FORMAT = TextFormat(
    name="tshark",
    title="tshark (packet list as text)",
    tables=("flows",),
    anchors=(" TCP ", " RRoCE ", " RoCE ", " ICMP ", " ARP ", " UDP "),
    read=read,
    priority=46,
)
