"""Horovod's stall inspector: tensors that some ranks handed in and others did not, printed by its coordinator (rank 0).

Source: horovod/common/operations.cc (up to 0.14: all tensors in one line, each with ``[ready ranks: 3, 0]``; up to 0.16: a line per tensor
with ``[missing ranks: 1, 2]``) and horovod/common/stall_inspector.cc (from 0.17 on: a line per missing rank with the tensors that wait for
it, the rank marked by ``!`` where it is about to end the job).
"""

from __future__ import annotations

import re

from nccl_forensics.formats.base import Reading, Text, TextFormat, filled, line_numbers
from nccl_forensics.masking import mask

_HEAD = "were submitted to be reduced, gathered or broadcasted by subset of ranks"
_SHUT = re.compile(
    r"stalled for (?:longer|more) than (?:HOROVOD_STALL_SHUTDOWN_TIME_SECONDS|\d{1,7} seconds).{0,80}(?:[Ww]ill shutdown|shut ?down)"
)
_ITEM = re.compile(r"(?<![\w./:-])(?:Stalled ops:)?([\w./:-]{1,400}+) \[(missing|ready) ranks: ([0-9]{1,7}(?:, ?[0-9]{1,7}){0,4095})\]")
_HEADING = re.compile(r"^\s*(?:Missing|Stalled) ranks: ?$")
_OF_RANK = re.compile(r"^\s*([0-9]{1,7})!?: \[(.{1,100000}?)(?:\]\s*)?$")
#: Names kept of the tensors that wait for a rank: enough to compare ranks by.
_NAMES, _MOST = 64, 4096


def read(text: Text) -> Reading:
    """One row of ``reports`` per tensor and its missing ranks, or per missing rank and its tensors; ``detail`` holds names, line by
    line. Where ranks are told that are ready, the others up to the last that is told of are missing."""
    rows: list[dict[str, object]] = []
    used: list[int] = []
    listing, everyone = False, _everyone(text)
    for line in text.lines.iter_rows(named=True):
        said = str(line["text"])
        base = {k: line[k] for k in ("line_no", "time_raw_ns", "time_kind", "hint_rank", "hint_scope", "hint_host", "hint_pid")}
        if _HEAD in said:
            listing = False
            rows.append(base | {"kind": "stalled-tensors", "detail": None})
            rows += _tensors(said, base, everyone)
        elif _HEADING.match(said):
            listing = True
        elif listing and (of_rank := _OF_RANK.match(said)):
            names = [n.strip() for n in of_rank[2].split(",", _NAMES)[:_NAMES] if n.strip() and n.strip() != "..."]
            rows.append(base | {"kind": "stalled-tensors", "ranks": [int(of_rank[1])], "detail": mask("\n".join(names)[:8000])})
        elif items := _tensors(said, base, everyone):
            rows += items
        elif not _SHUT.search(said):
            listing = listing and not said.strip()
            continue
        used.append(int(line["line_no"]))
    return Reading(frames=filled({"reports": rows[:_MOST]}), lines=line_numbers(used))


def _everyone(text: Text) -> range:
    """The ranks up to the last that any line calls ready or missing."""
    told = text.lines.get_column("text").str.extract_all(r"\[(?:missing|ready) ranks: [0-9, ]{1,40000}\]").explode().drop_nulls()
    known = [int(n) for n in told.str.extract_all("[0-9]{1,7}").explode().drop_nulls().unique().to_list()]
    return range(min(max(known, default=-1) + 1, _MOST))


def _tensors(said: str, base: dict[str, object], everyone: range) -> list[dict[str, object]]:
    """Rows of the tensors that a line tells with the ranks that handed them in, or did not."""
    items = _ITEM.findall(said)[:_NAMES] if " ranks: " in said else []
    rows = []
    for name, word, told in items:
        ranks = [int(r) for r in told.split(",")]
        missing = ranks if word == "missing" else sorted(set(everyone) - set(ranks))
        rows.append(base | {"kind": "stalled-tensors", "ranks": missing or None, "detail": mask(name)})
    return [row for row in rows if row["ranks"]]


FORMAT = TextFormat(
    name="horovod",
    title="Horovod's stall inspector",
    tables=("reports",),
    anchors=(_HEAD, "[missing ranks: ", "[ready ranks: "),
    read=read,
    priority=32,
)
