"""A rank without a trace for which all traced ranks wait."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.straggler import straggler
from nccl_forensics.views.lag import LAG
from nccl_forensics.views.trace_matching import TRACE_MATCHES
from nccl_forensics.views.trace_ranks import TRACE_RANKS
from nccl_forensics.views.unseen_late import unseen_late
from tests.views.frames import rows

MS = 10**6
#: One step: a reduction in which all wait, and a small one that nobody waits in.
SLOW = [("all_reduce", 18_720, 600), ("all_reduce", 4, 1)]


def found(
    steps: list[list[tuple[str, int | None, float]]],
    *,
    seen: tuple[int, ...] = (0, 1, 3),
    longer: dict[int, float] | None = None,
    recorded: tuple[int, ...] = (0, 1, 3),
    pairs: bool = False,
    share: float = 0.3,
    world: int = 4,
) -> list[tuple[int, ...]]:
    """Whom the rule names: steps of operation, bytes and milliseconds, on each traced rank; ``longer``: factors of single ranks."""
    made: list[dict[str, object]] = []
    for rank in seen:
        position = 0
        for step, calls in enumerate(steps, start=1):
            for op, size, ms in calls:
                duration = int(ms * (longer or {}).get(rank, 1.0) * MS)
                own = {"rank": rank, "source_id": rank, "record": f"traceEvents[{position}]", "duration_ns": duration}
                made.append(
                    own | {"group_key": "trace:all:gloo", "capture": 0, "position": position, "step": step, "op": op, "bytes": size}
                )
                position += 1
    span = int(sum(ms for calls in steps for _, _, ms in calls) * MS) + 60 * MS
    traces = rows(TRACE_RANKS, *({"rank": r, "source_id": r, "world_size": world, "capture": 0, "span_ns": span} for r in seen))
    calls_of_all = rows(TRACE_MATCHES, *made)
    collectives = calls_of_all.with_columns(op=pl.lit("send")) if pairs else calls_of_all
    known = rows(LAG, *({"rank": r, "group_key": "pg:0", "collectives": 40, "members": 1} for r in recorded))
    late = unseen_late(calls_of_all, traces, collectives, known)
    return [f.ranks for f in straggler.check(None, None, None, late)]


def test_the_one_rank_without_a_trace_is_named_where_all_others_wait_alike_in_each_step() -> None:
    assert found([SLOW] * 3) == [(2,)]
    assert found([[("barrier", None, 400), ("all_gather", 64, 2)]] * 4) == [(2,)]


def test_waits_of_one_step_are_added_up() -> None:
    step = [("all_to_all", 4096, 25), ("all_to_all", 64, 1), ("all_to_all", 4096, 25), ("all_reduce", 8_000_000, 60)]
    assert found([step] * 3) == [(2,)]
    assert found([step[1:]] * 3) == []


def test_it_is_a_guess_and_says_what_would_tell() -> None:
    traces = rows(TRACE_RANKS, *({"rank": r, "source_id": r, "world_size": 3, "capture": 0, "span_ns": 10**9} for r in (0, 1)))
    waits = [
        {"rank": r, "source_id": r, "record": "traceEvents[1]", "duration_ns": 300 * MS, "group_key": "g", "capture": 0, "position": s}
        | {"step": s, "op": "all_reduce", "bytes": 8}
        for r in (0, 1)
        for s in (1, 2, 3)
    ]
    calls = rows(TRACE_MATCHES, *waits)
    [finding] = straggler.check(None, None, None, unseen_late(calls, traces, calls, None))
    assert (finding.ranks, finding.confidence) == ((2,), "low")
    assert {e.kind for e in finding.evidence} == {"record", "absence"}


def test_a_healthy_job_of_which_one_trace_was_not_collected_blames_nobody() -> None:
    # Little is waited; much is sent, and takes as long as that much takes; or a share of the step that nobody misses.
    assert found([[("all_reduce", 18_720, 3), ("all_reduce", 4, 1)]] * 3) == []
    assert found([[("all_reduce", 8_000_000, 600)] * 3] * 3) == []
    assert found([[("all_reduce", 18_720, 25), ("all_reduce", 8_000_000, 500)]] * 3) == []


def test_a_wait_of_some_steps_only_is_no_rule() -> None:
    assert found([SLOW, SLOW, SLOW[1:]]) == []
    assert found([SLOW] * 2) == []
    # A first step that is slow for all, as first steps are.
    assert (
        found([[("all_reduce", 18_720, 3_000)], [("all_reduce", 18_720, 30)], [("all_reduce", 18_720, 30)], [("all_reduce", 18_720, 30)]])
        == []
    )
    # Another call in each step: who waits, waits for somebody else each time.
    assert found([SLOW, SLOW, [("all_gather", 64, 600), ("all_reduce", 4, 1)]]) == []


def test_ranks_that_do_not_wait_alike_tell_who_came_last_themselves() -> None:
    assert found([SLOW] * 3, longer={1: 0.1}) == []


def test_nobody_is_named_where_two_ranks_or_none_left_no_trace() -> None:
    assert found([SLOW] * 3, seen=(0, 1)) == []
    assert found([SLOW] * 3, seen=(0, 1, 2, 3)) == []


def test_a_trace_may_state_any_number_of_ranks() -> None:
    """The greatest that the column holds: no list of so many ranks is made."""
    assert found([SLOW] * 3, world=2**31 - 1) == []


def test_a_recorder_that_tells_when_the_rank_came_speaks_for_it() -> None:
    assert found([SLOW] * 3, recorded=(0, 1, 2, 3)) == []


def test_stages_that_send_to_each_other_wait_in_turns_in_a_good_job_too() -> None:
    assert found([SLOW] * 3, pairs=True) == []
