"""Who waits for whom, and who is at the end of the walk."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.blockers import blockers
from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.stuck import STUCK
from tests.views.frames import groups, operations, progress, rows, waits_of


def ends(last: dict[str, dict[int, tuple[int, int | None]]], members: dict[str, list[int]]) -> list[tuple[int, str, list[int]]]:
    state = progress(last)
    edges = waits_of(operations({}), state, groups(members), None, None)
    found = blockers(edges.collect().lazy(), state, None).collect()
    return [(r["rank"], r["kind"], r["waiters"]) for r in found.iter_rows(named=True)]


def test_ranks_that_are_level_wait_for_nobody() -> None:
    assert ends({"pg:0": {0: (5, 5), 1: (5, 5)}}, {"pg:0": [0, 1]}) == []


def test_the_rank_that_never_entered_is_at_the_end() -> None:
    assert ends({"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5)}}, {"pg:0": [0, 1, 2]}) == [(2, "behind", [0, 1])]


def test_a_rank_whose_log_was_cut_off_with_a_full_buffer_may_have_entered_what_its_peers_did() -> None:
    state = progress({"0x1": {0: (6, None), 1: (6, None), 2: (5, None)}}, domain="nccl")
    cut = pl.LazyFrame({"rank": [2]}, schema={"rank": pl.Int32()})
    known = groups({"0x1": [0, 1, 2]}, domain="nccl")
    awaited = [
        waits_of(None, state, known, None, None, cut_logs=logs).select("awaited").collect()["awaited"].to_list() for logs in (None, cut)
    ]
    assert awaited == [[2, 2], []]


def test_a_chain_across_groups_leads_to_its_last_rank() -> None:
    last = {"pg:a": {0: (3, 2), 1: (2, 2)}, "pg:b": {1: (7, 6), 2: (6, 6)}}
    assert ends(last, {"pg:a": [0, 1], "pg:b": [1, 2]}) == [(2, "behind", [0, 1])]


def test_a_gpu_that_stands_still_is_told_from_a_rank_that_never_came() -> None:
    last = {"pg:0": {0: (9, 8), 1: (9, 8), 2: (8, 5)}}
    assert ends(last, {"pg:0": [0, 1, 2]}) == [(2, "gpu", [0, 1])]


def test_dumps_asked_for_one_after_the_other_while_a_job_goes_on_show_nobody_that_waits() -> None:
    moving = {0: (9, 5), 1: (9, 5), 2: (8, 6), 3: (9, 6), 4: (9, 7), 5: (8, 7)}
    assert ends({"pg:0": moving}, {"pg:0": list(moving)}) == []
    # One GPU that stands, and a watchdog that noticed late, among ranks that have all finished the same.
    stands = {0: (9, 7), 1: (9, 7), 2: (8, 5), 3: (9, 7), 4: (9, 6), 5: (9, 7), 6: (9, 7)}
    assert (2, "gpu") in [(rank, kind) for rank, kind, _ in ends({"pg:0": stands}, {"pg:0": list(stands)})]


def test_recorders_looked_at_while_the_whole_job_moved_show_nobody_that_waits_in_a_small_group_either() -> None:
    behind = {0: (9, 8), 1: (9, 8), 2: (8, 5)}
    members = {"pg:0": list(range(9)), "pg:1": [0, 1, 2]}
    moved = {rank: (9, done) for rank, done in enumerate((5, 6, 7, 8, 5, 6, 7, 8, 4))}
    assert ends({"pg:0": moved, "pg:1": behind}, members) == []
    # Of a job that stands most have finished the same.
    stood = {rank: (9, done) for rank, done in enumerate((8, 8, 5, 8, 8, 8, 7, 6, 8))}
    assert (2, "gpu") in [(rank, kind) for rank, kind, _ in ends({"pg:0": stood, "pg:1": behind}, members)]


def test_a_sender_that_is_done_with_a_broadcast_says_nothing_of_the_receivers_gpu() -> None:
    state = progress({"pg:0": {0: (9, 8), 1: (9, 8), 2: (8, 5)}})
    calls = operations({r: ["broadcast"] * 9 for r in range(3)})
    assert waits_of(calls, state, groups({"pg:0": [0, 1, 2]}), None, None).filter(pl.col("kind") == "gpu").collect().height == 0


def test_a_collective_that_all_must_join_shows_the_gpu_that_stands_before_a_broadcast() -> None:
    state = progress({"pg:0": {0: (9, 8), 1: (9, 8), 2: (9, 5)}})
    calls = operations({r: ["all_reduce"] * 5 + ["broadcast", "all_reduce", "broadcast", "broadcast"] for r in range(3)}, done=8)
    found = waits_of(calls, state, groups({"pg:0": [0, 1, 2]}), None, None).filter(pl.col("kind") == "gpu").collect()
    assert found.select("waiter", "awaited", "seq", "op", "behind").rows() == [(0, 2, 7, "all_reduce", 2), (1, 2, 7, "all_reduce", 2)]


def test_what_a_peer_is_done_with_is_named_by_the_rank_that_has_it_open() -> None:
    """Dumps of what is open alone: ranks 0 and 1 hold #9 and rank 2 all from #6 on."""

    def found(*calls: str) -> list[tuple[object, ...]]:
        state = progress({"pg:0": {0: (9, 8), 1: (9, 8), 2: (9, 5)}})
        opened = pl.concat([operations({r: ["all_reduce"]}, first=9) for r in (0, 1)] + [operations({2: list(calls)}, first=6)])
        held = waits_of(opened.with_columns(done=False), state, groups({"pg:0": [0, 1, 2]}), None, None)
        return held.filter(pl.col("kind") == "gpu").select("awaited", "seq", "op", "behind").unique().collect().rows()

    assert found("all_gather", "all_reduce", "broadcast", "all_reduce") == [(2, 6, "all_gather", 3)]
    assert found("broadcast", "all_gather", "broadcast", "all_reduce") == [(2, 7, "all_gather", 2)]
    assert found("broadcast", "broadcast", "broadcast", "all_reduce") == []


