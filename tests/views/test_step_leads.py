"""Ranks whose training loops have told one step more than those of all others."""

from __future__ import annotations

import polars as pl

from nccl_forensics.stacks.places import WAITING
from nccl_forensics.views.gloo_rings import ENGINE
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.stall_causes import cause_of
from nccl_forensics.views.stalls import stalls
from nccl_forensics.views.step_leads import STEP_LEADS, missed_steps, reduced_in_backward, step_further, step_leads
from tests.rules.host_frames import table
from tests.views.frames import rows
from tests.views.test_stalls import blocker


def told(**steps: list[int]) -> list[tuple[object, ...]]:
    """Who leads: r2=[0, 1] is rank 2, whose loop told steps 0 and 1."""
    lines = [{"rank": int(r[1:]), "step": s, "line_no": n} for r, own in steps.items() for n, s in enumerate(own, start=1)]
    return step_leads(table("training_steps", *lines), None).collect().select("rank", "step", "others", "others_step", "line_no").rows()


def test_the_rank_that_told_one_step_more_leads() -> None:
    assert told(r0=[0, 1, 2], r1=[0, 1, 2, 3], r2=[0, 1, 2]) == [(1, 3, [0, 2], 2, 4)]
    assert told(r0=[10, 20, 30], r1=[10, 20, 30, 40]) == [(1, 40, [0], 30, 4)], "of two one"


def test_ranks_that_tell_other_steps_than_their_peers_lead_nobody() -> None:
    assert told(r0=[0, 1, 2], r1=[0, 1, 2], r2=[0, 1, 2]) == []
    assert told(r0=[0, 1, 2], r1=[0, 1, 2, 3, 4], r2=[0, 1, 2]) == [], "two steps more"
    assert told(r0=[0, 2, 4], r1=[0, 1, 2, 3, 4, 5], r2=[0, 2, 4]) == [], "another habit"
    assert told(r0=[0, 1, 2, 3], r1=[0, 1, 2, 3], r2=[0, 1, 2]) == [], "one lags"
    assert told(r0=[0, 1], r1=[0, 1, 2], r2=[0, 1]) == [], "too few to tell a habit"
    assert told(r0=[0, 1, 2, 3], r1=[0, 1, 2], r2=[0, 1, 2, 3], r3=[0, 1, 2]) == [], "half of them"


def missed(**steps: list[int]) -> list[tuple[object, ...]]:
    lines = [{"rank": int(r[1:]), "step": s, "line_no": n} for r, own in steps.items() for n, s in enumerate(own, start=1)]
    names = ("rank", "missed", "step", "others", "others_step", "line_no", "peer_line_no")
    return missed_steps(table("training_steps", *lines), None).collect().select(names).rows()


def test_who_told_as_many_steps_and_came_further_left_one_out() -> None:
    told = list(range(6))
    assert missed(r0=told, r1=[0, 1, 2, 4, 5, 6], r2=told) == [(1, [3], 6, [0, 2], 5, 4, 4)]
    both = missed(r0=told, r1=[0, 1, 3, 4, 5, 6], r2=told, r3=[0, 1, 3, 4, 5, 6], r4=told)
    assert [(rank, steps) for rank, steps, *_ in both] == [(1, [2]), (3, [2])]


def test_lost_lines_and_loops_of_other_steps_left_nothing_out() -> None:
    told = list(range(6))
    assert missed(r0=told, r1=[0, 1, 2, 4, 5], r2=told) == [], "a line was lost"
    assert missed(r0=told, r1=[*told, 6], r2=told) == [], "it is ahead and told all"
    assert missed(r0=told, r1=[1, 2, 3, 4, 5, 6], r2=told) == [], "it counts from one"
    assert missed(r0=told, r1=[0, 1, 2, 4, 5, 6], r2=told[:4]) == [], "the others are not alike"
    assert missed(r0=told, r1=[0, 1, 2, 4, 5, 6]) == [], "of two either may be right"
    assert missed(r0=told, r1=[0, 1, 2, 3, 4, 6], r2=told) == [], "the last one may be told late"


LEAD = rows(STEP_LEADS, {"rank": 2, "step": 7, "others": [0, 1], "others_step": 6})


