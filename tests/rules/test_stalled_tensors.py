"""Whom Horovod's coordinator waits for, and when nobody is named."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.stalled_tensors import stalled_tensors
from tests.rules.frames import cited, told
from tests.rules.host_frames import table

HEAD = {"kind": "stalled-tensors", "line_no": 5}


def reports(*waits: tuple[list[int], str]) -> pl.LazyFrame:
    said = ({"kind": "stalled-tensors", "line_no": 6 + i, "ranks": ranks, "detail": names} for i, (ranks, names) in enumerate(waits))
    return table("reports", HEAD, *said)


def test_a_rank_that_all_tensors_wait_for_is_named_at_low_confidence():
    [finding] = stalled_tensors.check(reports(([2], "a\nb")), None)
    assert told(finding) == ("critical", "low", (2,))
    assert cited(finding) == [(0, 6)]


def test_steps_after_the_report_say_that_the_job_went_on():
    [finding] = stalled_tensors.check(reports(([2], "a")), table("training_steps", {"line_no": 90, "step": 7}))
    assert (finding.severity, finding.ranks) == ("warning", (2,))
    [finding] = stalled_tensors.check(reports(([2], "a")), table("training_steps", {"line_no": 2, "step": 7}))
    assert finding.severity == "critical"


def test_ranks_that_wait_for_each_other_hand_in_different_tensors_and_nobody_is_named():
    [finding] = stalled_tensors.check(reports(([0], "a"), ([1], "b")), None)
    assert (finding.cause, finding.ranks) == ("collective-mismatch", ())


def test_a_heading_alone_names_nobody():
    assert stalled_tensors.check(table("reports", HEAD), None) == []


def test_a_last_report_that_is_cut_off_behind_its_heading_leaves_the_one_before():
    said = {"kind": "stalled-tensors", "line_no": 6, "ranks": [2], "detail": "a"}
    [finding] = stalled_tensors.check(table("reports", HEAD, said, HEAD | {"line_no": 9}), None)
    assert (finding.ranks, cited(finding)) == ((2,), [(0, 6)])
