"""Logs that end before their process did."""

from __future__ import annotations

import polars as pl

from nccl_forensics.store import SOURCES
from nccl_forensics.views.log_ends import cut_logs
from tests.rules.frames import people
from tests.rules.host_frames import table

PEOPLE = people((0, "node1", 100), (1, "node1", 101), (2, "node1", 102), (3, "node1", 103))
TAILS = table(
    "nccl_tails", *({"source_id": r, "host": "node1", "pid": 100 + r, "line_no": 50, "lines": 50, "message": "AllReduce"} for r in range(4))
)


def sources(**errors: str) -> pl.LazyFrame:
    rows = [{"source_id": r, "lines": 50, "error": errors.get(f"of_{r}")} for r in range(4)]
    return pl.LazyFrame(rows, schema=SOURCES)


def test_ranks_whose_log_ends_with_a_full_buffer_or_was_not_unpacked_whole_went_on() -> None:
    ends = table("cut_ends", {"source_id": 1, "line_no": 51, "bytes": 8192})
    found = cut_logs(TAILS, PEOPLE, sources(of_3="Compressed file ended before the end-of-stream marker was reached"), ends)
    assert found.collect().rows() == [(1, 1, 51), (3, 3, 50)]


def test_whole_logs_are_not_cut() -> None:
    assert cut_logs(TAILS, PEOPLE, sources(), None).collect().is_empty()