def standing(**places: tuple[str, str]) -> pl.LazyFrame:
    """r2=("p2p", "take") is rank 2, which waits in a receive of that function."""
    return rows(
        LAST_CALLS,
        *[
            {"rank": int(r[1:]), "place": place, "op": "recv" if place == "p2p" else "all_reduce", "user_frame": f"{function} (t.py:1)"}
            | {"witness": "stack", "moved": False, "reason": "frame 0", "source_id": 7, "line_no": int(r[1:])}
            for r, (place, function) in places.items()
        ],
    )


def causes(blockers: pl.LazyFrame | None, states: pl.LazyFrame, lead: pl.LazyFrame | None = LEAD) -> list[tuple[object, ...]]:
    found = stalls(blockers, states, *[None] * 20, lead).collect()
    return found.select("rank", "cause", "confidence").rows()


def test_whoever_is_behind_in_calls_and_a_step_further_left_one_out() -> None:
    places = standing(r0=("collective", "norm"), r1=("collective", "norm"), r2=("p2p", "take"))
    assert causes(blocker(), places) == [(2, "collective-skipped", "high")]
    assert causes(blocker(), places, None) == [(2, "p2p-deadlock", "medium")]
    assert causes(blocker(waiters=[0, 3]), places) == [(2, "p2p-deadlock", "medium")], "of rank 3 no step is known"
    assert "data-loader" not in WAITING
    at_work = standing(r0=("collective", "norm"), r1=("collective", "norm"), r2=("data-loader", "read"))
    assert causes(blocker(), at_work) == [(2, "input-stall", "high")]


def test_a_reduction_of_ddp_that_a_rank_a_step_further_left_out_may_be_of_gradients_that_never_came() -> None:
    row = {"kind": "step-further", "source_id": 3, "seq": 12, "record": "entries[11]", "seen_by": "progress", "step": 6, "others_step": 5}

    def cause(frames: str) -> tuple[str, str, str | None]:
        entries = rows(
            {"source_id": pl.UInt32(), "record": pl.String(), "collective_seq_id": pl.Int64(), "frames": pl.String()},
            {"source_id": 3, "record": "entries[11]", "collective_seq_id": 12, "frames": frames},
        )
        told = cause_of(2, reduced_in_backward({2: row}, entries)[2], {}, None)
        assert told is not None
        return told.cause, told.confidence, told.alternative

    assert cause(f"{ENGINE}torch/autograd/graph.py:9)\nfit (t.py:24)") == ("collective-skipped", "medium", "ddp-unused-parameter")
    assert cause("all_reduce (torch/distributed/distributed_c10d.py:3252)\nfit (t.py:24)") == ("collective-skipped", "high", None)


def test_of_stacks_alone_the_one_that_waits_elsewhere_a_step_further_left_a_call_out() -> None:
    lead = rows(STEP_LEADS, {"rank": 0, "step": 7, "others": [1], "others_step": 6})
    assert causes(None, standing(r0=("collective", "reduce"), r1=("collective", "share")), lead) == [(0, "collective-skipped", "medium")]
    assert causes(None, standing(r0=("collective", "share"), r1=("collective", "share")), lead) == [], "at one line"
    assert causes(None, standing(r0=("collective", "reduce"), r1=("p2p", "share")), lead) == [], "a send may be what it waits for"


def test_the_only_one_that_a_monitored_barrier_misses_and_that_told_one_step_more_left_a_call_out() -> None:
    lead = rows(STEP_LEADS, {"rank": 1, "step": 4, "others": [0, 2], "others_step": 3})
    missing: dict[int, dict[str, object]] = {rank: {"kind": "barrier", "waiters": [], "seen_by": "barrier"} for rank in (1, 2)}
    [(rank, row)] = step_further({}, lead, {}, {1: missing[1]}).items()
    assert (rank, row["kind"], row["waiters"], row["seen_by"]) == (1, "step-further", [0, 2], "barrier")
    # It misses another, or two; somebody else is found by what tells more.
    assert step_further({}, lead, {}, {2: missing[2]}) == step_further({}, lead, {}, missing) == {}
    assert step_further({2: {"kind": "behind"}}, lead, {}, {1: missing[1]}) == {2: {"kind": "behind"}}
