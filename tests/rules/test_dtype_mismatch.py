"""Another data type at the same position."""

from __future__ import annotations

from nccl_forensics.rules.dtype_mismatch import dtype_mismatch
from tests.rules.frames import cited, divergences, told

DETAILS = {"found_detail": "Half", "expected_detail": "Float"}


def test_the_rank_with_another_data_type_is_named_with_both_values() -> None:
    [finding] = dtype_mismatch.check(divergences("dtype", [1], [0, 2], **DETAILS))
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(9, "entries[17]"), (0, "entries[18]")]
    assert finding.cause == "dtype-mismatch"
    assert finding.title.endswith(f"another data type: {DETAILS['found_detail']} against {DETAILS['expected_detail']}")


def test_where_nobody_can_tell_who_is_right_nobody_is_named() -> None:
    [finding] = dtype_mismatch.check(divergences("dtype", [1], [0], sure=False, **DETAILS))
    assert (finding.confidence, finding.ranks, finding.culprits) == ("low", (1,), ())
    assert finding.title.startswith("ranks 0-1 called ")


def test_a_differing_() -> None:
    assert dtype_mismatch.check(divergences("shape", [1], [0, 2], **DETAILS)) == []
