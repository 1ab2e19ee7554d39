"""When the job ran, as its own evidence says."""

from __future__ import annotations

from nccl_forensics.views.job_times import job_times
from tests.rules.host_frames import SECOND, table

DAY = 86_400 * SECOND
NOW = 20_500 * DAY


def found(*seen: int) -> list[tuple[object, ...]]:
    rows = table("worker_exits", *({"kind": "failure", "time_raw_ns": time, "time_kind": "local-unzoned"} for time in seen))
    return job_times(None, None, None, rows, None, None).collect().rows()


def test_the_times_of_a_job_are_the_first_and_the_last_that_its_evidence_states() -> None:
    assert found(NOW, NOW + DAY) == [(NOW, NOW + DAY)]


def test_a_time_without_a_year_says_nothing_of_when_the_job_ran() -> None:
    assert found(71 * DAY, NOW) == [(NOW, NOW)]
    assert found(71 * DAY) == []
