"""Skipped collectives: by alignment of the operations, and by whole steps."""

from __future__ import annotations

from nccl_forensics.model import Divergence
from nccl_forensics.rules.collective_skipped import (
    collective_skipped,
    collective_skipped_ahead,
    collective_skipped_by_line,
    collective_skipped_by_step,
    collective_skipped_whole_step,
)
from nccl_forensics.views.failures import FAILURES
from nccl_forensics.views.overtakers import OVERTAKERS
from nccl_forensics.views.passed_over import PASSED_OVER
from nccl_forensics.views.step_leads import MISSED_STEPS
from tests.rules.frames import cited, divergences, stalls, told
from tests.views.frames import rows

SKIPPED = {"found_op": "barrier", "skipped": 1, "peer_call_site": "step (train.py:40)"}


def test_the_rank_that_left_a_collective_out_is_named_with_both_sides() -> None:
    [finding] = collective_skipped.check(divergences("skipped", [3], [0, 1, 2], **SKIPPED))
    assert told(finding) == ("critical", "high", (3,))
    assert cited(finding) == [(9, "entries[17]"), (0, "entries[18]")]
    assert finding.divergence == Divergence("0", None, 18, "all_reduce")
    assert "rank 3 skipped all_reduce #18" in finding.title
    assert "step (train.py:40)" in finding.remedy
    assert finding.actions[0].where == "step (train.py:40)"


def test_a_skip_that_only_one_operation_speaks_for_is_medium() -> None:
    [finding] = collective_skipped.check(divergences("skipped", [3], [0, 1, 2], sure=False, **SKIPPED))
    assert told(finding) == ("critical", "medium", (3,))


def test_another_operation_in_its_place_is_no_skip() -> None:
    assert collective_skipped.check(divergences("different", [3], [0, 1, 2], found_op="barrier")) == []


def test_a_log_that_ends_after_whole_steps_with_fewer_collectives_is_a_skip() -> None:
    [finding] = collective_skipped_by_step.check(stalls({"rank": 2, "cause": "collective-skipped", "confidence": "medium"}))
    assert told(finding) == ("critical", "medium", (2,))
    assert cited(finding) == [(7, 3), (0, "entries[6]"), (2, "entries[5]")]


def test_a_stall_of_the_host_is_no_skip() -> None:
    assert collective_skipped_by_step.check(stalls({"rank": 2, "cause": "host-stall"})) == []


def test_a_step_that_only_the_others_told_is_named_where_the_job_failed() -> None:
    row = {"rank": 1, "missed": [3], "step": 6, "others": [0, 2], "others_step": 5, "source_id": 1, "line_no": 4, "peer_line_no": 5}
    failed = rows(FAILURES, {"sign": "exceptions"})
    [finding] = collective_skipped_whole_step.check(rows(MISSED_STEPS, row | {"peer_source_id": 0}), failed)
    assert (*told(finding), finding.cause) == ("critical", "medium", (1,), "collective-skipped")
    assert cited(finding) == [(1, 4), (0, 5)]
    assert finding.title == "rank 1 left out step 3 of the training loop, which ranks 0, 2 made"


def test_steps_of_a_job_that_did_not_fail_and_no_step_missed_are_quiet() -> None:
    row = {"rank": 1, "missed": [3], "step": 6, "others": [0, 2], "others_step": 5, "source_id": 1, "line_no": 4}
    assert collective_skipped_whole_step.check(rows(MISSED_STEPS, row), rows(FAILURES)) == []
    assert collective_skipped_whole_step.check(rows(MISSED_STEPS), rows(FAILURES, {"sign": "exceptions"})) == []


def test_the_rank_is_named_with_what_it_overtook() -> None:
    row = {
        "rank": 6,
        "others": [0, 1],
        "group_name": "0",
        "group_desc": "default_pg",
        "seq": 4,
        "op": "all_reduce",
        "call_site": "norm (train.py:9)",
    }
    row |= {
        "source_id": 0,
        "record": "entries[60]",
        "ahead_name": "12",
        "ahead_desc": "tp",
        "ahead_seq": 49,
        "own_source_id": 6,
        "own_record": "entries[49]",
    }
    [finding] = collective_skipped_ahead.check(rows(OVERTAKERS, row))
    assert told(finding) == ("critical", "medium", (6,))
    assert cited(finding) == [(0, "entries[60]"), (6, "entries[49]")]
    assert "norm (train.py:9)" in finding.remedy
    also = row | {"rank": 7, "own_source_id": 7}
    [finding] = collective_skipped_ahead.check(rows(OVERTAKERS, row, also))
    assert (told(finding)[2], cited(finding)[1:]) == ((6, 7), [(6, "entries[49]"), (7, "entries[49]")])
    assert len(collective_skipped_ahead.check(rows(OVERTAKERS, row, also | {"seq": 5}))) == 2, "another call"


def test_where_no_rank_is_ahead_of_all_others_nothing_is_told() -> None:
    assert collective_skipped_ahead.check(rows(OVERTAKERS)) == []


def test_the_rank_is_named_with_the_line_that_it_left_out_and_the_one_where_it_stands() -> None:
    row: dict[str, object] = {"rank": 0, "waiters": [2, 4], "others": [1, 3, 5], "op": "all_reduce", "call_site": "sync (moe.py:9)"}
    row |= {"stands_in": "all_reduce", "stands_at": "loss (moe.py:12)", "source_id": 2, "line_no": 4, "own_source_id": 0, "own_line_no": 5}
    [finding] = collective_skipped_by_line.check(rows(PASSED_OVER, row))
    assert told(finding) == ("critical", "medium", (0,))
    assert cited(finding) == [(2, 4), (0, 5)]
    assert "sync (moe.py:9)" in finding.title
    assert "loss (moe.py:12)" in finding.summary
    assert collective_skipped_by_line.check(rows(PASSED_OVER)) == []
