"""What torch's analyzer of Flight Recorder dumps prints."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT

FIXTURES = ROOT / "fixtures" / "recorder_analysis"


def read(name: str) -> SourceReading:
    return read_source((FIXTURES / name).read_bytes())


def told(result: SourceReading) -> list[tuple[object, ...]]:
    frame = result.frames["reports"]
    assert frame["kind"].unique().to_list() == ["recorder-analysis"]
    return frame.select("differs", "seq", "op", "ranks", "members", "detail").rows()


def test_a_missing_rank_is_told_with_its_group() -> None:
    result = read("missing.txt")
    assert told(result) == [("missing", 3, "all_reduce", [4], list(range(8)), "0:default_pg")]
    assert result.foreign == 0


def test_errors_are_told_by_call_and_what_is_in_order_makes_no_row() -> None:
    result = read("errors.txt")
    assert [row[:4] for row in told(result)] == [("shape", 6, "all_reduce", [6]), ("shape", 7, "all_reduce", [6])]
    assert result.frames["reports"]["other_detail"][0].endswith("found input sizes: '[[8912896]]'")
    assert result.foreign == 0


def test_up_to_torch_2_5_the_members_are_counted() -> None:
    assert told(read("older.txt")) == [("missing", 9, "all_reduce", [2], [0, 1, 2, 3], "0:default_pg")]


def test_several_culprits_of_one_call_are_told_by_kind() -> None:
    text = (FIXTURES / "errors.txt").read_text().split("Collective sequence number: 7")[0]
    more = "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_reduce' does not match found collective type: 'broadcast', "
    result = read_source(text.replace("error msg: ", "error msg: " + more).encode())
    assert [(row[0], row[3]) for row in told(result)] == [("op", [2]), ("shape", [6])]


def test_a_program_that_says_much_the_same_is_no_analysis() -> None:
    result = read_source(b"loss 3\nNot all ranks joining collective bargaining\nmissing ranks: {1}\n")
    assert "reports" not in result.frames or result.frames["reports"].filter(pl.col("kind") == "recorder-analysis").is_empty()


def test_numbers_that_are_no_ranks_and_groups_beyond_any_job_are_not_spelled_out() -> None:
    text = (FIXTURES / "older.txt").read_text().replace("{2}", "{2, 99999999999}").replace("expected ranks: 4", "expected ranks: 900000000")
    [row] = told(read_source(text.encode()))
    assert (row[3], row[4]) == ([2], None)


def test_of_very_many_calls_the_first_are_kept() -> None:
    result = read_source((FIXTURES / "missing.txt").read_bytes() * 2100)
    assert result.frames["reports"].height == 2000
    assert result.foreign == 0


def test_every_cut_of_the_text_is_read_without_a_row_that_names_nobody() -> None:
    data = (FIXTURES / "errors.txt").read_bytes()
    for end in range(0, len(data), 37):
        frames = read_source(data[:end] or b"x").frames
        assert "reports" not in frames or frames["reports"]["ranks"].list.len().min() == 1
