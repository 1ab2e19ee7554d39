"""Time that ranks spend by themselves, in a mesh of pairs and in traces."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.model import Culprit
from nccl_forensics.rules.straggler import straggler
from nccl_forensics.tables import TABLES
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.lag import lag
from nccl_forensics.views.own_time import OWN_TIME, own_time, trace_own_time
from nccl_forensics.views.trace_measures import MEASURES
from nccl_forensics.views.trace_ranks import TRACE_RANKS
from nccl_forensics.views.unheld_calls import UNHELD_CALLS
from tests.rules.host_frames import check
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
    """Steps of a collective in each group of each place in turn; ``rank`` works so long before the first place, all else takes
    ``usual_ms``."""
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
        (on("node1", "node1", "node2", "node2"), NO_HINTS),
        (on("node1", "node1", "node2", "node2"), HINTS),
        (on("node1", "node1", "node1", None), HINTS),
    ],
)
def test_clocks_of_several_hosts_are_not_compared(processes: pl.LazyFrame | None, hints: pl.LazyFrame) -> None:
    assert named(mesh(300), processes, hints) == []


def test_where_no_host_is_told_calls_in_a_row_show_that_ranks_share_a_clock() -> None:
    assert named(mesh(300), None, NO_HINTS) == [(1,)]
    # With another clock somebody goes on before the last one has come; steps that are long everywhere would hide that.
    ahead = pl.col("created_ns") + pl.when(pl.col("rank") == 1).then(250 * MS).otherwise(0)
    assert named(mesh(20).with_columns(created_ns=ahead), None, NO_HINTS) == []
    long_steps = stepped(dict.fromkeys(range(4), 0), (ROWS, COLUMNS), [600] * 12, 1, 150)
    assert named(long_steps) == [(1,)]
    assert named(long_steps, None, NO_HINTS) == []


def test_a_rank_without_a_recorder_may_be_what_the_others_wait_for() -> None:
    assert named(mesh(300).filter(pl.col("rank") != 1)) == []


def test_a_clock_that_is_ahead_is_no_late_rank() -> None:
    calls = operations({r: ["all_reduce"] * 20 for r in range(4)})
    even = calls.with_columns(created_ns=pl.col("order") * 80 * MS)
    ahead = even.with_columns(created_ns=pl.col("created_ns") + pl.when(pl.col("rank") == 3).then(3_600_000 * MS).otherwise(0))
    for ops in (even, ahead):
        rows_of_ranks = own_time(ops, groups({"pg:0": [0, 1, 2, 3]}), None, HINTS)
        assert straggler.check(None, None, rows_of_ranks) == []


#: Islands of two, and one group of three over the islands for each place in them: whoever is late makes its neighbour late in another
#: group.
ISLANDS, ACROSS = {"pg:i0": (0, 1), "pg:i1": (2, 3), "pg:i2": (4, 5)}, {"pg:a0": (0, 2, 4), "pg:a1": (1, 3, 5)}


def islands(slow_ms: list[int], *, rank: int = 5, start_ms: int = 0) -> pl.LazyFrame:
    """Steps of a collective in each island and one across; ``rank`` works so long before the first of each, the others 5 ms; rank 0 comes
    up late."""
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


#: One step: a root hands out parts, all collect them, all start together; ``slow`` comes late to the first.
KINDS = ("scatter", "all_gather", "barrier")
CALLS = {"source_id": pl.UInt32(), **TABLES["trace_collectives"].schema}


def traced(
    late_ms: list[int],
    *,
    slow: int = 1,
    root: int = 0,
    size: int = 4,
    seen: tuple[int, ...] = (0, 1, 2, 3),
    more: str | None = None,
    marked: bool = False,
) -> pl.LazyFrame:
    """View ``trace_own_time`` of steps in which only the root waits for the slow rank in the scatter, and the others in what follows;
    ``more``: one further operation of the root; ``marked``: its steps are."""
    made: list[dict[str, object]] = []
    for rank in seen:
        at = 0
        for step, late in enumerate(late_ms):
            held = {"scatter": late if rank == root else 1, "all_gather": 1 if rank in (slow, root) else late, "barrier": 1}
            for place, op in enumerate((*KINDS, more) if more and rank == root else KINDS):
                gap = late if rank == slow and op == "scatter" else 10
                at += gap * MS
                own: dict[str, object] = {"source_id": rank, "record": f"traceEvents[{step}{place}]", "ordinal": len(KINDS) * step + place}
                own["step"] = step if marked else None
                made.append(own | {"op": op, "start_ns": at, "duration_ns": held.get(op, 1) * MS, "since_ns": gap * MS})
                at += held.get(op, 1) * MS
    ranks = rows(TRACE_RANKS, *({"rank": r, "source_id": r, "world_size": size, "capture": 0} for r in seen))
    return trace_own_time(rows(CALLS, *made), ranks)


def told(own: pl.LazyFrame) -> list[tuple[int, ...]]:
    return [f.ranks for f in straggler.check(None, trace_own_time=own)]


STEPS = [300] * 6


def test_in_traces_the_rank_that_waits_in_nothing_is_named_although_it_is_last_out_of_nothing() -> None:
    [found] = straggler.check(None, trace_own_time=traced(STEPS))
    assert (found.ranks, found.confidence) == ((1,), "medium")
    assert told(traced(STEPS, slow=2)) == [(2,)]


def test_a_rank_that_works_alone_in_its_loader_is_told_so() -> None:
    def cause(slow: float, usual: float = 10.0) -> str | None:
        whole = {"window": "whole", "span_ms": 2000.0, "exposed_ms": 1500.0, "loader_ms": usual, "gc_ms": 0.0}
        kept = rows(MEASURES, *({"rank": r} | whole | ({"exposed_ms": 100.0, "loader_ms": slow} if r == 1 else {}) for r in range(4)))
        [found] = straggler.check(None, trace_own_time=traced(STEPS), trace_measures=kept)
        assert found.ranks == (1,)
        return found.cause

    assert cause(1300.0) == "input-stall"
    assert cause(400.0) == "straggler", "most of what it waits less lies elsewhere"
    assert cause(1300.0, usual=1250.0) == "straggler", "all load as long, while others already wait"


def test_three_marked_steps_are_told_as_a_guess_and_the_first_of_them_counts() -> None:
    [found] = straggler.check(None, trace_own_time=traced(STEPS[:3], marked=True))
    assert (found.ranks, found.confidence) == ((1,), "low")
    assert told(traced(STEPS[:3])) == [], "when the first began is not known"


def gaps(*of_ranks: list[float] | None) -> pl.LazyFrame:
    """View ``trace_own_time`` of ranks none of which is by itself for most of two seconds, with the longest time of each in each step."""
    known = {
        "collectives": 200,
        "own_ms": 900.0,
        "span_ms": 2000.0,
        "long_count": 0,
        "longest_ms": 300.0,
        "source_id": 0,
        "record": "traceEvents[1]",
    }
    return rows(OWN_TIME, *({"rank": r, "gaps_ms": own, **known} for r, own in enumerate(of_ranks)))


def test_a_time_that_is_many_times_the_longest_of_any_other_in_each_step_is_told() -> None:
    [two] = straggler.check(None, trace_own_time=traced(STEPS[:2], marked=True))
    assert (two.ranks, two.confidence) == ((1,), "low")
    [four] = straggler.check(None, trace_own_time=gaps([9.0] * 4, [290.0, 300.0, 250.0, 300.0], [9.0] * 4, [8.0] * 4))
    assert (four.ranks, four.confidence) == ((1,), "medium")
    [later] = straggler.check(None, trace_own_time=gaps([9.0] * 3, [9.0, 300.0, 310.0], [8.0] * 3))
    assert (later.ranks, later.confidence) == ((1,), "low"), "what is done at the end of a step shows in the next one"
    assert told(gaps([9.0] * 5, [8.0] * 5, [250.0, 300.0, 9.0, 300.0, 310.0])) == [(2,)], "one step of five may be another's"
    assert told(gaps(*([9.0] * 2 for _ in range(6)), [300.0, 290.0], [400.0, 350.0])) == [(6, 7)], "each may be late in a group of its own"


def test_a_long_time_in_some_steps_or_of_many_ranks_is_no_rule() -> None:
    assert told(gaps([9.0] * 3, [300.0, 9.0, 300.0], [9.0] * 3)) == []
    assert told(gaps([9.0] * 3, [300.0] * 3, [120.0] * 3)) == [], "not so much longer"
    assert told(gaps([9.0] * 3, [90.0] * 3, [9.0] * 3)) == [], "little of the window"
    assert told(gaps([9.0] * 2, [300.0] * 2, [300.0] * 2, [9.0] * 2)) == [], "half of the ranks"
    assert told(gaps([300.0], [9.0], [9.0])) == [], "one step"
    assert told(gaps([300.0] * 3, None, [9.0] * 3)) == [], "steps of which not all are marked"


def test_traces_of_ranks_that_work_alike_are_quiet() -> None:
    assert told(traced([10] * 12)) == []


def test_one_long_step_in_a_trace_is_no_rule() -> None:
    assert told(traced([10, 2000, 10, 10, 10, 10])) == []
    assert told(traced([10, 2000, 60, 60, 60, 60])) == []


def test_a_job_that_did_not_leave_all_its_traces_is_quiet() -> None:
    assert told(traced(STEPS, size=8)) == []
    assert told(traced(STEPS, seen=(0, 1, 2))) == []


def test_a_rank_with_other_collectives_is_by_itself_for_longer_by_right() -> None:
    assert told(traced(STEPS, more="broadcast")) == []


def test_stages_of_a_pipeline_may_send_and_receive_as_often_as_they_like() -> None:
    assert told(traced(STEPS, more="send")) == [(1,)]
    assert told(traced([10] * 12, more="recv")) == []


def shares(*own_ms: float, longest_ms: float = 300.0) -> pl.LazyFrame:
    """View ``trace_own_time`` of a window of two seconds."""
    known = {"collectives": 20, "span_ms": 2000.0, "long_count": 6, "longest_ms": longest_ms, "source_id": 0, "record": "traceEvents[1]"}
    return rows(OWN_TIME, *({"rank": r, "own_ms": own, **known} for r, own in enumerate(own_ms)))


def test_several_ranks_that_work_while_every_other_waits_are_named_together() -> None:
    [few] = straggler.check(None, trace_own_time=shares(1900, 100, 1700, 120, 90, 80))
    assert (few.ranks, few.confidence) == ((0, 2), "medium")
    [apart] = straggler.check(None, trace_own_time=shares(1740, 600, 1700, 690))
    assert (apart.ranks, apart.confidence) == ((0, 2), "low")
    [half] = straggler.check(None, trace_own_time=shares(1900, 100, 1700, 120))
    assert (half.ranks, half.confidence) == ((0, 2), "low")
    assert told(shares(1900, 1700, 1800, 120)) == [], "more than half are never the slow ones"
    assert told(shares(1700, 1200, 700, 120)) == [], "all differ"
    assert told(shares(1900, 100, 1700, 120, longest_ms=1600.0)) == [], "one long gap"
    # 1.6 s of 1.75 s, of which half a second went into one file before a barrier.
    known = {"collectives": 5, "span_ms": 1750.0, "source_id": 0, "record": "traceEvents[1]"}
    once = [(1644.0, 528.0, 5), (1085.0, 422.0, 4), (1095.0, 484.0, 4)]
    alike = [{"rank": r, "own_ms": own, "longest_ms": most, "long_count": n, **known} for r, (own, most, n) in enumerate(once)]
    assert told(rows(OWN_TIME, *alike)) == [], "one delay is no habit"


def test_who_computes_while_its_collectives_are_under_way_waits_in_none_of_them() -> None:
    """Ranks that begin an operation, work and wait for it; one began later than the others once."""
    made = []
    for rank, phase in ((0, 0), (1, 400), (2, 0)):
        for step in range(6):
            held = 100 if phase else 500
            row = {"source_id": rank, "record": f"traceEvents[{step}]", "ordinal": step, "step": step, "op": "all_reduce"}
            row |= {"start_ns": (600 * step + phase) * MS, "duration_ns": held * MS, "since_ns": (600 - held) * MS}
            made.append(row | {"stretch_ns": 20 * MS, "stretch_at_ns": (held - 20) * MS})
    ranks = rows(TRACE_RANKS, *({"rank": r, "source_id": r, "world_size": 3, "capture": 0} for r in range(3)))
    assert told(trace_own_time(rows(CALLS, *made), ranks)) == []
    blind = [row | {"stretch_ns": None, "stretch_at_ns": None} for row in made]
    assert told(trace_own_time(rows(CALLS, *blind), ranks)) == [(1,)]


def test_a_pause_of_all_is_no_time_of_anybody() -> None:
    def paused(slow_ms: int) -> pl.LazyFrame:
        first, again = stepped(dict.fromkeys(range(4), 0), (ROWS, COLUMNS), [20], 1, 20), [slow_ms] * 12
        clock = dict.fromkeys(range(4), 15_000)
        after = stepped(clock, (ROWS, COLUMNS), again, 1, 20).with_columns(pl.col("seq", "order") + 2)
        return pl.concat([first, after])

    assert named(paused(300)) == [(1,)]
    assert named(paused(20)) == []


def test_a_window_that_begins_later_holds_less_of_the_same_waits() -> None:
    def began_late(*others_ms: float) -> list[tuple[int, ...]]:
        known = {"collectives": 20, "long_count": 3, "longest_ms": 310.0, "source_id": 0, "record": "traceEvents[1]"}
        late = {"rank": 0, "own_ms": 930.0, "span_ms": 1000.0} | known
        return told(
            rows(OWN_TIME, late, *({"rank": r, "own_ms": own, "span_ms": 2000.0} | known for r, own in enumerate(others_ms, start=1)))
        )

    assert began_late(920.0, 900.0, 960.0) == [], "the others have as much time of their own, and waited for its profiler to start"
    assert began_late(120.0, 100.0, 160.0) == [(0,)]


def test_of_several_that_make_sends_which_no_recorder_holds_the_ones_that_no_look_finds_waiting_are_named() -> None:
    work = shares(1900, 100, 1700, 120, 90, 80)
    sends = rows(UNHELD_CALLS, *({"rank": r, "calls": 12} for r in range(6)))

    def judged(unheld: pl.LazyFrame | None, **waits: int) -> tuple[object, ...]:
        looks = pl.LazyFrame([{"rank": int(r[1:]), "waits": n, "runs": 0, "role": None} for r, n in waits.items()]) if waits else None
        given = {"own_time": work, "unheld_calls": unheld, "thread_states": looks}
        [finding] = check(straggler, **{name: frame for name, frame in given.items() if frame is not None})
        return finding.ranks, finding.culprits, finding.confidence

    assert judged(None)[0] == judged(sends.filter(pl.col("rank") != 2))[0] == (0, 2), "one of them waits in no send"
    assert judged(sends, r0=0, r2=2) == ((0,), (Culprit(rank=0),), "medium")
    assert judged(sends, r0=0, r2=0)[0] == (0, 2)
    assert judged(sends) == judged(sends, r0=0) == judged(sends, r0=1, r2=1) == ((), (), "low")


def test_of_ranks_that_no_look_finds_waiting_those_are_named_that_were_found_on_a_cpu() -> None:
    # A wait for a request leaves no frame.
    work = rows(
        OWN_TIME,
        *(
            {"rank": r, "collectives": 30, "own_ms": ms, "span_ms": 1000.0, "long_count": 9, "longest_ms": 100.0}
            for r, ms in enumerate((920.0, 60.0, 910.0, 50.0, 40.0, 30.0))
        ),
    )
    sends = rows(UNHELD_CALLS, *({"rank": r, "calls": 12} for r in range(6)))

    def judged(*runs: int) -> tuple[int, ...]:
        looks = pl.LazyFrame([{"rank": r, "waits": 0, "runs": n, "role": None} for r, n in zip((0, 2), runs, strict=True)])
        [finding] = check(straggler, own_time=work, unheld_calls=sends, thread_states=looks)
        return finding.ranks

    assert judged(2, 0) == (0,)
    assert judged(1, 1) == judged(0, 0) == (0, 2)


def test_of_ranks_that_come_late_together_the_one_at_work_is_named_where_a_send_may_hold_the_other() -> None:
    late = lag(stepped(dict.fromkeys(range(4), 0), ({"pg:0": (0, 1, 2, 3)},), [20] * 12, 0, 20), None, HINTS).with_columns(
        median_ms=pl.when(pl.col("rank") < 2).then(90.0).otherwise(0.0), span_ms=pl.lit(2000.0)
    )
    sends = rows(UNHELD_CALLS, {"rank": 0, "calls": 12}, {"rank": 1, "calls": 12})
    looks = pl.LazyFrame([{"rank": 0, "waits": 1, "runs": 0, "role": None}, {"rank": 1, "waits": 0, "runs": 0, "role": None}])
    [finding] = check(straggler, lag=late, unheld_calls=sends, thread_states=looks)
    assert (finding.ranks, finding.confidence) == ((1,), "low")
    assert check(straggler, lag=late, unheld_calls=sends) == [], "nothing tells which"
    assert check(straggler, lag=late, thread_states=looks) == []
    assert check(straggler, lag=late.with_columns(median_ms=pl.col("median_ms") / 3), unheld_calls=sends, thread_states=looks) == []


def test_of_two_the_one_that_works_while_the_other_waits_is_told_at_low_confidence() -> None:
    [one] = straggler.check(None, trace_own_time=shares(100, 1900))
    assert (one.ranks, one.confidence) == ((1,), "low")
    assert told(shares(900, 1300)) == []