def test_a_rank_whose_own_watchdog_timed_out_has_open_work_though_nothing_tells_what_it_completed() -> None:
    state = progress({"pg:0": {0: (3, 1), 1: (1, None)}}, domain="watchdog").with_columns(
        first_pending=pl.when(pl.col("rank") == 1).then(pl.lit(1, dtype=pl.Int64)).otherwise(pl.col("first_pending"))
    )
    edges = waits_of(None, state, groups({"pg:0": [0, 1]}, domain="watchdog"), None, None)
    [found] = blockers(edges, state, None).collect().to_dicts()
    assert (found["rank"], found["kind"], found["pending"]) == (1, "behind", True)
    silent = state.with_columns(first_pending=pl.lit(None, dtype=pl.Int64))
    [unknown] = blockers(waits_of(None, silent, groups({"pg:0": [0, 1]}, domain="watchdog"), None, None), silent, None).collect().to_dicts()
    assert (unknown["rank"], unknown["pending"]) == (1, None)


def test_what_a_ranks_recorder_holds_is_told_before_the_count_of_its_watchdog() -> None:
    reached = {0: (9, 8), 1: (9, 8), 2: (9, 6)}
    counted = progress({"pg:0": reached}, domain="watchdog").with_columns(
        source_id=pl.lit(7, dtype=pl.UInt32), record=pl.lit(None, pl.String), last_created_ns=pl.lit(None, pl.Int64)
    )
    state = pl.concat([progress({"pg:0": reached}), counted])
    [found] = blockers(waits_of(None, state, groups({"pg:0": [0, 1, 2]}), None, None), state, None).collect().to_dicts()
    assert (found["rank"], found["kind"], found["own_source_id"], found["own_record"]) == (2, "gpu", 2, "entries[9]")


def test_a_circle_is_named_where_nobody_is_free() -> None:
    last = {"pg:a": {0: (2, 1), 1: (1, 1)}, "pg:b": {0: (1, 1), 1: (2, 1)}}
    found = ends(last, {"pg:a": [0, 1], "pg:b": [0, 1]})
    assert [(rank, kind) for rank, kind, _ in found] == [(0, "cycle"), (1, "cycle")]


def test_a_member_without_evidence_is_unseen_and_not_behind() -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5)}})
    edges = waits_of(operations({}), state, groups({"pg:0": [0, 1, 2]}), None, None).collect()
    assert set(edges["kind"]) == {"unseen"}
    assert set(edges["awaited"]) == {2}


def test_who_waits_in_something_before_waits_for_no_member_without_evidence() -> None:
    def awaited(first_open: int | None) -> set[int]:
        state = progress({"pg:0": {0: (6, 5), 1: (6, 5)}}).with_columns(
            first_open=pl.lit(first_open, pl.Int64), pending_order=pl.lit(60, pl.Int64)
        )
        return set(waits_of(operations({}), state, groups({"pg:0": [0, 1, 2]}), None, None).collect()["awaited"].to_list())

    assert awaited(60) == awaited(None) == {2}
    assert awaited(59) == set(), "what they have open first is of another group"


def test_a_member_without_a_dump_whose_watchdog_shows_it_in_the_same_operation_is_not_waited_for() -> None:
    recorded = progress({"pg:0": {0: (7, 5), 1: (7, 5)}})
    members = groups({"pg:0": [0, 1, 2, 3]})

    def awaited(last: int) -> set[int]:
        state = pl.concat([recorded, progress({"pg:0": {2: (last, 5)}}, domain="watchdog")])
        edges = waits_of(operations({}), state, members, None, None).filter(pl.col("domain") == "fr")
        return set(edges.collect()["awaited"].to_list())

    assert awaited(6) == {3}, "it stands where the others wait, however far ahead these enqueued"
    assert awaited(5) == {2, 3}, "it never came to it"


