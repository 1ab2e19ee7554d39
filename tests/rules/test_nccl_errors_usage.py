"""Calls that NCCL refused."""

from __future__ import annotations

from nccl_forensics.rules.nccl_errors_usage import invalid_usage
from tests.rules.frames import cited, errors, people, told

PEOPLE = people((0, "node1", 100), (1, "node1", 101))
REFUSED = {"kind": "no-algorithm", "pid": 101, "message": "Error : no algorithm/protocol available", "line_no": 8}


def test_two_ranks_on_one_gpu_are_both_named_with_the_device() -> None:
    said = {"kind": "duplicate-gpu", "pid": 100, "message": "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 17000"}
    [finding] = invalid_usage.check(errors(said), PEOPLE)
    assert told(finding) == ("critical", "high", (0, 1))
    assert cited(finding) == [(0, 1)]
    assert finding.title == "ranks 0-1 use the same GPU (17000)"


def test_the_rank_whose_call_was_refused_is_named_with_nccls_words() -> None:
    [finding] = invalid_usage.check(errors(REFUSED), PEOPLE)
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(0, 8)]
    assert finding.title == "NCCL refused a call of rank 1: Error : no algorithm/protocol available"


def test_a_refusal_of_unknown_rank_is_less_sure() -> None:
    [finding] = invalid_usage.check(errors(REFUSED | {"pid": 999}), PEOPLE)
    assert told(finding) == ("critical", "medium", ())


def test_information_lines_and_other_warnings_stay_quiet() -> None:
    assert invalid_usage.check(errors(REFUSED | {"level": "INFO"}, REFUSED | {"kind": "peer-closed"}), PEOPLE) == []
