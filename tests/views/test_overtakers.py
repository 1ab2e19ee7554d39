"""Ranks that left out a call which is alike in each step, and meet its next turn."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.divergence import DIVERGENCES
from nccl_forensics.views.matching import PROGRESS
from nccl_forensics.views.overtakers import overtakers
from nccl_forensics.views.stuck import STUCK
from tests.views.frames import groups, operations, progress, rows

_RANKS = range(8)
_PAIRS = {f"pg:{9 + at}": (2 * at, 2 * at + 1) for at in range(4)}
#: Where all but one rank stand: the norm of the default group, enqueued last of all.
_NORM = 60


def found(
    tensor: dict[int, int],
    ahead: tuple[int, ...] = (6,),
    *,
    waits: bool = True,
    described: bool = True,
    done: dict[int, int] | None = None,
    made: pl.LazyFrame | None = None,
) -> list[tuple[object, ...]]:
    """The ranks named where ``ahead`` enqueued their norm after all else, and each rank its tensor group up to ``tensor`` (else 48), of which
    all but the last is over, or up to ``done``."""
    over = dict.fromkeys(_RANKS, 48) | (done or {})
    entered = {r: tensor.get(r, 48) for r in _RANKS}
    last = {"pg:0": dict.fromkeys(_RANKS, (4, 3))} | {key: {r: (entered[r], over[r]) for r in pair} for key, pair in _PAIRS.items()}
    late = pl.col("rank").is_in(ahead)
    norm = pl.when(late).then(_NORM + 40).otherwise(_NORM)
    state = progress(last).with_columns(  # type: ignore[arg-type]
        pending_order=pl.when(pl.col("group_key") == "pg:0").then(norm).otherwise(pl.col("pending_order")),
        first_open=pl.when(late).then(49).otherwise(_NORM),
    )
    known = groups({"pg:0": list(_RANKS)} | {key: list(pair) for key, pair in _PAIRS.items()})
    role = pl.when(pl.col("group_key") == "pg:0").then(pl.lit("default_pg")).otherwise(pl.lit("tp") if described else None)
    all_in = {"domain": "fr", "group_key": "pg:0", "group_name": "0", "seq": 4, "op": "all_reduce", "ranks": list(_RANKS), "held": waits}
    frame = overtakers(rows(STUCK, all_in), state, known.with_columns(group_desc=role), rows(OPERATIONS) if made is None else made)
    return frame.select("rank", "seq", "ahead_seq", "others").collect().rows()


def test_a_rank_that_comes_to_it_only_after_work_of_the_next_step_left_its_own_call_out() -> None:
    others = [r for r in _RANKS if r != 6]
    assert found({6: 49}) == [(6, 4, 49, others)]
    assert found({6: 49}, described=False) == [(6, 4, 49, others)]  # its partner is in the same group


@pytest.mark.parametrize(
    ("tensor", "ahead", "waits"),
    [
        ({6: 49, 0: 49, 1: 49}, (6,), True),  # others have been there as well: its partner left the call of the pair out
        ({}, (6,), True),  # it waits in something before, and is ahead in nothing
        ({0: 49, 2: 49, 4: 49}, (0, 2, 4), True),  # too many for an exception
        ({6: 49}, (6,), False),  # nothing is held up before the norm
    ],
)
def test_a_rank_that_is_not_alone_ahead_is_not_named(tensor: dict[int, int], ahead: tuple[int, ...], waits: bool) -> None:
    assert found(tensor, ahead, waits=waits) == []


def test_positions_in_groups_of_a_role_that_count_apart_tell_nothing() -> None:
    stage = {6: 77, 7: 77}  # the last stage of a pipeline has more calls, and its GPUs stand in one of them
    assert found(stage, (6, 7), done={6: 76, 7: 76}) == []
    assert [row[0] for row in found({6: 77}, done={6: 76, 7: 76})] == [6]  # its partner has not come there either


def logged(steps: dict[int, list[str]], differing: int | None = None) -> list[tuple[object, ...]]:
    """The ranks named by NCCL's logs of tensor groups of two (``t``) and all eight ranks (``w``); each rank's calls in the order of their
    lines."""
    parts = []
    for rank, line in steps.items():
        turns = {"t": 0, "w": 0}
        for order, which in enumerate(line):
            key, size = (f"0xc0/1/{rank // 2}", 2) if which == "t" else ("0xc0", 8)
            place = {"seq": turns[which], "order": order, "line_no": order + 1}
            call = operations({rank: ["all_reduce"]}, group=key, domain="nccl").with_columns(
                **{name: pl.lit(value).cast(OPERATIONS[name]) for name, value in (place | {"nranks": size}).items()}
            )
            parts.append(call)
            turns[which] += 1
    differ = rows(DIVERGENCES, *([] if differing is None else [{"ranks": [differing], "sure": True}]))
    frame = overtakers(rows(STUCK), rows(PROGRESS), groups({}), pl.concat(parts), differ)
    return frame.select("rank", "seq", "ahead_comm", "ahead_seq", "others").collect().rows()


def test_of_logs_the_rank_is_named_that_came_to_the_call_of_all_after_the_next_step_of_its_tensor_group() -> None:
    usual = {r: ["w", "t", "t", "w"] for r in _RANKS}
    others = [r for r in _RANKS if r != 6]
    late = usual | {6: ["w", "t", "t", "t", "t", "w"]}
    assert logged(late) == [(6, 1, "0xc0/1/3", 3, others)]
    assert logged(usual) == []
    assert logged(usual | {7: ["w", "t", "w"]}) == [], "its partner left out a call of the pair"
    assert logged(late, differing=6) == [], "what differs in one group says it already"
    assert logged(late | {0: ["w", "t", "t", "w", "t", "t", "w"]}) == [], "the job is at work"


@pytest.mark.parametrize(("line", "named"), [("ngnn", [6]), ("nggn", []), ("gggn", [6])])
def test_a_number_at_which_nothing_like_it_is_due_tells_another_order_and_no_call_left_out(line: str, named: list[int]) -> None:
    # Of the default group rank 6 called a norm (n) or a gather (g) in turn, and stands in the fourth.
    made = operations({6: [{"n": "all_reduce", "g": "all_gather"}[call] for call in line]}, group="pg:0", domain="fr")
    numbered = made.with_columns(seq=pl.int_range(1, 5, dtype=pl.Int64), is_p2p=pl.lit(value=False))
    assert [row[0] for row in found({6: 49}, made=numbered)] == named


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("tantn", []),  # what it made after the tensor group's call never came so soon after one: the two are in the other order
        ("tantan", [6]),  # as soon as in the step before
        ("antatn", []),  # behind the gather it had made the two the other way, and never like this
        ("aatn", [6]),  # no step before tells
    ],
)
def test_a_call_made_sooner_after_the_other_than_ever_before_is_in_another_order_and_not_left_out(line: str, named: list[int]) -> None:
    # Norms (n) and gathers (a) of the default group, and calls of the tensor group (t), in their order; it stands in the last norm.
    norms, tensor = iter(range(5 - line.count("n"), 5)), iter(range(50 - line.count("t"), 50))
    others = iter(range(-9, 0))
    parts = []
    for order, call in enumerate(line):
        key, seq = ("pg:12", next(tensor)) if call == "t" else ("pg:0", next(norms) if call == "n" else next(others))
        op = {"n": "all_reduce", "t": "all_reduce", "a": "all_gather"}[call]
        place = {"seq": seq, "order": order, "is_p2p": False}
        one = operations({6: [op]}, group=key, domain="fr")
        parts.append(one.with_columns(**{name: pl.lit(value).cast(OPERATIONS[name]) for name, value in place.items()}))
    assert [row[0] for row in found({6: 49}, made=pl.concat(parts))] == named