def test_a_rank_whose_recorder_lacks_the_first_operation_of_its_group_never_came_to_it() -> None:
    everybody = {"pg:b": dict.fromkeys(range(3), (3, 3))}
    members = {"pg:a": [0, 1, 2], "pg:b": [0, 1, 2]}
    assert ends({"pg:a": {0: (1, 0), 1: (1, 0)}} | everybody, members) == [(2, "behind", [0, 1])]
    # Later in the life of the group its entry may be lost; of a rank without a recorder nothing is known.
    assert ends({"pg:a": {0: (6, 5), 1: (6, 5)}} | everybody, members) == [(2, "unseen", [0, 1])]
    assert ends({"pg:a": {0: (1, 0), 1: (1, 0)}}, members) == [(2, "unseen", [0, 1])]


def test_a_dump_of_what_is_open_alone_lacks_what_its_rank_never_entered() -> None:
    members = {"pg:a": [0, 1, 2], "pg:b": [0, 1, 2]}
    state = progress({"pg:a": {0: (6, 5), 1: (6, 5)}, "pg:b": dict.fromkeys(range(3), (4, 3))}).with_columns(
        first_open=pl.lit(7, pl.Int64())
    )

    def found(state: pl.LazyFrame) -> list[tuple[object, ...]]:
        edges = waits_of(operations({}), state, groups(members), None, None).collect()
        return edges.filter(pl.col("group_key") == "pg:a").select("waiter", "awaited", "kind", "seq").rows()

    assert found(state) == [(0, 2, "behind", 6), (1, 2, "behind", 6)]
    # A broadcast ends on whoever sends before the others have it.
    one_way = state.with_columns(pending_op=pl.lit("broadcast"))
    assert found(one_way) == [(0, 2, "unseen", 6), (1, 2, "unseen", 6)]
    # One alone whose GPU stands after the others' are done with it has it open as well.
    alone = state.filter((pl.col("group_key") == "pg:b") | (pl.col("rank") == 0))
    assert found(alone) == []


@pytest.mark.parametrize(("entries", "library", "kind"), [(0, "2.27.5", "behind"), (3, "2.27.5", "unseen"), (0, "", "unseen")])
def test_a_dump_that_holds_no_operation_says_that_its_rank_has_nothing_open(entries: int, library: str, kind: str) -> None:
    # Of a recorder whose entries are not known, and of gloo's, which marks nothing as completed, nothing is told.
    looked = {"rank": 2, "use": "chosen", "entries": entries, "comm_lib_version": library, "version_major": 2, "version_minor": 9}
    schema = {"source_id": pl.UInt32(), "rank": pl.Int32(), "use": pl.String(), "entries": pl.UInt32(), "comm_lib_version": pl.String()}
    dumps = rows(schema | {"version_major": pl.Int32(), "version_minor": pl.Int32()}, looked | {"source_id": 2})
    state = progress({"pg:a": {0: (6, 5), 1: (6, 5)}})
    edges = waits_of(operations({}), state, groups({"pg:a": [0, 1, 2]}), None, None, dumps).collect()
    assert edges.select("waiter", "awaited", "kind", "seq").rows() == [(0, 2, kind, 6), (1, 2, kind, 6)]


def walked(last: dict[str, dict[int, tuple[int, int | None]]], members: dict[str, list[int]]) -> list[tuple[int, str, bool]]:
    state = progress(last)
    edges = waits_of(operations({}), state, groups(members), None, None)
    return [(r["rank"], r["kind"], r["walked"]) for r in blockers(edges.collect().lazy(), state, None).collect().iter_rows(named=True)]


def test_the_walk_goes_on_to_a_rank_without_evidence() -> None:
    # 0 waits for 1 in a; 1 and 2 wait in b, of which rank 3 has no evidence.
    last = {"pg:a": {0: (3, 2), 1: (2, 2)}, "pg:b": {1: (7, 6), 2: (7, 6)}}
    assert walked(last, {"pg:a": [0, 1], "pg:b": [1, 2, 3]}) == [(3, "unseen", True), (1, "passed", False)]


def test_a_rank_without_evidence_is_not_walked_to_where_all_the_others_are_level() -> None:
    assert walked({"pg:0": {0: (6, 5), 1: (6, 5)}}, {"pg:0": [0, 1, 2]}) == [(2, "unseen", False)]


def test_waits_from_several_groups_meet_in_a_rank_without_evidence() -> None:
    last = {"pg:a": {0: (6, 5), 1: (6, 5)}, "pg:b": {3: (6, 5), 4: (6, 5)}}
    assert walked(last, {"pg:a": [0, 1, 2], "pg:b": [2, 3, 4]}) == [(2, "unseen", True)]


