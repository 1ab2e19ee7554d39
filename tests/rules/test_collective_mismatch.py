"""Another operation at the same position."""

from __future__ import annotations

import pytest

from nccl_forensics.rules.collective_mismatch import collective_mismatch, collective_mismatch_by_line, collective_mismatch_by_traceback
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.overtakers import OVERTAKERS
from nccl_forensics.views.passed_over import NEW_LINES
from tests.rules.frames import cited, divergences, stalls, told
from tests.views.frames import rows


@pytest.mark.parametrize("kind", ["different", "extra"])
def test_the_rank_that_called_something_else_is_named_with_both_operations(kind: str) -> None:
    [finding] = collective_mismatch.check(divergences(kind, [2], [0, 1, 3], found_op="broadcast", call_site="step (train.py:7)"))
    assert told(finding) == ("critical", "high", (2,))
    assert cited(finding) == [(9, "entries[17]"), (0, "entries[18]")]
    assert "rank 2 called broadcast where ranks 0-1, 3 called all_reduce" in finding.title
    assert "rank 2 at step (train.py:7)" in finding.summary
    assert finding.actions[0].where == "step (train.py:7)"


def test_of_as_many_on_both_sides_nobody_is_named_where_nothing_tells_who_is_right() -> None:
    [finding] = collective_mismatch.check(divergences("different", [1], [0], found_op="broadcast", sure=False))
    assert (finding.confidence, finding.culprits) == ("low", ())
    [finding] = collective_mismatch.check(divergences("different", [1], [0], found_op="broadcast"))
    assert told(finding) == ("critical", "high", (1,))
    [finding] = collective_mismatch.check(divergences("different", [1], [0, 2], found_op="broadcast", sure=False))
    assert told(finding) == ("critical", "medium", (1,))


def test_a_word_that_no_operation_bears_is_more_likely_a_damaged_record() -> None:
    [finding] = collective_mismatch.check(divergences("different", [2], [0, 1, 3], found_op="all_reducm"))
    assert told(finding) == ("critical", "medium", (2,))


def test_of_one_position_that_detail_tells_tracebacks_in_other_functions_show_a_call_left_out() -> None:
    def told_by(domain: str, own: str, *, sure: bool = False) -> tuple[object, ...]:
        last = rows(
            LAST_CALLS,
            {"rank": 2, "user_frame": own},
            *[{"rank": r, "user_frame": "Trainer.evaluate (job/train.py:50)"} for r in (0, 1, 3)],
        )
        [finding] = collective_mismatch.check(
            divergences("different", [2], [0, 1, 3], found_op="broadcast", domain=domain, sure=sure), last
        )
        return finding.cause, finding.confidence, finding.alternatives[0][0], finding.actions[0].where

    theirs = "Trainer.evaluate (job/train.py:50)"
    assert told_by("detail", "stop_early (train.py:60)") == ("collective-skipped", "medium", "collective-mismatch", theirs)
    usual = ("collective-mismatch", "medium", "collective-skipped")
    assert told_by("detail", "evaluate (train.py:44)") == (*usual, "evaluate (train.py:44)")
    assert told_by("fr", "stop_early (train.py:60)") == (*usual, None)
    sure = told_by("detail", "stop_early (train.py:60)", sure=True)
    assert sure == ("collective-mismatch", "high", "collective-skipped", "stop_early (train.py:60)")


def test_of_a_first_step_the_functions_of_two_recorded_calls_tell_one_left_out_from_one_in_its_place() -> None:
    def cause(own: str, *, sure: bool = False) -> str | None:
        places = {"call_site": own, "peer_call_site": "clip (t.py:50)"}
        [finding] = collective_mismatch.check(divergences("different", [2], [0, 1, 3], found_op="broadcast", sure=sure, **places))
        assert finding.confidence == ("high" if sure else "medium")
        return finding.cause

    assert cause("share (t.py:60)") == "collective-skipped"
    assert cause("clip (t.py:44)") == "collective-mismatch", "a branch of one function"
    assert cause("share (t.py:60)", sure=True) == "collective-mismatch", "what comes next is known, and it is another call"


