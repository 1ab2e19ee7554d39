"""Horovod's stall inspector: tensors that some ranks handed in and others did not, printed by its coordinator (rank 0).

Source: horovod/common/operations.cc (up to 0.16: a line per tensor with ``[missing ranks: 1, 2]``) and horovod/common/stall_inspector.cc
(from 0.17 on: a line per missing rank with the tensors that wait for it, the rank marked by ``!`` where it is about to end the job).
"""

from __future__ import annotations

import re

from nccl_forensics.formats.base import Reading, Text, TextFormat, line_numbers
from nccl_forensics.masking import mask
from nccl_forensics.tables import TABLES

_HEAD = "were submitted to be reduced, gathered or broadcasted by subset of ranks"
_SHUT = re.compile(
    r"stalled for (?:longer|more) than (?:HOROVOD_STALL_SHUTDOWN_TIME_SECONDS|\d{1,7} seconds).{0,80}(?:[Ww]ill shutdown|shut ?down)"
)
_ITEM = re.compile(r"(?<![\w./:-])(?:Stalled ops:)?([\w./:-]{1,400}+) \[missing ranks: ([0-9]{1,7}(?:, ?[0-9]{1,7}){0,4095})\]")
_HEADING = re.compile(r"^\s*(?:Missing|Stalled) ranks: ?$")
_OF_RANK = re.compile(r"^\s*([0-9]{1,7})!?: \[(.{1,100000}?)(?:\]\s*)?$")
#: Names kept of the tensors that wait for a rank: enough to compare ranks by.
_NAMES, _MOST = 64, 4096


def read(text: Text) -> Reading:
    """One row of ``reports`` per tensor and its missing ranks, or per missing rank and its tensors; ``detail`` holds names, line by
    line."""
    rows: list[dict[str, object]] = []
    used: list[int] = []
    listing = False
    for line in text.lines.iter_rows(named=True):
        said = str(line["text"])
        base = {k: line[k] for k in ("line_no", "time_raw_ns", "time_kind", "hint_rank", "hint_scope", "hint_host", "hint_pid")}
        if _HEAD in said:
            listing = False
            rows.append(base | {"kind": "stalled-tensors", "detail": None})
        elif _HEADING.match(said):
            listing = True
        elif listing and (of_rank := _OF_RANK.match(said)):
            names = [n.strip() for n in of_rank[2].split(",", _NAMES)[:_NAMES] if n.strip() and n.strip() != "..."]
            rows.append(base | {"kind": "stalled-tensors", "ranks": [int(of_rank[1])], "detail": mask("\n".join(names)[:8000])})
        elif "[missing ranks: " in said and (items := _ITEM.findall(said)):
            rows += [
                base | {"kind": "stalled-tensors", "ranks": [int(r) for r in m.split(",")], "detail": mask(n)} for n, m in items[:_NAMES]
            ]
        elif not _SHUT.search(said):
            listing = False
            continue
        used.append(int(line["line_no"]))
    return Reading(frames={"reports": TABLES["reports"].frame(rows[:_MOST])} if rows else {}, lines=line_numbers(used))


FORMAT = TextFormat(
    name="horovod",
    title="Horovod's stall inspector",
    tables=("reports",),
    anchors=(_HEAD, "[missing ranks: "),
    read=read,
    priority=32,
)
