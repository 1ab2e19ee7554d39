"""How long operations had been in flight when a recorder was asked for its dump."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.looks import LOOKS, looks, ordinary, standing
from tests.rules.host_frames import table
from tests.views.frames import operations, rows

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


def entry(source: int, retired: bool, started: int | None, completed: int | None, backend: str = "nccl") -> dict[str, object]:
    times = {f"time_{name}_ns": None if at is None else at * SECOND for name, at in (("started", started), ("completed", completed))}
    return {"source_id": source, "retired": retired, "backend": backend} | times


def test_a_recorder_that_finds_while_it_writes_what_has_begun_or_is_over_tells_when_it_was_asked() -> None:
    told = [entry(0, True, 12, 12), entry(0, False, 95, None), entry(1, False, None, 97), entry(2, True, None, 98)]
    # A recorder of another library may note a begin when it comes.
    entries = table("fr_entries", *told, entry(2, False, 99, None, "xccl"))
    dumps = pl.LazyFrame({"source_id": [0, 1, 2], "rank": [3, 4, 5], "use": ["chosen"] * 3}, schema_overrides={"source_id": pl.UInt32})
    held = pl.concat([ring(rank, (10, 12), (30, None)) for rank in (3, 4, 5)])
    found = looks(None, held, entries, dumps).select("rank", "age_ms", "look_source_id", "look_line_no").collect()
    assert found.rows() == [(3, 65_000.0, 0, None), (4, 67_000.0, 1, None)]


def test_what_is_open_for_no_longer_than_others_took_is_ordinary_where_half_of_the_ranks_tell() -> None:
    def usual(*ages: int, finished: int = 20) -> bool:
        return ordinary(
            rows(LOOKS, *({"rank": r, "age_ms": age, "longest_ms": 100.0, "finished": finished} for r, age in enumerate(ages))), 4
        )

    assert usual(90, 250)
    assert not usual(90), "one of four"
    assert not usual(90, 60_000), "one stands"
    assert not usual(90, 90, finished=1), "too few tell what is usual"


def test_what_is_open_for_less_than_a_minute_and_than_any_timeout_was_not_asked_for_by_one() -> None:
    def usual(age: int, timeout: int | None) -> bool:
        known = {"longest_ms": 100.0, "finished": 20, "timeout_ms": timeout}
        return ordinary(rows(LOOKS, *({"rank": r, "age_ms": age} | known for r in range(4))), 4)

    bare = {"age_ms": 25_000.0, "finished": 0, "timeout_ms": 600_000}
    assert ordinary(rows(LOOKS, *({"rank": r} | bare for r in range(4))), 4), "dumps of what is open alone hold nothing that ended"
    assert not ordinary(rows(LOOKS, *({"rank": r} | bare | {"age_ms": 90_000.0} for r in range(4))), 4)
    assert usual(25_000, 600_000)
    assert not usual(65_000, 600_000), "it stands for longer than a checkpoint of a moment"
    assert not usual(25_000, 20_000), "a timeout may have asked"
    assert not usual(25_000, None)


def test_a_ring_that_holds_few_that_ended_is_judged_by_those_of_all_ranks() -> None:
    def stands(*others: float, finished: int = 9) -> list[int]:
        full = {"rank": 0, "age_ms": 180_000.0, "longest_ms": 90.0, "finished": 2}
        known = ({"rank": r, "age_ms": 200_000.0, "longest_ms": ms, "finished": finished} for r, ms in enumerate(others, 1))
        return standing(rows(LOOKS, full, *known)).collect()["rank"].to_list()

    assert stands(90.0, 70.0) == [0, 1, 2]
    assert stands(90.0, 70.0, finished=5) == [], "too few ended on each of them"
    assert stands(90.0, 170_000.0) == [], "one of them took as long before"


def test_what_is_open_for_its_whole_timeout_stands_whatever_the_ring_holds() -> None:
    def stands(*ages: float, timeout: int | None = 40_000) -> list[int]:
        known = {"longest_ms": None, "finished": 0, "timeout_ms": timeout}
        seen = rows(LOOKS, *({"rank": r, "age_ms": age} | known for r, age in enumerate(ages)))
        assert ordinary(seen, 4) == (timeout is not None and max(ages) < 36_000)
        return standing(seen).collect()["rank"].to_list()

    assert stands(40_100.0, 38_000.0, 20_000.0) == [0, 1], "dumps of what is open alone hold nothing that ended"
    assert stands(40_100.0, 20_000.0, 20_000.0) == [], "most were enqueued long after"
    assert stands(20_000.0, 20_000.0) == []
    assert stands(40_100.0, 40_100.0, timeout=None) == []


def test_what_timed_out_is_not_ordinary_though_an_operation_took_as_long_before() -> None:
    known = {"longest_ms": 30_000.0, "finished": 20, "timeout_ms": 60_000}
    assert not ordinary(rows(LOOKS, *({"rank": r, "age_ms": 61_000.0} | known for r in range(4))), 4)
    assert ordinary(rows(LOOKS, *({"rank": r, "age_ms": 50_000.0} | known for r in range(4))), 4)
