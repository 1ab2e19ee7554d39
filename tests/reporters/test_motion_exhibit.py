"""Which ranks move: the table below the waits."""

from __future__ import annotations

from nccl_forensics.exhibits.waits import build
from nccl_forensics.extras import Extras, Motion, Wait

SECOND = 10**9


def test_stuck_ranks_are_told_with_their_last_progress_and_the_timeout_in_force() -> None:
    stuck = Motion((0, 1), "stuck", "2 samples of its stack agree", 100 * SECOND, 101 * SECOND, 600_000, 600_033, "stacks/rank0.txt", 4)
    moving = Motion((2,), "moving", "its stack differs between 2 samples")
    [block] = build({}, Extras(motions=(stuck, moving)))
    assert block.statement == "Ranks 0-1 are stuck; rank 2 moves."
    [table] = block.tables
    first = [item.text for item in table.rows[0]]
    assert first[:5] == ["ranks 0-1", "stuck", "1970-01-01T00:01:40.000Z to 1970-01-01T00:01:41.000Z", "600 s", "600 s"]
    assert first[-1] == "stacks/rank0.txt:4"


def test_without_a_second_look_nothing_is_claimed_and_without_waits_nothing_is_shown() -> None:
    once = Motion((0,), "unknown", "one dump of its recorder", 100 * SECOND, 100 * SECOND)
    assert build({}, Extras(motions=(once,))) == ()
    blocks = build({}, Extras(motions=(once,), waits=(Wait((0,), (1,), "default_pg", "all_reduce", 3),)))
    assert blocks[-1].statement == "No rank was looked at twice: which of them still move is not known."


def test_in_a_job_that_was_slow_nobody_is_stuck() -> None:
    alike = Motion((0, 1), "stuck", "3 samples of its stack agree", None, None, None, None, "stacks/rank0.txt", 4)
    report = {"case": {"runs": [{"run": 0, "attempt": 0, "outcome": "slow"}]}, "verdict": {"run": 0, "attempt": 0}}
    [block] = build(report, Extras(motions=(alike,)))
    assert block.statement == "Ranks 0-1 stood where they were at each look; the job went on all the same."