def test_what_a_rank_called_after_work_that_nobody_else_has_come_to_shows_a_call_left_out() -> None:
    def cause(rank: int, *, sure: bool) -> str | None:
        ahead = rows(OVERTAKERS, {"rank": rank})
        [finding] = collective_mismatch.check(divergences("different", [2], [0, 1, 3], found_op="broadcast", sure=sure), None, ahead)
        return finding.cause

    assert cause(2, sure=False) == "collective-skipped"
    assert (cause(3, sure=False), cause(2, sure=True)) == ("collective-mismatch", "collective-mismatch")


def test_of_two_calls_that_detail_compares_in_a_group_of_two_the_company_of_the_other_ranks_tells() -> None:
    def told_by(*company: str) -> tuple[object, ...]:
        lines = ["forward (a.py:1)", "backward (a.py:2)", *company]
        last = rows(LAST_CALLS, *({"rank": r, "user_frame": line} for r, line in enumerate(lines)))
        [finding] = collective_mismatch.check(divergences("different", [1], [0], found_op="broadcast", domain="detail", sure=False), last)
        return finding.confidence, [c.rank for c in finding.culprits], finding.divergence and finding.divergence.op

    assert told_by("backward (a.py:2)", "backward (a.py:2)") == ("medium", [0], "broadcast")
    assert told_by("forward (a.py:1)", "forward (a.py:1)") == ("medium", [1], "all_reduce")
    assert told_by("backward (a.py:2)", "forward (a.py:1)") == told_by() == ("low", [], "all_reduce")
    steps = divergences("different", [1], [0], found_op="broadcast", domain="detail", sure=False, in_place=True)
    [finding] = collective_mismatch.check(steps)
    assert (finding.confidence, [c.rank for c in finding.culprits]) == ("medium", [1]), "the steps before tell"


@pytest.mark.parametrize("kind", ["skipped", "shape", "dtype", "argument"])
def test_other_divergences_are_left_to_their_own_rules(kind: str) -> None:
    assert collective_mismatch.check(divergences(kind, [2], [0, 1])) == []


def test_a_rank_whose_stack_stands_in_another_collective_is_named() -> None:
    [finding] = collective_mismatch_by_traceback.check(stalls({"rank": 2, "cause": "collective-mismatch", "confidence": "medium"}))
    assert told(finding) == ("critical", "medium", (2,))
    assert cited(finding) == [(7, 3), (0, "entries[6]"), (2, "entries[5]")]


def test_a_stall_outside_any_collective_is_no_mismatch() -> None:
    assert collective_mismatch_by_traceback.check(stalls({"rank": 2, "cause": "host-stall"})) == []


def test_who_went_on_to_a_line_where_nobody_had_been_is_named_unless_recorders_tell_where_a_group_parts() -> None:
    row: dict[str, object] = {"rank": 3, "others": [0, 1, 2], "op": "barrier", "call_site": "train (moe.py:40)", "waits_in": "all_reduce"}
    row |= {"waits_at": "sync (moe.py:9)", "in_pairs": False, "source_id": 0, "line_no": 4, "own_source_id": 3, "own_line_no": 5}
    [finding] = collective_mismatch_by_line.check(rows(NEW_LINES, row))
    assert told(finding) == ("critical", "medium", (3,))
    assert cited(finding) == [(3, 5), (0, 4)]
    [finding] = collective_mismatch_by_line.check(rows(NEW_LINES, row | {"in_pairs": True}))
    assert finding.confidence == "low"
    assert collective_mismatch_by_line.check(rows(NEW_LINES, row), divergences("different", [1], [0, 2, 3], found_op="barrier")) == []
    for cause, other in (("group-deadlock", "collective-skipped"), ("group-deadlock", None), ("host-stall", None)):
        stalled = stalls({"rank": 3, "cause": cause, "alternative": other})
        assert bool(collective_mismatch_by_line.check(rows(NEW_LINES, row), None, stalled)) is (other is None)
