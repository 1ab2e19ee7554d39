"""Collectives that every member entered and that do not end."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.divergence import DIVERGENCES
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.stuck import stuck, stuck_downstream
from nccl_forensics.views.wait_edges import WAITS
from tests.views.frames import groups, progress, rows, waits_of


def found(
    reached: dict[int, tuple[int, int | None]],
    members: list[int],
    size: int | None = None,
    comms: pl.LazyFrame | None = None,
    processes: pl.LazyFrame | None = None,
) -> list[tuple[object, ...]]:
    state = progress({"pg:0": reached})
    known = groups({"pg:0": members}).with_columns(size=pl.lit(size, pl.Int32), group_desc=pl.lit("default_pg"))
    edges = waits_of(None, state, known, None, None)
    return stuck(state, known, edges, comms, processes).select("seq", "op", "ranks", "complete").collect().rows()


def test_a_collective_that_all_entered_and_none_left_is_stuck() -> None:
    assert found({0: (6, 5), 1: (6, 5)}, [0, 1]) == [(6, "all_reduce", [0, 1], True)]


def test_a_rank_number_without_evidence_is_a_member_that_is_missing() -> None:
    assert found({0: (6, 5), 2: (6, 5), 3: (6, 5)}, [0, 2, 3]) == [(6, "all_reduce", [0, 2, 3], False)]


def test_whether_anything_states_the_size_of_the_group_is_told() -> None:
    for size, stated in ((None, False), (2, True)):
        state, known = progress({"pg:0": {0: (6, 5), 1: (6, 5)}}), groups({"pg:0": [0, 1]}).with_columns(size=pl.lit(size, pl.Int32))
        assert stuck(state, known, None, None, None).select("stated").collect().item() is stated


def test_where_calls_diverge_or_a_recorder_shows_who_is_behind_one_position_is_not_one_operation() -> None:
    state, known = progress({"pg:0": {0: (6, 5), 1: (6, 5)}}), groups({"pg:0": [0, 1]}).with_columns(size=pl.lit(2, pl.Int32))

    def found_beside(sure: bool, group: str = "pg:0") -> int:
        apart = rows(DIVERGENCES, {"domain": "fr", "group_key": group, "seq": 6, "kind": "skipped", "sure": sure, "ranks": [1]})
        return stuck(state, known, None, None, None, apart).collect().height

    assert (found_beside(True), found_beside(False), found_beside(True, "pg:7")) == (0, 1, 1)
    told = progress({"pg:0": {0: (6, 5), 1: (6, 5)}}, domain="watchdog")
    late = progress({"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5)}})
    both, members = pl.concat([late, told]), pl.concat([groups({"pg:0": [0, 1, 2]}), groups({"pg:0": [0, 1]}, domain="watchdog")])
    edges = waits_of(None, late, members, None, None)
    assert stuck(both, members, edges, None, None).collect().height == 0
    assert stuck(told, members, None, None, None).collect().height == 1


@pytest.mark.parametrize(("op", "over", "stands"), [("ALLTOALL_BASE", 5, 1), ("ALLTOALL_BASE", 6, 0), ("BROADCAST", 6, 1)])
def test_what_watchdogs_gave_up_and_a_later_recorder_shows_as_finished_is_not_stuck(op: str, over: int, stands: int) -> None:
    told = progress({"pg:0": {0: (6, 5), 1: (6, 5)}}, domain="watchdog").with_columns(pending_op=pl.lit(op))
    state = pl.concat([progress({"pg:0": {2: (over, over)}}), told])
    known = groups({"pg:0": [0, 1, 2]}, domain="watchdog")
    assert stuck(state, known, None, None, None).collect().height == stands


def test_it_bears_the_name_of_the_operation_that_is_open_and_not_of_one_enqueued_behind_it() -> None:
    state = progress({"pg:0": {0: (9, 5), 1: (9, 5)}}).with_columns(pending_op=pl.lit("broadcast"))
    assert stuck(state, groups({"pg:0": [0, 1]}), None, None, None).select("op").collect().item() == "broadcast"


def test_hosts_that_enqueued_further_than_others_stand_in_the_first_operation_that_nobody_finished() -> None:
    assert found({0: (9, 5), 1: (8, 5)}, [0, 1]) == [(6, "all_reduce", [0, 1], True)]


def test_with_a_member_missing_from_the_evidence_it_is_not_complete() -> None:
    assert found({0: (6, 5), 1: (6, 5)}, [0, 1, 2]) == [(6, "all_reduce", [0, 1], False)]
    assert found({0: (6, 5), 1: (6, 5)}, [0, 1], size=4) == [(6, "all_reduce", [0, 1], False)]


def test_whether_whom_all_wait_for_may_be_among_those_that_are_not_seen_is_told() -> None:
    def hidden(size: int | None, seen: int | list[int], world: int) -> bool:
        started = rows(PROCESSES_SCHEMA, *[{"rank": r} for r in range(world)])
        members = list(range(seen)) if isinstance(seen, int) else seen
        state, known = progress({"pg:1": dict.fromkeys(members, (6, 5))}), groups({"pg:1": members})
        known = known.with_columns(size=pl.lit(size, pl.Int32))
        return bool(stuck(state, known, None, None, started).select("hidden").collect().item())

    assert hidden(8, 4, 4)
    assert not hidden(8, 5, 5)
    assert not hidden(8, 8, 64), "a group of which all members are seen"
    assert hidden(None, 4, 64), "nothing states its size, and most of the job is not seen"
    apart = [r for r in range(64) if r not in (3, 20, 41)]
    assert not hidden(64, apart, 64), "files that are missing here and there"
    assert hidden(64, [*apart, 3], 64), "of two ranks that are not seen one may hold up all others"
    assert hidden(64, list(range(56)), 64), "a host of which nothing is seen"


def test_one_of_many_that_is_not_seen_lost_its_files_as_others_did() -> None:
    """Of 64 ranks one is not seen at all, and of four the recorder of this group is not there."""
    waiting, elsewhere = [r for r in range(64) if r not in (0, 1, 2, 20, 41)], [0, 1, 2, 41]
    known = groups({"pg:1": list(range(64))}).with_columns(size=pl.lit(64, pl.Int32))
    started = rows(PROCESSES_SCHEMA, *[{"rank": r} for r in range(64)])

    def hidden(others: list[int]) -> bool:
        state = progress({"pg:1": dict.fromkeys(waiting, (6, 5)), "pg:2": dict.fromkeys(others, (3, 3))})
        return bool(stuck(state, known, None, None, started).select("hidden").collect().item())

    assert not hidden(elsewhere)
    assert hidden([*elsewhere, 20]) is False, "all are seen somewhere"
    assert (
        stuck(progress({"pg:1": dict.fromkeys([r for r in range(64) if r != 20], (6, 5))}), known, None, None, started)
        .select("hidden")
        .collect()
        .item()
    ), "only that one left nothing"


def test_behind_a_rank_of_which_nothing_is_seen_it_is_not_sure() -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5)}, "pg:1": {1: (3, 2), 3: (3, 2)}})
    known = groups({"pg:0": [0, 1], "pg:1": [1, 2, 3]})
    rows = stuck(state, known, waits_of(None, state, known, None, None), None, None).select("group_key", "complete").collect().rows()
    assert rows == [("pg:0", False), ("pg:1", False)]


def test_what_all_gpus_have_begun_waits_for_nobody_of_whom_nothing_is_seen() -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5)}, "pg:1": {1: (3, 2), 3: (3, 2)}}).collect()
    known = groups({"pg:0": [0, 1], "pg:1": [1, 2, 3]})
    for states, complete in ((["started"] * 4, True), (["started", "scheduled"] * 2, False)):
        begun = state.with_columns(pl.Series("pending_state", states, dtype=pl.String)).lazy()
        rows = stuck(begun, known, waits_of(None, begun, known, None, None), None, None).select("group_key", "complete").collect().rows()
        assert rows == [("pg:0", complete), ("pg:1", False)]


def test_the_biggest_communicator_tells_how_many_ranks_the_default_group_has() -> None:
    world = rows(COMMS_SCHEMA, {"nranks": 4})
    assert found({0: (6, 5), 1: (6, 5)}, [0, 1], comms=world) == [(6, "all_reduce", [0, 1], False)]


def test_a_rank_that_only_the_launcher_names_is_in_the_default_group_too() -> None:
    started = rows(PROCESSES_SCHEMA, *[{"rank": r} for r in range(3)])
    assert found({0: (6, 5), 1: (6, 5)}, [0, 1], processes=started) == [(6, "all_reduce", [0, 1], False)]
    assert found(dict.fromkeys(range(3), (6, 5)), [0, 1, 2], processes=started) == [(6, "all_reduce", [0, 1, 2], True)]


def test_a_rank_that_never_entered_it_makes_it_a_wait() -> None:
    assert found({0: (6, 5), 1: (6, 5), 2: (5, 5)}, [0, 1, 2]) == []


def test_a_rank_that_finished_it_makes_it_a_wait() -> None:
    assert found({0: (7, 6), 1: (6, 5), 2: (6, 5)}, [0, 1, 2]) == []


def test_finished_work_and_a_single_rank_are_not_stuck() -> None:
    assert found({0: (6, 6), 1: (6, 6)}, [0, 1]) == []
    assert found({0: (6, 5)}, [0]) == []


def test_behind_a_rank_that_alone_has_not_finished_what_its_peers_have_it_is_not_sure() -> None:
    everyone = [0, 1, 2, 3]
    known = groups({"pg:0": everyone, "pg:tp": [0, 1]})
    level = {"pg:0": dict.fromkeys(everyone, (5, 4))}
    for tp, sure in (({0: (9, 7), 1: (9, 8)}, False), ({0: (9, 9), 1: (9, 9)}, True)):
        rows = stuck(progress(level | {"pg:tp": tp}), known, None, None, None).select("group_key", "complete").collect().rows()
        assert ("pg:0", sure) in rows, (
            "GPUs work off in order: what is enqueued behind a broadcast that one rank has not left never began there"
        )


def test_what_a_member_enqueued_behind_something_unfinished_of_another_group_is_not_known_to_be_reached() -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5)}})
    for first, whole in ((6, True), (4, False)):
        opened = state.with_columns(first_open=pl.when(pl.col("rank") == 1).then(pl.lit(first, pl.Int64)))
        rows = stuck(opened, groups({"pg:0": [0, 1]}).with_columns(size=pl.lit(2, pl.Int32)), None, None, None)
        assert rows.select("complete", "held").collect().rows() == [(whole, not whole)]


def test_what_begins_a_full_ring_is_not_the_first_that_is_open_where_counters_end_before_it() -> None:
    state, known = progress({"pg:1": {0: (9, 3), 1: (9, 3)}}), groups({"pg:1": [0, 1]})

    def held(first_pending: int, **dump: int) -> bool:
        stood = state.with_columns(first_pending=pl.lit(first_pending, pl.Int64))
        dumps = pl.LazyFrame({"rank": [0, 1], "use": "chosen", "entries": 3, "first_record_id": 40, "last_record_id": 42} | dump)
        return bool(stuck(stood, known, None, None, None, None, dumps).select("held").collect().item())

    assert held(7)
    assert not held(4), "the counters end right before it"
    assert not held(7, first_record_id=0, last_record_id=2), "a ring that holds all: a number may have no entry"
    assert not held(7, last_record_id=90), "it was asked for what is open alone"


def test_without_counters_a_full_ring_that_begins_with_what_is_open_may_have_lost_more_of_it() -> None:
    state, known = progress({"pg:1": {0: (9, None), 1: (9, None)}}), groups({"pg:1": [0, 1]})
    dumps = pl.LazyFrame({"rank": [0, 1], "use": "chosen", "entries": 3, "first_record_id": 40, "last_record_id": 42})
    for first_open, held in ((40, True), (41, False)):
        stood = state.with_columns(first_pending=pl.lit(7, pl.Int64), first_open=pl.lit(first_open, pl.Int64))
        assert stuck(stood, known, None, None, None, None, dumps).select("held").collect().item() is held


def test_a_collective_that_the_gpus_of_all_have_begun_says_so() -> None:
    known = groups({"pg:0": [0, 1]})
    for states, begun in ((["started", "started"], True), (["started", "scheduled"], False), ([None, None], False)):
        state = progress({"pg:0": {0: (6, 5), 1: (6, 5)}}).collect().with_columns(pl.Series("pending_state", states, dtype=pl.String))
        assert stuck(state.lazy(), known, None, None, None).select("begun").collect().item() is begun


@pytest.mark.parametrize(
    ("op", "reached", "size", "told"),
    [
        ("BROADCAST", {0: (9, 8), 1: (6, 4), 2: (8, 6)}, 3, [(5, [1], [0, 1, 2])]),
        ("BROADCAST", {0: (9, 8), 1: (6, 4), 2: (8, 6)}, 5, [(5, [1], [0, 1, 2])]),
        ("BROADCAST", {0: (9, 8), 1: (6, 4), 2: (8, 6)}, 6, []),
        ("BROADCAST", {0: (9, 8), 1: (6, 4), 2: (4, 4)}, 3, []),
        ("BROADCAST", {0: (6, 4), 1: (6, 4), 2: (6, 4)}, 3, []),
        ("ALLREDUCE", {0: (9, 8), 1: (6, 4), 2: (8, 6)}, 3, []),
    ],
    ids=["all are in", "most are seen", "half are not seen", "one is behind", "nobody left it", "ends on all together"],
)
def test_a_broadcast_that_ended_on_some_is_stuck_downstream(
    op: str, reached: dict[int, tuple[int, int | None]], size: int, told: list[tuple[object, ...]]
) -> None:
    state = progress({"pg:0": reached}, domain="watchdog").with_columns(pending_op=pl.lit(None, pl.String()), last_op=pl.lit(op))
    known = groups({"pg:0": [0, 1, 2]}, domain="watchdog").with_columns(size=pl.lit(size, pl.Int32))
    assert stuck_downstream(state, known, None, None, None, None).select("seq", "ranks", "entered").collect().rows() == told
    edge = rows(WAITS, {"domain": "watchdog", "group_key": "pg:0"})
    assert stuck_downstream(state, known, edge, None, None, None).collect().height == 0, "somebody waits for one that is behind"
