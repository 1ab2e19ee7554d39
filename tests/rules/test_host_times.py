"""Whether what a host's log tells belongs to the job's time, though years and zones are not always written."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl

from nccl_forensics.rules.common.hosts import after_the_end, at_the_stop, timely, while_it_stood, zoned
from tests.rules.host_frames import SECOND

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


def ns(year: int, month: int, day: int, hour: int, minute: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()) * SECOND


def window(first: int, last: int, *, yearless: bool = False, stalled: int | None = None) -> pl.LazyFrame:
    schema = {"first_raw_ns": pl.Int64, "last_raw_ns": pl.Int64, "stalled_raw_ns": pl.Int64, "yearless": pl.Boolean}
    return pl.LazyFrame([(first, last, stalled, yearless)], schema=schema, orient="row")


def lines(*times: int, kind: str = "local-unzoned") -> pl.DataFrame:
    return pl.DataFrame({"time_raw_ns": list(times), "time_kind": [kind] * len(times)})


def test_a_job_without_a_year_is_met_on_its_day_of_any_year() -> None:
    job = window(ns(2000, 3, 14, 10), ns(2000, 3, 14, 11), yearless=True)
    assert timely(lines(ns(2025, 3, 14, 10, 30), ns(2025, 3, 14, 13), ns(2025, 3, 13, 10, 30)), job, 1).to_list() == [True, False, False]


def test_a_line_without_a_year_is_met_on_the_day_of_the_job_also_over_new_year() -> None:
    job = window(ns(2024, 12, 31, 23, 50), ns(2025, 1, 1, 0, 10))
    rows = lines(ns(2000, 12, 31, 23, 55), ns(2000, 1, 1, 0, 5), ns(2000, 1, 1, 5), ns(2000, 6, 1, 0), kind="local-yearless")
    assert timely(rows, job, 1).to_list() == [True, True, False, False]


def test_a_clock_of_another_zone_differs_by_whole_half_hours() -> None:
    job = window(ns(2025, 3, 14, 10), ns(2025, 3, 14, 10, 5))
    assert zoned(lines(ns(2025, 3, 14, 15, 31), ns(2025, 3, 14, 15, 20)), job, 60).to_list() == [True, False]


def test_what_comes_after_the_last_word_of_the_job_is_told_from_what_comes_before_and_from_another_zone() -> None:
    end = ns(2025, 3, 14, 10)
    rows = lines(end - SECOND, end + 9 * SECOND, end + HOUR)
    assert after_the_end(rows, window(end - HOUR, end), 5).to_list() == [False, True, False]
    assert after_the_end(lines(end + 9 * SECOND, kind="monotonic"), window(end - HOUR, end), 5).to_list() == [False]


def test_the_stop_of_a_job_is_when_the_call_began_that_timed_out() -> None:
    begin, end = ns(2025, 3, 14, 10), ns(2025, 3, 14, 10, 10)
    rows = lines(begin - 30 * SECOND, begin + 5 * MINUTE, end + MINUTE)
    assert at_the_stop(rows, window(begin, end, stalled=begin), 60).to_list() == [True, False, False]
    assert while_it_stood(rows, window(begin, end, stalled=begin), 60).to_list() == [True, True, False]
    assert not at_the_stop(rows, window(begin, end), 60).any()
