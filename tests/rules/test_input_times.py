from __future__ import annotations

from nccl_forensics.rules.input_times import input_stall_by_logs
from nccl_forensics.views.input_times import INPUT_TIMES, input_times
from tests.rules.host_frames import table
from tests.views.frames import rows


def logs(batches: dict[int, list[float]], step_ms: float = 500.0, **more: object) -> list[dict[str, object]]:
    """Steps of ranks, with the time that each waited for its batch."""
    return [
        {"source_id": r, "line_no": s, "rank": r, "step": s, "input_ms": ms, "step_ms": step_ms} | more
        for r, times in batches.items()
        for s, ms in enumerate(times)
    ]


def test_the_one_rank_whose_batches_are_late_in_each_step_is_named() -> None:
    told = input_times(table("training_steps", *logs({0: [5.0] * 9, 1: [300.0] * 9, 2: [8.0] * 9})), None)
    [found] = input_stall_by_logs.check(told)
    assert (found.ranks, found.confidence, found.evidence[0].source_id) == ((1,), "high", 1)
    assert found.title == "rank 1 waits 300 ms for its batch, of steps of 500 ms; no other rank more than 8 ms"


def test_of_two_ranks_or_of_few_steps_it_is_less_sure() -> None:
    for few in ({0: [5.0] * 9, 1: [300.0] * 9}, {0: [5.0] * 5, 1: [300.0] * 5, 2: [8.0] * 5}):
        [found] = input_stall_by_logs.check(input_times(table("training_steps", *logs(few)), None))
        assert (found.ranks, found.confidence) == ((1,), "medium")


def test_short_waits_turns_two_that_wait_and_ranks_that_do_not_wait_for_each_other_are_quiet() -> None:
    uneven = logs({0: [5.0] * 9, 2: [8.0] * 9}) + logs({1: [300.0] * 9}, step_ms=900.0)
    for quiet in (
        logs({0: [5.0] * 9, 1: [80.0] * 9, 2: [8.0] * 9}),
        logs({0: [5.0, 300.0] * 5, 1: [300.0, 5.0] * 5, 2: [8.0] * 10}),
        logs({0: [300.0] * 9, 1: [310.0] * 9, 2: [8.0] * 9}),
        logs({0: [5.0] * 4, 1: [300.0] * 4, 2: [8.0] * 4}),
        logs({1: [300.0] * 9}),
        uneven,
    ):
        assert input_stall_by_logs.check(input_times(table("training_steps", *quiet), None)) == []
    assert input_stall_by_logs.check(rows(INPUT_TIMES)) == []
