"""Figures of traces: readable for eight ranks and for thousands."""

from __future__ import annotations

import json
from pathlib import Path

from nccl_forensics.api import analyze
from nccl_forensics.exhibits.traces import build
from nccl_forensics.extras import Extras, LagMap
from nccl_forensics.pictures.traces import lag_map, step_lanes
from nccl_forensics.reading.engine import InlineEngine
from tests.views.test_traces import job, resolver


def report(ranks: int) -> dict[str, object]:
    times = {"span_ms": 100.0, "compute_ms": 60.0, "communication_ms": 40.0, "exposed_memcpy_ms": 1.0, "memcpy_ms": 1.0, "idle_ms": 9.0}
    traces = [
        {
            "rank": (r * 7) % ranks,
            "window": "steps",
            "source": f"r{r}",
            "exposed_ms": 30.0 * (ranks - r) / ranks,
            "overlap_fraction": 0.25,
            **times,
        }
        for r in range(ranks)
    ]
    return {"measures": {"traces": traces, "traces_total": ranks, "messages": [], "host": [], "definitions": {"span_ms": "length"}}}


def test_thousands_of_ranks_become_a_figure_of_the_worst_and_of_some_of_the_rest() -> None:
    [block] = build(report(4096), Extras())
    drawn = json.loads(block.figures[0].json)["data"]
    assert [d["name"] for d in drawn] == ["compute", "exposed communication", "memcpy", "idle"]
    assert len(drawn[0]["x"]) == 64
    assert "0" in drawn[0]["x"], "the worst rank is drawn"
    assert "Rank 0 " in block.statement


def test_eight_ranks_are_all_drawn() -> None:
    [block] = build(report(8), Extras())
    assert len(json.loads(block.figures[0].json)["data"][0]["x"]) == 8


def test_the_latest_arrival_is_named() -> None:
    lag = LagMap("default_pg", (0, 5), ("1: all_reduce", "2: all_reduce"), ((0.0, 0.1), (7.5, None)), more_ranks=90)
    [block] = build({"measures": {}}, Extras(lag_map=lag))
    assert "rank 5" in block.statement
    assert "7.5 ms after the first rank, at collective 1: all_reduce" in block.statement
    assert "90 ranks" in block.statement


def test_a_late_rank_is_the_slowest_of_the_step_that_is_drawn(tmp_path: Path) -> None:
    found = resolver(tmp_path, job(steps=10, late={2: 30_000}))
    lanes = step_lanes(found)
    assert (lanes[0].role, lanes[0].rank) == ("slowest", 2)
    assert {lane.name for lane in lanes[0].lanes} >= {"compute", "communication"}
    lag = lag_map(found)
    assert lag is not None
    late = lag.lag_ms[lag.ranks.index(2)]
    assert max(v for v in late if v is not None) > 29


def test_the_page_of_a_bundle_of_traces_shows_them(tmp_path: Path) -> None:
    for n, sample in enumerate(job(steps=10, late={2: 30_000})):
        (tmp_path / f"rank{n}.json").write_bytes(sample.text())
    incident = analyze([tmp_path], engine=InlineEngine())
    assert incident.report["verdict"]["cause"] == "straggler"  # type: ignore[index]
    assert incident.report["verdict"]["culprits"][0]["rank"] == 2  # type: ignore[index]
    names = [f.name for block in build(incident.report, incident.extras) for f in block.figures]
    assert names == ["traces", "lag-map", "step", "messages"]