def test_a_stack_in_the_last_operation_of_a_group_seen_by_nobody_else_leads_to_its_members() -> None:
    # Rank 1 is behind in a, and stands in b's operation; gloo marks nothing as completed.
    state = progress({"pg:a": {0: (3, None), 1: (2, None)}, "pg:b": {1: (7, None)}})
    calls = rows(
        LAST_CALLS, {"rank": 1, "place": "collective", "op": "all_reduce", "user_frame": "step of pg:b (train.py:1)", "witness": "stack"}
    )
    known = groups({"pg:a": [0, 1], "pg:b": [1, 2]})
    found = blockers(waits_of(operations({}), state, known, None, calls).collect().lazy(), state, None).collect()
    assert found.select("rank", "kind", "walked").rows() == [(2, "unseen", True), (1, "passed", False)]
    without = blockers(waits_of(operations({}), state, known, None, None).collect().lazy(), state, None).collect()
    assert without.select("rank", "kind").rows() == [(1, "behind")]


def test_stacks_in_the_last_operation_of_all_who_are_seen_of_a_group_lead_to_its_other_members() -> None:
    # Recorders of gloo mark an operation that failed as over: by them 0 and 1 are done with what 2 has never come to.
    known = groups({"pg:a": [0, 1, 2], "pg:b": [0, 1, 2, 3]})

    def found(*stands: str, ahead: int = 3) -> set[tuple[int, int, str]]:
        state = progress({"pg:a": {0: (3, None), 1: (ahead, None)}, "pg:b": {0: (1, None), 1: (1, None), 3: (2, None)}})
        seen = [{"rank": r, "place": "collective", "witness": "stack", "user_frame": f} for r, f in enumerate(stands)]
        edges = waits_of(None, state, known, None, rows(LAST_CALLS, *seen)).filter(pl.col("kind") == "unseen").collect()
        return set(edges.select("waiter", "awaited", "group_key").iter_rows())

    here = "step of pg:a (train.py:1)"
    assert found(here, here) == {(0, 2, "pg:a"), (1, 2, "pg:a")}
    # One that went on, or came further, was let out of it by all.
    assert found(here, "save (train.py:9)") == set()
    assert found(here, here, ahead=4) == set()


def test_nothing_is_known_of_what_a_peer_without_evidence_posted() -> None:
    state = progress({"pg:0": {0: (2, 1)}})
    sends = operations({0: ["recv"]}).with_columns(is_p2p=pl.lit(True), peer=pl.lit(1, pl.Int32()), done=pl.lit(False))
    edges = waits_of(sends, state, groups({"pg:0": [0, 1]}), None, None).collect()
    assert edges.select("waiter", "awaited", "kind").rows() == [(0, 1, "unseen")]


def pair(first: str, second: str) -> pl.LazyFrame:
    """Ranks 0 and 1 that each begin with one call to the other."""
    calls = operations({0: [first], 1: [second]})
    return calls.with_columns(
        is_p2p=pl.lit(True), peer=(1 - pl.col("rank")).cast(pl.Int32), done=pl.lit(False), created_ns=pl.lit(2_000, pl.Int64)
    )


def test_two_ranks_that_both_send_first_wait_for_each_other() -> None:
    state, known = progress({"pg:0": {0: (1, 0), 1: (1, 0)}}), groups({"pg:0": [0, 1]})

    def cycles(calls: pl.LazyFrame) -> list[tuple[int, str]]:
        edges = waits_of(calls, state, known, None, None).collect().lazy()
        return blockers(edges, state, None).collect().select("rank", "kind").rows()

    assert cycles(pair("send", "send")) == [(0, "cycle"), (1, "cycle")]
    assert cycles(pair("recv", "recv")) == [(0, "cycle"), (1, "cycle")]
    assert cycles(pair("send", "recv")) == []


def in_order(own: dict[int, list[tuple[str, int]]]) -> pl.LazyFrame:
    """Single sends and receives of ranks, in order: the call and its peer. None of them is completed."""
    return pl.concat(
        [
            operations({rank: [op for op, _ in calls]}).with_columns(
                is_p2p=pl.lit(True),
                peer=pl.Series([peer for _, peer in calls], dtype=pl.Int32),
                done=pl.lit(False),
                created_ns=1_000 * (1 + pl.col("order")),
            )
            for rank, calls in own.items()
        ]
    )


@pytest.mark.parametrize(
    ("members", "circle"), [([0, 1], []), ([0, 1, 2], [(0, "cycle"), (1, "cycle")])], ids=["a pair", "three that number apart"]
)
def test_a_receive_whose_send_is_over_waits_for_nobody(members: list[int], circle: list[tuple[int, str]]) -> None:
    calls = in_order({0: [("send", 1), ("recv", 1)], 1: [("recv", 0), ("send", 0)]})
    over = (pl.col("rank") == 0) & (pl.col("seq") == 1)
    state, known = progress({"pg:0": {0: (1, 0), 1: (1, 0)}}), groups({"pg:0": members})
    edges = waits_of(calls.with_columns(done=over), state, known, None, None).filter(pl.col("kind") == "p2p").collect().lazy()
    assert blockers(edges, state, None).collect().select("rank", "kind").rows() == circle


