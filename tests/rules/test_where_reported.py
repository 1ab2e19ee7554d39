"""Whose lines NCCL's errors are."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.common.errors import where_reported
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from tests.rules.host_frames import table
from tests.views.frames import rows


def redacted(*sources: int) -> pl.LazyFrame:
    """Processes without host and pid, as in logs that were made anonymous: ranks from 3 on, in these sources."""
    return rows(PROCESSES_SCHEMA, *[{"proc": n, "rank": 3 + n, "source_id": s, "line_no": 1} for n, s in enumerate(sources)])


def said(source: int, host: str | None = None) -> pl.LazyFrame:
    return table("nccl_errors", {"source_id": source, "line_no": 9, "host": host, "kind": "cuda-failure", "level": "WARN"})


def test_a_line_without_a_pid_is_that_of_the_only_process_of_its_source() -> None:
    assert where_reported(said(1), redacted(0, 1, 2))["rank"].to_list() == [4]
    assert where_reported(said(1, "node"), redacted(0, 1, 2))["rank"].to_list() == [4]


def test_a_line_without_a_pid_is_nobodys_where_several_processes_wrote_one_source() -> None:
    assert where_reported(said(0), redacted(0, 0, 0))["rank"].to_list() == [None]


def test_a_line_with_a_pid_is_that_of_the_process_wherever_it_stands() -> None:
    people = rows(PROCESSES_SCHEMA, {"proc": 0, "rank": 5, "host": "node1", "pid": 7, "source_id": 0, "line_no": 1})
    assert where_reported(said(1, "node1").with_columns(pid=pl.lit(7, pl.Int64)), people)["rank"].to_list() == [5]
