"""Timelines of whole jobs: the slow worker, the slow stage, and work that is divided otherwise in each step."""

from __future__ import annotations

import json
from collections.abc import Callable

import polars as pl

from nccl_forensics.formats import chrome_trace
from nccl_forensics.model import Finding
from nccl_forensics.rules.timeline_pace import slow_worker
from tests.rules.host_frames import check


def timeline(
    work: Callable[[int, int, int], float], *, dp: int = 4, pp: int = 2, steps: int = 10, label: str = "DP rank [{}]"
) -> pl.DataFrame:
    """``timeline_work`` of a job whose worker (dp, pp) computes ``work(step, dp, pp)`` ms in each step of a second."""
    events: list[dict[str, object]] = []
    for d in range(dp):
        events.append({"ph": "M", "name": "process_name", "pid": d, "args": {"name": label.format(d)}})
        for p in range(pp):
            for n, kind in enumerate(("compute", "pp-comm")):
                events.append(
                    {"ph": "M", "name": "thread_name", "pid": d, "tid": 10 * p + n, "args": {"name": f"PP rank {p}, TP rank 0, {kind}"}}
                )
            for s in range(steps):
                ms = work(s, d, p)
                at = 1e6 * s
                events += [
                    span("forward-compute", d, 10 * p, at, ms * 400, s),
                    span("backward-compute", d, 10 * p, at + 4e5, ms * 600, s),
                    span("grads-reduce-scatter", d, 10 * p + 1, at + 5e5, 5e5, s),
                ]
    return chrome_trace.read(json.dumps(events).encode()).frames["timeline_work"].with_columns(source_id=pl.lit(0, pl.UInt32))


def span(name: str, pid: int, tid: int, ts: float, dur: float, step: int) -> dict[str, object]:
    return {"ph": "X", "cat": name, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": {"step": step}}


def found(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    return [(f.severity, f.confidence, f.ranks, f.title.split(" computes")[0]) for f in told(frame)]


def told(frame: pl.DataFrame) -> list[Finding]:
    return check(slow_worker, timeline_work=frame.lazy())


def test_a_timeline_is_reduced_to_the_work_of_each_worker_in_each_step() -> None:
    frame = timeline(lambda s, d, p: 300, steps=2)
    assert frame.height == 16
    first = frame.row(0, named=True)
    assert (first["worker"], first["dp"], first["pp"], first["tp"], first["ep"]) == ("DP 0, PP 0, TP 0", 0, 0, 0, None)
    assert (first["compute_ns"], first["communication_ns"], first["duration_ns"], first["events"]) == (3e8, 5e8, 1e9, 3)


def test_ranges_without_steps_or_tracks_without_ranks_are_no_timeline() -> None:
    bare = [{"ph": "X", "cat": "work", "name": "forward", "pid": 0, "tid": 0, "ts": 0, "dur": 5}]
    unnamed = [span("forward", 0, 0, 0, 5, 1), span("forward", 1, 0, 0, 5, 1)]
    for events in (bare, unnamed):
        reading = chrome_trace.read(json.dumps(events).encode())
        assert not reading.frames
        assert "not measured" in reading.gaps[0].reason


def test_the_worker_that_computes_twice_as_long_in_every_step_is_named() -> None:
    frame = timeline(lambda s, d, p: 600 if (d, p) == (2, 1) else 300)
    assert found(frame) == [("error", "high", (), "worker DP 2, PP 1, TP 0")]
    # Who is first on every axis is rank 0 in any layout.
    assert found(timeline(lambda s, d, p: 600 if (d, p) == (0, 0) else 300)) == [("error", "high", (0,), "worker DP 0, PP 0, TP 0")]


def test_a_worker_that_is_slow_in_one_step_or_by_little_is_not() -> None:
    assert told(timeline(lambda s, d, p: 600 if (s, d, p) == (3, 2, 1) else 300)) == []
    assert told(timeline(lambda s, d, p: 318 if (d, p) == (2, 1) else 300)) == []


def test_a_global_rank_in_the_name_of_a_track_is_the_culprit() -> None:
    [finding] = told(timeline(lambda s, d, p: 450 if d == 3 else 300, pp=1, label="Rank {}"))
    assert (finding.confidence, finding.ranks) == ("high", (3,))


def test_of_two_peers_one_is_named_less_surely() -> None:
    assert found(timeline(lambda s, d, p: 600 if (d, p) == (1, 0) else 300, dp=2)) == [("error", "low", (), "worker DP 1, PP 0, TP 0")]


def test_a_stage_whose_workers_all_compute_longer_has_more_to_do() -> None:
    frame = timeline(lambda s, d, p: 450 if p == 3 else 300, pp=4)
    assert found(frame) == [("error", "medium", (), "stage PP 3")]
    assert told(timeline(lambda s, d, p: 450 if p == 1 else 300)) == []  # of two stages either may be the unusual one


def test_another_worker_in_each_step_is_work_that_is_unevenly_divided() -> None:
    [finding] = told(timeline(lambda s, d, p: 450 if d == s % 4 else 300, pp=1))
    assert finding.title.startswith("the work is unevenly divided: 4 workers take turns")
    assert (finding.severity, finding.ranks) == ("error", ())
