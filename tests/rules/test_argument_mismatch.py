"""Another reduce operation or root at the same position."""

from __future__ import annotations

from nccl_forensics.rules.argument_mismatch import argument_mismatch, roots_mismatch, splits_mismatch
from nccl_forensics.views.unequal_exchanges import UNEQUAL_EXCHANGES
from tests.rules.frames import cited, divergences, told
from tests.views.frames import rows
from tests.views.test_two_roots import parted
from tests.views.test_unequal_exchanges import exchanged

DETAILS = {"found_detail": "1", "expected_detail": "0"}


def test_the_rank_with_another_argument_is_named_with_both_values() -> None:
    [finding] = argument_mismatch.check(divergences("argument", [1], [0, 2], **DETAILS))
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(9, "entries[17]"), (0, "entries[18]")]
    assert finding.cause == "argument-mismatch"
    assert finding.title.endswith(f"another argument: {DETAILS['found_detail']} against {DETAILS['expected_detail']}")


def test_where_nobody_can_tell_who_is_right_nobody_is_named() -> None:
    [finding] = argument_mismatch.check(divergences("argument", [1], [0], sure=False, **DETAILS))
    assert (finding.confidence, finding.ranks, finding.culprits) == ("low", (1,), ())
    assert finding.title.startswith("ranks 0-1 called ")


def test_another_size_is_not_another_argument() -> None:
    assert argument_mismatch.check(divergences("shape", [1], [0, 2], **DETAILS)) == []


def test_splits_that_do_not_sum_up_name_the_member_whose_size_is_not_that_of_all_others() -> None:
    told_of = {"domain": "fr", "group_name": "19", "seq": 7, "op": "all_to_all", "ranks": [0, 1, 2], "sent": 44, "awaited": 48}
    place = {"source_id": 9, "record": "entries[17]"}
    [finding] = splits_mismatch.check(rows(UNEQUAL_EXCHANGES, told_of | place | {"odd": 2, "own": 12, "usual": 16}))
    assert told(finding) == ("critical", "medium", (2,))
    assert cited(finding) == [(9, "entries[17]")]
    [finding] = splits_mismatch.check(rows(UNEQUAL_EXCHANGES, told_of | place))
    assert (finding.ranks, finding.culprits) == ((0, 1, 2), ())


def test_only_splits_that_do_not_fit_are_a_mismatch() -> None:
    assert [finding.ranks for finding in splits_mismatch.check(exchanged([(8, 9), (8, 7), (6, 8)]))] == [(2,)]
    assert splits_mismatch.check(exchanged([(8, 9), (8, 7), (6, 6)])) == []


def test_splits_that_do_not_fit_are_told_of_a_call_that_ended_too() -> None:
    [finding] = splits_mismatch.check(exchanged([(8, 8), (8, 8), (6, 8)], ended=True))
    assert told(finding) == ("critical", "medium", (2,))
    assert "All 3 members entered it and it ended" in finding.summary
    assert splits_mismatch.check(exchanged([(8, 6), (8, 8), (6, 8)], ended=True)) == []


def test_a_call_with_a_root_that_some_never_leave_is_told_and_nobody_is_named() -> None:
    [finding] = roots_mismatch.check(parted())
    assert (finding.confidence, finding.ranks, finding.culprits) == ("low", (1, 3), ())
    assert finding.title.endswith("and ranks 1, 3 never left it: ranks gave it different roots")
    assert cited(finding) == [(1, "entries[6]"), (0, "entries[7]")]


def test_a_call_with_a_root_that_all_stand_in_is_no_matter_of_its_root() -> None:
    assert roots_mismatch.check(parted(inside=(0, 1, 2, 3))) == []
