"""Logs of Slurm's daemons (slurmctld, slurmd): nodes that fell silent, rebooted or were taken out."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, classify, moment
from nccl_forensics.values.hostlist import expand

_HEAD = r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?\] (?:(?:error|info|debug\d?|fatal): )?(.*)$"
#: Where the daemons write to syslog or the journal; the clock of the old form has no year and is left out.
_SYSLOG = (
    r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8}|(\d{4}-\d\d-\d\dT[\d:]{8})(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?) [\w.-]+ slurm(?:ctld|d)(?:\[\d+\])?: "
    r"(?:(?:error|info|debug\d?|fatal): )?(.*)$"
)
_STATES: dict[str, tuple[str | None, list[str], str | None]] = {
    "silent": ("DOWN", ["NOT_RESPONDING"], "Not responding"),
    "rebooted": ("DOWN", ["REBOOT"], "Node unexpectedly rebooted"),
    "resending": (None, ["COMPLETING"], "a job on it does not end"),
}


def read(text: Text) -> Reading:
    """One row per node and statement."""
    lines = text.hits.with_columns(
        clock=pl.coalesce(pl.col("text").str.extract(head, 1) for head in (_HEAD, _SYSLOG)),
        full="text",
        text=pl.coalesce(pl.col("text").str.extract(head, 2) for head in (_HEAD, _SYSLOG)),
    ).filter(pl.col("text").is_not_null())
    clocks = dict(lines.select("line_no", "clock").iter_rows())
    rows: list[Row] = []
    claimed: list[int] = []
    for line in classify(lines.select(pl.exclude("clock", "full")), "slurm_daemon"):
        if line.kind is None:
            continue
        rows.extend(_rows(line, clocks[line.number]))
        claimed.append(line.number)
    return Reading(frames=filled({"scheduler_nodes": rows}), lines=line_numbers(claimed))


def _rows(line: Line, clock: str | None) -> list[Row]:
    state, flags, reason = _STATES.get(line.kind or "", ("DOWN", ["DRAIN"], line.get("reason")))
    stamp = moment(clock)
    told: Row = {
        **line.where,
        "tool": "slurmctld",
        "state": state,
        "flags": flags,
        "reason": reason,
        "reason_raw_ns": stamp,
        "boot_raw_ns": stamp if line.kind == "rebooted" else None,
    }
    if line.kind == "reason":
        told["state"] = None
    return [{**told, "node": node} for node in expand(line.get("nodes") or "")]


FORMAT = TextFormat(
    name="slurm-daemon",
    title="slurmctld and slurmd logs: what they say of nodes",
    tables=("scheduler_nodes",),
    anchors=(" not responding", "unexpectedly rebooted", "update_node: node ", "Resending TERMINATE_JOB"),
    read=read,
    priority=49,
)
