"""Shared memory that ran out, and complaints that ended nobody."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.shm_exhausted import shm_exhausted
from tests.rules.frames import endings
from tests.rules.host_frames import table

BUS_ERROR = "DataLoader worker (pid 5150) is killed by signal: Bus error."


def refusals(*hosts: str | None) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Host and ranks of each finding, where rank n complained on the n-th of these hosts."""
    rows = [{"rank": n, "hint_host": host, "message": BUS_ERROR, "line_no": n + 1} for n, host in enumerate(hosts)]
    return [(f.hosts, f.ranks) for f in shm_exhausted.check(None, table("exceptions", *rows), None, None, None, None)]


def test_a_complaint_that_tells_no_host_is_of_the_only_one_that_others_tell() -> None:
    assert refusals("node7", None) == [(("node7",), (0, 1))]
    assert refusals(None, None) == [((), (0, 1))]


def test_where_several_hosts_complain_one_without_a_host_is_of_none_of_them() -> None:
    assert refusals("node7", None, "node8") == [(("node7",), (0,)), (("node8",), (2,))]


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
