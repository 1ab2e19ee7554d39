"""Probes of peers below TCP: the connection manager's test programs (rping, ucmatose, udaddy) and arping."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import real
from nccl_forensics.grammar.writers import WRITER

_CALL = re.compile(
    r"^(?:\w{1,20}: )?(rdma_(?:resolve_addr|resolve_route|connect|bind_addr|listen))(?: error)?:? +(?:error:? )?([A-Z-].{3,200}|-?\d{1,4})$"
)
_EVENT = re.compile(
    r"^(?:\w{1,20}: )?(?:cma )?event:? ?(?:RDMA_CM_EVENT_(ADDR_ERROR|ROUTE_ERROR|CONNECT_ERROR|UNREACHABLE|REJECTED))(?:, error:? (-?\d{1,5}))?\s*$"
)
_ARP_HEAD = re.compile(r"^ARPING (\S{1,60}) from (\S{1,60}) (\S{1,32})$")
_ARP_REPLY = re.compile(r"^Unicast reply from (\S{1,60}) \[([0-9A-Fa-f:]{11,60})\] +([\d.]{1,12})ms$")
_ARP_END = re.compile(r"^(?:Sent \d{1,6} probes? \(\d{1,6} broadcast\(s\)\)|Received (\d{1,6}) response\(s\)(?: .*)?)$")


def read(text: Text) -> Reading:
    """One row per failed step, and per answer to arping."""
    rows: list[Row] = []
    used: list[int] = []
    target: str | None = None
    for number, line, *origin in text.lines.select("line_no", "text", *WRITER).iter_rows():
        where: Row = {**dict(zip(WRITER, origin, strict=True)), "line_no": number}
        if _CALL.match(line) or _EVENT.match(line):
            rows.append({**where, "tool": "rdma_cm", "outcome": "unreachable"})
        elif found := _ARP_HEAD.match(line):
            target = found[1]
        elif reply := _ARP_REPLY.match(line):
            told = {"target": reply[1], "reporter": reply[2].lower(), "rtt_ms": real(reply[3])}
            rows.append({**where, "tool": "arping", "outcome": "reply", **told})
        elif target is not None and (end := _ARP_END.match(line)):
            if end[1] == "0":
                rows.append({**where, "tool": "arping", "outcome": "unreachable", "target": target})
        else:
            continue
        used.append(number)
    return Reading(frames=filled({"pings": rows}), lines=line_numbers(used if rows else []))


FORMAT = TextFormat(
    name="rdma-probes",
    title="rping, ucmatose, udaddy, arping",
    tables=("pings",),
    anchors=("rdma_resolve_", "rdma_connect", "RDMA_CM_EVENT_", "ARPING "),
    read=read,
    priority=47,
)
