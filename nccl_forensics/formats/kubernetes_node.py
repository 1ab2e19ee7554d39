"""``kubectl describe node``: conditions, and GPUs that a node has and that it may give; ``kubectl get nodes``: who is ready."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers

_NAME = re.compile(r"^Name: +([a-z0-9][a-z0-9.-]{0,252})\s*$")
_CONDITION = re.compile(r"^ {2}([A-Z][A-Za-z]+) +(True|False|Unknown) +(?:\w{3}, .{22,32}?) {2,}(?:\w{3}, .{22,32}?) {2,}(\S+) +(.*)$")
_SECTION = re.compile(r"^(Capacity|Allocatable|Conditions|Addresses|System Info|Taints|Roles|Unschedulable):(?: +(\S.*))?$")
_GPUS = re.compile(r"^ {2}nvidia\.com/gpu: +(\d+)\s*$")
_LIST_HEAD = re.compile(r"^NAME +STATUS +ROLES +AGE +VERSION\b")
_LISTED = re.compile(r"^([a-z0-9][a-z0-9.-]{0,252}) +(Ready|NotReady|Unknown)((?:,\w+)*) +\S+ +\S+ +v\d\S*(?: .*)?$")
#: Lines after the name in which a node's sections stand.
_REACH = 200


def read(text: Text) -> Reading:
    """One row per described node."""
    numbers: list[int] = text.lines["line_no"].to_list()
    texts: list[str] = text.lines["text"].to_list()
    starts = [i for i, line in enumerate(texts) if _NAME.match(line)]
    rows, used = _listed(texts, numbers)
    for start, end in zip(starts, [*starts[1:], len(texts)][: len(starts)], strict=True):
        block = texts[start : min(end, start + _REACH)]
        made = _node(block, numbers[start])
        if made is not None:
            row, places = made
            rows.append(row)
            used.extend(numbers[start + p] for p in places)
    return Reading(frames=filled({"scheduler_nodes": rows}), lines=line_numbers(sorted(used)))


def _listed(texts: Sequence[str], numbers: Sequence[int]) -> tuple[list[Row], list[int]]:
    """Rows below the heads of ``kubectl get nodes``."""
    rows: list[Row] = []
    used: list[int] = []
    inside = False
    for line, number in zip(texts, numbers, strict=True):
        found = _LISTED.match(line) if inside else None
        inside = _LIST_HEAD.match(line) is not None or found is not None
        if inside:
            used.append(number)
        if found is not None:
            ready, told = found[2] == "Ready", {"line_no": number, "tool": "kubernetes", "node": found[1]}
            flags = ["DRAIN"] if "SchedulingDisabled" in found[3] else []
            rows.append({**told, "state": "READY" if ready else "DOWN", "flags": flags, "reason": None if ready else found[2]})
    return rows, used


def _node(block: Sequence[str], number: int) -> tuple[Row, list[int]] | None:
    section = ""
    flags: list[str] = []
    gpus: dict[str, int] = {}
    places = [0]
    state = reason = None
    for place, line in enumerate(block):
        if head := _SECTION.match(line):
            section = head[1]
            if section == "Unschedulable" and head[2] == "true":
                flags.append("DRAIN")
            places.append(place)
        elif section == "Conditions" and (found := _CONDITION.match(line)):
            places.append(place)
            if found[1] == "Ready":
                state = "READY" if found[2] == "True" else "DOWN"
                reason = None if found[2] == "True" else f"{found[3]}: {found[4].strip()}"
            elif found[2] == "True":
                flags.append(found[1])
        elif section in ("Capacity", "Allocatable") and (count := _GPUS.match(line)):
            places.append(place)
            gpus[section] = int(count[1])
    if state is None and not gpus:
        return None
    has, gives = gpus.get("Capacity"), gpus.get("Allocatable")
    few = f"{gives} of {has} GPUs allocatable" if has is not None and gives is not None and gives < has else None
    name = _NAME.match(block[0])
    told: Row = {"line_no": number, "tool": "kubernetes", "node": name[1] if name else None, "state": state or "READY", "flags": flags}
    return {**told, "reason": "; ".join(r for r in (reason, few) if r) or None}, places


FORMAT = TextFormat(
    name="kubernetes-node",
    title="kubectl describe node, get nodes (text)",
    tables=("scheduler_nodes",),
    anchors=("Allocatable:", "MemoryPressure", "ROLES "),
    read=read,
    priority=47,
)
