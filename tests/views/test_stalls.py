"""Ranks that hold the others up: each kind of stall from the smallest evidence that shows it."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_forensics.views import calls as calls_module
from nccl_forensics.views.blockers import BLOCKERS
from nccl_forensics.views.calls import OPERATIONS, calls_of, sequences
from nccl_forensics.views.deaths import DEATHS
from nccl_forensics.views.divergence import divergences
from nccl_forensics.views.gone_peers import GONE_PEERS
from nccl_forensics.views.inversions import INVERSIONS
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.log_ends import _left_over
from nccl_forensics.views.looks import LOOKS
from nccl_forensics.views.motion import MOTION
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from nccl_forensics.views.stack_views import THREAD_STATES
from nccl_forensics.views.stall_causes import cause_of
from nccl_forensics.views.stall_scene import left_over
from nccl_forensics.views.stalls import _swapped, stalls
from nccl_forensics.views.standing_apart import odd_in_circle
from nccl_forensics.views.stuck import STUCK
from nccl_forensics.views.trace_measures import MEASURES
from tests.rules.host_frames import table
from tests.views.frames import groups, operations, progress, rows


def blocker(rank: int = 2, kind: str = "behind", **more: object) -> pl.LazyFrame:
    row = {"rank": rank, "kind": kind, "waiters": [0, 1], "domain": "fr", "group_key": "pg:0", "seq": 6, "op": "all_reduce", "source_id": 0}
    return rows(BLOCKERS, row | {"record": "entries[5]"} | more)


def standing(witness: str = "stack", **places: str) -> pl.LazyFrame:
    """What ranks did last: r2="lock" is rank 2 in a lock."""
    return rows(
        LAST_CALLS,
        *[
            {
                "rank": int(name[1:]),
                "place": place,
                "op": "all_reduce" if place == "collective" else "send" if place == "p2p" else None,
                "user_frame": f"step (train.py:{name[1:]})",
                "moved": False,
                "witness": witness,
                "reason": "frame 0",
                "source_id": 7,
                "line_no": int(name[1:]),
            }
            for name, place in places.items()
        ],
    )


def found(
    blockers: pl.LazyFrame | None = None,
    states: pl.LazyFrame | None = None,
    endings: pl.LazyFrame | None = None,
    reports: pl.LazyFrame | None = None,
    parted: pl.LazyFrame | None = None,
    ops: pl.LazyFrame | None = None,
    reached: pl.LazyFrame | None = None,
    made: pl.LazyFrame | None = None,
    files: pl.LazyFrame | None = None,
    motion: pl.LazyFrame | None = None,
) -> list[tuple[object, ...]]:
    frame = stalls(blockers, states, endings, reports, parted, ops, reached, None, made, None, files, *[None] * 5, motion).collect()
    return frame.select("rank", "cause", "confidence", "seen_by").rows()


# ---- a rank that progress singles out, by what its stack shows ----


@pytest.mark.parametrize(
    ("place", "cause", "confidence"),
    [
        ("data-loader", "input-stall", "high"),
        ("lock", "host-stall", "high"),
        ("checkpoint", "host-stall", "high"),
        ("user-code", "host-stall", "medium"),
        ("evaluation", "host-stall", "high"),
        ("ended", "rank-died", "high"),
        ("cuda-sync", "gpu-stall", "low"),
        ("backward", "host-stall", "low"),
        ("collective", "group-deadlock", "low"),
        ("p2p", "p2p-deadlock", "medium"),
        ("rendezvous", "host-stall", "medium"),
    ],
)
def test_the_stack_of_the_rank_that_is_behind_names_the_cause(place: str, cause: str, confidence: str) -> None:
    assert found(blocker(), standing(r0="collective", r1="collective", r2=place)) == [(2, cause, confidence, "progress")]


def test_the_only_stack_that_does_not_wait_is_that_of_the_rank_that_all_wait_for_where_no_file_tells_a_rank() -> None:
    def told(*places: str, kind: str = "behind", job: int = 4, **more: object) -> list[int]:
        mains = [{"pid": 100 + n, "place": place, "source_id": n, "reason": "frame 0"} for n, place in enumerate(places)]
        mains[0] |= more
        return sorted(left_over({2: {"kind": kind}}, {}, rows(THREAD_STATES, *mains), set(range(job))))

    usual = ("collective", "data-loader", "cuda-sync", "p2p")
    assert told(*usual) == [2]
    assert told(*usual, rank=0) == [2], "some may be known"
    assert told(*usual, kind="gpu") == []
    assert told(*usual, job=5) == [], "a process without a stack"
    assert told("lock", *usual[1:]) == []
    assert told("unknown", *usual[1:]) == []
    assert told("compute", "data-loader", "user-code", "user-code") == [2], "a wait for a GPU may leave no frame"
    assert told("compute", "data-loader", "lock", "user-code") == []
    assert told("compute", "user-code", "cuda-sync", "p2p") == []
    assert told(*usual, "data-loader", role="data-worker", job=4) == [], "two elsewhere"


def test_a_partner_in_p2p_makes_the_deadlock_sure() -> None:
    frame = stalls(blocker(), standing(r0="collective", r1="p2p", r2="p2p"), None, None, None, None, None, None, None).collect()
    assert frame.select("rank", "cause", "confidence", "partners").rows() == [(2, "p2p-deadlock", "high", [1])]


def test_two_whose_records_show_that_they_wait_for_each_other_are_no_more_doubtful_for_a_third_that_stands_in_the_other_half() -> None:
    stacks = {r: {"place": "p2p", "op": op, "user_frame": "exchange (train.py:15)"} for r, op in ((1, "recv"), (2, "send"), (3, "send"))}
    told = cause_of(2, {"kind": "cycle", "op": "send", "cycle": [2, 3], "seen_by": "progress"}, stacks, None)
    assert told is not None
    assert (told.cause, told.confidence, list(told.partners)) == ("p2p-deadlock", "high", [2, 3])


def test_two_in_the_same_half_may_both_wait_for_a_third_where_stacks_are_all_there_is() -> None:
    waits = {"place": "p2p", "op": "recv", "user_frame": "exchange (train.py:15)"}
    stacks = {1: waits, 2: waits, 3: waits | {"place": "collective", "op": "all_reduce"}}
    told = {by: cause_of(2, {"kind": "unanswered", "seen_by": by}, stacks, None) for by in ("stacks", "progress")}
    assert {by: cause and (cause.cause, cause.confidence) for by, cause in told.items()} == {
        "stacks": ("p2p-deadlock", "medium"),
        "progress": ("p2p-deadlock", "high"),
    }


def test_a_wait_for_a_whole_batch_of_sends_does_not_hide_what_recorders_tell() -> None:
    batch = pl.when(pl.col("place") == "p2p").then(pl.lit("_communicate")).otherwise("op")
    places = standing(r0="p2p", r1="p2p", r2="p2p", r3="p2p").with_columns(op=batch)
    gpu = blocker(rank=3, kind="gpu", own_record="entries[4]", in_group=[0, 1])
    held_up = blocker(pending=True)
    assert found(pl.concat([gpu, held_up]), places) == [(3, "gpu-stall", "high", "progress")]
    # One that has nothing open, or stands in a send, is where its stack says.
    assert found(blocker(pending=False), places) == [(2, "p2p-deadlock", "high", "progress")]
    assert found(held_up, standing(r0="collective", r2="p2p")) == [(2, "p2p-deadlock", "medium", "progress")]


def test_the_stack_is_cited_beside_the_waiters_operation() -> None:
    [row] = stalls(blocker(), standing(r2="lock"), None, None, None, None, None, None, None).collect().to_dicts()
    assert (row["stack_source_id"], row["stack_line_no"], row["source_id"], row["record"]) == (7, 2, 0, "entries[5]")
    assert row["user_frame"] == "step (train.py:2)"


def test_whoever_stands_at_the_very_line_of_the_one_that_is_waited_for_stopped_as_it_did() -> None:
    def named(place: str, at: tuple[int, ...], watchdog: pl.LazyFrame | None = None) -> list[int]:
        places = {f"r{rank}": place if rank in at else "collective" for rank in range(8)}
        line = pl.when(pl.col("rank").is_in(at)).then(pl.lit("flush (blob.py:55)")).otherwise("user_frame")
        looked = standing(**places).with_columns(user_frame=line, moved=pl.lit(None, pl.Boolean()))
        return stalls(blocker(pending=False), looked, *[None] * 5, watchdog, None).collect()["rank"].to_list()

    timeout = table("watchdog", {"kind": "timeout"})
    assert named("checkpoint", (2, 7)) == [2, 7], "nobody waits for rank 7, whose own work waits for rank 2"
    assert named("checkpoint", (2, 4, 5, 6, 7)) == [2], "most stand there"
    assert named("user-code", (2, 7)) == named("data-loader", (2, 7)) == [2], "a look at a job that goes on shows that too"
    assert named("user-code", (2, 7), timeout) == named("data-loader", (2, 7), timeout) == [2, 7]
    assert named("user-code", (2, 6, 7), timeout) == [2], "a wait for a GPU leaves no frame"


@pytest.mark.parametrize(("last", "place", "named"), [(8, "compute", []), (7, "compute", [2]), (8, "lock", [2])])
def test_whoever_has_entered_all_that_is_open_is_not_busy_on_its_host(last: int, place: str, named: list[int]) -> None:
    looked = standing(r0="collective", r1="collective", r2=place, r3="collective")
    state = progress({"pg:0": dict.fromkeys((0, 1, 3), (9, 7)) | {2: (last, 6)}})
    timeout = table("watchdog", {"kind": "timeout"})
    assert stalls(None, looked, *[None] * 4, state, timeout, None).collect()["rank"].to_list() == named


# ---- without a stack ----


def test_recorders_that_somebody_asked_for_show_a_moment_and_no_standstill() -> None:
    idle = blocker(pending=False, own_record="entries[4]")

    def sure(encoding: str | None, exits: str | None = None, watchdog: pl.LazyFrame | None = None, step: int | None = None) -> str:
        dumps = pl.LazyFrame({"use": ["chosen"] * 2, "encoding": [encoding] * 2}) if encoding else None
        ended = table("worker_exits", {"kind": exits}) if exits else None
        steps = table("training_steps", {"step": step}) if step is not None else None
        frame = stalls(idle, *[None] * 6, watchdog, *[None] * 6, dumps, ended, *[None] * 8, steps).collect()
        return str(frame["confidence"][0])

    timeout = table("watchdog", {"kind": "timeout"})
    assert sure("pickle") == sure(None) == "high", "as a watchdog that times out writes them"
    assert sure("json") == "medium"
    assert sure("pickle", "scheduler") == "medium", "somebody ended the job"
    assert sure("pickle", step=7) == "medium", "the output of the job tells of no timeout"
    assert sure("pickle", watchdog=timeout, step=7) == "high"
    assert sure("json", watchdog=timeout) == sure("pickle", "scheduler", timeout) == "high"


def test_a_gpu_behind_ranks_that_have_nothing_open_stands_only_where_something_timed_out() -> None:
    behind = blocker(3, "gpu", own_record="entries[4]", in_group=[0, 1, 2])

    def named(waiting: int, watchdog: pl.LazyFrame | None = None) -> list[int]:
        state = progress({"pg:0": dict.fromkeys(range(3), (9, 9)) | {3: (9, 8)}, "pg:1": dict.fromkeys(range(waiting), (5, 4))})
        return stalls(behind, *[None] * 5, state, watchdog, None).collect()["rank"].to_list()

    assert named(0) == []
    assert named(3) == [3], "they wait in what comes next"
    assert named(0, table("watchdog", {"kind": "timeout"})) == [3]


def test_behind_operations_that_are_open_for_no_longer_than_others_took_nobody_stands() -> None:
    behind, state = blocker(3, "gpu", own_record="entries[4]", in_group=[0, 1, 2]), progress({"pg:0": dict.fromkeys(range(4), (9, 8))})

    def named(age_ms: float, watchdog: pl.LazyFrame | None = None) -> list[int]:
        seen = rows(LOOKS, *({"rank": r, "age_ms": age_ms, "longest_ms": 90.0, "finished": 20} for r in range(4)))
        return stalls(behind, *[None] * 5, state, watchdog, *[None] * 10, seen).collect()["rank"].to_list()

    assert (named(100), named(60_000)) == ([], [3])
    assert named(100, table("watchdog", {"kind": "timeout"})) == [3], "another group waited longer"


def test_what_recorders_show_in_flight_for_far_longer_than_anything_before_is_as_good_as_a_timeout() -> None:
    late = operations({0: ["all_reduce"], 1: ["all_reduce"], 2: ["all_reduce"]}).with_columns(
        pending=pl.lit(True), done=pl.lit(False), state=pl.when(pl.col("rank") == 2).then(pl.lit("scheduled")).otherwise(pl.lit("started"))
    )
    state = progress({"pg:0": dict.fromkeys(range(3), (1, 0))})

    def sure(age_ms: float) -> str:
        seen = rows(LOOKS, *({"rank": r, "age_ms": age_ms, "longest_ms": 90.0, "finished": 20} for r in range(3)))
        frame = stalls(blocker(2, "unseen", walked=True), *[None] * 4, late, state, *[None] * 11, seen).collect()
        return str(frame["confidence"][0])

    assert (sure(500), sure(600_000)) == ("low", "medium")


def test_dumps_of_a_host_whose_logs_are_there_were_left_behind() -> None:
    def named(*ranks: int, files: tuple[int, ...], watchdog: pl.LazyFrame | None = None) -> list[int]:
        ends = pl.concat([blocker(r, "unseen", waiters=[0, 1], walked=True) for r in ranks])
        of = rows(SOURCE_RANKS_SCHEMA, *({"source_id": r, "rank": r} for r in files))
        return stalls(ends, None, None, None, None, None, None, watchdog, None, None, of).collect()["rank"].to_list()

    assert named(4, 5, 6, 7, files=(4, 5, 6, 7)) == []
    assert named(4, 5, 6, 7, files=(4, 5)) == [4, 5, 6, 7], "of two of them there is nothing at all"
    assert named(4, 5, 6, 7, files=(4, 5, 6, 7), watchdog=table("watchdog", {"kind": "timeout"})) == [4, 5, 6, 7]
    assert named(4, files=(4,)) == [4], "as one does that does not answer"


@pytest.mark.parametrize(
    ("fact", "cause", "confidence"),
    [
        ({"kind": "gpu", "own_record": "entries[4]"}, "gpu-stall", "high"),
        ({"kind": "gpu"}, "gpu-stall", "medium"),
        ({"kind": "cycle", "cycle": [1, 2]}, "group-deadlock", "medium"),
        ({"pending": False, "own_record": "entries[4]"}, "host-stall", "high"),
        ({"pending": False}, "host-stall", "medium"),
        ({"pending": None}, "host-stall", "medium"),
        ({"domain": "nccl", "pending": False}, "host-stall", "low"),
        ({"domain": "detail"}, "host-stall", "low"),
    ],
    ids=[
        "gpu",
        "gpu by a watchdog's line alone",
        "cycle",
        "all done and idle",
        "all done by a watchdog's line alone",
        "nothing marked",
        "an NCCL log that ends",
        "lines of DETAIL that end",
    ],
)
def test_without_a_stack_progress_names_the_cause(fact: dict[str, object], cause: str, confidence: str) -> None:
    assert found(blocker(**fact)) == [(2, cause, confidence, "progress")]


@pytest.mark.parametrize(
    ("fact", "place", "tail", "alternative"),
    [
        ({"domain": "nccl"}, None, None, "collective-skipped"),
        ({"domain": "nccl"}, None, "boundary", "host-stall"),
        ({"domain": "detail"}, None, None, "straggler"),
        ({"pending": False}, None, None, "collective-skipped"),
        ({"pending": False, "own_record": "entries[5]"}, None, None, None),
        ({"kind": "barrier"}, None, None, "collective-skipped"),
        ({"kind": "silent"}, None, None, "collective-skipped"),
        ({"kind": "unanswered"}, None, None, "gpu-stall"),
        ({"kind": "gpu"}, None, None, "collective-skipped"),
        ({"kind": "gpu", "own_record": "entries[5]", "in_group": [1]}, None, None, "straggler"),
        ({"kind": "gpu", "own_record": "entries[5]", "in_group": [0, 1]}, None, None, None),
        ({}, "user-code", None, "gpu-stall"),
        ({"pending": False}, "user-code", None, None),
        ({}, "lock", None, None),
    ],
)
def test_a_stall_that_is_not_sure_tells_what_would_look_the_same(
    fact: dict[str, object], place: str | None, tail: str | None, alternative: str | None
) -> None:
    row = {"kind": "behind", "seen_by": "progress", "timed_out": False, "op": "all_reduce", "seq": 6} | fact
    stack = {"place": place, "op": None, "user_frame": "step (train.py:2)", "reason": "frame 0"}
    cause = cause_of(2, row, {2: stack} if place else {}, tail)
    assert cause is not None
    assert cause.alternative == alternative
    assert cause.alternative is not None or cause.confidence == "high" or place


def test_a_wait_of_which_no_recorder_tells_is_one_for_a_send_or_receive() -> None:
    behind = {
        "kind": "behind",
        "seen_by": "progress",
        "timed_out": True,
        "op": "all_reduce",
        "seq": 6,
        "waiters": [0, 1],
        "own_last_op": "barrier",
    }

    def at(op: str | None, *ranks: int) -> dict[int, dict[str, object]]:
        return {r: {"place": "collective", "op": op, "user_frame": "take (train.py:5)", "reason": "frame 0"} for r in ranks}

    def told(stood: dict[int, dict[str, object]]) -> tuple[object, ...] | None:
        cause = cause_of(2, behind, stood, None)
        return None if cause is None else (cause.cause, cause.confidence, cause.partners)

    assert told(at("all_reduce", 0, 1) | at(None, 2)) == ("p2p-deadlock", "low", ())
    assert told(at("all_reduce", 0, 1) | at(None, 2, 3)) == ("p2p-deadlock", "low", [3])
    assert told(at("all_reduce", 0, 1) | at(None, 2, 3, 4)) == ("p2p-deadlock", "low", ())
    # Where those that wait for it stand in such waits as well, it may be a collective's.
    assert told(at(None, 0, 1, 2)) == told(at("all_reduce", 0, 1) | at("broadcast", 2)) == ("group-deadlock", "low", ())


def test_whom_one_look_finds_may_be_late_in_a_job_that_goes_on() -> None:
    once = standing(r0="collective", r1="collective", r2="lock").with_columns(moved=pl.lit(None, pl.Boolean))
    rows_of = stalls(blocker(), once, *[None] * 14, rows(MOTION, {"rank": 2})).collect()
    assert rows_of.select("confidence", "alternative").rows() == [("medium", "straggler")]


def test_members_of_a_broadcast_that_another_one_has_left_did_not_take_it_in_another_order() -> None:
    # Ranks 1 and 2 stand in the broadcast of their group (two roots, say); rank 0 was in it too, and waits in the next call of the job.
    calls = {"r0": "barrier", "r1": "broadcast", "r2": "broadcast"}
    stood = standing(**dict.fromkeys(calls, "collective")).with_columns(op=pl.Series(list(calls.values())))
    both = [blocker(rank=r, kind="behind", op="barrier", own_last_op="barrier") for r in (1, 2)]
    late = pl.concat(both)
    first = progress({"pg:0": {0: (6, None), 1: (5, None), 2: (5, None)}}).with_columns(last_op=pl.lit("barrier"))
    inner = progress({"pg:1": {0: (5, None), 1: (5, None), 2: (5, None)}}).with_columns(
        last_op=pl.lit("broadcast"), last_order=pl.when(pl.col("rank") == 0).then(pl.lit(1, pl.Int64)).otherwise(pl.lit(90, pl.Int64))
    )
    assert found(late, stood, reached=pl.concat([first, inner])) == []
    # Nobody has entered it but those two: they are where the others are not.
    alone = inner.with_columns(last_seq=pl.when(pl.col("rank") == 0).then(pl.lit(4, pl.Int64)).otherwise(pl.lit(5, pl.Int64)))
    assert found(late, stood, reached=pl.concat([first, alone])) != []


def test_a_rank_whose_own_work_is_not_finished_is_not_blamed() -> None:
    assert found(blocker(pending=True)) == []


def test_a_member_without_evidence_is_not_blamed() -> None:
    assert found(blocker(kind="unseen")) == []


def test_a_rank_that_died_by_its_own_fault_does_not_stall() -> None:
    died = {"rank": 2, "kind": "killed", "own": True}
    assert found(blocker(), endings=rows(DEATHS, died)) == []
    assert len(found(blocker(), endings=rows(DEATHS, died | {"own": False}))) == 1


# ---- NCCL logs that end after whole steps ----


@pytest.mark.parametrize(
    ("calls", "cause", "confidence"),
    [
        (["AllGather", "AllReduce"] * 3, "collective-skipped", "medium"),
        (["AllGather", "AllReduce"] * 3 + ["AllGather"], "host-stall", "low"),
        (["Broadcast", *["AllGather", "AllReduce"] * 3], "collective-skipped", "medium"),
        (["Broadcast", *["AllGather", "AllReduce"] * 3, "AllGather"], "host-stall", "low"),
        (["Broadcast", *["AllReduce"] * 5], "host-stall", "low"),
    ],
    ids=["at the end of a step", "inside a step", "after a first call and steps", "inside a step after a first call", "no steps"],
)
def test_a_log_that_ends_between_steps_left_something_out(calls: list[str], cause: str, confidence: str) -> None:
    ops = operations({2: calls}, group="0xc0", first=0, domain="nccl")
    assert found(blocker(domain="nccl", group_key="0xc0"), ops=ops) == [(2, cause, confidence, "progress")]


@pytest.mark.parametrize(("how", "told"), [("first", []), ("refused", ["collective-skipped"])])
def test_whose_connections_peers_found_closed_left_nothing_out_where_its_log_ends(how: str, told: list[str]) -> None:
    ops = operations({2: ["AllGather", "AllReduce"] * 3}, group="0xc0", first=0, domain="nccl")
    went = pl.LazyFrame([{"rank": 2, "how": how}], schema=GONE_PEERS)
    held = blocker(domain="nccl", group_key="0xc0")
    rows = stalls(held, *[None] * 4, ops, *[None] * 6, went).collect()
    assert rows["cause"].to_list() == told


def test_a_rank_that_ends_amid_a_step_of_several_communicators_left_nothing_out() -> None:
    # Its calls of one communicator are all alike: that these are a whole number says nothing.
    step = ["0xc0", "0xc0", "0xc1"]
    assert _ended([*step, *step]) == "collective-skipped"
    assert _ended([*step, *step, "0xc0"]) == "host-stall"


def _ended(communicators: list[str]) -> str:
    """What rank 2 is found in, which is behind in 0xc0 and whose log holds these calls."""
    parts = []
    for order, key in enumerate(communicators):
        seq = communicators[:order].count(key)
        call = operations({2: ["all_reduce"]}, group=key, first=seq, domain="nccl")
        parts.append(call.with_columns(order=pl.lit(order, dtype=pl.Int64)))
    [(_, cause, _, _)] = found(blocker(domain="nccl", group_key="0xc0"), ops=pl.concat(parts))
    return cause


# ---- operations left out across groups ----


def test_a_rank_behind_in_one_group_and_ahead_in_another_left_an_operation_out() -> None:
    reached = progress({"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5)}, "pg:1": {0: (3, 3), 1: (3, 3), 2: (4, 3)}})
    assert found(blocker(), reached=reached) == [(2, "collective-skipped", "high", "progress")]


def test_hosts_at_unlike_places_do_not_hide_who_is_behind_in_one_group_and_ahead_in_another() -> None:
    """In a pipeline those who wait stand at unlike places of the program, as the ranks of a job that goes on do."""
    apart = {f"pg:{n}": {n: (20 + n, 4), n + 10: (4, 4)} for n in (20, 21, 23, 24)}
    made = groups({"pg:0": [0, 1, 2], "pg:1": [0, 1, 2], **{key: list(own) for key, own in apart.items()}})
    made = made.with_columns(group_desc=pl.when(pl.col("group_key").is_in(list(apart))).then(pl.lit("stage")))
    others = {"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5)}}
    ahead = progress(others | {"pg:1": {0: (3, 3), 1: (3, 3), 2: (4, 3)}} | apart)
    assert found(blocker(), reached=ahead, made=made) == [(2, "collective-skipped", "high", "progress")]
    level = progress(others | {"pg:1": {0: (3, 3), 1: (3, 3), 2: (3, 3)}} | apart)
    assert found(blocker(pending=False, own_record="entries[4]"), reached=level, made=made) == []


def test_a_rank_behind_in_every_group_stalls_in_place() -> None:
    reached = progress({"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5)}, "pg:1": {0: (4, 4), 1: (4, 4), 2: (3, 3)}})
    assert found(blocker(pending=False, own_record="entries[4]"), reached=reached) == [(2, "host-stall", "high", "progress")]


def test_a_step_without_one_of_its_operations_shows_who_left_it_out() -> None:
    def steps(*calls: tuple[str, str]) -> pl.LazyFrame:
        lines = [
            operations({r: [op]}, group=group, first=1 + sum(g == group for g, _ in line[:n]))
            for r in range(4)
            for line in [calls if r == 2 else (("pg:0", "all_reduce"), ("pg:1", "all_gather")) * 4]
            for n, (group, op) in enumerate(line)
        ]
        numbered = [f.with_columns(order=pl.lit(n, pl.Int64)) for n, f in enumerate(lines)]
        return pl.concat(numbered)

    whole = [("pg:0", "all_reduce"), ("pg:1", "all_gather")]
    assert found(blocker(), ops=steps(*whole * 3, whole[1], *whole)) == [(2, "collective-skipped", "high", "progress")]
    assert found(blocker(), ops=steps(*whole * 3)) == [(2, "host-stall", "medium", "progress")]


# ---- barriers and stacks alone ----


def test_a_monitored_barrier_names_who_is_missing() -> None:
    missing = {"kind": "barrier-missing", "ranks": [3], "line_no": 12}
    assert found(reports=table("reports", missing)) == [(3, "host-stall", "medium", "barrier")]
    # It came to one itself: late, or to that of another group.
    assert found(reports=table("reports", missing, {"kind": "barrier-ok", "rank": 3})) == [(3, "host-stall", "low", "barrier")]
    assert found(reports=table("reports", missing, {"kind": "barrier-ok", "rank": 2})) == [(3, "host-stall", "medium", "barrier")]


def under_detail(*last: str) -> list[tuple[object, ...]]:
    """What is found of four ranks in rows and columns whose groups no recorder names, after three steps, where rank 0 went on to ``last``;
    each call has a barrier before it, and ranks 1 and 3 are missing at that of rank 0."""
    lines = []
    for rank in range(4):
        line = [*("row", "column", "world") * 3, *(last if rank == 0 else ["row"] if rank != 1 else [])]
        for n, name in enumerate(line):
            key = "pg_id:0" if name == "world" else f"pg_id:{('row', 'column').index(name) + 1} of rank {rank}"
            op = "all_gather" if name == "row" else "all_reduce"
            lines.append(operations({rank: [op]}, group=key, first=1 + line[:n].count(name)).with_columns(order=pl.lit(n, pl.Int64)))
    states = standing("exception", r0="collective", r1="collective", r2="collective", r3="collective")
    op = pl.when(pl.col("rank") == 1).then(pl.lit("all_gather")).otherwise("op")
    missing = table("reports", {"kind": "barrier-missing", "ranks": [1, 3], "line_no": 12})
    return found(states=states.with_columns(op=op), reports=missing, ops=pl.concat(lines), reached=progress({}))


def test_whom_a_barrier_misses_is_held_up_where_another_rank_left_a_call_out() -> None:
    assert [row[:2] for row in under_detail("column")] == [(0, "collective-skipped")]
    assert 0 not in [row[0] for row in under_detail("row", "column")]


def test_the_few_outside_the_collective_that_the_others_stand_in_are_found_by_stacks_alone() -> None:
    frame = stalls(None, standing(r0="collective", r1="collective", r2="lock"), None, None, None, None, None, None, None).collect()
    assert frame.select("rank", "cause", "waiters", "seen_by").rows() == [(2, "host-stall", [0, 1], "stacks")]
    assert (frame["source_id"][0], frame["line_no"][0]) == (7, 0)


@pytest.mark.parametrize(("place", "exposed", "confidence"), [("compute", 90.0, "low"), ("compute", 20.0, "high"), ("lock", 90.0, "high")])
def test_at_whose_work_the_others_wait_in_traces_too_is_not_surely_stuck(place: str, exposed: float, confidence: str) -> None:
    """Looks find those waiting who wait most of the time, in a job that goes on; what holds a rank up elsewhere than at its work is the
    same then."""
    places = standing(r0="collective", r1="collective", r2=place)
    traced = rows(MEASURES, *({"rank": r, "window": "whole", "span_ms": 100.0, "exposed_ms": exposed} for r in (0, 1)))
    none = [None] * 7
    frame = stalls(None, places, *none, *[None] * 8, traced).collect()
    assert frame.select("rank", "confidence").rows() == [(2, confidence)]
    gave_up = rows(DEATHS, {"rank": 0, "kind": "victim"})
    assert stalls(None, places, gave_up, *none[1:], *[None] * 8, traced).collect()["confidence"].to_list() == ["high"]


@pytest.mark.parametrize(
    "states",
    [
        standing(r0="collective", r1="collective"),
        standing(r0="collective", r1="collective", r2="lock", r3="lock"),
        standing(r0="collective", r1="lock"),
        standing(r0="collective", r1="collective", r2="lock").with_columns(moved=pl.col("rank") == 2),
    ],
    ids=["all wait", "half are outside", "one waits", "it moves"],
)
def test_stacks_alone_stay_quiet(states: pl.LazyFrame) -> None:
    assert found(states=states) == []


def test_where_operations_part_stacks_alone_name_nobody() -> None:
    parted = divergences(operations({0: ["barrier"], 1: ["barrier"], 2: ["all_reduce"]}))
    assert found(states=standing(r0="collective", r1="collective", r2="lock"), parted=parted) == []


def test_where_operations_agree_stacks_may_speak() -> None:
    agreed = divergences(operations({0: ["barrier"], 1: ["barrier"], 2: ["barrier"]}))
    assert len(found(states=standing(r0="collective", r1="collective", r2="lock"), parted=agreed)) == 1


def test_where_an_exception_was_raised_says_only_who_waited() -> None:
    raised = standing("exception", r2="data-loader")
    assert found(blocker(pending=None), raised) == [(2, "host-stall", "medium", "progress")]
    assert found(blocker(), standing("exception", r0="p2p", r2="p2p")) == [(2, "p2p-deadlock", "high", "progress")]


def test_a_member_without_progress_is_blamed_only_where_its_stack_stands_elsewhere() -> None:
    unseen = blocker(kind="unseen", call_site="other (train.py:9)")
    assert found(unseen, standing(r0="collective", r1="collective", r2="lock")) == [(2, "host-stall", "high", "stacks")]
    assert found(unseen, standing(r0="collective", r1="collective", r2="collective")) == []


def test_a_member_without_progress_that_stands_where_those_stand_who_wait_for_it_waits_too() -> None:
    unseen = blocker(kind="unseen", waiters=[0, 1, 3])
    one_line = standing(r0="compute", r1="compute", r2="compute", r3="compute").with_columns(user_frame=pl.lit("log_loss (trainer.py:169)"))
    assert found(unseen, one_line) == []
    elsewhere = pl.when(pl.col("rank") == 2).then(pl.lit("tokenize (data.py:3)")).otherwise("user_frame")
    assert [row[0] for row in found(unseen, one_line.with_columns(user_frame=elsewhere))] == [2]


def test_a_rank_with_open_work_that_stands_where_most_stand_is_not_busy_on_its_host() -> None:
    one_line = standing(r0="user-code", r1="user-code", r2="user-code").with_columns(user_frame=pl.lit("log_loss (trainer.py:169)"))
    assert found(blocker(pending=True), one_line) == []
    assert found(blocker(pending=False), one_line) == [(2, "host-stall", "medium", "progress")], "it enqueued nothing more"
    two = standing(r1="user-code", r2="user-code").with_columns(user_frame=pl.lit("log_loss (trainer.py:169)"))
    assert found(blocker(pending=True), two) == [], "all that were looked at stand there"
    elsewhere = pl.when(pl.col("rank") == 2).then(pl.lit("wait_for_file (io.py:3)")).otherwise("user_frame")
    assert found(blocker(pending=True), one_line.with_columns(user_frame=elsewhere)) == [(2, "host-stall", "medium", "progress")]


def test_a_stack_in_the_programs_own_function_does_not_hide_a_gpu_that_stands() -> None:
    own = standing(r0="user-code", r1="user-code", r2="user-code")
    assert [row[1] for row in found(blocker(kind="gpu"), own)] == ["gpu-stall"]
    spinning = standing(r0="user-code", r1="user-code", r2="compute")
    assert [row[1] for row in found(blocker(kind="gpu"), spinning)] == ["gpu-stall"], "a wait for the GPU is active where CUDA spins"
    locked = standing(r0="user-code", r1="user-code", r2="lock")
    assert [row[1] for row in found(blocker(kind="gpu"), locked)] == ["host-stall"]


def test_one_with_open_work_that_stands_at_the_line_of_others_that_wait_waits_as_they_do() -> None:
    places = standing(r0="user-code", r1="compute", r2="compute", r3="compute")
    same = places.with_columns(user_frame=pl.lit("get_grad_norm (clip.py:131)"))
    assert found(blocker(pending=True), same) == []
    assert found(blocker(pending=True), places) == [(2, "host-stall", "high", "progress")], "it stands where nobody else does"
    assert found(blocker(pending=False), same) == [(2, "host-stall", "high", "progress")], "it has nothing to wait for"


def test_ranks_whose_files_are_missing_here_and_there_are_not_blamed() -> None:
    def gone(*ranks: int) -> list[int]:
        ends = pl.concat([blocker(r, "unseen", waiters=[0, 1], walked=True) for r in ranks])
        return [row[0] for row in found(ends)]

    assert gone(2) == [2]
    assert gone(4, 5, 6, 7) == [4, 5, 6, 7], "one host"
    assert gone(2, 9, 12) == []


@pytest.mark.parametrize(("frame", "cause"), [("step (train.py:9)", "collective-mismatch"), ("evaluate (eval.py:3)", "collective-skipped")])
def test_a_rank_in_another_collective_than_its_peers_called_it_instead_or_went_past_theirs(frame: str, cause: str) -> None:
    odd = pl.col("rank") == 2
    states = standing("exception", r0="collective", r1="collective", r2="collective", r3="collective").with_columns(
        op=pl.when(odd).then(pl.lit("barrier")).otherwise("op"),
        user_frame=pl.when(odd).then(pl.lit(frame)).otherwise("user_frame"),
    )
    assert found(states=states) == [(2, cause, "medium", "stacks")]


@pytest.mark.parametrize(("callers", "cause"), [((62, 66), "collective-skipped"), ((66, 66), "collective-mismatch")])
def test_of_calls_that_one_function_makes_for_all_the_line_that_called_it_tells_which_they_are(
    callers: tuple[int, int], cause: str
) -> None:
    frames = [[f"sync (train.py:{9 if r == 2 else 8})", f"body (train.py:{callers[r != 2]})", "<module> (train.py:90)"] for r in range(4)]
    odd = pl.col("rank") == 2
    states = standing("exception", r0="collective", r1="collective", r2="collective", r3="collective").with_columns(
        pl.Series("frames", frames),
        op=pl.when(odd).then(pl.lit("barrier")).otherwise("op"),
        user_frame=pl.Series([f[0] for f in frames]),
    )
    assert found(states=states) == [(2, cause, "medium", "stacks")]


def test_sends_and_receives_that_wait_in_a_circle_are_a_p2p_deadlock() -> None:
    assert found(blocker(kind="cycle", op="send", cycle=[1, 2])) == [(2, "p2p-deadlock", "high", "progress")]


def test_of_two_in_a_circle_the_one_whose_stack_was_looked_at_once_is_no_less_in_it() -> None:
    pair = pl.concat([blocker(rank, kind="cycle", op="send", cycle=[1, 2]) for rank in (1, 2)])
    once = standing(r2="user-code").with_columns(moved=pl.lit(None, dtype=pl.Boolean))
    assert found(pair, once) == [(rank, "p2p-deadlock", "high", "progress") for rank in (1, 2)]


@pytest.mark.parametrize(("ranks", "cause"), [([1, 2], "p2p-deadlock"), ([1, 2, 5], "group-deadlock")])
def test_a_circle_of_sends_and_collectives_is_a_guess_and_of_two_ranks_one_at_a_send_that_does_not_pair_up(
    ranks: list[int], cause: str
) -> None:
    mixed = pl.concat([blocker(kind="cycle", op="send", cycle=ranks), blocker(rank=1, kind="cycle", op="all_reduce", cycle=ranks)])
    assert found(mixed) == [(1, cause, "low", "progress"), (2, cause, "low", "progress")]


# ---- what GPUs have begun ----


def test_a_gpu_that_has_not_begun_what_its_peers_have_is_told_before_ranks_that_wait_themselves() -> None:
    states = ((0, "started"), (1, "started"), (2, "scheduled"))
    more = [
        {"domain": "fr", "group_key": "pg:0", "rank": r, "seq": 6, "op": "all_reduce", "is_p2p": False, "pending": True, "done": False}
        | {"state": s, "order": 5, "source_id": r}
        for r, s in states
    ]
    ops = rows(OPERATIONS, *more)
    reached = progress({"pg:0": dict.fromkeys(range(3), (6, 5))})
    assert found(blocker(rank=1, pending=True), ops=ops, reached=reached) == [(2, "gpu-stall", "low", "progress")]
    assert found(blocker(rank=1, pending=False, own_record="entries[5]"), ops=ops, reached=reached) == [
        (1, "host-stall", "high", "progress")
    ]


def test_a_rank_with_open_work_that_waits_for_its_gpu_as_its_waiters_do_is_not_blamed() -> None:
    alike = standing(r0="cuda-sync", r1="cuda-sync", r2="cuda-sync")
    assert found(blocker(pending=True), states=alike) == []
    assert found(blocker(pending=True), states=standing(r0="collective", r1="collective", r2="cuda-sync")) == [
        (2, "gpu-stall", "low", "progress")
    ]


def test_nor_is_one_that_waits_as_two_do_who_do_not_wait_for_it() -> None:
    alike = standing(r0="collective", r1="collective", r2="cuda-sync", r3="cuda-sync", r4="cuda-sync")
    assert found(blocker(pending=True), states=alike) == []


# ---- a rank that only its silence singles out ----


def late(*ranks: int, alive: tuple[int, ...] = (), signal: str | None = None) -> pl.LazyFrame:
    """Ranks that timed out, and ranks that the launcher had to stop, by this signal at last."""
    timed = ({"rank": r, "kind": "victim", "own": False, "signature": "gloo-timeout", "source_id": r, "line_no": 1} for r in ranks)
    ended = {"kind": "terminated", "own": False, "exit_code": -15, "signal": signal, "source_id": 9}
    stopped = (ended | {"rank": r, "line_no": r} for r in alive)
    return rows(DEATHS, *timed, *stopped)


def test_the_rank_that_never_timed_out_while_all_others_did_was_elsewhere() -> None:
    assert found(endings=late(0, 1, 2, alive=(3,))) == [(3, "host-stall", "low", "endings")]


def test_of_three_ranks_the_one_that_had_to_be_killed_is_told_as_well() -> None:
    assert found(endings=late(0, 2, alive=(1,))) == []
    assert found(endings=late(0, 2, alive=(1,), signal="SIGKILL")) == [(1, "host-stall", "low", "endings")]
    assert found(endings=late(0, 2, alive=(1, 3), signal="SIGKILL")) == []


def test_silence_says_nothing_where_few_timed_out_or_a_recorder_knows_better() -> None:
    assert found(endings=late(0, alive=(1,))) == []
    assert found(endings=late(0, 1, alive=(2, 3))) == []
    recorded = progress({"pg:0": {0: (6, 5), 1: (6, 5), 2: (6, 5), 3: (6, 5)}})
    assert found(endings=late(0, 1, 2, alive=(3,)), reached=recorded) == []


def test_a_rank_that_waits_in_a_group_of_its_own_gives_way_to_the_one_on_its_host() -> None:
    # Rank 1 is behind in the first group and stands in another, of which nothing else is known; rank 2 has no recorder and is in its
    # loader.
    reached = pl.concat(
        [
            progress({"pg:0": {0: (6, 5), 1: (5, 5)}}).with_columns(last_created_ns=1),
            progress({"pg:4": {1: (9, 8)}}).with_columns(last_created_ns=2),
        ]
    )
    states = standing(r0="collective", r1="collective", r2="data-loader")
    assert found(blocker(1), states, reached=reached) == [(2, "input-stall", "high", "stacks")]


def test_several_that_came_last_to_one_call_of_another_group_wait_there_themselves() -> None:
    own = progress({"pg:0": {0: (6, None), 1: (5, None), 2: (5, None)}}).with_columns(last_order=1)
    both = pl.concat([blocker(1), blocker(2)])
    assert [row[0] for row in found(both, reached=own)] == [1, 2]

    def beside(seq: dict[int, int], done: int | None = None) -> list[object]:
        apart = progress({"pg:4": {rank: (n, done) for rank, n in seq.items()}}).with_columns(last_order=2)
        return [row[0] for row in found(both, reached=pl.concat([own, apart]))]

    assert beside({1: 9, 2: 9}) == []
    # At calls of their own, or with what they came to done, they stall.
    assert beside({1: 9, 2: 8}) == beside({1: 9, 2: 9}, done=9) == [1, 2]


def test_who_waits_for_a_call_that_another_took_behind_the_one_of_all_does_not_stall() -> None:
    taken = {"group_key": "pg:0", "other_key": "pg:4", "ranks": [0], "others": [1], "majority": True}

    def beside(entered: bool) -> list[int]:
        turned = rows(INVERSIONS, taken | {"entered": entered})
        return stalls(blocker(1), *[None] * 22, turned).collect()["rank"].to_list()

    assert beside(entered=False) == []
    assert beside(entered=True) == [1]


def test_the_one_rank_without_a_file_is_gone_where_all_others_left_dumps() -> None:
    silent, known = blocker(kind="unseen", walked=True), groups({"pg:0": [0, 1, 2]})
    told = {"use": "chosen", "comm_lib_version": "2.27.5", "version_major": 2, "version_minor": 10}
    kinds = {
        "rank": pl.Int32(),
        "use": pl.String(),
        "comm_lib_version": pl.String(),
        "version_major": pl.Int32(),
        "version_minor": pl.Int32(),
    }
    kinds |= {"encoding": pl.String()}

    def causes(left: list[int], files: tuple[int, ...] = (), **more: object) -> list[tuple[object, ...]]:
        dumps = rows(kinds, *({"rank": r, "encoding": "pickle"} | told | more for r in left))
        owners = rows(SOURCE_RANKS_SCHEMA, *({"source_id": r, "rank": r} for r in files))
        found = stalls(silent, *[None] * 7, known, None, owners, *[None] * 3, dumps).collect()
        return found.select("rank", "cause", "confidence").rows()

    assert causes([0, 1]) == [(2, "rank-died", "low")]
    assert causes([0]) == [(2, "host-stall", "low")], "others left no dump either: files were lost"
    assert causes([0, 1], files=(2,)) == [(2, "host-stall", "low")], "a file is its own"
    assert causes([0, 1], comm_lib_version="") == [(2, "host-stall", "low")], "gloo's recorders write nothing by themselves"


def test_without_its_stack_it_is_named_weakly() -> None:
    own = progress({"pg:0": {0: (6, 5), 1: (5, 5)}}).with_columns(last_created_ns=1)
    apart = progress({"pg:4": {1: (9, 8)}}).with_columns(last_created_ns=2)
    assert found(blocker(1), reached=own) == [(1, "host-stall", "medium", "progress")]
    assert found(blocker(1), reached=pl.concat([own, apart])) == [(1, "host-stall", "low", "progress")]
    # Its peer of that group has a record too.
    both = progress({"pg:4": {0: (9, 8), 1: (9, 8)}}).with_columns(last_created_ns=2)
    assert found(blocker(1), reached=pl.concat([own, both])) == [(1, "host-stall", "medium", "progress")]


# ---- circles ----


def circle(*ranks: int) -> dict[int, dict[str, object]]:
    return {r: {"kind": "cycle", "cycle": list(ranks)} for r in ranks}


def test_of_a_circle_the_rank_that_is_not_where_most_are_is_the_odd_one() -> None:
    # Ranks 0 and 1, and 2 and 3, are pairs of one role. Rank 3 is behind in the group of all and ahead in its pair.
    far = progress(
        {"pg:0": {0: (3, 2), 1: (3, 2), 2: (3, 2), 3: (2, 2)}, "pg:1": {0: (24, 24), 1: (24, 24)}, "pg:2": {2: (24, 24), 3: (25, 24)}}
    )
    calls = pl.concat(
        [
            operations({0: ["all_reduce"]}, group=group).with_columns(group_desc=pl.lit(role))
            for group, role in (("pg:0", "all"), ("pg:1", "pair"), ("pg:2", "pair"))
        ]
    )
    odd = odd_in_circle(circle(2, 3), far, calls)
    assert {r: row.get("odd") for r, row in odd.items()} == {3: True}
    # Where the pairs are of two roles nobody knows what most would do.
    apart = pl.concat([calls.filter(pl.col("group_key") != "pg:2"), operations({2: ["all_reduce"]}, group="pg:2")])
    assert set(odd_in_circle(circle(2, 3), far, apart)) == {2, 3}


def test_who_waits_in_a_send_or_receive_of_a_circle_went_on_to_nothing() -> None:
    # Rank 3 is behind its peers as rank 2 does not answer its send, and rank 2 waits for it in the group of all.
    far = progress({"pg:0": {0: (3, 2), 1: (3, 2), 2: (3, 2), 3: (2, 2)}})
    two = circle(2, 3)
    two[2] |= {"op": "send", "in_group": [3]}
    two[3] |= {"op": "all_reduce", "in_group": [2]}
    assert set(odd_in_circle(two, far, operations({0: ["all_reduce"]}))) == {2, 3}
    two[2]["op"] = "broadcast"
    assert set(odd_in_circle(two, far, operations({0: ["all_reduce"]}))) == {3}


def test_whoever_posted_other_sends_than_all_at_its_place_of_other_pipelines_is_the_odd_one_of_a_circle() -> None:
    # Stages 0, 2, 4 and 1, 3, 5 of three pipelines. Rank 3 left out the call of all, in which rank 2 waits with the others, and went on to
    # the sends of the next step.
    far = progress({"pg:0": dict.fromkeys((0, 1, 2, 4, 5), (3, 2)), "pg:9": {3: (25, 24)}})
    stages = groups({f"pg:s{r}": [r, r + 1] for r in (0, 2, 4)}).with_columns(group_desc=pl.lit("stages"))

    def odd(posted: dict[int, int], *, described: bool = True) -> set[int]:
        sends = pl.concat([operations({r: ["send"]}, group=f"pg:s{r // 2 * 2}", first=n) for r, n in posted.items()])
        known = stages if described else stages.with_columns(group_desc=pl.lit(None, pl.String))
        return set(odd_in_circle(circle(2, 3), far, sends.with_columns(is_p2p=pl.lit(value=True)), known))

    usual = {0: 7, 1: 5, 2: 7, 3: 5, 4: 7, 5: 5}
    assert odd(usual | {3: 9}) == {3}
    assert odd(usual | {2: 6}) == {2}, "it left one out"
    assert odd(usual) == odd(usual | {2: 6, 3: 9}) == {2, 3}
    assert odd(usual | {1: 6, 3: 9}) == {2, 3}, "those at its place do not agree"
    assert odd(usual | {3: 9}, described=False) == {2, 3}, "nothing tells who stands at its place"


def test_who_posted_one_send_to_a_peer_that_it_never_had_is_the_odd_one_of_a_circle() -> None:
    far = progress({"pg:0": dict.fromkeys(range(3), (3, 2))})

    def odd(**peers: list[int]) -> set[int]:
        found = [
            operations({rank: ["send"] * len(to)}, group="pg:7").with_columns(is_p2p=pl.lit(value=True), peer=pl.Series(to, dtype=pl.Int32))
            for rank, to in enumerate(peers.values())
        ]
        return set(odd_in_circle(circle(0, 1, 2), far, pl.concat(found)))

    usual = [0, 2] * 10
    assert odd(first=[1] * 20 + [2], second=usual, third=[1] * 20) == {0}
    everyone = {0, 1, 2}
    assert odd(first=[1] * 20, second=usual, third=[1] * 20) == everyone
    assert odd(first=[1] * 20 + [2] * 4, second=usual, third=[1] * 20) == everyone, "as ever"
    assert odd(first=[1] * 20 + [2], second=usual, third=[1] * 20 + [0]) == everyone, "two of them"
    assert odd(first=[1] * 3 + [2], second=[0, 2], third=[1]) == everyone, "too few to tell"


def test_most_are_counted_among_ranks_that_have_the_same_groups() -> None:
    # Ranks 0 to 5 train and 6 to 9 sample; rank 7 is a call short in the sampling group, and ahead of the other three in that of all.
    everyone = dict.fromkeys(range(6), (3, 2)) | {6: (2, 2), 7: (3, 2), 8: (2, 2), 9: (2, 2)}
    far = progress({"pg:0": everyone, "pg:2": {6: (8, 7), 7: (7, 7), 8: (8, 7), 9: (8, 7)}})
    calls = operations({0: ["all_reduce"]})
    odd = odd_in_circle(circle(6, 7, 8, 9), far, calls)
    assert {r: row.get("odd") for r, row in odd.items()} == {7: True}
    two = far.filter(~pl.col("rank").is_in([8, 9]))
    assert set(odd_in_circle(circle(6, 7), two, calls)) == {6, 7}, "of two either may be the odd one"


def test_several_that_each_passed_over_another_groups_call_and_wait_in_a_circle_took_the_groups_in_another_order() -> None:
    missed = {r: ({"group_key": f"pg:{r}", "op": "all_to_all", "seq": 6}, "pg:9") for r in (4, 13)}
    assert _swapped(missed, circle(4, 5, 12, 13))
    assert not _swapped({4: missed[4]}, circle(4, 5, 12, 13)), "one alone left a call out"
    assert not _swapped(dict.fromkeys(missed, missed[4]), circle(4, 5, 12, 13)), "the same call of one group"
    assert not _swapped(missed, circle(4, 5)), "not in the circle"
    told = cause_of(4, circle(4, 13)[4] | missed[4][0] | {"kind": "swapped", "ahead": "pg:9", "partners": [4, 13]}, {}, None)
    assert told is not None
    assert (told.cause, told.confidence, told.partners) == ("group-deadlock", "medium", [4, 13])


def test_who_stands_in_another_call_of_the_only_group_left_a_call_out() -> None:
    """Nothing of its own tells how far it came; the others' recorders tell what they wait in."""
    row = {"kind": "silent", "op": "all_reduce", "waiters": [0, 1], "seen_by": "endings", "one_group": True}
    stacks = standing(r0="collective", r1="collective", r2="collective").collect().rows(named=True)

    def told(op: str, /, **more: object) -> str | None:
        places = {s["rank"]: s | ({"op": op, "user_frame": "finish (train.py:90)"} if s["rank"] == 2 else {"op": None}) for s in stacks}
        cause = cause_of(2, row | more, places, None)
        return cause.cause if cause is not None else None

    assert told("barrier") == "collective-skipped"
    assert told("barrier", call_site="finish (train.py:88)") == "collective-mismatch", "the function in which the others wait as well"
    # Across several groups, and where it is the same operation by another name, that does not tell.
    assert told("barrier", one_group=False) == "group-deadlock"
    assert told("all_gather_into_tensor", op="all_gather_base") == "group-deadlock"
    assert told("reduce_scatter_tensor") == "group-deadlock", "gloo records it as an all_reduce"
    # Its own recorder holds that call: the others have left it.
    assert told("broadcast", own_last_op="broadcast", pending=True) is None


