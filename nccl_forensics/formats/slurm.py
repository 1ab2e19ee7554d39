"""Slurm's listings of jobs and nodes: sacct, scontrol show, squeue, and the JSON that they and slurmrestd share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, moment, real, whole
from nccl_forensics.values.documents import items, mapping
from nccl_forensics.values.hostlist import expand
from nccl_forensics.values.units import is_number

_OPENS = r"^\s*(?:JobID(?:Raw)?[| ]|JOBID +PARTITION|JobId=\d|NodeName=\S)"
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_/:()-]*)=")
_STATES = {
    "R": "RUNNING",
    "PD": "PENDING",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PR": "PREEMPTED",
    "DL": "DEADLINE",
    "BF": "BOOT_FAIL",
}
_SIZES = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_SECOND_NS = 1_000_000_000
#: States of a node are one base word and flags; a star means that it does not answer.
_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWERING_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT",
}


def read(text: Text) -> Reading:
    """Jobs, steps and nodes."""
    jobs: list[Row] = []
    nodes: list[Row] = []
    claimed: list[int] = []
    mode: str | None = None
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    block: tuple[Line, dict[str, str]] | None = None

    def finish() -> None:
        if block is not None:
            (jobs if mode == "job" else nodes).append(_job(block[0], block[1]) if mode == "job" else _node(block[0], block[1]))

    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=5000), "slurm", strip=True):
        if line.kind in ("sacct_pipe", "sacct_head", "squeue_head", "scontrol_job", "scontrol_node"):
            finish()
            block, spans = None, []
        match line.kind:
            case "sacct_pipe":
                mode, names = "pipe", line.text.strip().strip("|").split("|")
            case "sacct_head":
                mode, names = "columns", line.text.split()
            case "squeue_head":
                mode, names = "squeue", line.text.split()
            case "scontrol_job" | "scontrol_node":
                mode, block = ("job" if line.kind == "scontrol_job" else "node"), (line, _pairs(line.text))
            case "dashes" if mode == "columns":
                spans = [(m.start(), m.end()) for m in re.finditer(r"-+", line.text)]
            case "pairs" if block is not None:
                block[1].update(_pairs(line.text))
            case _ if mode == "pipe" and line.text.count("|") >= len(names) - 1 and len(names) > 1:
                jobs.append(_accounted(line, dict(zip(names, line.text.strip().split("|"), strict=False))))
            case _ if mode == "columns" and spans and line.text.strip():
                cells = [line.text[start:end].strip() for start, end in spans]
                jobs.append(_accounted(line, dict(zip(names, cells, strict=False))))
            case _ if mode == "squeue" and len(line.text.split()) >= min(8, len(names)):
                jobs.append(_queued(line, names))
            case _:
                if line.text.strip():
                    finish()
                    block, mode = None, None
                continue
        claimed.append(line.number)
    finish()
    found = {"scheduler_jobs": jobs, "scheduler_nodes": nodes}
    return Reading(frames=filled(found), lines=line_numbers(claimed))


def _pairs(text: str) -> dict[str, str]:
    marks = list(_KEY.finditer(text))
    ends = [m.start() for m in marks[1:]] + [len(text)]
    return {m.group(1): text[m.end() : end].strip() for m, end in zip(marks, ends, strict=True)}


def _accounted(line: Line, cells: Mapping[str, str]) -> Row:
    whole_id = cells.get("JobID") or cells.get("JobIDRaw") or ""
    job, _, step = whole_id.partition(".")
    state, by = _state(cells.get("State"))
    end = moment(cells.get("End"))
    return {
        **line.where,
        "tool": "sacct",
        "job_id": job or None,
        "step": step or None,
        "name": cells.get("JobName") or None,
        "state": state,
        "by": by,
        "reason": _text(cells.get("Reason")),
        **_exit(cells.get("ExitCode")),
        "start_raw_ns": moment(cells.get("Start")),
        "end_raw_ns": end,
        "time_raw_ns": end,
        "time_kind": "local-unzoned" if end is not None else None,
        "elapsed_s": _seconds(cells.get("Elapsed")),
        "time_limit_s": _seconds(cells.get("Timelimit")),
        "nodes": expand(_text(cells.get("NodeList"))) or None,
        "max_rss_bytes": _size(cells.get("MaxRSS")),
    }


def _queued(line: Line, names: Sequence[str]) -> Row:
    cells = dict(zip(names, line.text.split(None, len(names) - 1), strict=False))
    last = cells.get("NODELIST(REASON)", "").strip()
    short = cells.get("ST", "")
    return {
        **line.where,
        "tool": "squeue",
        "job_id": cells.get("JOBID"),
        "name": cells.get("NAME"),
        "state": _STATES.get(short, short) or None,
        "reason": last[1:-1] if last.startswith("(") else None,
        "elapsed_s": _seconds(cells.get("TIME")),
        "nodes": None if last.startswith("(") else expand(last) or None,
    }


def _job(line: Line, pairs: Mapping[str, str]) -> Row:
    state, by = _state(pairs.get("JobState"))
    end = moment(pairs.get("EndTime"))
    return {
        **line.where,
        "tool": "scontrol",
        "job_id": pairs.get("JobId"),
        "name": pairs.get("JobName"),
        "state": state,
        "by": by,
        "reason": _text(pairs.get("Reason")),
        **_exit(pairs.get("ExitCode")),
        "start_raw_ns": moment(pairs.get("StartTime")),
        "end_raw_ns": end,
        "time_raw_ns": end,
        "time_kind": "local-unzoned" if end is not None else None,
        "elapsed_s": _seconds(pairs.get("RunTime")),
        "time_limit_s": _seconds(pairs.get("TimeLimit")),
        "nodes": expand(_text(pairs.get("NodeList"))) or None,
        "restarts": whole(pairs.get("Restarts")),
    }


def _node(line: Line, pairs: Mapping[str, str]) -> Row:
    base, flags = _node_state(pairs.get("State", ""))
    reason = _text(pairs.get("Reason"))
    said = re.match(r"^(.*?) ?\[([^@\]]+)@([^\]]+)\]$", reason or "")
    boot = moment(pairs.get("BootTime"))
    return {
        **line.where,
        "tool": "scontrol",
        "node": pairs.get("NodeName"),
        "state": base,
        "flags": flags or None,
        "reason": said.group(1) if said else reason,
        "reason_by": said.group(2) if said else None,
        "reason_raw_ns": moment(said.group(3)) if said else None,
        "boot_raw_ns": boot,
        "daemon_start_raw_ns": moment(pairs.get("SlurmdStartTime")),
        "time_raw_ns": boot,
        "time_kind": "local-unzoned" if boot is not None else None,
        "gres": _text(pairs.get("Gres")),
    }


def _node_state(text: str) -> tuple[str | None, list[str]]:
    words = [w for w in text.upper().split("+") if w]
    flags: list[str] = []
    clean: list[str] = []
    for word in words:
        while word and word[-1] in _MARKS:
            flags.append(_MARKS[word[-1]])
            word = word[:-1]
        clean.append(word)
    return (clean[0] if clean else None), [*clean[1:], *flags]


def _state(text: str | None) -> tuple[str | None, str | None]:
    """(state, user) of ``CANCELLED by 1001``; a plus sign is sacct's mark for a cut cell."""
    words = (text or "").replace("+", "").split()
    if not words:
        return None, None
    return ("CANCELLED" if words[0].startswith("CANCEL") else words[0]), (words[2] if len(words) == 3 and words[1] == "by" else None)


