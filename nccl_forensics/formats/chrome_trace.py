"""Profiler traces of torch (Kineto) and others in Chrome's JSON format: one rank's activity, reduced to what is measured.

Written by ``torch.profiler`` (``export_chrome_trace``, ``tensorboard_trace_handler``) and by dynolog's on-demand profiling. Seen: exports
of 2022 to 2026, on NVIDIA GPUs, and of gloo on CPUs (torch 2.13). A trace is measured where it is read, by itself: one rank's time needs no
other rank's, and so thousands of traces are measured side by side and never stand in memory together.
"""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.decoding.chrome_json import Content, Trace, is_trace
from nccl_forensics.formats._trace_collectives import collectives
from nccl_forensics.formats._trace_columns import Columns, gather, whole
from nccl_forensics.formats._trace_kernels import classify
from nccl_forensics.formats._trace_measures import Activity, kernels, measure
from nccl_forensics.formats._trace_timeline import work
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import mapping, mappings

#: Before this, ``ts`` was the time since 1970 (libkineto, spring 2024); a value below it cannot be one.
_EPOCH_NS = 1_000_000_000_000_000_000
_MOST_GAPS = 1000


def read(data: Content) -> Reading:
    """The trace, its windows, collectives, kernels by name, telling ranges and the middle step."""
    trace = Trace(data)
    columns = gather(trace)
    gaps = tuple(Gap(f"{b.reason} (byte {b.offset:,})", record=f"traceEvents[{b.index}]") for b in trace.breaks[:_MOST_GAPS])
    if len(trace.breaks) > _MOST_GAPS:
        rest = trace.breaks[_MOST_GAPS]
        gaps = (*gaps, Gap(f"{len(trace.breaks) - _MOST_GAPS} more broken events", record=f"traceEvents[{rest.index}]"))
    if not columns.events:
        return Reading(gaps=gaps or (Gap("not a Chrome trace: it holds no events", record="traceEvents"),))
    if not columns.measured:
        timeline = work(Trace(data))
        if timeline is not None:
            return Reading(frames={"timeline_work": timeline}, gaps=gaps, records=columns.events)
        known = ", ".join(columns.strange[:5])
        why = "not measured: no event of a category that torch's profiler writes" + (f" (categories here: {known})" if known else "")
        return Reading(gaps=(*gaps, Gap(why, record="traceEvents")))
    activity = Activity.of(columns, classify(columns.names))
    listed = collectives(columns, activity)
    frames = {
        "traces": _trace(trace, columns, activity, listed),
        "trace_collectives": listed,
        "trace_kernels": kernels(activity),
        **measure(activity, listed),
    }
    return Reading(frames=frames, gaps=gaps, records=1 + columns.events)


def _trace(trace: Trace, columns: Columns, activity: Activity, listed: pl.DataFrame) -> pl.DataFrame:
    header = trace.header
    info = mapping(header.get("distributedInfo"))
    gpus = sorted({str(p["name"]) for p in mappings(header.get("deviceProperties")) if p.get("name")})
    base = whole(header.get("baseTimeNanoseconds"))
    first = columns.first
    began = None if first is None else first + base if base is not None else first if first >= _EPOCH_NS else None
    rank, groups = whole(info.get("rank")), info.get("pg_config")
    row: dict[str, object] = {
        "record": "traceEvents",
        "time_raw_ns": began if began is not None else first,
        "time_kind": None if first is None else "epoch" if began is not None else "monotonic",
        "rank": rank if rank is not None and 0 <= rank < 10_000_000 else None,
        "world_size": whole(info.get("world_size")),
        "backend": _text(info.get("backend")),
        "host": _text(header.get("host_name")),
        "pid": next((p for p in map(whole, columns.pids) if p is not None), None),
        "device": activity.kind,
        "devices": columns.device["device"].n_unique(),
        "device_number": whole(activity.device["device"][0]) if activity.device.height else None,
        "gpus": gpus,
        "nccl_version": _version(info.get("nccl_version")),
        "events": columns.events,
        "malformed": columns.malformed,
        "clamped": columns.clamped,
        "repaired": trace.repaired,
        "complete": trace.complete,
        "activities": activity.device.height,
        "collectives": listed.height,
        "steps": activity.steps.height,
        "first_step": activity.steps["step"].min() if activity.steps.height else None,
        "span_ns": columns.last - first if first is not None and columns.last is not None else None,
        "groups": len(groups) if isinstance(groups, list) else None,
    }
    return TABLES["traces"].frame([row])


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _version(value: object) -> str | None:
    """``2.17.1``; on-demand traces say ``unknown``, some builds give a tuple."""
    if isinstance(value, list) and value:
        return ".".join(str(v) for v in value)
    text = _text(value)
    return text if text and re.match(r"\d", text) else None


FORMAT = DocumentFormat(
    name="chrome-trace",
    title="torch.profiler (Kineto) trace, Chrome JSON",
    tables=("traces", "trace_windows", "trace_collectives", "trace_kernels", "trace_spans", "trace_segments", "timeline_work"),
    sniff=is_trace,
    read=read,
    priority=8,
    mapped=True,
)
