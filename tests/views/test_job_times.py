"""When the job ran, as its own evidence says."""

from __future__ import annotations

from nccl_forensics.views.job_times import job_times
from tests.rules.host_frames import SECOND, table

DAY = 86_400 * SECOND
NOW = 20_500 * DAY
#: The first of January 2000.
YEAR_2000 = 10_957 * DAY


def found(*seen: int) -> list[tuple[object, ...]]:
    rows = table("worker_exits", *({"kind": "failure", "time_raw_ns": time, "time_kind": "local-unzoned"} for time in seen))
    return job_times(None, None, None, rows, None, None).collect().rows()


def timed_out(time: int, elapsed_ms: int | None, kind: str = "timeout") -> list[tuple[object, ...]]:
    row = {"kind": kind, "time_raw_ns": time, "time_kind": "local-unzoned", "elapsed_ms": elapsed_ms}
    return job_times(None, table("watchdog", row), None, None, None, None).collect().rows()


def test_the_times_of_a_job_are_the_first_and_the_last_that_its_evidence_states() -> None:
    assert found(NOW, NOW + DAY) == [(NOW, NOW + DAY, None, False)]


def test_a_time_without_a_year_counts_where_nothing_states_one_and_is_kept_as_of_the_year_2000() -> None:
    assert found(71 * DAY, NOW) == [(NOW, NOW, None, False)]
    # Day 71 of 1970 is the 13th of March, which comes a day later in a leap year.
    march_13 = YEAR_2000 + 72 * DAY
    assert found(71 * DAY) == [(march_13, march_13, None, True)]


def test_a_timeout_tells_when_what_it_waited_for_began_and_other_lines_do_not() -> None:
    assert timed_out(NOW, 600_000) == [(NOW - 600 * SECOND, NOW, NOW - 600 * SECOND, False)]
    assert timed_out(NOW, 600_000, kind="created") == [(NOW, NOW, None, False)]


def test_a_time_without_a_year_is_of_the_year_of_a_local_time_of_the_same_day_and_counts_beside_it() -> None:
    year_2026 = 20_454 * DAY
    assert found(10 * DAY, year_2026 + 10 * DAY + 5 * SECOND) == [(year_2026 + 10 * DAY, year_2026 + 10 * DAY + 5 * SECOND, None, False)]
    # The year had turned in between.
    assert found(365 * DAY - SECOND, year_2026 + SECOND)[0][:2] == (year_2026 - SECOND, year_2026 + SECOND)


def test_a_time_without_a_year_and_zone_is_not_laid_beside_one_that_names_its_zone() -> None:
    year_2026 = 20_454 * DAY
    rows = table("worker_exits", {"kind": "failure", "time_raw_ns": year_2026 + 10 * DAY, "time_kind": "epoch"})
    waited = {"kind": "timeout", "time_raw_ns": 10 * DAY - SECOND, "time_kind": "local-unzoned", "elapsed_ms": 1000}
    told = job_times(None, table("watchdog", waited), None, rows, None, None).collect().rows()
    assert told == [(year_2026 + 10 * DAY, year_2026 + 10 * DAY, None, False)]


def test_steps_of_the_training_loop_date_a_job_that_tells_nothing_else() -> None:
    step = {"step": 5, "loss": 2.0, "time_raw_ns": NOW, "time_kind": "local-unzoned"}
    assert job_times(*[None] * 6, table("training_steps", step)).collect().rows() == [(NOW, NOW, None, False)]
    assert job_times(*[None] * 6, table("training_steps", {"step": 5, "loss": 2.0})).collect().rows() == []
