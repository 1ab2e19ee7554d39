"""Moving, stuck since when, or unknown."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.looks import LOOKS
from nccl_forensics.views.motion import motion
from nccl_forensics.views.stack_views import THREAD_STATES
from tests.rules.host_frames import table
from tests.views.frames import operations, rows

MS = 10**6


def stacks(**ranks: tuple[int, bool]) -> pl.LazyFrame:
    """Samples of each rank's stack, and whether they differ: r2=(2, True)."""
    return rows(
        THREAD_STATES,
        *(
            {"rank": int(n[1:]), "samples": s, "moved": m, "place": "collective", "source_id": 7, "line_no": 4}
            for n, (s, m) in ranks.items()
        ),
    )


def dumps(*ends: tuple[int, str, int] | tuple[int, str, int, int]) -> pl.LazyFrame:
    """(rank, use, time of its last operation), and how many it has finished."""
    return pl.LazyFrame(
        [
            {"rank": r, "use": u, "last_created_ns": t, "finished": f[0] if f else 3, "source_id": 20 + n}
            for n, (r, u, t, *f) in enumerate(ends)
        ],
        schema={"rank": pl.Int32, "use": pl.String, "last_created_ns": pl.Int64, "finished": pl.Int64, "source_id": pl.UInt32},
    )


def told(*frames: pl.LazyFrame | None) -> list[tuple[object, ...]]:
    return motion(*frames).select("rank", "motion", "since_ns").collect().rows()


def test_two_samples_tell_and_one_does_not() -> None:
    assert told(stacks(r0=(2, True), r1=(2, False), r2=(1, False)), None, None, None) == [
        (0, "moving", None),
        (1, "stuck", None),
        (2, "unknown", None),
    ]


def test_two_dumps_of_a_rank_tell_by_their_operations() -> None:
    frame = dumps((0, "older", 5), (0, "chosen", 9), (1, "older", 9), (1, "chosen", 9), (2, "chosen", 9), (2, "duplicate", 9))
    assert [row[:2] for row in told(None, frame, None, None)] == [(0, "moving"), (1, "stuck"), (2, "unknown")]


def test_a_rank_whose_gpu_works_off_what_it_enqueued_long_before_moves() -> None:
    frame = dumps((0, "older", 9, 3), (0, "chosen", 9, 7), (1, "older", 9, 3), (1, "chosen", 9, 3))
    assert [row[:2] for row in told(None, frame, None, None)] == [(0, "moving"), (1, "stuck")]


def test_of_many_dumps_the_last_two_tell() -> None:
    stood = dumps((0, "older", 5), (0, "older", 9), (0, "chosen", 9), (1, "older", 5), (1, "older", 5), (1, "chosen", 9))
    assert [row[:2] for row in told(None, stood, None, None)] == [(0, "stuck"), (1, "moving")]


def test_a_rank_whose_operation_is_in_flight_for_far_longer_than_any_before_stands_though_it_moved_before() -> None:
    frame = dumps((0, "older", 5), (0, "chosen", 9), (1, "older", 5), (1, "chosen", 9))
    look = {"age_ms": 300_000.0, "longest_ms": 9.0, "finished": 50}
    asked = rows(LOOKS, {"rank": 0} | look, {"rank": 1} | look | {"age_ms": 20.0})
    assert [row[:2] for row in told(None, frame, None, None, asked)] == [(0, "stuck"), (1, "moving")]


def test_movement_between_dumps_beats_equal_stacks() -> None:
    assert told(stacks(r0=(2, False)), dumps((0, "older", 5), (0, "chosen", 9)), None, None)[0][1] == "moving"


def test_a_stuck_rank_is_so_since_it_enqueued_what_it_has_not_finished() -> None:
    ops = operations({0: ["all_reduce"] * 3, 1: ["all_reduce"] * 2}).with_columns(
        created_ns=pl.col("seq") * 100 * MS,
        completed_ns=pl.when(pl.col("seq") < 3).then(pl.col("seq") * 100 * MS + 7),
        pending=pl.col("seq") == 3,
    )
    # Rank 1 has finished all it enqueued: it stands since the last of it ended.
    assert told(stacks(r0=(2, False), r1=(2, False)), None, None, ops) == [(0, "stuck", 300 * MS), (1, "stuck", 200 * MS + 7)]
    assert told(stacks(r0=(2, True)), None, None, ops)[0] == (0, "moving", None)


def test_a_watchdog_that_timed_out_names_the_limit_and_how_long_it_waited() -> None:
    line = {
        "kind": "timeout",
        "hint_rank": 3,
        "hint_scope": "global",
        "pg_name": "0",
        "seq": 5,
        "timeout_ms": 600_000,
        "elapsed_ms": 600_033,
    }
    [row] = motion(None, None, table("watchdog", line), None).collect().to_dicts()
    assert (row["rank"], row["motion"], row["timeout_ms"], row["waited_ms"]) == (3, "stuck", 600_000, 600_033)


def test_how_long_an_operation_had_been_in_flight_is_told_where_somebody_says_when_the_recorder_was_asked() -> None:
    looked = rows(LOOKS, {"rank": 0, "age_ms": 61_500.0}, {"rank": 1, "age_ms": 61_500.0})
    both = motion(stacks(r0=(2, False), r1=(2, True)), None, None, None, looked).select("rank", "waited_ms").collect().rows()
    assert both == [(0, 61_500), (1, None)]