def test_without_a_majority_all_of_the_circle_stay() -> None:
    far = progress({"pg:0": {0: (3, 2), 1: (2, 2)}, "pg:1": {0: (5, 5), 1: (6, 5)}})
    assert set(odd_in_circle(circle(0, 1), far, operations({0: ["all_reduce"], 1: ["all_reduce"]}))) == {0, 1}


def test_the_odd_one_of_a_circle_left_something_out() -> None:
    told = cause_of(3, circle(2, 3)[3] | {"odd": True, "op": "all_gather", "seq": 3}, {}, None)
    assert told is not None
    assert (told.cause, told.confidence) == ("collective-skipped", "medium")


# ---- a walk that ends at a rank that waits in a group of which nothing else is known ----


def ends_at_one_that_waits(members: list[int], **places: str) -> list[tuple[object, ...]]:
    """Rank 3 waits for rank 1, which stands in a call of another group (``members``) of which only its own recorder tells."""
    reached = progress({"pg:0": {1: (5, 5), 3: (6, 5)}, "pg:7": {1: (90, 89)}})
    return found(blocker(1, waiters=[3]), standing(r1="collective", **places), reached=reached, made=groups({"pg:7": members}))


def test_a_member_of_that_group_that_stands_on_its_host_is_whom_the_walk_leads_to() -> None:
    assert ends_at_one_that_waits([0, 1], r0="lock", r2="lock") == [(0, "host-stall", "high", "stacks")]
    assert ends_at_one_that_waits([0, 1], r0="collective") == []


