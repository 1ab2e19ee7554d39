"""Calls that torch itself found to differ, printed without their number or with one that is noise."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.raised_reports import said_of
from nccl_forensics.rules.detail_mismatch import collective_mismatch_unreadable
from tests.rules.frames import cited, divergences
from tests.rules.host_frames import table

_DEVICE = "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default))"


def call(op: str, shape: str = "[8]", dtype: str = "Float", number: int | None = None) -> str:
    first = f"SequenceNumber={number}, " if number is not None else ""
    return f"CollectiveFingerPrint({first}OpType={op}, TensorShape={shape}, TensorDtypes={dtype}, {_DEVICE})"


def two(own: str, other: str, rank: int = 0) -> str:
    return f"Detected mismatch between collectives on ranks. Rank {rank} is running collective: {own}, but Rank {rank + 1} is running collective: {other}."


def alone(rank: int, op: str) -> str:
    return f"Detected mismatch between collectives on ranks. Rank {rank} is running inconsistent collective: CollectiveFingerPrint(OpType={op})"


def reports(*messages: str) -> pl.LazyFrame:
    return table("reports", *(row for message in messages for row in said_of(message))).with_columns(in_subgroup=pl.lit(value=False))


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (call("REDUCE"), "collective-mismatch"),
        (call("ALLREDUCE", shape="[9]"), "shape-mismatch"),
        (call("ALLREDUCE", dtype="Half"), "dtype-mismatch"),
    ],
)
def test_two_calls_without_a_number_are_compared_and_nobody_is_named(other: str, cause: str) -> None:
    [finding] = collective_mismatch_unreadable.check(reports(two(call("ALLREDUCE"), other)), None)
    assert (finding.cause, finding.confidence, finding.culprits) == (cause, "medium", ())
    assert "rank 0 in ALLREDUCE" in finding.title
    assert "rank 1 in" in finding.title


def test_ranks_that_each_print_their_own_call_are_laid_beside_each_other() -> None:
    [finding] = collective_mismatch_unreadable.check(reports(alone(3, "BARRIER"), alone(1, "BROADCAST")), None)
    assert (finding.cause, finding.confidence, cited(finding)) == ("collective-mismatch", "medium", [(0, 1), (0, 2)])


def test_one_call_alone_says_that_some_other_differs_and_no_more() -> None:
    [finding] = collective_mismatch_unreadable.check(reports(alone(3, "BARRIER")), None)
    assert (finding.title, finding.confidence) == ("rank 3 met others in another call: rank 3 in BARRIER", "low")
    assert {cause for cause, _, _ in finding.alternatives} == {"shape-mismatch", "dtype-mismatch"}


def test_other_numbers_of_one_call_are_told_where_the_message_does_not_compare_them() -> None:
    [finding] = collective_mismatch_unreadable.check(reports(two(call("BROADCAST", number=7), call("BROADCAST", number=5))), None)
    assert (finding.confidence, finding.culprits) == ("low", ())


def test_numbered_calls_that_can_be_read_and_calls_placed_already_are_left_to_others() -> None:
    assert not collective_mismatch_unreadable.check(reports(two(call("ALLREDUCE", number=7), call("REDUCE", number=7))), None)
    assert not collective_mismatch_unreadable.check(reports(alone(3, "BARRIER")), divergences("different", [2], [0, 1, 3]))


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (call("ALLREDUCE", "[9]", number=6), "shape-mismatch"),
        (call("ALLREDUCE", "[8]", "Double", 6), "dtype-mismatch"),
        (call("REDUCE", "[9]", number=6), "collective-mismatch"),
    ],
)
def test_whose_call_it_is_need_not_be_known_to_tell_what_differs(other: str, cause: str) -> None:
    lines = reports(two(call("ALLREDUCE", number=6), other, rank=1))
    nobody = lines.with_columns(ranks=pl.lit(None, dtype=pl.List(pl.Int32)), rank=pl.lit(4, dtype=pl.Int32), in_subgroup=pl.lit(value=True))
    [finding] = collective_mismatch_unreadable.check(nobody, None)
    assert (finding.cause, finding.confidence, finding.culprits, finding.ranks) == (cause, "medium", (), ())
    assert finding.title.startswith("rank 4 met another call than its own at #6 of a group of some ranks: ALLREDUCE of [8] Float against ")
    # In the group of all ranks the numbers say who it is, and the comparison of all calls tells.
    assert not collective_mismatch_unreadable.check(lines, None)
