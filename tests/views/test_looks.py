"""How long operations had been in flight when a recorder was asked for its dump."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.looks import LOOKS, looks
from tests.rules.host_frames import table
from tests.views.frames import operations

SECOND = 10**9


def ring(rank: int, *calls: tuple[float, float | None]) -> pl.LazyFrame:
    """Operations of a rank, each with the seconds at which it was enqueued and at which it ended, if it did."""
    known = operations({rank: ["all_reduce"] * len(calls)}).collect()
    return known.with_columns(
        created_ns=pl.Series([int(c * SECOND) for c, _ in calls], dtype=pl.Int64()),
        completed_ns=pl.Series([None if e is None else int(e * SECOND) for _, e in calls], dtype=pl.Int64()),
        done=pl.Series([e is not None for _, e in calls]),
        pending=pl.Series([e is None for _, e in calls]),
    ).lazy()


def asked(*times: tuple[int | None, int | None]) -> pl.LazyFrame:
    """Ranks and the seconds at which they were asked."""
    return table("collected", *({"rank": r, "at_ns": None if s is None else s * SECOND, "source_id": 9} for r, s in times))


def test_the_age_of_the_oldest_unfinished_operation_counts_to_the_latest_look() -> None:
    held = ring(3, (10, 12), (20, 25), (30, None), (31, None))
    [found] = looks(asked((3, 90), (3, 95), (4, 99)), held).collect().to_dicts()
    assert (found["rank"], found["age_ms"], found["longest_ms"], found["finished"]) == (3, 65_000.0, 5_000.0, 2)
    assert (found["record"], found["look_source_id"], found["look_line_no"]) == ("entries[2]", 9, 2)


def test_where_all_is_finished_or_nobody_says_when_it_was_asked_nothing_is_told() -> None:
    assert looks(asked((3, 90)), ring(3, (10, 12))).collect().is_empty()
    nothing = looks(asked((3, None), (None, 90)), ring(3, (10, None))).collect()
    assert nothing.is_empty()
    assert nothing.schema == LOOKS
