"""Pods, events and nodes of Kubernetes: kubectl get (pods, events), describe pod and node, and their JSON and YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from nccl_forensics.decoding.safe_yaml import BadYaml, load_all
from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, moment, whole
from nccl_forensics.masking import mask_variable
from nccl_forensics.values.documents import mapping, mappings
from nccl_forensics.values.units import is_number

_OPENS = r"^\s*(?:(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS|(?:NAMESPACE\s+)?LAST SEEN\s+TYPE\s+REASON|Type +Reason +Age +From +Message *$|Name: +[a-z0-9][a-z0-9.-]*$)"
_COLUMN = re.compile(r"[A-Z]+(?: [A-Z]+)*")
#: What tells a described pod from other text that begins with "Name:".
_POD_FIELDS = frozenset({"Namespace", "Node", "Status", "Containers", "Start Time", "Priority", "Labels", "IP"})


def read(text: Text) -> Reading:
    """Pods, containers and events."""
    pods: list[Row] = []
    events: list[Row] = []
    claimed: list[int] = []
    mode: str | None = None
    columns: list[tuple[str, int]] = []
    described: _Described | None = None
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=3000), "kubernetes", strip=True):
        if line.kind in ("pods_head", "events_head"):
            mode = "pods" if line.kind == "pods_head" else "events"
            columns = [(m.group(0), m.start()) for m in _COLUMN.finditer(line.text)]
        elif line.kind == "describe_name" and line.text[:1] not in (" ", "\t"):
            mode, described = "describe", _Described(line)
        elif line.kind == "described_events_head" and mode != "describe":
            mode = "told"  # the end of a description, without what it describes
        elif not line.text.strip():
            continue
        elif mode == "told" and (told := _told_event(line, None)):
            events.append(told)
        elif mode == "told" and not line.text.strip(" \t-"):
            pass
        elif mode in ("pods", "events") and line.text[:1] not in (" ", "\t"):
            cells = _cells(line.text, columns)
            if len(cells) < min(4, len(columns)):
                mode = None
                continue
            (pods if mode == "pods" else events).append(_pod(line, cells) if mode == "pods" else _event(line, cells))
        elif mode == "describe" and described is not None:
            described.take(line)
            claimed.extend(described.settle(pods, events))
            continue
        else:
            mode = None
            continue
        if mode != "describe":
            claimed.append(line.number)
    found = {"pods": pods, "pod_events": events}
    return Reading(frames=filled(found), lines=line_numbers(sorted(set(claimed))))


def _cells(text: str, columns: list[tuple[str, int]]) -> dict[str, str]:
    """Cells by heading. A cell may be wider than its heading's place: words are split by two blanks where the places do not fit."""
    by_gap = re.split(r" {2,}|\t+", text.strip(), maxsplit=len(columns) - 1)
    if len(by_gap) == len(columns):
        return dict(zip((name for name, _ in columns), by_gap, strict=True))
    ends = [start for _, start in columns[1:]] + [len(text)]
    cells = {name: text[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}
    return {name: cell for name, cell in cells.items() if cell}


def _pod(line: Line, cells: Mapping[str, str]) -> Row:
    status = cells.get("STATUS")
    return {
        **line.where,
        "tool": "get",
        "namespace": cells.get("NAMESPACE"),
        "pod": cells.get("NAME"),
        "ready": cells.get("READY"),
        "status": status,
        "reason": status if status not in ("Running", "Pending", "Completed", "Succeeded", "ContainerCreating", "Terminating") else None,
        "restarts": whole(cells.get("RESTARTS", "").split(" ")[0]),
        "node": _some(cells.get("NODE")),
        "address": _some(cells.get("IP")),
        "last": False,
    }


def _event(line: Line, cells: Mapping[str, str]) -> Row:
    return {
        **line.where,
        "namespace": cells.get("NAMESPACE"),
        "age": cells.get("LAST SEEN"),
        "type": cells.get("TYPE"),
        "reason": cells.get("REASON"),
        "object": cells.get("OBJECT"),
        "message": cells.get("MESSAGE"),
    }


def _told_event(line: Line, what: str | None) -> Row | None:
    """One event as ``kubectl describe`` lists it."""
    words = re.split(r" {2,}", line.text.strip(), maxsplit=4)
    if len(words) != 5 or words[0] not in ("Normal", "Warning"):
        return None
    return {**line.where, "age": words[2], "type": words[0], "reason": words[1], "object": what, "message": words[4]}


class _Described:
    """One pod of ``kubectl describe pod`` while its lines go by. Rows are given out once it is sure that it is a pod."""

    def __init__(self, head: Line) -> None:
        self.pod: Row = {"tool": "describe", "pod": head.get("name")}
        self.seen: set[str] = set()
        self.lines = [head.number]
        self.row: Row | None = None
        self.last = False
        self.ready: list[tuple[str, Row]] = []
        self.in_events = False
        self.container: str | None = None

    def take(self, line: Line) -> None:
        """One more line."""
        self.lines.append(line.number)
        if line.kind == "describe_events":
            self.in_events = True
            return
        if self.in_events:
            event = _told_event(line, f"pod/{self.pod['pod']}")
            if event is not None:
                self.ready.append(("event", event))
            return
        if line.kind != "field":
            return
        key, value = (line.get("key") or "").strip(), (line.get("value") or "").strip() or None
        self.seen.add(key)
        match key:
            case "Namespace":
                self.pod["namespace"] = value
            case "Node":
                self.pod["node"] = (value or "").split("/")[0] or None
            case "Status" | "Reason" | "Message" if line.text[:1] not in (" ", "\t"):
                self.pod[key.lower()] = value
                if key == "Reason":
                    self.ready.append(("pod", {**line.where, **self.pod, "last": False}))
            case "State" | "Last State":
                self.last = key == "Last State"
                self.row = {**line.where, "status": value, "last": self.last}
                if value == "Terminated":
                    self.ready.append(("pod", self.row))
            case "Reason" | "Exit Code" | "Signal" | "Message" | "Finished" if self.row is not None:
                column = {"Reason": "reason", "Exit Code": "exit_code", "Signal": "exit_signal", "Message": "message"}.get(key)
                if column:
                    self.row[column] = whole(value) if column.startswith("exit") else value
            case "Restart Count" if self.row is not None:
                self.row["restarts"] = whole(value)
            case _:
                pass

    def settle(self, pods: list[Row], events: list[Row]) -> list[int]:
        """Lines that can be claimed now: all of them, once two fields are those of a pod."""
        if len(self.seen & _POD_FIELDS) < 2:
            return []
        for kind, row in self.ready:
            if kind == "pod":
                row.update({k: v for k, v in self.pod.items() if k not in row})
            (pods if kind == "pod" else events).append(row)
        self.ready = []
        lines, self.lines = self.lines, []
        return lines


def _some(text: str | None) -> str | None:
    return None if text in (None, "<none>", "") else text


def _sniff_json(head: bytes) -> bool:
    if b'"apiVersion"' not in head or b'"kind"' not in head:
        return False
    return (
        b'"containerStatuses"' in head
        or b'"involvedObject"' in head
        or b'"Pod"' in head
        or b'"Event"' in head
        or b'"Node"' in head
        or b'"kind": "List"' in head
    )


def _sniff_yaml(head: bytes) -> bool:
    return re.search(rb"(?m)^(?:- )?apiVersion: ", head[:4096]) is not None and re.search(rb"(?m)^(?:  )?kind: ", head) is not None


@of_json("unreadable")
def _read_json(document: object) -> Reading:
    """``kubectl get pods -o json`` and ``kubectl get events -o json``."""
    return _reading([document])


def _read_yaml(data: bytes) -> Reading:
    """The same objects as YAML (``-o yaml``); documents that are no Kubernetes objects count for nothing."""
    try:
        documents = load_all(data)
    except BadYaml as problem:
        return Reading(gaps=(Gap(f"unreadable: {problem}", record="documents[0]"),))
    return _reading(documents)


def _reading(documents: Sequence[object]) -> Reading:
    """Pods with their environment, events and nodes of one or more documents, each an object or a list of them."""
    found: dict[str, list[Row]] = {"pods": [], "pod_events": [], "scheduler_nodes": [], "environment": []}
    for d, document in enumerate(documents):
        if not isinstance(document, dict):
            continue
        items = document.get("items")
        where = f"documents[{d}]." if len(documents) > 1 else ""
        for i, item in enumerate(items if isinstance(items, list) else [document]):
            if not isinstance(item, dict):
                continue
            record = f"{where}items[{i}]" if isinstance(items, list) else where.rstrip(".")
            if item.get("kind") == "Event" or "involvedObject" in item:
                found["pod_events"].append(_json_event(item, record))
            elif item.get("kind") == "Pod" or "containerStatuses" in mapping(item.get("status")):
                found["pods"].extend(_json_pod(item, record))
                found["environment"].extend(_json_environment(item, record))
            elif item.get("kind") == "Node":
                found["scheduler_nodes"].append(_json_node(item, record))
    return Reading(frames=filled(found), records=sum(map(len, found.values())))


def _json_environment(item: Mapping[str, object], record: str) -> list[Row]:
    """Variables that the pod's specification gives its containers; values from secrets and fields are not in it."""
    spec, meta = mapping(item.get("spec")), mapping(item.get("metadata"))
    out: list[Row] = []
    for c, container in enumerate(mappings(spec.get("containers"))):
        for e, variable in enumerate(mappings(container.get("env"))):
            name, value = variable.get("name"), variable.get("value")
            if isinstance(name, str) and isinstance(value, str | int | float):
                text = mask_variable(name, str(value))[:4000]
                place = f"{record}.spec.containers[{c}].env[{e}]".lstrip(".")
                out.append({"record": place, "host": spec.get("nodeName"), "hint_host": meta.get("name"), "name": name, "value": text})
    known = {str(r["name"]): str(r["value"]) for r in out}
    rank = known.get("RANK", "")
    return [{**r, "rank": int(rank) if is_number(rank) else None} for r in out]


def _json_node(item: Mapping[str, object], record: str) -> Row:
    """A node with its conditions: not ready, under pressure, or with fewer GPUs to give than it has."""
    status, meta, spec = mapping(item.get("status")), mapping(item.get("metadata")), mapping(item.get("spec"))
    conditions = {str(c.get("type")): c for c in mappings(status.get("conditions"))}
    ready = conditions.get("Ready", {})
    flags = [name for name, c in conditions.items() if name != "Ready" and c.get("status") == "True"]
    flags += ["DRAIN"] if spec.get("unschedulable") else []
    has, gives = (mapping(status.get(k)).get("nvidia.com/gpu") for k in ("capacity", "allocatable"))
    missing = f"{gives} of {has} GPUs allocatable" if has is not None and str(has) != str(gives) else None
    told = missing or (f"{ready.get('reason')}: {ready.get('message')}" if ready.get("status") != "True" and ready else None)
    stamp = moment(str(ready.get("lastTransitionTime") or "").replace("Z", "+00:00"))
    return {
        "record": record or "status",
        "tool": "kubernetes",
        "node": meta.get("name"),
        "state": "READY" if ready.get("status") == "True" else "DOWN",
        "flags": flags,
        "reason": told,
        "reason_raw_ns": stamp,
    }


def _json_event(item: Mapping[str, object], record: str) -> Row:
    about = mapping(item.get("involvedObject"))
    stamp = moment(str(item.get("lastTimestamp") or item.get("eventTime") or "").replace("Z", "+00:00"))
    return {
        "record": record,
        "time_raw_ns": stamp,
        "time_kind": "epoch" if stamp is not None else None,
        "host": mapping(item.get("source")).get("host"),
        "namespace": about.get("namespace"),
        "type": item.get("type"),
        "reason": item.get("reason"),
        "object": f"{str(about.get('kind', '')).lower()}/{about.get('name')}",
        "message": item.get("message"),
        "count": item.get("count"),
    }


def _json_pod(item: Mapping[str, object], record: str) -> list[Row]:
    meta, status, spec = mapping(item.get("metadata")), mapping(item.get("status")), mapping(item.get("spec"))
    own: Row = {
        "tool": "json",
        "namespace": meta.get("namespace"),
        "pod": meta.get("name"),
        "node": spec.get("nodeName"),
        "address": status.get("podIP"),
    }
    disrupted: Row = next((dict(c) for c in mappings(status.get("conditions")) if c.get("type") == "DisruptionTarget"), {})
    reason = status.get("reason") or disrupted.get("reason")
    message = status.get("message") or disrupted.get("message")
    rows: list[Row] = [
        {
            **own,
            "record": f"{record}.status".lstrip("."),
            "status": status.get("phase"),
            "reason": reason,
            "message": message,
            "last": False,
        }
    ]
    statuses = status.get("containerStatuses")
    for i, container in enumerate(statuses if isinstance(statuses, list) else []):
        for key, last in (("state", False), ("lastState", True)):
            ended = mapping(mapping(container.get(key)).get("terminated"))
            if ended:
                stamp = moment(str(ended.get("finishedAt") or "").replace("Z", "+00:00"))
                rows.append(
                    {
                        **own,
                        "record": f"{record}.status.containerStatuses[{i}].{key}".lstrip("."),
                        "time_raw_ns": stamp,
                        "time_kind": "epoch" if stamp is not None else None,
                        "container": container.get("name"),
                        "status": "Terminated",
                        "reason": ended.get("reason"),
                        "exit_code": ended.get("exitCode"),
                        "exit_signal": ended.get("signal"),
                        "message": ended.get("message"),
                        "restarts": container.get("restartCount"),
                        "last": last,
                    }
                )
    return rows


FORMATS = (
    TextFormat(
        name="kubernetes",
        title="kubectl get pods, get events, describe pod (text)",
        tables=("pods", "pod_events"),
        anchors=("RESTARTS", "LAST SEEN", "Name:  ", " From  "),
        read=read,
        priority=48,
    ),
    DocumentFormat(
        name="kubernetes-json",
        title="kubectl (JSON: pods, events, nodes)",
        tables=("pods", "pod_events", "scheduler_nodes", "environment"),
        sniff=_sniff_json,
        read=_read_json,
        priority=40,
    ),
    DocumentFormat(
        name="kubernetes-yaml",
        title="kubectl (YAML: pods, events, nodes)",
        tables=("pods", "pod_events", "scheduler_nodes", "environment"),
        sniff=_sniff_yaml,
        read=_read_yaml,
        priority=41,
    ),
)