def test_whoever_waits_for_a_send_behind_a_receive_that_never_ends_waits_for_that_circle() -> None:
    receives_first = {1: [("recv", 2), ("send", 2), ("send", 0)], 2: [("recv", 1), ("send", 1)]}
    state, known = progress({"pg:0": dict.fromkeys(range(3), (1, 0))}), groups({"pg:0": [0, 1, 2]})

    def edges(own: dict[int, list[tuple[str, int]]]) -> list[tuple[int, int]]:
        return waits_of(in_order(own), state, known, None, None).select("waiter", "awaited").collect().rows()

    assert edges({0: [("recv", 1)]} | receives_first) == [(0, 1), (1, 2), (2, 1)]
    # Both halves stand first: what holds them is no other call.
    assert edges({0: [("recv", 1)], 1: [("send", 0), ("recv", 2)], 2: [("send", 1)]}) == [(2, 1)]


def test_whoever_waits_for_one_that_waits_in_a_receive_waits_for_the_work_before_the_send() -> None:
    """Rank 0 sends to 1, which still receives from 2, whose send stands behind a gather of another group."""
    state, known = progress({"pg:0": dict.fromkeys(range(3), (1, 0))}), groups({"pg:0": [0, 1, 2]})

    def edges(behind: bool) -> list[tuple[int, int]]:
        pairs = in_order({0: [("send", 1)], 1: [("recv", 2), ("recv", 0)], 2: [("send", 1)]})
        gather = operations({2: ["all_gather"]}, group="pg:1").with_columns(
            done=pl.lit(False), peer=pl.lit(None, pl.Int32), created_ns=pl.lit(1 if behind else 1_000_000, pl.Int64)
        )
        calls = pl.concat([pairs, gather], how="diagonal_relaxed")
        return waits_of(calls, state, known, None, None).select("waiter", "awaited").collect().rows()

    assert edges(behind=True) == [(0, 1), (1, 2)]
    assert edges(behind=False) == [(0, 1)], "both halves stand first: what holds them is no other call"


@pytest.mark.parametrize(("inside", "named"), [([3, 4], [1, 2]), ([3, 5], [4])])
def test_a_circle_holds_up_who_stands_with_all_of_another_group(inside: list[int], named: list[int]) -> None:
    """Rank 0 waits for 4, and ranks 1 and 2 both receive first; group b stands in one operation."""
    calls = in_order({1: [("recv", 1), ("send", 1)], 2: [("recv", 0), ("send", 0)]})  # peers by their place in the group
    state = progress({"pg:0": dict.fromkeys((1, 2), (1, 0)), "pg:a": {0: (2, 1), 4: (1, 1)}, "pg:b": dict.fromkeys((3, 4), (7, 6))})
    state = state.with_columns(last_created_ns=pl.when(pl.col("group_key") == "pg:b").then(9_000).otherwise(1_000).cast(pl.Int64))
    edges = waits_of(calls, state, groups({"pg:0": [1, 2], "pg:a": [0, 4], "pg:b": [3, 4]}), None, None).collect().lazy()
    stands = rows(STUCK, {"domain": "fr", "group_key": "pg:b", "seq": 7, "ranks": inside, "size": 2})
    assert blockers(edges, state, None, stands).collect()["rank"].to_list() == named


@pytest.mark.parametrize(("inside", "named"), [([1, 4], [1, 2]), ([3, 4], [4])])
def test_whoever_entered_what_one_of_a_circle_entered_too_is_held_up_there_though_it_enqueued_more(
    inside: list[int], named: list[int]
) -> None:
    """Rank 0 waits for 4, whose latest operation is another one than that in which it stands; ranks 1 and 2 both receive first."""
    calls = in_order({1: [("recv", 1), ("send", 1)], 2: [("recv", 0), ("send", 0)]})  # peers by their place in the group
    state = progress({"pg:0": dict.fromkeys((1, 2), (1, 0)), "pg:a": {0: (2, 1), 4: (1, 1)}, "pg:b": dict.fromkeys(inside, (7, 6))})
    state = state.with_columns(last_created_ns=pl.when(pl.col("group_key") == "pg:a").then(9_000).otherwise(1_000).cast(pl.Int64))
    edges = waits_of(calls, state, groups({"pg:0": [1, 2], "pg:a": [0, 4], "pg:b": inside}), None, None).collect().lazy()
    stands = rows(STUCK, {"domain": "fr", "group_key": "pg:b", "seq": 7, "ranks": inside, "size": 2, "held": True})
    assert blockers(edges, state, None, stands).collect()["rank"].to_list() == named


