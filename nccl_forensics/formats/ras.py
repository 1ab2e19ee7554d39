"""NCCL's RAS client as text (``ncclras``, or what a client of port 28028 gets) and its monitor. NCCL 2.24.3 to 2.30.7.

The report is a snapshot of a living job: which communicators exist, and which ranks differ from the others or cannot be reached.
Only outliers are listed (at most 10, and at most a quarter of the ranks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from nccl_forensics.formats.base import Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.lines import load
from nccl_forensics.grammar.writers import WRITER

_HEADER = " compiled with CUDA "
_SUMMARY = "Job summary"
_ITEM_KINDS = frozenset(
    (
        "launched_many",
        "launched_none",
        "launched_one",
        "idle_one",
        "status_many",
        "status_one",
        "error_many",
        "error_one",
        "rank",
        "process",
        "timeouts",
    )
)
#: Headlines below an item: they say what the rows after them are about.
_HEADLINES = frozenset(("missing", "dead", "initialization", "different"))
_DIFFERENT_OP = re.compile(r"different ([A-Za-z]+) operation counts")


@dataclass(frozen=True, slots=True)
class _Parsed:
    """One line of a report: its number, text, kind (null where no rule matches) and columns."""

    line_no: int
    text: str
    kind: str | None
    values: dict[str, str | None]
    hints: Row


def read(text: Text) -> Reading:
    """Reports and events of the monitor."""
    lines = _parsed(text)
    tables: dict[str, list[Row]] = {"nccl_versions": [], "nccl_ras_groups": [], "nccl_ras_items": [], "nccl_ras_events": []}
    used: list[int] = []
    gaps: list[Gap] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.kind == "event":
            tables["nccl_ras_events"].append(_event(line))
            used.append(line.line_no)
        elif line.kind == "header" or (line.kind == "section" and line.values["section"] == _SUMMARY):
            end = _end(lines, at)
            _report(lines[at:end], tables)
            used.extend(one.line_no for one in lines[at:end])
            if not any(one.kind == "section" and one.values["section"] == "Communicators..." for one in lines[at:end]):
                gaps.append(Gap("truncated: report without communicators", line.line_no, lines[end - 1].line_no, text=line.text[:200]))
                used = [n for n in used if n < line.line_no]
            at = end
            continue
        at += 1
    return Reading(frames=filled(tables), lines=line_numbers(used), gaps=tuple(gaps), records=sum(map(len, tables.values())))


def _parsed(text: Text) -> list[_Parsed]:
    stripped = text.lines.with_columns(pl.col("text").str.strip_chars())
    found = load("ras").extract(stripped)
    values: dict[int, dict[str, str | None]] = {}
    for frame in found.frames.values():
        for row in frame.iter_rows(named=True):
            values[row.pop("row")] = row
    columns = stripped.select("line_no", "text", *WRITER).with_columns(kind=found.kind)
    return [
        _Parsed(row["line_no"], row["text"], row["kind"], values.get(number, {}), {name: row[name] for name in WRITER})
        for number, row in enumerate(columns.iter_rows(named=True))
    ]


def _end(lines: list[_Parsed], start: int) -> int:
    """The report goes on while its lines are known, or empty and followed by a known one."""
    end = start + 1
    for at in range(start + 1, len(lines)):
        if lines[at].line_no - lines[end - 1].line_no > at - end + 1 or lines[at].kind in ("header", "event"):
            break
        if lines[at].kind is not None:
            end = at + 1
        elif lines[at].text:
            break
    return end


def _report(lines: list[_Parsed], tables: dict[str, list[Row]]) -> None:
    item: Row = {}
    for line in lines:
        told, place = line.values, {"line_no": line.line_no, **line.hints}
        if line.kind == "header":
            tables["nccl_versions"].append({**place, "version": told["version"], "cuda": told["cuda"], "vendor": "nccl", "raw": line.text})
        elif line.kind == "group_row":
            tables["nccl_ras_groups"].append({**place, **told})
        elif line.kind == "section":
            item = {}
        elif line.kind == "item":
            item = {"kind": told["kind"], "comm_id": f"0x{(told['hash'] or '').lstrip('0')}"}
        elif line.kind == "process_item":
            item = {"kind": told["alone"]}
        elif line.kind in _HEADLINES:
            different = _DIFFERENT_OP.search(line.text)
            item = {**item, "subject": line.text, "op": different.group(1) if different else None}
        elif line.kind in _ITEM_KINDS and item:
            one = {"launched": "0"} if line.kind in ("launched_none", "idle_one") else {}
            many = {"ranks": "1"} if "ranks" not in told else {}
            tables["nccl_ras_items"].append({"subject": line.text, **place, **item, **told, **one, **many})


def _event(line: _Parsed) -> Row:
    stamp = pl.Series([line.values["time"]]).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns", strict=False).cast(pl.Int64).item()
    told = {"event": line.values["event"], "detail": line.values["detail"]}
    return {"line_no": line.line_no, **line.hints, "time_raw_ns": stamp, "time_kind": "local-unzoned", **told}


FORMAT = TextFormat(
    name="nccl-ras",
    title="NCCL RAS client",
    tables=("nccl_versions", "nccl_ras_groups", "nccl_ras_items", "nccl_ras_events"),
    anchors=(_HEADER, "Communicators... (", "] PEER_"),
    read=read,
    priority=15,
)
