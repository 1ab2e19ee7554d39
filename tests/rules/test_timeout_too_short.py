"""A timeout that ended a job which still advanced."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules.timeout_too_short import timeout_too_short
from nccl_forensics.views.long_waits import long_waits
from tests.rules.frames import cited
from tests.views.frames import operations

SECOND = 10**9
FAILED = pl.LazyFrame({"sign": ["watchdog timeouts"]})


def calls(
    wait_s: float, *, rank: int = 2, seen: int = 12, timeout_s: int = 300, last_op: str = "all_reduce", without: int | None = None
) -> pl.LazyFrame:
    """Collectives ten seconds apart; to the last of them one rank comes ``wait_s`` after the others."""
    lines = {r: ["all_reduce"] * (seen - 1) + [last_op if r == rank else "all_reduce"] for r in range(4)}
    if without is not None:
        lines[without] = lines[without][:-1]
    frame = operations(lines).collect()
    late = pl.Series([wait_s if r == rank and s == seen else 0.0 for r, s in frame.select("rank", "seq").iter_rows()])
    times = ((pl.col("seq") * 10 + late) * SECOND).cast(pl.Int64)
    return frame.with_columns(created_ns=times, timeout_ms=pl.lit(timeout_s * 1000, dtype=pl.Int64)).lazy()


def judged(frame: pl.LazyFrame, failures: pl.LazyFrame | None) -> list[Finding]:
    return timeout_too_short.check(long_waits(frame), failures)


def test_a_rank_that_came_after_the_timeout_of_the_others_is_named() -> None:
    [finding] = judged(calls(330), FAILED)
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "high", (2,))
    assert "rank 2 entered all_reduce #12 of process group default_pg (0) 330 s after the first rank; the timeout is 300 s" in finding.title
    assert cited(finding)[0] == (2, "entries[11]")


def test_a_wait_near_the_timeout_is_a_warning() -> None:
    [finding] = judged(calls(290), FAILED)
    assert finding.severity == "warning"


def test_a_job_that_shows_no_failure_was_not_ended_by_a_timeout() -> None:
    [finding] = judged(calls(330), None)
    assert finding.severity == "warning"


def test_short_waits_are_quiet() -> None:
    assert judged(calls(100), FAILED) == []


def test_a_rank_that_never_came_or_came_with_another_call_is_no_matter_of_patience() -> None:
    assert judged(calls(330, without=1), FAILED) == []
    assert judged(calls(330, last_op="broadcast"), FAILED) == []


def test_a_clock_that_is_off_is_no_wait() -> None:
    shifted = calls(0).with_columns(
        created_ns=pl.when(pl.col("rank") == 1).then(pl.col("created_ns") + 3600 * SECOND).otherwise("created_ns")
    )
    assert judged(shifted, FAILED) == []