@pytest.mark.parametrize(("first", "kinds"), [("recv", ["cycle", "cycle", "passed"]), ("send", ["unseen", "passed"])])
def test_two_that_receive_first_never_end_whoever_else_is_missing(first: str, kinds: list[str]) -> None:
    """Rank 0 waits for 3, which waits for 4, of which nothing is seen."""
    other = "send" if first == "recv" else "recv"
    calls = in_order({1: [("recv", 1), ("send", 1)], 2: [(first, 0), (other, 0)]})
    state = progress({"pg:0": dict.fromkeys((1, 2), (1, 0)), "pg:a": {0: (2, 1), 3: (1, 1)}, "pg:b": {3: (7, 6), 5: (7, 6)}})
    edges = waits_of(calls, state, groups({"pg:0": [1, 2], "pg:a": [0, 3], "pg:b": [3, 4, 5]}), None, None).collect().lazy()
    assert blockers(edges, state, None, rows(STUCK)).collect()["kind"].to_list() == kinds


def test_positions_are_not_compared_where_batches_of_sends_take_numbers_of_collectives() -> None:
    state, known = progress({"pg:0": {0: (9, 8), 1: (9, 8), 2: (6, 5)}}), groups({"pg:0": [0, 1, 2]})

    def edges(first: int, step: int) -> int:
        batches = operations({0: ["coalesced"] * 3}).with_columns(
            is_p2p=pl.lit(True), seq=first + step * pl.col("order"), done=pl.lit(True)
        )
        return waits_of(batches, state, known, None, None).collect().height

    assert edges(0, 0) == 0
    assert edges(1, 1) == 2, "what has numbers of its own takes none"


def test_a_circle_is_told_by_what_its_ranks_wait_in_for_each_other() -> None:
    calls = in_order({1: [("recv", 2), ("send", 2)], 2: [("recv", 1), ("send", 1)]})
    state = progress({"pg:0": dict.fromkeys(range(3), (1, 0)), "pg:all": {0: (2, 1), 1: (1, 1), 2: (1, 1)}})
    known = groups({"pg:0": [0, 1, 2], "pg:all": [0, 1, 2]})
    found = blockers(waits_of(calls, state, known, None, None).collect().lazy(), state, None).collect()
    assert found.select("rank", "kind", "op").rows() == [(1, "cycle", "recv"), (2, "cycle", "recv")]


def test_a_gpu_that_several_overtook_in_what_all_must_join_is_stuck_although_it_waits_elsewhere() -> None:
    # In a, ranks 1-3 finished what 0 did not; in b, ranks 0, 2 and 3 finished what 1 did not: two GPUs stand still.
    last = {
        "pg:a": {0: (9, 5), 1: (9, 8), 2: (9, 8), 3: (9, 8)},
        "pg:b": {0: (7, 6), 1: (7, 3), 2: (7, 6), 3: (7, 6)},
    }
    found = ends(last, {"pg:a": [0, 1, 2, 3], "pg:b": [0, 1, 2, 3]})
    assert [(rank, kind) for rank, kind, _ in found] == [(0, "gpu"), (1, "gpu")]


