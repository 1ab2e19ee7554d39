"""Nodes that are not in service: Slurm's ``sinfo``, and Open MPI's message that a node's daemon is gone."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import Reading, Text, TextFormat, line_numbers
from nccl_forensics.hostlist import expand
from nccl_forensics.tables import TABLES

_HEAD = re.compile(r"^PARTITION +AVAIL +TIMELIMIT +NODES +STATE +NODELIST *$")
_ROW = re.compile(r"^(\S{1,60}) +(up|down|drain|inact) +(\S{1,20}) +(\d{1,6}) +([a-z_]{2,14})([*~#!%$@^+-]?) +(\S{1,400})$")
#: sinfo -N, -Nel: a line per node (and partition), with the reason at its end where the columns have one.
_NODE_HEAD = re.compile(r"^NODELIST +NODES +PARTITION +STATE\b.{0,200}$")
_NODE_ROW = re.compile(r"^(\S{1,200}) +(\d{1,6}) +(\S{1,60}) +([a-z_]{2,14})([*~#!%$@^+-]?)(?: +(.{1,400}?))? *$")
_LOST = re.compile(r"^(?:ORTE|PRTE) has lost communication with a remote daemon\.$")
_REMOTE = re.compile(r"^ *Remote daemon *: \[\[?[^\]]{1,40}\][,\d\]]* on node (\S{1,200})$")
#: sinfo's short words (slurm/src/common/slurm_protocol_defs.c); nodes in other states are in service.
_STATES: dict[str, tuple[str, list[str]]] = {
    "down": ("DOWN", []),
    "drain": ("IDLE", ["DRAIN"]),
    "drained": ("IDLE", ["DRAIN"]),
    "drng": ("ALLOCATED", ["DRAIN"]),
    "draining": ("ALLOCATED", ["DRAIN"]),
    "fail": ("IDLE", ["FAIL"]),
    "failg": ("ALLOCATED", ["FAIL"]),
    "inval": ("DOWN", ["INVALID_REG"]),
    "unk": ("UNKNOWN", []),
    "boot": ("UNKNOWN", ["REBOOT"]),
}
_REASON = "mpirun lost the daemon on the node"

Row = dict[str, object]


def read(text: Text) -> Reading:
    """One row per node that is not in service; a star means that it does not respond."""
    numbers: list[int] = text.lines["line_no"].to_list()
    texts: list[str] = text.lines["text"].to_list()
    hints = text.lines.select("hint_rank", "hint_scope", "hint_host", "hint_pid").rows(named=True)
    rows: list[Row] = []
    used: list[int] = []
    listing, lost, nodes = False, 0, ""
    seen: set[tuple[str, object]] = set()  # a node stands once for each of its partitions
    for i, line in enumerate(texts):
        where: Row = {**hints[i], "line_no": numbers[i]}
        if _HEAD.match(line):
            listing = True
        elif listing and (found := _ROW.match(line)):
            state, flags = _STATES.get(found[5], ("", []))
            silent = found[6] == "*"
            if state or silent:
                told = {"tool": "sinfo", "state": state or found[5].upper(), "flags": [*flags, *(["NOT_RESPONDING"] if silent else [])]}
                rows += [{**where, **told, "node": node} for node in expand(found[7])]
        elif heading := _NODE_HEAD.match(line):
            nodes = heading[0]
        elif nodes and (found := _NODE_ROW.match(line)):
            state, flags = _STATES.get(found[4], ("", []))
            if state or found[5] == "*":
                reason = line[nodes.index("REASON") :].strip() if "REASON" in nodes else None
                flags = [*flags, *(["NOT_RESPONDING"] if found[5] == "*" else [])]
                told = {"tool": "sinfo", "state": state or found[4].upper(), "flags": flags, "reason": reason or None}
                rows += [{**where, **told, "node": node} for node in expand(found[1]) if (node, told["state"]) not in seen]
                seen |= {(node, told["state"]) for node in expand(found[1])}
        elif _LOST.match(line):
            listing, lost = False, 8  # the nodes stand within a few lines
        elif lost and (remote := _REMOTE.match(line)):
            rows.append({**where, "tool": "mpirun", "node": remote[1], "state": "DOWN", "flags": ["NOT_RESPONDING"], "reason": _REASON})
            lost = 0
        else:
            listing, lost, nodes = False, max(0, lost - 1), ""
            continue
        used.append(numbers[i])
    frame = TABLES["scheduler_nodes"].frame(rows)
    return Reading(frames={"scheduler_nodes": frame} if rows else {}, lines=line_numbers(used))


FORMAT = TextFormat(
    name="sinfo",
    title="Slurm's sinfo, and Open MPI's loss of a daemon",
    tables=("scheduler_nodes",),
    anchors=("PARTITION AVAIL  TIMELIMIT", "NODELIST  ", "has lost communication with a remote daemon"),
    read=read,
    priority=46,
)