def _exit(text: str | None) -> Row:
    code, _, signal = (text or "").partition(":")
    number = whole(signal)
    return {"exit_code": whole(code), "exit_signal": number if number else None}


def _text(text: str | None) -> str | None:
    return None if text in (None, "", "None", "(null)", "Unknown", "None assigned", "N/A") else text


def _seconds(text: str | None) -> int | None:
    """Seconds of ``1-02:03:04``, ``02:03:04`` or ``03:04``; None for UNLIMITED and the like."""
    days, dash, clock = (text or "").rpartition("-")
    parts = clock.split(".")[0].split(":")
    if not clock or not all(is_number(p) for p in parts) or (dash and not is_number(days)):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    if dash and len(parts) < 3:
        total *= 60 ** (3 - len(parts))
    return total + (int(days) * 86400 if dash else 0)


def _size(text: str | None) -> float | None:
    if not text:
        return None
    scale = _SIZES.get(text[-1].upper())
    number = real(text[:-1] if scale else text)
    return number * (scale or 1.0) if number is not None else None


def _sniff_json(head: bytes) -> bool:
    return (
        head.lstrip()[:1] == b"{"
        and (b'"jobs"' in head or b'"nodes"' in head)
        and (b'"Slurm"' in head or b'"slurm"' in head or b'"job_state"' in head)
    )


