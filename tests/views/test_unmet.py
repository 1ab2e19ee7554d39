"""Sends and receives of which one half was left out, told by counting them."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.unmet import unmet
from tests.views.frames import groups, progress, rows

_WORLD = {"pg:pp": [4, 7], "pg:0": [0, 4, 7]}


def found(
    sends: int, receives: int, *, gone_on: bool = True, first: int = 0, answers: int = 3, beside: tuple[int, ...] = ()
) -> list[tuple[object, ...]]:
    """Whom rank 7 waits for in its last receive from rank 4, after ``answers`` sends back; both then enqueue #2 of the job, rank 4 if it
    has ``gone_on``. ``beside``: how many sends those posted who stand where rank 4 does in other pipelines."""
    calls = [(4, "send", 1, sends, False), (7, "recv", 0, receives, True), (7, "send", 0, 3, False), (4, "recv", 1, answers, answers > 3)]
    every = [
        {"domain": "fr", "group_key": "pg:pp", "rank": rank, "op": op, "peer": peer, "is_p2p": True, "order": n, "source_id": rank}
        | {
            "done": not (opened and n == count - 1),
            "pending": opened and n == count - 1,
            "record": f"entries[{n}]",
            "seq": n + 1 + first * (rank == 4),
        }
        for rank, op, peer, count, opened in calls
        for n in range(count)
    ]
    others = {f"pg:p{n}": [40 + n, 70 + n] for n in range(len(beside))}
    every += [
        {"domain": "fr", "group_key": key, "rank": ranks[0], "op": "send", "peer": 1, "is_p2p": True, "order": 0, "seq": last, "done": True}
        for (key, ranks), last in zip(others.items(), beside, strict=True)
    ]
    kept = pl.LazyFrame({"rank": [4, 7], "use": ["chosen"] * 2, "first_record_id": [first, 0]}, schema_overrides={"rank": pl.Int32})
    state = progress({"pg:0": {0: (2, 1), 4: (2 if gone_on else 1, 1), 7: (2, 1)}}).with_columns(pending_order=pl.lit(50, pl.Int64))
    frame = unmet(rows(OPERATIONS, *every), kept, state, groups(_WORLD | others).with_columns(group_desc=pl.lit("stages")))
    return frame.select("rank", "waiter", "op", "number", "beyond_seq", "record", "own_record").collect().rows()


def test_a_rank_that_sent_less_than_its_peer_receives_and_is_beyond_it_left_a_send_out() -> None:
    assert found(4, 5) == [(4, 7, "send", 5, 2, "entries[4]", "entries[2]")]


def test_whoever_posted_as_many_as_all_at_its_place_of_other_pipelines_left_nothing_out() -> None:
    assert found(4, 5, beside=(4, 4)) == []
    for told in ((5, 5), (4, 5), (4,)):
        assert [rank for rank, *_ in found(4, 5, beside=told)] == [4], "it posted less; they do not agree; one may be odd as well"


@pytest.mark.parametrize(
    ("sends", "receives", "more"),
    [
        (5, 5, {}),  # they pair up: whatever they wait for lies elsewhere
        (4, 5, {"gone_on": False}),  # it may yet come
        (4, 5, {"first": 9}),  # its older sends are not kept, so that they cannot be counted
        (4, 5, {"answers": 4}),  # each lacks a half of the other
    ],
)
def test_a_half_that_may_be_there_is_no_proof(sends: int, receives: int, more: dict[str, int]) -> None:
    assert found(sends, receives, **more) == []  # type: ignore[arg-type]


def stepped(sends: tuple[int, ...], receives: tuple[int, ...], *, came: bool = True, over: bool = False) -> list[tuple[object, ...]]:
    """Recorders that have lost their first entries. Rank 4 sends to rank 7, in each step so often, then both call an operation of the job;
    the last receive of rank 7 is open, and it enqueues that step's operation where it ``came`` to it: rank 4 did. ``over``: the operation
    has ended."""
    every: list[dict[str, object]] = []
    for rank, op, peer, steps in ((4, "send", 1, sends), (7, "recv", 0, receives)):
        for step, count in enumerate(steps):
            for n in range(count):
                opened = rank == 7 and step == len(steps) - 1 and n == count - 1
                own = {"group_key": "pg:pp", "op": op, "peer": peer, "is_p2p": True, "seq": 90 + n, "done": not opened, "pending": opened}
                every.append(own | {"rank": rank, "order": len(every)})
            last = step == len(steps) - 1
            if not last or rank == 4 or came:
                left = last and not over
                own = {"group_key": "pg:0", "op": "all_reduce", "is_p2p": False, "seq": 60 + step, "done": not left, "pending": left}
                every.append(own | {"rank": rank, "order": len(every)})
    entries = [{"domain": "fr", "source_id": e["rank"], "record": f"entries[{e['order']}]"} | e for e in every]
    kept = pl.LazyFrame({"rank": [4, 7], "use": ["chosen"] * 2, "first_record_id": [700, 700]}, schema_overrides={"rank": pl.Int32})
    end = 60 + len(sends) - 1
    placed = {e["rank"]: e["order"] for e in entries if e["group_key"] == "pg:0" and e["pending"]}
    state = progress({"pg:0": {4: (end, end if over else end - 1), 7: (end if came else end - 1, end if over else end - 1)}})
    state = state.with_columns(pending_order=pl.col("rank").cast(pl.Int64).replace_strict(placed, default=None, return_dtype=pl.Int64))
    frame = unmet(rows(OPERATIONS, *entries), kept, state, groups(_WORLD))
    return frame.select("rank", "waiter", "op", "beyond_seq", "followed").collect().rows()


def test_counts_of_recorders_that_have_lost_their_first_entries_are_told_by_the_steps_that_both_hold() -> None:
    assert stepped((2, 3, 3, 2), (1, 3, 3, 3)) == [(4, 7, "send", 63, True)], "the first step of one is cut"
    assert stepped((3, 3, 3, 3), (3, 3, 3, 3)) == []
    assert stepped((2, 3, 1, 2), (1, 3, 3, 3)) == [], "steps in which the sides do not agree give no count"


def test_what_both_have_finished_that_the_waiter_enqueued_after_it_tells_as_much() -> None:
    assert stepped((2, 3, 3, 2), (1, 3, 3, 3), over=True) == [(4, 7, "send", 63, True)]
    assert stepped((3, 3, 3, 3), (3, 3, 3, 3), over=True) == []


def test_who_waits_in_what_the_other_has_not_come_to_left_out_what_it_called_in_the_step_before() -> None:
    assert stepped((2, 3, 3, 2), (1, 3, 3, 3), came=False) == [(4, 7, "send", 63, False)]
    assert stepped((2, 3, 3, 3), (1, 3, 3, 4), came=False) == [], (
        "it called as many as before: the other one a receive too many, or too early"
    )


def numbered(sends: tuple[int, ...], receives: tuple[int, ...], *, came: int = 3) -> list[tuple[object, ...]]:
    """Recorders of one step, which have lost their first entries: rank 4 sends under these numbers, and before the ``came``-th of them
    calls an operation of the job; rank 7 waits in its third receive, with two more enqueued, and enqueues that operation after it."""
    job: dict[str, object] = {"group_key": "pg:0", "op": "all_reduce", "is_p2p": False, "seq": 60, "done": False, "pending": True}
    every: list[dict[str, object]] = []
    for rank, op, peer, numbers, at in ((4, "send", 1, sends, came - 1), (7, "recv", 0, receives, 3)):
        for n, seq in enumerate(numbers):
            if n == at:
                every.append(job | {"rank": rank, "order": len(every)})
            opened = n >= 2
            own = {"group_key": "pg:pp", "op": op, "peer": peer, "is_p2p": True, "seq": seq, "done": not opened, "pending": opened}
            every.append(own | {"rank": rank, "order": len(every)})
    entries = [{"domain": "fr", "source_id": e["rank"], "record": f"entries[{e['order']}]"} | e for e in every]
    kept = pl.LazyFrame({"rank": [4, 7], "use": ["chosen"] * 2, "first_record_id": [700, 700]}, schema_overrides={"rank": pl.Int32})
    placed = {e["rank"]: e["order"] for e in entries if e["group_key"] == "pg:0"}
    state = progress({"pg:0": {4: (60, 59), 7: (60, 59)}})
    state = state.with_columns(pending_order=pl.col("rank").cast(pl.Int64).replace_strict(placed, default=None, return_dtype=pl.Int64))
    frame = unmet(rows(OPERATIONS, *entries), kept, state, groups(_WORLD))
    return frame.select("rank", "waiter", "op", "number", "beyond_seq", "followed").collect().rows()


def test_batches_of_one_number_on_both_sides_show_which_lacks_a_half_in_the_first_step_that_is_kept() -> None:
    # Batch 23 of rank 4 has no send: its next one comes after what rank 7 calls only after it.
    assert numbered((21, 22, 24, 25), (21, 22, 23, 24, 25)) == [(4, 7, "send", 3, 60, True)]
    assert numbered((21, 22, 23, 24, 25), (21, 22, 23, 24, 25), came=4) == []
    assert numbered((31, 33, 35, 36), (21, 22, 23, 24, 25)) == [], "numbers of a group in which all have unlike many"


def in_batches(
    left_out: tuple[tuple[int, int], ...], shift: int = 0, first: int = 700, more: tuple[dict[str, object], ...] = ()
) -> list[tuple[object, ...]]:
    """Two that exchange in batches 1 to 6, each in a send and a receive, without the halves (rank, number) that are ``left_out``: rank 7
    waits in its last batch, and rank 4 in one that comes after it; numbers of rank 4 are greater by ``shift``.
    Recorders have kept all from record ``first`` on, and ``more``."""
    every: list[dict[str, object]] = [{"group_key": "pg:pp", "is_p2p": True, "done": True, "order": 0} | own for own in more]
    for rank, peer in ((4, 1), (7, 0)):
        for n in range(1, 8 - (rank == 7)):
            opened = n == (7 if rank == 4 else 6)
            own = {"group_key": "pg:pp", "peer": peer, "is_p2p": True, "done": not opened, "pending": opened}
            own |= {"rank": rank, "seq": n + (shift if rank == 4 else 0)}
            every += [
                own | {"op": op, "order": 2 * n + (op == "recv")} for op in ("send", "recv") if op == "send" or (rank, n) not in left_out
            ]
    entries = [{"domain": "fr", "source_id": e["rank"], "record": f"entries[{e['order']}]"} | e for e in every]
    kept = pl.LazyFrame({"rank": [4, 7], "use": ["chosen"] * 2, "first_record_id": [first, first]}, schema_overrides={"rank": pl.Int32})
    frame = unmet(rows(OPERATIONS, *entries), kept, progress({"pg:0": {4: (1, 1), 7: (1, 1)}}), groups(_WORLD))
    return frame.select("rank", "waiter", "op", "number", "beyond_seq", "followed", "own_record").collect().rows()


def test_the_one_batch_of_many_that_lacks_the_half_of_its_peer_is_told() -> None:
    assert in_batches(((4, 3),)) == [(4, 7, "recv", 3, 4, None, "entries[9]")]
    assert in_batches(()) == []
    assert in_batches(((4, 3), (4, 5))) == [], "two are a habit: not each batch goes both ways"
    assert in_batches(((4, 2),)) == [], "too few agree before it"
    assert in_batches(((4, 3), (7, 2))) == [], "the other way their numbers are not the same: they agree by chance"
    assert in_batches(((4, 3),), shift=40) == [], "numbers of a group in which all have unlike many"
    assert in_batches(((4, 3),), first=0) == [], "nothing is lost, and rank 4 has posted as many as rank 7"
    alone = ({"rank": 4, "seq": 0, "op": "recv", "peer": 1}, {"rank": 7, "seq": 0, "op": "send", "peer": 5})
    assert in_batches(((4, 3),), more=alone) == [], "what rank 7 posted as #0 was for another: numbers are not those of batches"
