"""A straggler seen in execution times."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.inspector import inspector_straggler
from tests.rules.frames import cited
from tests.rules.host_frames import table


def times(
    late: int | None, *, ops: int = 24, ranks: int = 4, wait_us: float = 900.0, source: str = "kernel_gpu", every: int = 1
) -> pl.LazyFrame:
    """Collectives of 100 us; to every ``every``-th of them rank ``late`` comes ``wait_us`` after the others, whose kernels wait that
    long."""
    rows = [
        {
            "comm_id": "0xc0",
            "rank": r,
            "nranks": ranks,
            "host": "node1",
            "pid": 100 + r,
            "op": "AllReduce",
            "seq": s,
            "time_us": 100.0 + r + (wait_us if late is not None and r != late and s % every == 0 else 0.0),
            "timing_source": source,
            "source_id": r,
            "line_no": s + 1,
        }
        for r in range(ranks)
        for s in range(ops)
    ]
    return table("nccl_inspector", *rows)


def test_the_rank_with_the_shortest_times_is_the_one_that_is_waited_for() -> None:
    [finding] = inspector_straggler.check(times(2))
    assert (finding.ranks, finding.confidence) == ((2,), "medium")
    assert finding.metrics["late"] == 24
    assert cited(finding)[0] == (2, 1)


def test_like_times_are_quiet() -> None:
    assert inspector_straggler.check(times(None)) == []


def test_a_rank_that_is_late_now_and_then_is_quiet() -> None:
    assert inspector_straggler.check(times(2, every=3)) == []


def test_few_collectives_small_waits_and_times_of_the_cpu_are_quiet() -> None:
    assert inspector_straggler.check(times(2, ops=10)) == []
    assert inspector_straggler.check(times(2, wait_us=20.0)) == []
    assert inspector_straggler.check(times(2, source="collective_cpu")) == []