@of_json("unreadable")
def _read_json(document: object) -> Reading:
    """``--json`` of sacct, squeue, scontrol and slurmrestd. Numbers became objects and states lists in data_parser 0.0.39 and 0.0.40."""
    jobs = [_json_job(job, f"jobs[{i}]") for i, job in enumerate(items(mapping(document).get("jobs"))) if isinstance(job, dict)]
    nodes = [_json_node(node, f"nodes[{i}]") for i, node in enumerate(items(mapping(document).get("nodes"))) if isinstance(node, dict)]
    found = {"scheduler_jobs": jobs, "scheduler_nodes": nodes}
    return Reading(frames=filled(found), records=len(jobs) + len(nodes))


def _json_job(job: Mapping[str, object], record: str) -> Row:
    states = job.get("job_state") or _inside(job.get("state"), "current")
    state = str(states[0]) if isinstance(states, list) and states else str(states) if states else None
    times = mapping(job.get("time"))
    end = _number(job.get("end_time", times.get("end")))
    start = _number(job.get("start_time", times.get("start")))
    code = job.get("exit_code")
    signal = _number(_inside(_inside(code, "signal"), "id") or _inside(_inside(code, "signal"), "signal_id"))
    limit = _number(job.get("time_limit", _inside(times, "limit")))
    value = _number(_inside(code, "return_code")) if isinstance(code, dict) else _number(code)
    return {
        "record": record,
        "tool": "slurm-json",
        "job_id": str(job.get("job_id")) if job.get("job_id") is not None else None,
        "name": job.get("name"),
        "state": state,
        "reason": _text(str(job.get("state_reason") or _inside(job.get("state"), "reason") or "")),
        # Slurm up to 22.05 gives the wait status: code in the high byte.
        "exit_code": value >> 8 if value is not None and not isinstance(code, dict) and value > 255 else value,
        "exit_signal": signal or None,
        "start_raw_ns": start * _SECOND_NS if start else None,
        "end_raw_ns": end * _SECOND_NS if end else None,
        "time_raw_ns": end * _SECOND_NS if end else None,
        "time_kind": "epoch" if end else None,
        "time_limit_s": limit * 60 if limit is not None else None,
        "nodes": expand(str(job.get("nodes") or "")) or None,
        "restarts": _number(job.get("restart_cnt")),
    }


def _json_node(node: Mapping[str, object], record: str) -> Row:
    states = node.get("state")
    words = [str(s) for s in states] if isinstance(states, list) else [str(states)] if states else []
    base, flags = _node_state("+".join(words))
    extra = node.get("state_flags")
    boot, since = _number(node.get("boot_time")), _number(node.get("reason_changed_at"))
    daemon = _number(node.get("slurmd_start_time"))
    return {
        "record": record,
        "tool": "slurm-json",
        "node": node.get("name"),
        "state": base,
        "flags": [*flags, *(str(f) for f in extra if isinstance(extra, list))] if isinstance(extra, list) else flags or None,
        "reason": _text(str(node.get("reason") or "")),
        "reason_by": node.get("reason_set_by_user"),
        "reason_raw_ns": since * _SECOND_NS if since else None,
        "boot_raw_ns": boot * _SECOND_NS if boot else None,
        "daemon_start_raw_ns": daemon * _SECOND_NS if daemon else None,
        "time_raw_ns": boot * _SECOND_NS if boot else None,
        "time_kind": "epoch" if boot else None,
        "gres": _text(str(node.get("gres") or "")),
    }


def _inside(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _number(value: object) -> int | None:
    if isinstance(value, dict):
        return _number(value.get("number")) if value.get("set", True) and not value.get("infinite") else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


FORMATS = (
    TextFormat(
        name="slurm",
        title="Slurm: sacct, scontrol show, squeue (text)",
        tables=("scheduler_jobs", "scheduler_nodes"),
        anchors=("JobID|", "JobIDRaw|", "JobID ", "JOBID ", "JobId=", "NodeName="),
        read=read,
        priority=47,
    ),
    DocumentFormat(
        name="slurm-json",
        title="Slurm (JSON: sacct, squeue, scontrol --json, slurmrestd)",
        tables=("scheduler_jobs", "scheduler_nodes"),
        sniff=_sniff_json,
        read=_read_json,
        priority=40,
    ),
)