def test_where_nobody_lists_the_members_it_is_the_only_rank_on_its_host_without_a_recorder() -> None:
    assert ends_at_one_that_waits([1], r0="lock", r3="lock") == [(0, "host-stall", "high", "stacks")]
    assert ends_at_one_that_waits([1], r0="lock", r2="lock") == []


def between(*waits_from: bool | None) -> list[object]:
    """Ranks that are named of two behind the others, both in their own code, where ``waits_from`` says who may wait there."""
    behind = pl.concat([blocker(2), blocker(3)])
    states = standing(r0="collective", r1="collective", r2="user-code", r3="user-code")
    told = pl.concat([pl.Series([False, False], dtype=pl.Boolean), pl.Series(list(waits_from), dtype=pl.Boolean)])
    return [rank for rank, *_ in found(behind, states.with_columns(waits_from=told))]


def test_beside_one_that_stands_where_nobody_waits_who_may_wait_is_not_blamed() -> None:
    assert between(True, False) == [3]


def test_where_all_of_them_may_wait_or_none_may_nobody_is_left_out() -> None:
    assert between(True, True) == between(False, False) == between(None, None) == [2, 3]


STEPS = st.lists(st.integers(0, 2), max_size=4)


@given(st.lists(st.integers(3, 4), max_size=3), STEPS, st.integers(0, 5), st.lists(st.integers(0, 2), max_size=3))
def test_a_step_is_the_shortest_that_a_line_repeats_at_least_twice_or_three_times_after_a_beginning(
    before: list[int], step: list[int], times: int, rest: list[int]
) -> None:
    line = before + step * times + rest

    def repeated(part: list[int]) -> int | None:
        return next((n for n in range(1, len(part) // 2 + 1) if all(part[i] == part[i + n] for i in range(len(part) - n))), None)

    whole = repeated(line)
    later = ((at, n) for at in range(1, len(line)) if (n := repeated(line[at:])) is not None and n > 1 and n * 3 <= len(line) - at)
    at, size = (0, whole) if whole is not None else next(later, (0, None))
    assert _left_over(line) == (None if size is None or at > size else (len(line) - at) % size)


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_sequences_come_in_order_whatever_is_held_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {rank: ["all_reduce 1", "all_reduce 2"] * (rank + 1) for rank in range(5)}
    calls = calls_of(operations(lines, domain="nccl", group="0xc").reverse())
    monkeypatch.setattr(calls_module, "AT_ONCE", at_once)
    found = {rank: line for (_, _, rank), line in sequences(calls, [("nccl", "0xc", r) for r in (3, 1, 9)], ("op", "shape"))}
    assert {rank: len(line) for rank, line in found.items()} == {3: 8, 1: 4}
    assert all(line[0] != line[1] and line == line[:2] * (len(line) // 2) for line in found.values())


# ---- a rank of which nothing is heard ----


def timed_out(*ranks: int) -> pl.LazyFrame:
    """gloo's timeout on these ranks."""
    return rows(
        DEATHS, *[{"rank": r, "own": False, "kind": "victim", "signature": "gloo-timeout", "source_id": r, "line_no": 1} for r in ranks]
    )


def heard(*ranks: int, **other: int) -> pl.LazyFrame:
    """Recorders of gloo, which mark nothing as completed, level in operation 9; r2=8 is rank 2 in another."""
    return progress({"pg:0": {r: (other.get(f"r{r}", 9), None) for r in ranks}})


def test_where_all_others_timed_out_in_one_operation_the_member_without_any_evidence_is_named_weakly() -> None:
    job = groups({"pg:0": [0, 1, 2, 3]})
    assert found(endings=timed_out(1, 2, 3), reached=heard(1, 2, 3), made=job) == [(0, "host-stall", "low", "progress")]


@pytest.mark.parametrize(
    ("ends", "reached"),
    [
        (timed_out(1, 2), heard(1, 2, 3)),  # one that has not timed out
        (timed_out(1, 2, 3), heard(1, 2, 3, r2=8)),  # one that stands elsewhere
        (timed_out(0, 1, 2, 3), heard(0, 1, 2, 3)),  # nobody is missing
    ],
)
def test_a_member_without_evidence_is_not_named_where_the_others_do_not_all_wait_alike(ends: pl.LazyFrame, reached: pl.LazyFrame) -> None:
    assert found(endings=ends, reached=reached, made=groups({"pg:0": [0, 1, 2, 3]})) == []


def test_where_many_are_not_heard_of_their_files_are_missing_and_nobody_is_named() -> None:
    assert found(endings=timed_out(3, 4), reached=heard(3, 4), made=groups({"pg:0": [0, 1, 2, 3, 4, 5]})) == []


def test_stages_that_all_receive_are_a_guess_where_somebody_has_no_stack() -> None:
    places = standing(r0="collective", r1="p2p", r2="p2p")
    alike = {"pg:0": [0, 1, 2, 3]}
    assert found(blocker(), places, made=groups(alike)) == [(2, "p2p-deadlock", "low", "progress")]
    assert found(blocker(), places, made=groups({"pg:0": [0, 1, 2]})) == [(2, "p2p-deadlock", "high", "progress")]
    both_ways = places.with_columns(op=pl.when(pl.col("rank") == 1).then(pl.lit("recv")).otherwise("op"))
    # One that sends and one that receives would end each other's wait: their partner is somebody else.
    assert found(blocker(), both_ways, made=groups(alike)) == [(2, "p2p-deadlock", "medium", "progress")]


def test_who_waits_in_the_last_operation_of_the_same_group_is_in_no_circle_of_groups() -> None:
    ahead = standing(r0="collective", r1="collective", r2="collective")
    assert found(blocker(own_last_op="all_reduce"), ahead) == []
    assert found(blocker(own_last_op="broadcast"), ahead) == [(2, "group-deadlock", "low", "progress")]


def test_a_send_beside_a_receive_is_no_circle() -> None:
    places = standing(r0="collective", r1="p2p", r2="p2p").with_columns(
        op=pl.when(pl.col("rank") == 1).then(pl.lit("recv")).otherwise("op")
    )
    [row] = stalls(blocker(), places, None, None, None, None, None, None, None).collect().to_dicts()
    assert (row["confidence"], row["partners"]) == ("medium", [])


def test_an_idle_thread_in_user_code_is_a_guess_by_stacks_alone_and_none_where_others_move() -> None:
    places = standing(r0="collective", r1="collective", r2="collective", r3="user-code")
    victim = rows(DEATHS, {"rank": 0, "kind": "victim", "own": False})
    assert found(None, places, victim) == [(3, "host-stall", "low", "stacks")]
    assert found(None, places) == []
    assert found(None, standing(r0="collective", r1="collective", r2="collective", r3="lock")) == [(3, "host-stall", "high", "stacks")]
    moving = standing(r0="collective", r1="collective", r2="collective", r3="lock").with_columns(moved=pl.col("rank") == 1)
    assert found(None, moving) == []


def new_group(few: tuple[int, ...], most: tuple[int, ...], kind: str = "behind") -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """``most`` stand in new_group, and ``few`` wait for them in the next all_reduce, the first that a recorder holds where ``kind`` is
    unseen."""
    ends = rows(
        BLOCKERS,
        *[
            {"rank": r, "kind": kind, "waiters": list(few), "domain": "fr", "group_key": "pg:0", "seq": 4, "op": "all_reduce"}
            | {"source_id": few[0], "record": "entries[3]", "walked": False}
            for r in most
        ],
    )
    places = {f"r{r}": "collective" for r in (*few, *most)}
    made = standing(**places).with_columns(
        op=pl.when(pl.col("rank").is_in(most)).then(pl.lit("new_group")).otherwise("op"),
        user_frame=pl.when(pl.col("rank").is_in(most)).then(pl.lit("train (train.py:177)")).otherwise(pl.lit("train (train.py:178)")),
    )
    return ends, made


@pytest.mark.parametrize("kind", ["behind", "unseen"])
def test_who_never_joined_a_call_that_no_recorder_holds_is_blamed_and_not_the_many_that_did(kind: str) -> None:
    ends, places = new_group((3,), (0, 1, 2), kind)
    assert found(ends, places) == [(3, "collective-skipped", "medium", "stacks")]


def test_who_has_left_a_call_with_a_root_joined_it() -> None:
    """Whoever sends to the root of a gather is done while the root waits for another."""
    ends, places = new_group((3,), (0, 1, 2))
    gather = places.with_columns(op=pl.col("op").replace("new_group", "gather"))
    assert 3 not in [rank for rank, *_ in found(ends, gather)]


def test_few_that_stand_in_such_a_call_are_not_taken_for_the_rule() -> None:
    ends, places = new_group((0, 1, 2), (3,))
    assert found(ends, places) == [(3, "group-deadlock", "low", "progress")]


def test_those_who_send_to_a_rank_that_waits_for_another_do_not_wait_for_each_other() -> None:
    places = standing(r0="p2p", r1="collective", r2="p2p", r3="p2p").with_columns(
        op=pl.when(pl.col("rank") == 0).then(pl.lit("recv")).otherwise("op")
    )
    both = pl.concat([blocker(2), blocker(3)])
    rows_ = stalls(both, places, None, None, None, None, None, None, None).collect().to_dicts()
    assert [(r["rank"], r["confidence"], r["partners"]) for r in rows_] == [(2, "medium", []), (3, "medium", [])]


def test_where_half_of_all_ranks_move_nobody_is_stuck_whoever_waits() -> None:
    places = standing(r0="collective", r1="user-code", r2="user-code", r3="collective")
    assert [r for r, *_ in found(blocker(1, waiters=[3]), places)] == [1]
    moves = rows(MOTION, *({"rank": r, "motion": "moving" if r in (0, 2) else "stuck"} for r in range(4)))
    assert found(blocker(1, waiters=[3]), places, motion=moves) == []


@pytest.mark.parametrize("kind", ["gpu", "behind", "not-begun"])
def test_of_a_job_whose_recorders_went_on_between_two_dumps_nobody_is_stuck(kind: str) -> None:
    """The dumps of a slow job leave open what its slow GPU has not done."""
    behind = blocker(2).with_columns(kind=pl.lit(kind), pending=pl.lit(value=kind != "behind"))
    went_on = rows(MOTION, *({"rank": r, "motion": "moving"} for r in range(4)))
    one_look = rows(MOTION, *({"rank": r, "motion": "unknown"} for r in range(4)))
    assert [r for r, *_ in found(behind, motion=one_look)] == [2]
    assert found(behind, motion=went_on) == []
    gave_up = rows(DEATHS, *({"rank": r, "kind": "victim"} for r in (0, 1, 3)))
    assert [r for r, *_ in found(behind, endings=gave_up, motion=went_on)] == [2]


def in_a_full_group(size: int | None, entered: dict[int, int]) -> list[tuple[object, ...]]:
    """Rank 1 is behind in a group; it stands with these others in an operation of another group, which has ``size`` members."""
    reached = pl.concat(
        [
            progress({"pg:0": {0: (6, 5), 1: (5, 5), 2: (5, 5), 3: (5, 5)}}).with_columns(last_created_ns=1),
            progress({"pg:4": {r: (at, 8) for r, at in entered.items()}}).with_columns(last_created_ns=2),
        ]
    )
    waiting = [r for r, at in entered.items() if at == 9]
    whole = rows(STUCK, {"domain": "fr", "group_key": "pg:4", "seq": 9, "op": "reduce", "ranks": waiting, "size": size})
    frame = stalls(blocker(1, waiters=[0]), None, None, None, None, None, reached, None, None, whole).collect()
    return frame.select("rank", "cause").rows()


def test_a_rank_that_stands_with_all_members_of_a_group_in_what_none_of_them_leaves_is_held_up_as_they_are() -> None:
    assert in_a_full_group(3, {1: 9, 2: 9, 3: 9}) == []
    # Nothing says how many members there are, and no rank's recorder is missing: those that used the group before are all.
    assert in_a_full_group(None, {1: 9, 2: 9, 3: 9}) == []


def test_a_rank_that_waits_for_a_member_that_has_not_come_is_no_end_of_the_walk_either_but_that_is_not_told_here() -> None:
    assert in_a_full_group(4, {1: 9, 2: 9, 3: 9}) == [(1, "host-stall")]
    assert in_a_full_group(None, {1: 9, 2: 9, 3: 8}) == [(1, "host-stall")]


def answered(silent: int | None = 1, stacks: pl.LazyFrame | None = None, dumps: tuple[int, ...] = (0, 2, 3)) -> list[tuple[object, ...]]:
    """Ranks 0, 2 and 3 answered and wait, rank 3 in a send; of rank 1 there is its output only."""
    places = stacks if stacks is not None else standing(r0="collective", r2="collective", r3="p2p")
    reached = progress({"pg:2": {r: (6 if r == 2 else 5, 5) for r in dumps}})
    wrote = pl.DataFrame(
        {"source_id": [0, 1, 2, 3], "rank": [0, silent, 2, 3]}, schema={"source_id": pl.UInt32(), "rank": pl.Int32()}
    ).lazy()
    frame = stalls(blocker(3, waiters=[2]), places, None, None, None, None, reached, None, None, None, wrote).collect()
    return frame.select("rank", "cause", "confidence").rows()


def test_the_one_rank_that_answers_nobody_while_all_others_wait_is_what_a_lone_send_waits_for() -> None:
    assert answered() == [(1, "host-stall", "low")]


def test_a_wait_for_a_request_is_told_by_what_the_recorder_has_not_finished() -> None:
    sleeping = standing(r0="user-code", r2="user-code", r3="user-code")
    wrote = pl.DataFrame({"source_id": range(4), "rank": range(4)}, schema={"source_id": pl.UInt32(), "rank": pl.Int32()}).lazy()
    for done, expected in ((5, [(1, "host-stall")]), (6, [])):
        reached = progress({"pg:0": dict.fromkeys((0, 2, 3), (6, done))})
        frame = stalls(None, sleeping, None, None, None, None, reached, None, None, None, wrote).collect()
        assert frame.select("rank", "cause").rows() == expected


def test_a_rank_of_which_no_file_is_there_or_one_whose_peers_do_not_all_wait_or_answer_is_not_named() -> None:
    lone = [(3, "p2p-deadlock", "medium")]
    assert answered(silent=None) == lone  # nothing of it was collected
    assert answered(dumps=(2, 3)) == lone  # a dump is missing beside the stack of another
    assert answered(stacks=standing(r0="lock", r2="collective", r3="p2p")) == lone
    assert answered(stacks=standing(r0="collective", r2="collective", r3="p2p").with_columns(moved=pl.col("rank") == 0)) == lone


@pytest.mark.parametrize(("ends", "told"), [((9, 9, 9), [(2, "host-stall", "high")]), ((9, 8, 7), [])])
def test_where_hosts_were_at_work_when_recorders_were_looked_at_the_job_may_have_gone_on(
    ends: tuple[int, int, int], told: list[tuple[int, str, str]]
) -> None:
    state = progress({"pg:0": dict(zip((0, 1, 3), ((end, 5) for end in ends), strict=True)) | {2: (5, 5)}})
    known = groups({"pg:0": [0, 1, 2, 3]})
    frame = stalls(blocker(pending=False, own_record="entries[4]"), None, None, None, None, None, state, None, known).collect()
    assert frame.select("rank", "cause", "confidence").rows() == told
    # A watchdog that timed out says that it stood.
    timeouts = table("watchdog", {"kind": "timeout", "line_no": 1})
    frame = stalls(blocker(pending=False, own_record="entries[4]"), None, None, None, None, None, state, timeouts, known).collect()
    assert frame.select("rank", "cause", "confidence").rows() == [(2, "host-stall", "high")]


def test_two_gpus_that_have_begun_nothing_wait_in_no_call_that_both_enqueued_last() -> None:
    parts = {"pg:a": (0, 1, 2), "pg:b": (3, 4, 5)}

    def told(late: str) -> list[tuple[object, ...]]:
        calls = [
            {"domain": "fr", "group_key": key, "rank": r, "seq": seq, "op": "all_reduce", "is_p2p": False, "pending": True, "done": False}
            | {"state": "started" if key != "pg:all" and r % 3 < 2 else late, "order": seq, "source_id": r}
            for group, ranks in parts.items()
            for r in ranks
            for key, seq in ((group, 6), ("pg:all", 9))
        ]
        of_parts = progress({key: dict.fromkeys(ranks, (6, 5)) for key, ranks in parts.items()}).with_columns(last_order=pl.lit(6))
        of_all = progress({"pg:all": dict.fromkeys(range(6), (9, 8))}).with_columns(last_order=pl.lit(9))
        reached = pl.concat([of_parts, of_all])
        return found(blocker(kind="cycle", walked=False), ops=rows(OPERATIONS, *calls), reached=reached)

    assert told("scheduled") == [(2, "gpu-stall", "low", "progress"), (5, "gpu-stall", "low", "progress")]
    assert "gpu-stall" not in {cause for _, cause, *_ in told("started")}


def test_gpus_that_have_not_begun_say_nothing_where_ranks_have_not_finished_the_same() -> None:
    entry = {"domain": "fr", "group_key": "pg:0", "op": "all_reduce", "is_p2p": False, "pending": True, "seq": 6}
    begun = rows(
        OPERATIONS, *(entry | {"rank": r, "state": "scheduled" if r == 2 else "started", "order": 1, "source_id": r} for r in range(4))
    )
    for done, told in (((5, 5, 5, 5), [2]), ((5, 4, 2, 3), [])):
        state = progress({"pg:0": {r: (9, end) for r, end in enumerate(done)}})
        frame = stalls(blocker(kind="unseen", rank=3), None, None, None, None, begun, state, None, groups({"pg:0": [0, 1, 2, 3]})).collect()
        assert [r for r in frame["rank"].to_list() if r != 3] == told


def test_a_stall_beside_a_host_that_stands_elsewhere_may_be_a_moment_of_a_job_that_goes_on() -> None:
    behind, known = blocker(pending=False, own_record="entries[4]"), groups({"pg:0": list(range(12))})
    for elsewhere, confidence in ((7, "low"), (6, "high")):
        state = progress({"pg:0": {2: (5, 5)} | {r: (elsewhere if r == 3 else 6, 5) for r in range(12) if r != 2}})
        frame = stalls(behind, None, None, None, None, None, state, None, known).collect()
        assert frame.select("rank", "confidence").rows() == [(2, confidence)]


def test_nobody_stalls_where_recorders_of_others_show_that_the_job_moved_between_two_looks() -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5), 3: (4, 3)}})

    def named(*moved: int, lost: bool = False) -> list[int]:
        late = pl.LazyFrame({"rank": list(moved)}, schema={"rank": pl.Int32()})
        gone = table("watchdog", {"kind": "timeout", "line_no": 1}) if lost else None
        told = stalls(blocker(), None, None, None, None, None, state, gone, groups({"pg:0": [0, 1, 2, 3]}), *[None] * 17, late)
        return told.collect()["rank"].to_list()

    assert named() == [2]
    assert named(3) == []
    assert named(2) == [2], "its own recorder may be the one that is wrong"
    assert named(3, lost=True) == [2], "a job that timed out stands"


def test_gpus_here_and_there_that_seem_to_stand_are_those_of_a_job_that_goes_on() -> None:
    """As many of one host stand together, two may do so by chance, and a timeout says that the job stood."""
    timeouts = table("watchdog", {"kind": "timeout", "line_no": 1})
    for ranks, watchdog, told in (
        ((2, 5, 9), None, []),
        ((2, 5, 9), timeouts, [2, 5, 9]),
        ((2, 3, 4), None, [2, 3, 4]),
        ((2, 9), None, [2, 9]),
    ):
        stand = pl.concat([blocker(kind="gpu", rank=rank, waiters=[0, 1]) for rank in ranks])
        state = progress({"pg:0": {r: (7, 5 if r in ranks else 6) for r in range(12)}})
        frame = stalls(stand, None, None, None, None, None, state, watchdog, groups({"pg:0": list(range(12))})).collect()
        assert frame["rank"].to_list() == told


@pytest.mark.parametrize(("idle", "confidence"), [(4, "low"), (1, "high")])
def test_where_most_ranks_have_nothing_open_a_stall_told_by_recorders_alone_may_be_a_moment_of_a_job_that_goes_on(
    idle: int, confidence: str
) -> None:
    reached = {2: (5, 5)} | dict.fromkeys((0, 1), (6, 5)) | dict.fromkeys(range(3, 3 + idle), (6, 6))
    state = progress({"pg:0": reached}).with_columns(first_pending=pl.when(pl.col("last_done") < pl.col("last_seq")).then("last_seq"))
    known = groups({"pg:0": sorted(reached)})
    behind = blocker(pending=False, own_record="entries[4]")
    frame = stalls(behind, None, None, None, None, None, state, None, known).collect()
    assert frame.select("rank", "confidence").rows() == [(2, confidence)]
    # What timed out stood, and a stack says for itself where its rank is.
    timeouts = table("watchdog", {"kind": "timeout", "line_no": 1})
    assert stalls(behind, None, None, None, None, None, state, timeouts, known).collect()["confidence"].to_list() == ["high"]
    seen = stalls(behind, standing(r2="lock"), None, None, None, None, state, None, known).collect()
    assert seen["confidence"].to_list() == ["high"]


@pytest.mark.parametrize(("size", "named"), [(3, []), (4, [2])])
def test_a_rank_without_evidence_does_not_hold_up_a_group_that_stands_by_itself(size: int, named: list[int]) -> None:
    inside = {"domain": "fr", "group_key": "pg:4", "seq": 9, "op": "broadcast", "ranks": [4, 5, 6], "size": size, "held": False}
    unseen = blocker(kind="unseen", walked=True)
    assert stalls(unseen, None, None, None, None, None, None, None, None, rows(STUCK, inside)).collect()["rank"].to_list() == named


def test_one_look_at_a_stack_does_not_tell_that_it_stays_there_while_nothing_has_timed_out() -> None:
    once = standing(r0="collective", r1="collective", r2="data-loader").with_columns(moved=pl.lit(None, pl.Boolean))
    assert found(blocker(), once) == [(2, "input-stall", "medium", "progress")]
    gave_up = rows(DEATHS, {"rank": 0, "kind": "victim", "source_id": 1, "line_no": 1})
    assert found(blocker(), once, gave_up) == [(2, "input-stall", "high", "progress")]


def test_ranks_held_up_by_unlike_causes_may_be_at_work_while_nothing_has_timed_out() -> None:
    places = standing(r0="collective", r1="collective", r2="data-loader").with_columns(moved=pl.lit(None, pl.Boolean))
    gpu = blocker(rank=3, kind="gpu", own_record="entries[4]", in_group=[0, 1])
    reached = progress({"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5), 3: (6, 4)}})
    both = pl.concat([blocker(), gpu])
    assert found(both, places, reached=reached, made=groups({"pg:0": [0, 1, 2, 3]})) == [
        (2, "input-stall", "low", "progress"),
        (3, "gpu-stall", "low", "progress"),
    ]
    assert found(gpu, places, reached=reached, made=groups({"pg:0": [0, 1, 2, 3]})) == [(3, "gpu-stall", "high", "progress")]


def test_a_gpu_behind_its_only_peer_is_told_at_low_confidence_where_nothing_timed_out() -> None:
    timeouts = table("watchdog", {"kind": "timeout", "line_no": 1})
    for peers, watchdog, confidence in (([0], None, "low"), ([0, 1], None, "high"), ([0], timeouts, "high")):
        stand = blocker(kind="gpu", own_record="entries[4]", in_group=peers)
        frame = stalls(stand, None, None, None, None, None, None, watchdog, None).collect()
        assert frame.select("cause", "confidence").rows() == [("gpu-stall", confidence)]


def test_a_gpu_behind_its_only_peer_stands_only_where_half_of_the_job_waits_behind_it() -> None:
    for ranks, watchdog, named in ((2, None, [2]), (4, None, []), (4, table("watchdog", {"kind": "timeout", "line_no": 1}), [2])):
        state = progress({"pg:0": {r: (7, 5 if r == 2 else 6) for r in range(1, ranks + 1)}})
        stand = blocker(kind="gpu", own_record="entries[4]", in_group=[1], waiters=[1])
        frame = stalls(stand, None, None, None, None, None, state, watchdog, groups({"pg:0": list(range(1, ranks + 1))})).collect()
        assert frame["rank"].to_list() == named


def test_gpus_that_one_peer_each_overtook_were_looked_at_before_these() -> None:
    one = blocker(rank=3, kind="gpu", own_record="entries[4]", in_group=[0])
    other = blocker(rank=5, kind="gpu", own_record="entries[4]", in_group=[1])
    several = blocker(rank=5, kind="gpu", own_record="entries[4]", in_group=[0, 1])
    assert found(one) == [(3, "gpu-stall", "low", "progress")]
    assert found(pl.concat([one, other])) == []
    assert [rank for rank, *_ in found(pl.concat([one, several]))] == [3, 5]


def test_hosts_at_rest_here_and_there_may_be_at_work_while_nothing_has_timed_out() -> None:
    def named(ranks: list[int]) -> list[object]:
        ends = pl.concat([blocker(rank=r, pending=False, own_record="entries[4]") for r in ranks])
        return [rank for rank, *_ in found(ends)]

    assert named([2, 4, 7]) == []
    assert named([2, 3, 4]) == [2, 3, 4], "those of one host share what holds them"
    assert named([2, 7]) == [2, 7]


def test_circles_of_sends_and_collectives_through_most_of_the_job_name_nobody() -> None:
    def mixed(ranks: list[int]) -> pl.LazyFrame:
        return pl.concat(
            [blocker(rank=r, kind="cycle", op="send" if r == ranks[0] else "all_reduce", cycle=ranks, in_group=ranks) for r in ranks]
        )

    reached = progress({"pg:0": dict.fromkeys(range(6), (6, 5))})
    assert found(pl.concat([mixed([0, 1, 2]), mixed([3, 4, 5])]), reached=reached) == []
    assert [rank for rank, *_ in found(mixed([0, 1, 2]), reached=reached)] == [0, 1, 2]


def went_on_past(ends: pl.LazyFrame) -> list[tuple[object, ...]]:
    """Ranks 0 and 1 wait in group 5 for rank 2, which waits with them in group 6, of which rank 3 is not seen; of ranks what is open
    alone."""
    both = [operations({r: ["all_reduce"]}, group="pg:5", first=7) for r in (0, 1)]
    later = [operations({r: ["all_gather"]}, group="pg:6", first=4).with_columns(order=pl.lit(1, pl.Int64)) for r in (0, 1, 2)]
    reached = pl.concat([progress({"pg:5": {0: (7, 6), 1: (7, 6)}}), progress({"pg:6": dict.fromkeys(range(3), (4, 3))})])
    return found(ends, ops=pl.concat(both + later), reached=reached)


def test_who_waits_for_an_unseen_rank_as_all_do_and_went_past_what_they_wait_in_left_it_out() -> None:
    place = {"group_key": "pg:5", "seq": 7}
    unseen = blocker(3, "unseen", walked=True, waiters=[0, 1, 2], group_key="pg:6")
    passed = pl.concat([unseen, blocker(2, "passed", direct_waiters=[0, 1], **place)])
    assert went_on_past(passed) == [(2, "collective-skipped", "high", "progress")]
    # A rank that waits beside them, and that nobody waits for, passed nothing over.
    assert [row[:2] for row in went_on_past(unseen)] == [(3, "host-stall")]


def test_what_a_habit_foretells_is_no_call_left_out_beside_a_rank_that_stands_with_all_its_work_done() -> None:
    calls = pl.concat([_two_of_three(rank, short=rank == 0) for rank in range(8)])
    told = {"rank": 9, "waiters": [8], "own_record": "entries[5]"}
    assert [row[:2] for row in found(blocker(pending=None, **told), ops=calls)] == [(0, "collective-skipped")]
    assert [row[:2] for row in found(blocker(pending=False, **told), ops=calls)] == [(9, "host-stall")]


def _two_of_three(rank: int, short: bool) -> pl.LazyFrame:
    """Calls of a rank: steps of three operations in two groups, the last without the second operation if ``short``."""
    turns = "abcabcabc" + ("ac" if short else "abc")
    line = [
        operations({rank: [f"all_reduce [{turn}]"]}, group="pg:1" if turn == "c" else "pg:0", first=first).with_columns(
            order=pl.lit(order, pl.Int64)
        )
        for order, (turn, first) in enumerate(
            (turn, sum((t == "c") == (turn == "c") for t in turns[: at + 1])) for at, turn in enumerate(turns)
        )
    ]
    return pl.concat(line)


def test_whoever_gave_up_in_another_collective_may_have_waited_there_for_one_that_is_gone() -> None:
    """Rank 4 gave up in the gather of the pair that it forms with rank 5, the others in what they share with both."""
    in_gather = pl.when(pl.col("rank") == 4).then(pl.lit("all_gather")).otherwise("op").alias("op")
    gave_up = standing("traceback", r0="collective", r1="collective", r2="collective", r3="collective", r4="collective").with_columns(
        in_gather
    )
    killed = rows(DEATHS, {"rank": 5, "kind": "killed", "own": True})
    assert found(None, gave_up, killed) == []
    [(rank, *_)] = found(None, gave_up)
    assert rank == 4
    # Of rank 5 there are files, and no word of where it stood.
    written = rows(SOURCE_RANKS_SCHEMA, *({"source_id": r, "rank": r} for r in range(6)))
    assert found(None, gave_up, files=written) == []
    assert found(None, gave_up, files=written.filter(pl.col("rank") < 5))


def test_a_rank_that_was_looked_at_in_a_job_that_came_to_its_end_is_hardly_to_blame() -> None:
    places = standing(r0="collective", r1="collective", r2="checkpoint")
    over = table("training_ends", {"message": "training finished", "line_no": 120})
    assert found(None, places) == [(2, "host-stall", "high", "stacks")]
    [told] = stalls(None, places, *[None] * 17, over).collect().to_dicts()
    assert (told["confidence"], told["why"].rpartition("; ")[2]) == (
        "low",
        "the training loop said that it was done, and nothing has timed out",
    )


def test_half_of_the_ranks_stand_apart_only_at_one_line_that_tells_what_they_do_while_the_others_gave_up() -> None:
    def named(place: str, lines: tuple[str, str] = ("read", "read"), timed_out: bool = True) -> list[object]:
        at = (
            pl.when(pl.col("rank") < 2)
            .then(pl.lit("fence (t.py:9)"))
            .when(pl.col("rank") == 2)
            .then(pl.lit(lines[0]))
            .otherwise(pl.lit(lines[1]))
        )
        states = standing(r0="collective", r1="collective", r2=place, r3=place).with_columns(user_frame=at)
        reports = table("reports", {"kind": "barrier-missing", "rank": 0, "ranks": None}).with_columns(home=pl.lit(None, pl.Int32()))
        return [row[0] for row in found(None, states, reports=reports if timed_out else None)]

    assert named("lock") == named("data-loader") == [2, 3]
    assert named("lock", timed_out=False) == []
    assert named("lock", ("read", "write")) == [], "at two lines"
    assert named("user-code") == [], "nothing tells what they do"


def test_ranks_at_one_line_of_a_group_of_theirs_are_no_circle_where_nothing_is_seen_of_another_rank() -> None:
    ends = pl.concat([blocker(rank=r, waiters=[r - 2], own_last_op="all_reduce", pending=False).collect() for r in (2, 3)]).lazy()
    seen = [{"rank": r, "place": "collective", "op": "all_gather", "user_frame": "share (t.py:1)", "witness": "exception"} for r in (2, 3)]
    state = progress({"pg:0": dict.fromkeys((0, 1), (9, None)) | dict.fromkeys((2, 3), (8, None))})

    def causes(job: int) -> set[object]:
        known = groups({"pg:0": list(range(job))})
        return set(stalls(ends, rows(LAST_CALLS, *seen), *[None] * 4, state, None, known).collect()["cause"])

    assert causes(4) == {"group-deadlock"}
    assert causes(5) == set()


@pytest.mark.parametrize(
    ("cycle", "more", "confidence"),
    [
        ([0, 1, 2], {"both_halves": True}, "medium"),
        ([0, 1, 2], {"both_halves": False}, "high"),
        ([0, 1, 2], {"both_halves": True, "odd": True}, "high"),
        ([0, 1], {"both_halves": True}, "high"),
    ],
)
def test_a_long_circle_of_sends_and_receives_may_be_of_one_that_called_a_wrong_peer(
    cycle: list[int], more: dict[str, object], confidence: str
) -> None:
    row = {"kind": "cycle", "op": "recv", "cycle": cycle, "waiters": cycle, "seen_by": "progress", "domain": "fr"}
    told = cause_of(0, row | more, {}, None)
    assert told is not None
    assert (told.cause, told.confidence) == ("p2p-deadlock", confidence)
