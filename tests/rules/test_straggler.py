"""One rank that keeps arriving late."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.straggler import straggler
from nccl_forensics.views.lag import LAG, lag
from nccl_forensics.views.late_ranks import LATE_RANKS
from nccl_forensics.views.own_time import OWN_TIME
from nccl_forensics.views.trace_lag import TRACE_LAG
from tests.views.frames import operations, rows

MS = 10**6


def arrivals(late_ms: list[int], *, rank: int = 2, offset_ms: int = 0, ranks: int = 4) -> pl.LazyFrame:
    """Collectives 100 ms apart; ``rank`` comes ``late_ms[i]`` after the others to the i-th, and its clock is off by ``offset_ms``."""
    frame = operations({r: ["all_reduce"] * len(late_ms) for r in range(ranks)}).collect()
    late = pl.Series([late_ms[s - 1] + offset_ms if r == rank else 0 for r, s in frame.select("rank", "seq").iter_rows()])
    return frame.with_columns(created_ns=(pl.col("seq") * 100 + late) * MS).lazy()


def found(frame: pl.LazyFrame) -> list[tuple[int, ...]]:
    return [f.ranks for f in straggler.check(lag(frame))]


def test_a_rank_late_to_half_the_collectives_by_much_is_named() -> None:
    [finding] = straggler.check(lag(arrivals([200, 0] * 6)))
    assert finding.ranks == (2,)
    assert finding.severity == "error"
    assert finding.evidence[0].record is not None


def test_a_rank_late_to_nearly_all_of_a_few_collectives_is_a_warning() -> None:
    [finding] = straggler.check(lag(arrivals([60, 70, 60, 0, 60, 70]), None, ONE_LAUNCHER))
    assert (finding.ranks, finding.severity, finding.confidence) == ((2,), "warning", "low")
    assert straggler.check(lag(arrivals([60, 0, 60, 0, 60, 0]), None, ONE_LAUNCHER)) == []
    assert straggler.check(lag(arrivals([60, 60, 70]), None, ONE_LAUNCHER)) == []


def test_one_long_delay_beside_many_short_ones_is_no_habit() -> None:
    assert found(arrivals([0, 55, 0, 55, 0, 55, 0, 55, 0, 12_000] + [0] * 20)) == []
    [finding] = straggler.check(lag(arrivals([0, 300, 0, 300, 0, 300, 0, 300, 0, 12_000] + [300] * 20)))
    assert finding.ranks == (2,)


def test_of_a_group_that_waits_for_the_one_that_works_with_others_outside_of_it_nothing_is_said() -> None:
    late = lag(arrivals([200, 0] * 6))
    apart = pl.LazyFrame({"group_key": ["pg:0"], "rank": [2]}, schema={"group_key": pl.String(), "rank": pl.Int32()})
    assert straggler.check(late, bridges=apart) == []
    assert [f.ranks for f in straggler.check(late, bridges=apart.with_columns(rank=pl.lit(1, pl.Int32)))] == [(2,)]


def beside_a_pair(lost_in_pair: float, *own_ms: float) -> list[tuple[int, ...]]:
    """Ranks named of a mesh in which rank 2 is late to its column and rank 3 to its own, and this one loses so much to their row as well;
    ``own_ms``: time that each rank takes by itself."""
    late = {"collectives": 20, "last_count": 15, "late_count": 15, "lost_ms": 3_000.0, "worst_ms": 200.0, "span_ms": 9_000.0}
    late |= {"members": 3, "median_ms": 100.0}
    alike = late | {"last_count": 2, "late_count": 0, "lost_ms": 20.0, "worst_ms": 10.0}
    columns = [{"group_key": f"column{c}", "rank": r, **(late if r in (2, 3) else alike)} for c in (0, 1) for r in (c, c + 2, c + 4)]
    row = [{**alike, "group_key": "row", "rank": 2, "members": 2}, {**late, "group_key": "row", "rank": 3, "members": 2}]
    row[1]["lost_ms"] = lost_in_pair
    alone = [{"rank": r, "collectives": 60, "own_ms": ms, "span_ms": 9_000.0, "long_count": 9} for r, ms in enumerate(own_ms)]
    return [f.ranks for f in straggler.check(rows(LAG, *columns, *row), own_time=rows(OWN_TIME, *alone) if alone else None)]


def test_who_waited_in_one_group_for_the_rank_that_is_late_there_is_not_named_for_coming_late_to_another() -> None:
    assert beside_a_pair(2_900.0) == [(3,)]
    assert beside_a_pair(900.0) == [(2,), (3,)], "what it waited there is not what the others lose to it"


def test_two_that_are_late_in_groups_of_their_own_are_told_together_where_both_alone_take_long_by_themselves() -> None:
    assert beside_a_pair(900.0, 800.0, 900.0, 5_000.0, 5_200.0, 900.0, 1_000.0) == [(2, 3)]
    assert beside_a_pair(900.0, 800.0, 900.0, 5_000.0, 5_200.0, 900.0, 3_000.0) == [(2,), (3,)], "another takes half as long"


def test_one_late_arrival_in_twelve_is_quiet() -> None:
    assert found(arrivals([200] + [0] * 11)) == []


def test_lateness_of_a_few_milliseconds_is_quiet() -> None:
    assert found(arrivals([5, 0] * 6)) == []


def test_a_clock_that_is_off_is_no_lateness() -> None:
    assert found(arrivals([0] * 12, offset_ms=3_600_000)) == []


def test_a_late_rank_is_named_although_its_clock_is_off() -> None:
    assert found(arrivals([200, 0] * 6, offset_ms=3_600_000)) == [(2,)]


def test_a_rank_that_was_up_first_is_not_late_to_all_the_rest_though_its_clock_is_off() -> None:
    assert found(arrivals([-300] * 6 + [0, 5] * 20, offset_ms=-600)) == []
    # Early in between as well is how a rank looks that is late to the others.
    assert found(arrivals(([-300] + [0, 5] * 3) * 7, offset_ms=-600)) == [(2,)]


#: Folders of one launcher, which hold all ranks.
ONE_LAUNCHER = pl.LazyFrame({"attempt_local_rank": [0, 1, 2, 3]}, schema={"attempt_local_rank": pl.Int32()})


def test_ranks_of_one_launcher_share_a_clock_so_that_one_late_to_all_by_as_much_is_named() -> None:
    assert [f.ranks for f in straggler.check(lag(arrivals([60] * 12), None, ONE_LAUNCHER))] == [(2,)]
    assert [f.ranks for f in straggler.check(lag(arrivals([60] * 12)))] == []
    # Later than the collectives are apart no rank can be that waits for the others in each: that is a clock.
    assert [f.ranks for f in straggler.check(lag(arrivals([0] * 12, offset_ms=3_600_000), None, ONE_LAUNCHER))] == []


def test_of_two_that_share_a_clock_the_late_one_is_named() -> None:
    pair = pl.LazyFrame({"attempt_local_rank": [0, 1]}, schema={"attempt_local_rank": pl.Int32()})
    late = arrivals([90, 0] * 8, rank=1, ranks=2)
    assert [f.ranks for f in straggler.check(lag(late, None, pair))] == [(1,)]
    assert found(late) == [], "their clocks may differ"
    assert straggler.check(lag(arrivals([90, -90] * 8, rank=1, ranks=2), None, pair)) == [], "each in turn"
    # A pair of a larger job: who is late in it may have waited for another elsewhere.
    job = pl.concat([late, arrivals([0] * 16, ranks=3).with_columns(group_key=pl.lit("pg:1"))])
    three = pl.LazyFrame({"attempt_local_rank": [0, 1, 2]}, schema={"attempt_local_rank": pl.Int32()})
    assert straggler.check(lag(job, None, three)) == []


def test_a_rank_late_to_the_first_of_many_collectives_of_each_step_is_named() -> None:
    # Eight collectives a step, of which it delays one: 12 % of them, and nearly all the time that is lost.
    assert found(arrivals([300, 0, 0, 0, 0, 0, 0, 0] * 6)) == [(2,)]


def test_late_arrivals_that_fall_to_all_by_chance_name_nobody() -> None:
    # Everybody is late in turn; one of them by far the most, twice.
    late = [[9_000 if r == 0 and n in (8, 12) else 60 if n % 4 == r else 0 for n in range(20)] for r in range(4)]
    frame = operations({r: ["all_reduce"] * 20 for r in range(4)}).collect()
    shift = pl.Series([late[r][s - 1] for r, s in frame.select("rank", "seq").iter_rows()])
    assert found(frame.with_columns(created_ns=(pl.col("seq") * 1_000 + shift) * MS).lazy()) == []


def at_times(times: dict[int, list[int]]) -> pl.LazyFrame:
    """Collectives that each rank entered at these milliseconds."""
    frame = operations({r: ["all_reduce"] * len(own) for r, own in times.items()}).collect()
    created = [times[r][s - 1] for r, s in frame.select("rank", "seq").iter_rows()]
    return frame.with_columns(created_ns=pl.Series(created) * MS).lazy()


def in_steps(late_ms: int, steps: int) -> dict[int, list[int]]:
    """Steps of seven collectives, 1 s each, to the first of which rank 0 comes so late that the others wait for it."""
    late = [1_000 * step + late_ms + 5 * n for step in range(steps) for n in range(7)]
    waited = [at - (late_ms if n % 7 == 0 else 0) for n, at in enumerate(late)]
    return {0: late, 1: waited, 2: waited, 3: waited}


def test_a_rank_to_which_a_few_steps_lose_most_of_their_time_is_a_guess() -> None:
    [finding] = straggler.check(lag(at_times(in_steps(800, 3))))
    assert (finding.ranks, finding.severity, finding.confidence) == ((0,), "error", "low")
    assert found(at_times(in_steps(800, 2))) == [], "two of them are chance"
    assert found(at_times(in_steps(300, 3))) == [], "less than half of the time"


def test_of_a_few_late_arrivals_nobody_is_named_where_another_is_late_as_well() -> None:
    other = {rank: [at + (80 if rank == 3 and n in (8, 15) else 0) for n, at in enumerate(own)] for rank, own in in_steps(0, 3).items()}
    apart = at_times({1: other[1], 2: other[2], 3: other[3]}).with_columns(group_key=pl.lit("pg:1"))
    assert found(pl.concat([at_times(in_steps(800, 3)), apart])) == []


def test_the_first_to_be_up_is_not_late_to_what_follows() -> None:
    # Three collectives that nobody waited for, entered by rank 0 long before the others were up; then all are together.
    steps = [1000 + 400 * step + 5 * n for step in range(5) for n in range(3)]
    assert found(at_times({0: [0, 10, 20, *steps], 1: [300, 310, 320, *steps], 2: [305, 315, 325, *steps]})) == []
    # The same rank really late to the first operation of each step, which the others wait for.
    slow = [at + 200 for at in steps]
    waited = [at + (0 if n % 3 == 0 else 200) for n, at in enumerate(steps)]
    assert found(at_times({0: [0, 10, 20, *slow], 1: [300, 310, 320, *waited], 2: [305, 315, 325, *waited]})) == [(0,)]


def test_operations_that_nobody_waits_for_are_lost_time_once() -> None:
    # Six operations in a row, all of them 300 ms after the others' and a millisecond apart: 0.3 s in 3 s, to one arrival.
    rest = [1000 + 100 * n for n in range(20)]
    on_time, late = list(range(6)), [300 + n for n in range(6)]
    assert found(at_times({0: [*on_time, *rest], 1: [*late, *rest], 2: [*on_time, *rest]})) == []


def with_ends(frame: pl.LazyFrame, *, offset_ms: int, rank: int = 2, scatter_ms: int = 40) -> pl.LazyFrame:
    """All ranks notice the end of each operation 90 ms after its start, each at its own moment within ``scatter_ms``, by its own clock."""
    table = frame.collect()
    looks = [(7 * s + 3 * r) % 11 * scatter_ms // 10 + (offset_ms if r == rank else 0) for r, s in table.select("rank", "seq").iter_rows()]
    return table.with_columns(completed_ns=(pl.col("seq") * 100 + 90 + pl.Series(looks)) * MS).lazy()


def test_a_constant_lateness_is_told_from_a_clock_by_the_ends() -> None:
    assert found(with_ends(arrivals([150] * 40), offset_ms=0)) == [(2,)]
    # Without ends it may as well be the clock; and where the ends are off alike, it is.
    assert found(arrivals([150] * 40)) == []
    assert found(with_ends(arrivals([150] * 40), offset_ms=150)) == []


def test_ends_that_keep_step_with_the_job_tell_less() -> None:
    # The watchdog's looks may be off by half its interval and never vary: 80 ms could be that and a clock.
    assert found(with_ends(arrivals([80] * 40), offset_ms=0, scatter_ms=0)) == []
    assert found(with_ends(arrivals([150] * 40), offset_ms=0, scatter_ms=0)) == [(2,)]


def traced(rank: int, collectives: int = 12, worst_ms: float = 120.0) -> pl.LazyFrame:
    """A rank that the traces of a few steps show late, by so much that no chance is asked for."""
    row = {
        "worst_ms": worst_ms,
        "rank": rank,
        "members": 4,
        "collectives": collectives,
        "last_count": 4,
        "material": 8,
        "p_value": 0.2,
        "lost_ms": 350.0,
    }
    shares = {
        "lost_share": 0.96,
        "window_share": 0.5,
        "group_known": False,
        "group_key": "trace:all",
        "source_id": 7,
        "record": "traceEvents[5]",
    }
    return rows(LATE_RANKS, row | shares)


def test_a_rank_late_in_the_few_traced_steps_of_a_run_that_lost_little_to_it_is_not_named() -> None:
    once = lag(arrivals([200] + [0] * 59))
    assert list(straggler.check(once, traced(2))) == []
    # No recorder, one of as few collectives as were traced, or one that shows the same lateness.
    assert [f.ranks for f in straggler.check(None, traced(2))] == [(2,)]
    assert [f.ranks for f in straggler.check(lag(arrivals([200] + [0] * 11)), traced(2))] == [(2,)]
    assert [f.ranks for f in straggler.check(lag(arrivals([200, 0, 0, 0] * 15)), traced(2))] == [(2,)]


def test_who_is_late_to_what_the_others_wait_for_behind_their_own_work_only_is_not_named() -> None:
    late = lag(arrivals([200, 0, 0] * 8))
    shown = {"group_key": "trace:all:gloo", "rank": 2, "collectives": 12, "median_ms": 190.0, "lost_ms": 40.0, "window_ms": 2_000.0}
    assert list(straggler.check(late, trace_lag=rows(TRACE_LAG, shown))) == []
    # They wait for it, it is not late in the traced steps, or the trace is of another rank.
    for other in ({"lost_ms": 400.0}, {"median_ms": 20.0}, {"rank": 1}):
        assert [f.ranks for f in straggler.check(late, trace_lag=rows(TRACE_LAG, shown | other))] == [(2,)]


def test_one_slow_start_in_the_traced_steps_is_no_straggler() -> None:
    assert [f.ranks for f in straggler.check(None, traced(2, worst_ms=120.0))] == [(2,)]
    assert list(straggler.check(None, traced(2, worst_ms=200.0))) == []


def test_of_a_few_steps_with_one_collective_each_it_must_be_seen_what_the_late_rank_did() -> None:
    few = traced(2, collectives=5, worst_ms=220.0)
    known = few.with_columns(reason=pl.lit("compute"), reason_ms=pl.lit(340.0), reason_share=pl.lit(0.97))
    assert [(f.ranks, f.confidence) for f in straggler.check(None, known)] == [((2,), "medium")]
    assert list(straggler.check(None, few)) == []
    # Less than half of the time, two late arrivals, or one that makes up most of it.
    for less in (
        {"window_share": 0.4},
        {"last_count": 2},
        {"worst_ms": 300.0},
        {"collectives": 3},
        {"reason_share": 0.5},
        {"reason": "host"},
    ):
        assert list(straggler.check(None, known.with_columns(**{k: pl.lit(v) for k, v in less.items()}))) == []


def on_gpus(*waited_ms: float, steps: int = 5, **about: object) -> list[tuple[int, ...]]:
    """Ranks named of a job of one group, of which rank ``i`` waits for ``waited_ms[i]`` of 100 ms in each step."""
    late = {"group_key": "trace:0", "rank": 1, "only_group": True, "on_gpu": True, "lost_ms": 1.0, "lost_share": 0.5} | about
    lost = {"group_key": "trace:0", "collectives": 4 * steps, "window_ms": 100.0 * steps, "source_id": 0, "record": "traceEvents[9]"}
    shown = rows(TRACE_LAG, *(lost | {"rank": r, "waited_ms": w * steps} for r, w in enumerate(waited_ms)))
    each = [{"capture": 0, "step": s, "rank": r, "wait_ns": int(w * MS)} for s in range(steps) for r, w in enumerate(waited_ms)]
    found = straggler.check(None, rows(LATE_RANKS, late), trace_lag=shown, trace_arrivals=pl.LazyFrame(each))
    return [f.ranks for f in found]


def test_several_gpus_that_hardly_wait_while_every_other_waits_in_each_step_are_named() -> None:
    assert on_gpus(30, 1, 2, 31, 33, 30, 29) == [(1, 2)]
    # Half of them, one that waits for something in between, little time, two steps, another group, or no GPU.
    assert on_gpus(30, 1, 2, 31) == []
    assert on_gpus(30, 1, 2, 31, 12, 30, 29) == []
    assert on_gpus(12, 1, 2, 13, 12, 12) == []
    assert on_gpus(30, 1, 2, 31, 33, steps=2) == []
    assert on_gpus(30, 1, 2, 31, 33, only_group=False) == []
    assert on_gpus(30, 1, 2, 31, 33, on_gpu=False) == []
