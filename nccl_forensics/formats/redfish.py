"""Redfish: log entries of a board management controller (the SEL), as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, filled
from nccl_forensics.grammar.blocks import moment


def sniff(head: bytes) -> bool:
    """A collection of log entries, or one of them."""
    return head.lstrip()[:1] == b"{" and b"#LogEntry" in head and b'"@odata' in head


@of_json("unparsed")
def read(document: object) -> Reading:
    """One row per entry; Redfish's times bear their zone."""
    members = document.get("Members", [document]) if isinstance(document, Mapping) else None
    if not isinstance(members, list):
        return Reading(gaps=(Gap("unparsed: no entries"),))
    rows = [_row(n, entry) for n, entry in enumerate(members) if isinstance(entry, Mapping)]
    return Reading(frames=filled({"host_facts": rows}), records=len(rows))


def _row(number: int, entry: Mapping[str, object]) -> Row:
    stamp = moment(str(entry.get("Created") or ""))
    told: Row = {"record": f"Members[{number}]", "tool": "redfish", "kind": "bmc"}
    told |= {"name": entry.get("SensorType") or entry.get("Name"), "value": entry.get("Message")}
    return told if stamp is None else told | {"time_raw_ns": stamp, "time_kind": "epoch"}


FORMAT = DocumentFormat(name="redfish", title="Redfish log entries (JSON)", tables=("host_facts",), sniff=sniff, read=read, priority=45)
