from __future__ import annotations

import polars as pl

from nccl_forensics.rules.input_bound import input_bound
from nccl_forensics.views.trace_measures import MEASURES
from tests.views.frames import rows


def steps(loader: float, idle: float, *, ranks: int = 4, count: int = 4, device: str = "gpu", quick: int = 0) -> pl.LazyFrame:
    """Steps of 100 ms of each rank; the loader of the last ``quick`` ranks needs no time."""
    known = {"window": "step", "device": device, "span_ms": 100.0, "idle_ms": idle, "record": "traceEvents[1]"}
    every = [
        known | {"source_id": r, "rank": r, "step": s, "loader_ms": 0.0 if r >= ranks - quick else loader}
        for r in range(ranks)
        for s in range(count)
    ]
    return rows(MEASURES, *every)


def test_gpus_that_all_stand_still_while_their_loaders_are_waited_for_are_told() -> None:
    [found] = input_bound.check(steps(60, 55))
    assert (found.cause, found.ranks, found.severity, found.confidence) == ("input-stall", (), "error", "medium")
    assert found.metrics == {"dry_share": 0.55, "ranks": 4}


def test_loaders_behind_busy_gpus_one_quick_loader_few_steps_and_processors_are_quiet() -> None:
    for quiet in (steps(60, 5), steps(15, 55), steps(60, 55, quick=1), steps(60, 55, count=2), steps(60, 55, device="cpu")):
        assert input_bound.check(quiet) == []
