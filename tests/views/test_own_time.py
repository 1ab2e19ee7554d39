"""Time that ranks spend by themselves, in a mesh of pairs."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.straggler import straggler
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.lag import lag
from nccl_forensics.views.own_time import own_time
from tests.views.frames import groups, operations, rows

MS = 10**6
ROWS, COLUMNS = {"pg:r0": (0, 1), "pg:r1": (2, 3)}, {"pg:c0": (0, 2), "pg:c1": (1, 3)}
MEMBERS = {key: list(ranks) for key, ranks in (ROWS | COLUMNS).items()}


def mesh(slow_ms: int, *, rank: int = 1, steps: int = 12) -> pl.LazyFrame:
    """Each step a collective over the rows, then one over the columns; ``rank`` works longer before the first, the others 20 ms."""
    return stepped(dict.fromkeys(range(4), 0), (ROWS, COLUMNS), [slow_ms] * steps, rank, 20)


def stepped(
    clock: dict[int, int], places: tuple[dict[str, tuple[int, ...]], ...], slow_ms: list[int], rank: int, usual_ms: int
) -> pl.LazyFrame:
    """Steps of a collective in each group of each place in turn; ``rank`` works so long before the first place, all else takes ``usual_ms``."""
    made = []
    for step, slow in enumerate(slow_ms, start=1):
        for place, sets in enumerate(places):
            for r in clock:
                clock[r] += slow if r == rank and place == 0 else usual_ms
            for key, ranks in sets.items():
                frame = operations({r: ["all_reduce"] for r in ranks}, group=key, first=step).collect()
                times = pl.Series([clock[r] * MS for r in frame["rank"].to_list()], dtype=pl.Int64)
                made.append(frame.with_columns(created_ns=times, order=pl.lit(len(places) * step + place, dtype=frame.schema["order"])))
                for r in ranks:
                    clock[r] = max(clock[x] for x in ranks)
    return pl.concat(made).lazy()


def on(*hosts: str | None) -> pl.LazyFrame:
    return rows(PROCESSES_SCHEMA, *[{"rank": r, "host": h, "pid": r} for r, h in enumerate(hosts)])


HINTS = pl.LazyFrame({"attempt_local_rank": [0, 1, 2, 3]}, schema={"attempt_local_rank": pl.Int32()})
NO_HINTS = pl.LazyFrame(schema={"attempt_local_rank": pl.Int32()})


def named(ops: pl.LazyFrame, processes: pl.LazyFrame | None = None, hints: pl.LazyFrame = HINTS) -> list[tuple[int, ...]]:
    return [f.ranks for f in straggler.check(None, None, own_time(ops, groups(MEMBERS), processes, hints))]


def test_in_a_mesh_of_pairs_the_rank_that_never_waits_is_named() -> None:
    assert named(mesh(300)) == [(1,)]
    assert named(mesh(300, rank=2), on("node1", "node1", "node1", "node1"), NO_HINTS) == [(2,)]


def test_its_neighbours_are_late_in_their_other_groups_and_wait() -> None:
    frame = own_time(mesh(300), groups(MEMBERS), None, HINTS).collect()
    shares = dict(zip(frame["rank"], (frame["own_ms"] / frame["span_ms"]).round(2), strict=True))
    assert shares[1] == 1.0
    assert max(share for rank, share in shares.items() if rank != 1) < 0.2


def test_ranks_that_work_alike_are_quiet() -> None:
    assert named(mesh(20)) == []
    assert named(mesh(30)) == []


@pytest.mark.parametrize(
    ("processes", "hints"),
    [
        (None, NO_HINTS),
        (on("node1", "node1", "node2", "node2"), HINTS),
        (on("node1", "node1", "node1", None), HINTS),
    ],
)
def test_clocks_of_several_hosts_are_not_compared(processes: pl.LazyFrame | None, hints: pl.LazyFrame) -> None:
    assert named(mesh(300), processes, hints) == []


def test_a_rank_without_a_recorder_may_be_what_the_others_wait_for() -> None:
    assert named(mesh(300).filter(pl.col("rank") != 1)) == []


def test_a_clock_that_is_ahead_is_no_late_rank() -> None:
    calls = operations({r: ["all_reduce"] * 20 for r in range(4)})
    even = calls.with_columns(created_ns=pl.col("order") * 80 * MS)
    ahead = even.with_columns(created_ns=pl.col("created_ns") + pl.when(pl.col("rank") == 3).then(3_600_000 * MS).otherwise(0))
    for ops in (even, ahead):
        rows_of_ranks = own_time(ops, groups({"pg:0": [0, 1, 2, 3]}), None, HINTS)
        assert straggler.check(None, None, rows_of_ranks) == []


#: Islands of two, and one group of three over the islands for each place in them: whoever is late makes its neighbour late in another group.
ISLANDS, ACROSS = {"pg:i0": (0, 1), "pg:i1": (2, 3), "pg:i2": (4, 5)}, {"pg:a0": (0, 2, 4), "pg:a1": (1, 3, 5)}


def islands(slow_ms: list[int], *, rank: int = 5, start_ms: int = 0) -> pl.LazyFrame:
    """Steps of a collective in each island and one across; ``rank`` works so long before the first of each, the others 5 ms; rank 0 comes up late."""
    return stepped(dict.fromkeys(range(6), 0) | {0: start_ms}, (ISLANDS, ACROSS), slow_ms, rank, 5)


def named_beside_arrivals(ops: pl.LazyFrame) -> list[tuple[int, ...]]:
    hints = pl.LazyFrame({"attempt_local_rank": list(range(6))}, schema={"attempt_local_rank": pl.Int32()})
    members = groups({key: list(ranks) for key, ranks in (ISLANDS | ACROSS).items()})
    return [f.ranks for f in straggler.check(lag(ops, None, hints), None, own_time(ops, members, None, hints))]


def test_a_rank_made_late_by_its_neighbour_is_not_named_for_it() -> None:
    late = lag(islands([300] * 10), None, pl.LazyFrame({"attempt_local_rank": list(range(6))}, schema={"attempt_local_rank": pl.Int32()}))
    across = late.filter(pl.col("group_key") == "pg:a0").collect()
    assert across.sort("lost_ms")["rank"][-1] == 4
    assert named_beside_arrivals(islands([300] * 10)) == [(5,)]


def test_a_rank_that_is_busy_in_half_of_the_time_is_named_although_the_start_took_as_long() -> None:
    assert named_beside_arrivals(islands([300] * 10, start_ms=2_500)) == [(5,)]


def test_one_long_gap_or_little_time_is_no_rule() -> None:
    assert named_beside_arrivals(islands([5, 5, 3_000, 5, 5, 5, 5, 5, 5, 5])) == []
    assert named_beside_arrivals(islands([8] * 10)) == []
