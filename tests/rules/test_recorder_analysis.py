"""Whom torch's analyzer of Flight Recorder dumps names, and when its words name nobody."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.recorder_analysis import (
    collective_mismatch_by_analysis,
    collective_skipped_by_analysis,
    dtype_mismatch_by_analysis,
    gpu_stall_by_analysis,
    host_stall_by_analysis,
    shape_mismatch_by_analysis,
)
from nccl_forensics.tables import TABLES
from tests.rules.frames import told
from tests.rules.host_frames import table

SIZES = "Expected input sizes: '{}' does not match found input sizes: '{}'"


def row(
    differs: str, ranks: list[int], members: int | list[int] = 4, seq: int = 6, group: str = "0:default_pg", **more: object
) -> dict[str, object]:
    listed = list(range(members)) if isinstance(members, int) else members
    base = {
        "kind": "recorder-analysis",
        "differs": differs,
        "ranks": ranks,
        "members": listed,
        "seq": seq,
        "op": "all_reduce",
        "detail": group,
    }
    return base | more


def said(*rows: dict[str, object]) -> pl.LazyFrame:
    return table("reports", *rows)


def test_a_rank_that_is_missing_and_waits_nowhere_is_named() -> None:
    [finding] = host_stall_by_analysis.check(said(row("missing", [2]), row("missing", [0], [0, 1, 3], group="1:tp")), None)
    assert told(finding) == ("critical", "medium", (2,))


def test_ranks_that_wait_in_another_call_are_not_named() -> None:
    waits = row("missing", [0], [0, 1, 5], group="1:dp"), row("missing", [1], [0, 1, 5], group="2:tp")
    assert host_stall_by_analysis.check(said(*waits), None) == []


def test_of_two_halves_the_missing_one_is_a_guess_in_the_group_of_all_and_nobody_in_another() -> None:
    [finding] = host_stall_by_analysis.check(said(row("missing", [1], 2)), None)
    assert finding.confidence == "low"
    assert host_stall_by_analysis.check(said(row("missing", [6], [6, 7], group="8:tp")), None) == []


def test_ranks_that_are_the_more_are_not_named_as_missing() -> None:
    assert host_stall_by_analysis.check(said(row("missing", [3, 4, 5, 6, 7], 8)), None) == []


def test_where_the_dumps_are_at_hand_they_speak() -> None:
    dumps = pl.LazyFrame({"source_id": [9]})
    assert host_stall_by_analysis.check(said(row("missing", [2])), dumps) == []


def test_the_fewer_differ_even_where_the_analyzer_calls_the_others_culprits() -> None:
    [finding] = shape_mismatch_by_analysis.check(said(row("shape", [1, 2, 3], other_detail=SIZES.format("[[2]]", "[[3]]"))), None)
    assert told(finding) == ("critical", "medium", (0,))
    [even] = shape_mismatch_by_analysis.check(said(row("shape", [1], 2)), None)
    assert told(even) == ("critical", "low", ())


def test_each_kind_of_error_has_its_cause() -> None:
    rows = said(row("op", [3], group="0:a"), row("dtype", [2], group="1:b"))
    assert [f.ranks for f in collective_mismatch_by_analysis.check(rows, None)] == [(3,)]
    assert [f.ranks for f in dtype_mismatch_by_analysis.check(rows, None)] == [(2,)]
    assert shape_mismatch_by_analysis.check(rows, None) == []


def test_only_the_first_call_of_a_group_counts() -> None:
    rows = said(row("op", [3]), row("dtype", [2], seq=7))
    assert dtype_mismatch_by_analysis.check(rows, None) == []


def test_a_rank_that_is_one_call_ahead_skipped_one() -> None:
    ahead = said(
        row("shape", [3], other_detail=SIZES.format("[[2]]", "[[3]]")),
        row("shape", [3], seq=7, other_detail=SIZES.format("[[3]]", "[[4]]")),
    )
    [finding] = collective_skipped_by_analysis.check(ahead, None)
    assert told(finding) == ("critical", "medium", (3,))


def test_a_rank_with_other_sizes_twice_skipped_nothing() -> None:
    odd = said(
        row("shape", [3], other_detail=SIZES.format("[[2]]", "[[9]]")),
        row("shape", [3], seq=7, other_detail=SIZES.format("[[3]]", "[[9]]")),
    )
    assert collective_skipped_by_analysis.check(odd, None) == []


def test_a_rank_that_has_not_finished_what_the_others_have_has_a_gpu_that_stands() -> None:
    state = "Expected state: 'completed' does not match found state: 'scheduled'"
    [finding] = gpu_stall_by_analysis.check(said(row("state", [1], other_detail=state)), None)
    assert told(finding) == ("critical", "medium", (1,))
    assert gpu_stall_by_analysis.check(said(row("state", [1], op="broadcast", other_detail=state)), None) == []
    late = "Expected state: 'scheduled' does not match found state: 'completed'"
    assert gpu_stall_by_analysis.check(said(row("state", [1], other_detail=late)), None) == []
    assert set(TABLES["reports"].columns) >= {"members"}
