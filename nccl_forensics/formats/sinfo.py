"""Nodes that are not in service: Slurm's ``sinfo``, and Open MPI's message that a node's daemon is gone."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import LineWalk, Reading, Row, Text, TextFormat
from nccl_forensics.values.hostlist import expand

#: Headings of sinfo's columns (slurm/src/sinfo/print.c), by themselves and in a form of the user's own (-o, -O): a line of nothing else
#: begins a list.
_COLUMN = re.compile(
    r"^(?:PARTITION|AVAIL|TIMELIMIT|NODES|STATE|NODELIST|HOSTNAMES|REASON|USER|TIMESTAMP|JOB_SIZE|ROOT|OVERSUBS|SHARE|GROUPS|RESERVATION|CPUS|S:C:T|SOCKETS"
    r"|CORES|THREADS|MEMORY|FREE_MEM|ALLOCMEM|TMP_DISK|CPU_LOAD|WEIGHT|AVAIL_FE|(?:AVAIL_|ACTIVE_)?FEATURES|GRES|GRES_USED|(?:NODES|CPUS)\([AIOT/]{3,7}\)"
    r"|PRIO_TIER|PREEMPT_MODE|DEFAULTTIME|VERSION|CLUSTER|NODE_?ADDR|PORT)$"
)
_NODES = re.compile(r"^[A-Za-z0-9][\w.,\[\]-]{0,399}$")
_STATE = re.compile(r"^([A-Za-z_]{2,14})[*~#!%$@^+-]*$")
_COUNT = re.compile(r"^\d{1,6}(?:/\d{1,6}){0,3}$")
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


def read(text: Text) -> Reading:
    """One row per node that is not in service; a star means that it does not respond."""
    walk = LineWalk(text)
    columns: list[str] = []
    lost = 0
    seen: set[tuple[str, object]] = set()  # a node stands once for each of its partitions
    for i, line in enumerate(walk.texts):
        if heading := _heading(line):
            columns = heading
        elif columns and (cells := _cells(line, columns)):
            told = _told(cells)
            nodes = [node for node in expand(cells.get("NODELIST") or cells["HOSTNAMES"]) if told and (node, told["state"]) not in seen]
            for node in nodes:
                walk.add("scheduler_nodes", i, {**told, "node": node})
            seen |= {(node, told["state"]) for node in nodes}
        elif _LOST.match(line):
            columns, lost = [], 8  # the nodes stand within a few lines
        elif lost and (remote := _REMOTE.match(line)):
            row = {"tool": "mpirun", "node": remote[1], "state": "DOWN", "flags": ["NOT_RESPONDING"], "reason": _REASON}
            walk.add("scheduler_nodes", i, row)
            lost = 0
        else:
            columns, lost = columns if not line.strip() else [], max(0, lost - 1)
            continue
        walk.use(i)
    return walk.reading()


def _heading(line: str) -> list[str]:
    """Columns of a list of nodes that says in which state they are, or why they are out of service."""
    words = line.split()
    names = set(words)
    fits = len(words) == len(names) and names & {"NODELIST", "HOSTNAMES"} and names & {"STATE", "REASON"}
    return words if fits and all(_COLUMN.match(word) for word in words) else []


def _cells(line: str, columns: list[str]) -> dict[str, str]:
    """Cells by column; blanks stand in reasons only."""
    words, n = line.split(), len(columns)
    if "REASON" in columns and len(words) != n:
        at = columns.index("REASON")
        after = n - at - 1
        words = [*words[:at], " ".join(words[at : len(words) - after]), *words[len(words) - after :]] if len(words) >= n - 1 else []
    cells = dict(zip(columns, words, strict=True)) if len(words) == n else {}
    fits = (
        _NODES.match(cells.get("NODELIST") or cells.get("HOSTNAMES") or "")
        and _STATE.match(cells.get("STATE", "idle"))
        and _COUNT.match(cells.get("NODES", "1"))
    )
    return cells if fits else {}


def _told(cells: dict[str, str]) -> Row:
    """State and reason of nodes that are not in service; a star means that they do not respond. ``sinfo -R`` lists no others, without their
    state."""
    word = cells.get("STATE")
    reason = None if cells.get("REASON") in (None, "", "none", "(null)") else cells["REASON"]
    if word is None:
        silent, (state, flags) = reason == "Not responding", ("DOWN", []) if reason == "Not responding" else _STATES["drain"]
    else:
        state, flags = _STATES.get(word.rstrip("*~#!%$@^+-").lower(), ("", []))
        silent = "*" in word
    if not state and not silent:
        return {}
    flags = [*flags, *(["NOT_RESPONDING"] if silent else [])]
    return {"tool": "sinfo", "state": state or str(word).rstrip("*").upper(), "flags": flags, "reason": reason}


FORMAT = TextFormat(
    name="sinfo",
    title="Slurm's sinfo, and Open MPI's loss of a daemon",
    tables=("scheduler_nodes",),
    anchors=("NODELIST", "HOSTNAMES", "has lost communication with a remote daemon"),
    read=read,
    priority=46,
)
