"""Shared memory that ran out, and complaints that ended nobody."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.shm_exhausted import shm_exhausted
from tests.rules.frames import endings
from tests.rules.host_frames import table

BUS_ERROR = "DataLoader worker (pid 5150) is killed by signal: Bus error."


def test_a_worker_that_the_job_went_on_without_is_hardly_a_cause() -> None:
    complaints = table("exceptions", {"rank": 1, "message": BUS_ERROR, "source_id": 1, "line_no": 1})
    heard = pl.LazyFrame({"source_id": [0, 1, 2], "rank": [0, 1, 2]}, schema={"source_id": pl.UInt32(), "rank": pl.Int32()})

    def judged(over: bool, *signs: str) -> tuple[str | None, str]:
        ended = endings({"rank": 1, "kind": "exception", "own": True, "over": over})
        shown = pl.LazyFrame({"sign": ["exceptions", *signs]})
        [finding] = shm_exhausted.check(None, complaints, None, None, None, heard, ended, shown)
        return finding.severity, finding.confidence

    assert judged(False) == ("warning", "low")
    assert judged(True) == ("critical", "high")
    assert judged(False, "watchdog timeouts") == ("critical", "high")
