"""NCCL's RAS monitor as JSON (``ncclras -m -f json``, NCCL 2.29.2 and later): objects back to back, each over several lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, filled
from nccl_forensics.grammar.blocks import moment

_GROUPS = ("LIFECYCLE", "TRACE")


def sniff(head: bytes) -> bool:
    """An object with the monitor's own keys."""
    start = head[:2048]
    return start.lstrip()[:1] == b"{" and b'"event"' in start and b'"PEER_' in start and any(f'"{g}"'.encode() in start for g in _GROUPS)


def read(data: bytes) -> Reading:
    """One row per event; what stands behind a damaged object is not searched for."""
    gaps: list[Gap] = []
    rows = list(_rows(data.decode("utf-8", "replace"), gaps))
    return Reading(frames=filled({"nccl_ras_events": rows}), gaps=tuple(gaps), records=len(rows))


def _rows(text: str, gaps: list[Gap]) -> Iterator[Row]:
    decoder = json.JSONDecoder()
    at, line = 0, 1
    while True:
        behind = len(text) - len(text[at:].lstrip())
        line += text.count("\n", at, behind)
        at = behind
        if at >= len(text):
            return
        try:
            found, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as problem:
            gaps.append(Gap(f"unparsed: {problem}"[:160], line, line + text.count("\n", at)))
            return
        if isinstance(found, dict) and found.get("event"):
            stamp = moment(str(found.get("timestamp") or ""))
            detail = " ".join(part for part in (_peer(found.get("peer")), str(found.get("details") or "")) if part)
            told: Row = {"line_no": line, "end_line": line + text.count("\n", at, end), "event": found["event"], "detail": detail or None}
            yield told if stamp is None else told | {"time_raw_ns": stamp, "time_kind": "local-unzoned"}
        line += text.count("\n", at, end)
        at = end


def _peer(peer: object) -> str:
    """As the text form prints it: in brackets."""
    if not isinstance(peer, dict):
        return ""
    if "addr" in peer:
        return f"[{peer['addr']}]"
    devices = ",".join(str(d) for d in peer.get("cuda_devs") or ())
    return f"[{peer.get('host')}:{peer.get('pid')}{f' cuda {devices}' if devices else ''}]"


FORMAT = DocumentFormat(
    name="nccl-ras-monitor-json", title="NCCL RAS monitor, JSON", tables=("nccl_ras_events",), sniff=sniff, read=read, priority=40
)