def test_a_group_where_half_wait_for_the_other_half_has_no_square_of_edges_and_forgets_nobody() -> None:
    n = 2000
    early, late = list(range(n // 2)), list(range(n // 2, n))
    state = progress({"pg:0": dict.fromkeys(early, (6, 5)) | dict.fromkeys(late, (5, 5))})
    edges = waits_of(operations({}), state, groups({"pg:0": list(range(n))}), None, None).collect()
    assert edges.height < 70_000 < len(early) * len(late)
    assert sorted(edges["waiter"].unique().to_list()) == early
    assert sorted(edges["awaited"].unique().to_list()) == late
    assert edges.unique(["waiter", "awaited"]).height == edges.height
    found = blockers(edges.lazy(), state, None).collect()
    assert [(r, k) for r, k in found.select("rank", "kind").iter_rows()] == [(r, "behind") for r in late]


def test_one_rank_that_all_others_of_a_large_group_wait_for_keeps_all_its_waiters() -> None:
    n = 2000
    state = progress({"pg:0": dict.fromkeys(range(n), (6, 5)) | {7: (5, 5)}})
    edges = waits_of(operations({}), state, groups({"pg:0": list(range(n))}), None, None)
    [row] = blockers(edges.collect().lazy(), state, None).collect().to_dicts()
    assert (row["rank"], len(row["waiters"]), len(row["direct_waiters"])) == (7, n - 1, n - 1)


def test_many_members_without_evidence_have_no_square_of_edges() -> None:
    n = 2000
    state = progress({"pg:0": dict.fromkeys(range(n // 2), (6, 5))})
    edges = waits_of(operations({}), state, groups({"pg:0": list(range(n))}), None, None).collect()
    assert set(edges["kind"]) == {"unseen"}
    assert edges.height < 70_000
    assert sorted(edges["awaited"].unique().to_list()) == list(range(n // 2, n))
    assert sorted(edges["waiter"].unique().to_list()) == list(range(n // 2))


@pytest.mark.parametrize(
    ("op", "done", "pending", "told"),
    [("recv", False, True, True), ("recv", True, False, None), ("all_reduce", False, True, True), ("all_reduce", None, True, None)],
    ids=["receive open", "receive over", "reduction open", "never marked"],
)
def test_a_rank_with_entries_that_are_not_completed_is_not_idle(op: str, done: bool | None, pending: bool, told: bool | None) -> None:
    state = progress({"pg:0": {0: (6, None), 1: (5, None)}})
    own = {"domain": "fr", "group_key": "pg:0", "rank": 1, "op": op, "is_p2p": op == "recv", "done": done, "pending": pending}
    edges = waits_of(operations({}), state, groups({"pg:0": [0, 1]}), None, None)
    [row] = blockers(edges.collect().lazy(), state, rows(OPERATIONS, own)).collect().to_dicts()
    assert (row["rank"], row["pending"]) == (1, told)


def test_a_recorder_that_lacks_what_a_peer_has_finished_was_written_earlier() -> None:
    state, known = (
        progress({"pg:0": {0: (9, 9), 1: (9, 9), 2: (6, 6)}, "pg:1": {1: (4, 3), 2: (3, 3)}}),
        groups({"pg:0": [0, 1, 2], "pg:1": [1, 2]}),
    )
    for op, awaited in (("all_reduce", set()), ("broadcast", {2})):
        calls = operations({r: [op] for r in range(2)}, first=9, done=9)
        edges = waits_of(calls, state, known, None, None).collect()
        assert set(edges["awaited"].to_list()) == awaited, "whoever sends may be done with a broadcast before all have come"


def batch(rank: int, pairs: list[tuple[str, int]], number: int, *, over: bool) -> pl.LazyFrame:
    """Sends and receives of one batch and the entry that ends it, which alone tells whether they are done."""
    calls = operations({rank: [op for op, _ in pairs] + ["coalesced"]})
    ends = pl.col("op") == "coalesced"
    return calls.with_columns(
        seq=pl.lit(number, pl.Int64),
        is_p2p=pl.lit(True),
        peer=pl.Series([peer for _, peer in pairs] + [None], dtype=pl.Int32),
        done=pl.when(ends).then(pl.lit(over)),
        pending=pl.when(ends).then(pl.lit(not over)),
        order=pl.col("order") + 10 * number,
        created_ns=pl.lit(1_000 * number, pl.Int64),
    )


def test_sends_and_receives_of_a_batch_are_done_when_the_batch_is() -> None:
    state, known = progress({"pg:0": {0: (1, 0), 1: (1, 0)}}), groups({"pg:0": [0, 1]})

    def edges(last_over: bool) -> list[tuple[int, int, str]]:
        calls = pl.concat(
            [batch(0, [("send", 1)], 1, over=True), batch(0, [("recv", 1)], 2, over=last_over), batch(1, [("recv", 0)], 1, over=True)]
        )
        return waits_of(calls, state, known, None, None).select("waiter", "awaited", "kind").collect().rows()

    assert edges(last_over=True) == [], "a finished batch leaves entries that say scheduled for ever"
    assert edges(last_over=False) == [(0, 1, "p2p")]


def test_two_that_stand_in_the_same_half_of_batches_of_one_wait_for_each_other() -> None:
    state, known = progress({"pg:0": {0: (1, 0), 1: (1, 0)}}), groups({"pg:0": [0, 1]})

    def edges(*more: tuple[str, int]) -> set[tuple[int, int]]:
        receives = [batch(0, [("recv", 1), *more], 1, over=False), batch(1, [("recv", 0)], 1, over=False)]
        sends = [batch(0, [("send", 1)], 2, over=False), batch(1, [("send", 0)], 2, over=False)]
        found = waits_of(pl.concat([*receives, *sends]), state, known, None, None).select("waiter", "awaited").collect()
        return set(found.rows())

    assert edges() == {(0, 1), (1, 0)}
    assert (1, 0) not in edges(("send", 1)), "a batch runs at once: its send answers the other's receive"


def test_a_batch_that_a_ring_has_cut_at_its_beginning_shows_nobody_waiting() -> None:
    state, known = progress({"pg:0": dict.fromkeys(range(3), (1, 0))}), groups({"pg:0": [0, 1, 2]})

    def edges(first: int, kept: int) -> list[tuple[int, int]]:
        # Each sends to the next and receives from the one before; of the oldest batch of each only the receive is kept.
        calls = [batch(r, [("send", (r + 1) % 3), ("recv", (r - 1) % 3)][n == 1 :], n, over=False) for r in range(3) for n in (1, 2, 3)]
        rings = {
            "rank": range(3),
            "use": ["chosen"] * 3,
            "entries": [kept] * 3,
            "first_record_id": [first] * 3,
            "last_record_id": [first + 7] * 3,
        }
        dumps = pl.LazyFrame(rings, schema_overrides={"rank": pl.Int32})
        return waits_of(pl.concat(calls), state, known, None, None, rings=dumps).select("waiter", "awaited").collect().rows()

    assert edges(first=10, kept=8) == []
    assert edges(first=0, kept=8) == [(0, 2), (1, 0), (2, 1)], "nothing is lost: the sends were never called"
    assert edges(first=4, kept=8) == [(0, 2), (1, 0), (2, 1)], "the ring begins with what is over"
    assert edges(first=10, kept=5) == [(0, 2), (1, 0), (2, 1)], "it was asked for what is open alone"


def test_a_ring_that_begins_with_an_open_half_shows_neither_where_its_rank_stands_nor_what_it_never_posted() -> None:
    state, known = progress({"pg:0": {0: (1, 0), 1: (1, 0)}}), groups({"pg:0": [0, 1]})

    def edges(first: int, *, over: bool = False) -> set[tuple[int, int]]:
        # Of rank 0 the send that answers the receive of rank 1 is lost; what is left begins with its own receive.
        halves = [operations({0: ["recv", "recv"]}), operations({1: ["recv", "send"]})]
        calls = [
            half.with_columns(
                seq=pl.col("order") + 5,
                is_p2p=pl.lit(True),
                peer=1 - pl.col("rank"),
                done=pl.lit(over) & (pl.col("rank") == 0) & (pl.col("order") == 0),
                order=pl.col("order") + 8,
                created_ns=1_000 * pl.col("order"),
            ).with_columns(pending=~pl.col("done"))
            for half in halves
        ]
        ring = {"rank": [0], "use": ["chosen"], "entries": [2], "first_record_id": [first], "last_record_id": [first + 1]}
        dumps = pl.LazyFrame(ring, schema_overrides={"rank": pl.Int32})
        return set(waits_of(pl.concat(calls), state, known, None, None, rings=dumps).select("waiter", "awaited").collect().rows())

    assert not edges(first=8) & {(1, 0)}
    assert edges(first=0) >= {(0, 1), (1, 0)}, "nothing is lost: both receive first"
    assert (1, 0) in edges(first=8, over=True), "it begins with what is over: all that is open is there"


def test_what_stands_behind_a_gpu_that_stands_waits_for_nobody() -> None:
    # Ranks 0 and 1 are of one tensor group, 1 and 2 of one pipeline. The GPU of rank 1 has not done all_reduce #4, and its receive is
    # enqueued behind that.
    state = progress({"pg:tp": {0: (5, 4), 1: (5, 3)}})
    known = groups({"pg:tp": [0, 1], "pg:0": [1, 2]})
    receive = batch(0, [("recv", 1)], 9, over=False).with_columns(rank=pl.lit(1, pl.Int32))
    other = operations({2: ["all_reduce"]}).with_columns(pending=pl.lit(True), done=pl.lit(False))
    calls = operations({0: ["all_reduce"], 1: ["all_reduce"]}, group="pg:tp", first=4, done=3).with_columns(created_ns=pl.lit(40, pl.Int64))

    def edges(reached: pl.LazyFrame) -> set[tuple[int, int, str]]:
        every = pl.concat([calls, receive, other])
        return set(waits_of(every, reached, known, None, None).select("waiter", "awaited", "kind").collect().rows())

    assert edges(state) == {(0, 1, "gpu")}
    level = progress({"pg:tp": {0: (5, 4), 1: (5, 4)}})
    assert edges(level) == {(1, 2, "p2p")}


def test_a_gpu_that_stands_is_shown_by_what_several_peers_have_finished_rather_than_by_one() -> None:
    # Rank 3 stands: 2 is beyond it in a pair, 0 to 2 in the group of all. The pair's operation was enqueued first.
    state = progress({"pg:a": {2: (9, 9), 3: (9, 8)}, "pg:b": {0: (5, 5), 1: (5, 5), 2: (5, 5), 3: (5, 4)}}).with_columns(
        last_created_ns=pl.when(pl.col("group_key") == "pg:a").then(1_000).otherwise(2_000)
    )
    edges = waits_of(None, state, groups({"pg:a": [2, 3], "pg:b": [0, 1, 2, 3]}), None, None)
    [found] = blockers(edges, state, None).collect().to_dicts()
    assert (found["rank"], found["kind"], found["group_key"], found["in_group"]) == (3, "gpu", "pg:b", [0, 1, 2])
