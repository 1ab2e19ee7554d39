"""Timelines of whole jobs in Chrome's JSON: one track per worker and kind of work, as trainers' own timers export them.

No profiler of one process wrote these: the tracks bear the workers' parallel ranks ("DP rank [1]", "PP rank 0, TP rank 0, compute"), and each
range its step in ``args.step``. Seen: exports of timers of Megatron-like trainers (2024, 2025). They are reduced to the work of each worker
in each step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.decoding.chrome_json import Event, Trace
from nccl_forensics.formats._trace_columns import real, whole
from nccl_forensics.tables import TABLES

AXES = ("rank", "dp", "pp", "tp", "cp", "ep")
#: ``DP rank [1]``, ``pp_rank=0``, ``rank 3``; a stage is a pipeline-parallel rank.
_AXIS = re.compile(r"(?<![a-z])(?:(dp|pp|tp|cp|ep)[ _-]?(?:rank)?|(rank|stage))\s{0,4}[\[#:=]{0,3}\s{0,4}(\d{1,7})\b", re.IGNORECASE)
_MOVES = re.compile(r"send|recv|receive|reduce|gather|scatter|broadcast|all[-_ ]?to[-_ ]?all|a2a|barrier|sync|[-_ ]comm\b", re.IGNORECASE)
_COMPUTES = re.compile(r"comput|forward|backward|fwd|bwd|optimi[sz]er|attention|mlp|matmul|gemm", re.IGNORECASE)
_LOADS = re.compile(r"data|batch|loader", re.IGNORECASE)
_COLLECTS = re.compile(r"^gc$|garbage", re.IGNORECASE)
_KINDS = (("communication", _MOVES), ("compute", _COMPUTES), ("gc", _COLLECTS), ("loader", _LOADS))
_MOST = 1 << 20


@dataclass(slots=True)
class _Step:
    """What one worker did in one step; times in ns as written."""

    start: int
    end: int
    events: int = 0
    longest: int = -1
    record: int = 0
    spent: dict[str, int] = field(default_factory=dict)


def work(trace: Trace) -> pl.DataFrame | None:
    """Rows of ``timeline_work``; None where the tracks do not name at least two workers, or ranges bear no step."""
    tracks: dict[tuple[object, object], dict[int, _Step]] = {}
    named: dict[tuple[object, object], str] = {}
    for first, events in trace.batches():
        _take(first, events, tracks, named)
        if len(tracks) > _MOST:
            return None
    workers: dict[tuple[int | None, ...], dict[int, _Step]] = {}
    for (pid, tid), steps in tracks.items():
        where = _axes(named.get((pid, None), ""), named.get((pid, tid), ""))
        if not any(n is not None for n in where):
            return None
        own = workers.setdefault(where, {})
        for number, step in steps.items():
            own[number] = _joined(own[number], step) if number in own else step
    if len(workers) < 2:
        return None
    begin = min(s.start for steps in workers.values() for s in steps.values())
    rows: list[dict[str, object]] = [
        {
            "record": f"traceEvents[{s.record}]",
            "worker": ", ".join(
                f"{axis.upper() if axis != 'rank' else axis} {n}" for axis, n in zip(AXES, where, strict=True) if n is not None
            ),
            **dict(zip(AXES, where, strict=True)),
            "step": number,
            "start_ns": s.start - begin,
            "duration_ns": s.end - s.start,
            "events": s.events,
            **{f"{kind}_ns": s.spent.get(kind, 0) for kind, _ in _KINDS},
        }
        for where, steps in workers.items()
        for number, s in steps.items()
    ]
    return TABLES["timeline_work"].frame(rows).sort("step", "worker")


def _take(
    first: int, events: Sequence[Event], tracks: dict[tuple[object, object], dict[int, _Step]], named: dict[tuple[object, object], str]
) -> None:
    for index, event in enumerate(events, first):
        if event.args is None:
            continue
        if event.ph == "M" and event.name in ("process_name", "thread_name") and event.args.name is not None:
            named[event.pid, event.tid if event.name == "thread_name" else None] = str(event.args.name)[:200]
            continue
        number, ts, dur = whole(event.args.step), real(event.ts), real(event.dur)
        if event.ph != "X" or number is None or ts is None or dur is None or dur < 0:
            continue
        start, length = round(ts * 1000), round(dur * 1000)
        step = tracks.setdefault((event.pid, event.tid), {}).setdefault(number, _Step(start, start))
        step.start, step.end, step.events = min(step.start, start), max(step.end, start + length), step.events + 1
        kind = next((k for k, pattern in _KINDS if pattern.search(event.name)), None)
        if kind is not None:
            step.spent[kind] = step.spent.get(kind, 0) + length
        if kind == "compute" and length > step.longest:
            step.longest, step.record = length, index


def _joined(a: _Step, b: _Step) -> _Step:
    longer = a if a.longest >= b.longest else b
    spent = {kind: a.spent.get(kind, 0) + b.spent.get(kind, 0) for kind, _ in _KINDS}
    return _Step(min(a.start, b.start), max(a.end, b.end), a.events + b.events, longer.longest, longer.record, spent)


def _axes(*names: str) -> tuple[int | None, ...]:
    """The parallel ranks in the names of a process and of a thread."""
    found: dict[str, int] = {}
    for name in names:
        for match in _AXIS.finditer(name):
            axis = (match[1] or match[2]).lower()
            found["pp" if axis == "stage" else axis] = int(match[3])
    return tuple(found.get(axis) for axis in AXES)
