"""What agents that watch the health of nodes say of a GPU or a port: LBNL's Node Health Check (NHC, with Azure's checks), and NVSentinel's
health events and the conditions that it sets on Kubernetes nodes.

Checks that could not run (no permission, a tool that is missing) are records without a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.masking import mask
from nccl_forensics.values.documents import items, mapping, mappings
from nccl_forensics.values.pci import normal
from nccl_forensics.values.units import is_number

#: LBNL NHC 1.4 (``die`` in scripts/common.nhc): on standard error, and without its first word in the system's log.
_NHC = re.compile(r"^(?:\S{1,64}: )?(?:ERROR:\s+)?(?:nhc(?:\[\d{1,10}\])?:\s+)?Health check failed:\s+(\S.*)$")
_CHECK = re.compile(r"^(?:Check\s+)?(check_\w{1,60})\b:?\s*(.*)$")
#: Azure's fault code of a check that itself failed (azurehpc-health-checks, customTests).
_NOT_RUN = re.compile(r"FaultCode: NHCNA\b|faultCode: NHCNA\b|Script timed out|Terminated by signal")
_OF_PORTS = re.compile(r"^check_(?:hw_)?ib\w*$|^check_ib_\w+$")
_PORT = re.compile(r"(?:Devices: |IB=)(\w[\w:-]{0,60})")
_OF_GPUS = re.compile(r"gpu|nv(?:smi|link|idia)|xid|[nr]ccl", re.IGNORECASE)
_GPU = re.compile(r"\bGPU (?:id )?(\d{1,3})\b")
#: One piece of the message of a condition of NVSentinel (also one Xid alone of its agent): code, address and what it was read from.
_CONDITION = re.compile(
    r"ErrorCode:([\w,]{1,80}) PCI:([0-9a-fA-F:.]{7,16})(?: GPU_UUID:(GPU-[0-9a-fA-F-]{8,40}))? (.{1,600}?) Recommended Action=(\w{1,40})"
)
_NODE = re.compile(r"\bnode=(\S{1,253})")
_XID = re.compile(r"\bXID (\d{1,4})\b", re.IGNORECASE)


def read(text: Text) -> Reading:
    """One row per finding of an agent; NVSentinel's services pass one event on, each with a line of its own: it counts once."""
    rows: dict[str, list[Row]] = {"xids": [], "gpu_tool_errors": [], "dcgm_results": [], "ib_diagnostics": []}
    claimed: list[int] = []
    told: set[str] = set()
    hints = ("line_no", "time_raw_ns", "time_kind", "hint_rank", "hint_scope", "hint_host", "hint_pid", "text")
    for hit in text.hits.select(hints).iter_rows(named=True):
        line = str(hit.pop("text"))
        found = list(_found(line.strip()))
        if found or _NHC.match(line.strip()) or _is_event(line):
            claimed.append(int(str(hit["line_no"])))
        for table, row, key in found:
            if key not in told:
                told.add(key)
                rows[table].append({**hit, **row})
    return Reading(frames=filled(rows), lines=line_numbers(claimed), records=len(claimed))


def _found(line: str) -> Iterator[tuple[str, Row, str]]:
    """Rows by their table, with what tells that two of them are one."""
    if match := _NHC.match(line):
        yield from _failed(match[1])
    elif "ErrorCode:" in line:
        node = _NODE.search(line)
        for codes, bus, uuid, said, action in _CONDITION.findall(line):
            for code in codes.split(","):
                if is_number(code):
                    row: Row = {"host": node[1] if node else None, "bus_id": normal(bus), "uuid": uuid or None, "message": mask(said)[:400]}
                    yield "xids", {**row, "code": int(code), "implied": False, "repeats": 1}, f"{row} {code} {action}"
    elif _is_event(line):
        yield from _events(line)


def _failed(said: str) -> Iterator[tuple[str, Row, str]]:
    """What a failed check of NHC says."""
    check = _CHECK.match(said)
    name = check[1] if check else said.partition(":")[0][:60]
    if _NOT_RUN.search(said):
        return
    gpu = _GPU.search(said)
    of_gpu: Row = {"gpu_index": int(gpu[1]) if gpu else None, "message": mask(said)[:400]}
    if "fallen off the bus" in said:
        yield "gpu_tool_errors", {**of_gpu, "tool": "nhc", "kind": "gpu-lost"}, said
    elif _OF_PORTS.match(name):
        port = _PORT.search(said)
        yield (
            "ib_diagnostics",
            {"tool": "nhc", "kind": "error", "name": port[1] if port else None, "message": mask(said)[:400]},
            said,
        )
    elif _OF_GPUS.search(name):
        yield "dcgm_results", {**of_gpu, "category": "Node health check", "test": name, "status": "fail"}, said


def _is_event(line: str) -> bool:
    return '"checkName"' in line and '"componentClass"' in line


def _events(line: str) -> Iterator[tuple[str, Row, str]]:
    """NVSentinel's health events of GPUs in one line of a service's log (JSON), wherever in it they stand."""
    try:
        document = orjson.loads(line[max(0, line.find("{")) :])
    except orjson.JSONDecodeError:
        return
    for event in _dicts(document):
        if "checkName" not in event or event.get("componentClass") != "GPU" or event.get("isHealthy") is True:
            continue
        named = {p.get("entityType"): str(p.get("entityValue")) for p in mappings(event.get("entitiesImpacted"))}
        seconds = mapping(event.get("generatedTimestamp")).get("seconds")
        said, check = str(event.get("message") or ""), str(event["checkName"])
        codes = [str(c) for c in items(event.get("errorCode"))]
        row: Row = {"host": event.get("nodeName"), "bus_id": normal(named.get("PCI")), "uuid": named.get("GPU_UUID")}
        row["gpu_index"] = int(named["GPU"]) if is_number(named.get("GPU", "")) else None
        row["message"] = mask(said)[:400]
        if isinstance(seconds, int):
            row |= {"time_raw_ns": seconds * 10**9, "time_kind": "epoch"}
        numbers = [int(c) for c in codes if is_number(c)] or [int(n) for n in _XID.findall(said)]
        key = f"{event.get('nodeName')} {check} {codes} {named} {seconds}"
        for number in numbers:
            yield "xids", {**row, "code": number, "implied": False, "repeats": 1}, f"{key} {number}"
        if not numbers:
            status = "fail" if event.get("isFatal") else "warn"
            yield "dcgm_results", {**row, "category": "NVSentinel", "test": check, "status": status}, key


def _dicts(document: object) -> Iterator[dict[str, object]]:
    """All dictionaries of a document, not deeper than events stand."""
    level = [document]
    for _ in range(6):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                yield item
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below


FORMAT = TextFormat(
    name="node-health",
    title="Node Health Check (NHC) and NVSentinel: failed checks of nodes",
    tables=("xids", "gpu_tool_errors", "dcgm_results", "ib_diagnostics"),
    anchors=("Health check failed:", '"checkName"', "ErrorCode:"),
    read=read,
    priority=42,
)
