"""What a finding cites of a row."""

import pytest

from nccl_forensics.evidence import cite, whereabouts

_ROW = {"source_id": 1, "line_no": 7, "end_line": 9, "why": "of the row", "peer_source_id": 2, "peer_record": "entries[3]"}


def test_the_reason_and_the_end_that_a_row_has_are_not_taken_over() -> None:
    (item,) = cite([whereabouts(_ROW)], "of the finding")
    assert (item.source_id, item.line, item.end_line, item.why) == (1, 7, None, "of the finding")


def test_the_beginning_of_the_names_says_whose_place_it_is() -> None:
    (item,) = cite([whereabouts(_ROW, "peer_")], "a peer")
    assert (item.kind, item.source_id, item.line, item.record) == ("record", 2, None, "entries[3]")


def test_a_row_that_says_no_place_of_that_one_is_an_error() -> None:
    with pytest.raises(KeyError, match="own_source_id"):
        whereabouts(_ROW, "own_")
