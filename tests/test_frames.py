"""Text put together from columns, and texts that Polars would unpack."""

from __future__ import annotations

import os

import polars as pl
import pytest

from nccl_forensics.frames import engine_for, taken_for_packed, text_of
from nccl_forensics.reading.source import lines_of


def test_a_template_is_filled_and_a_missing_part_makes_it_missing() -> None:
    frame = pl.DataFrame({"a": ["x", None], "n": [1, 2]})
    assert frame.select(text_of("<{}/{}>", "a", pl.col("n") + 1)).to_series().to_list() == ["<x/2>", None]
    assert frame.select(text_of("{}", "n")).to_series().to_list() == ["1", "2"]


def test_places_and_columns_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="1 places for 2 columns"):
        text_of("{}", "a", "b")


def test_what_a_filter_left_of_several_frames_is_no_trouble() -> None:
    many = pl.concat([pl.DataFrame({"k": [k] * 100, "a": ["word" * 5] * 100}) for k in range(3)], rechunk=False)
    kept = many.lazy().filter(pl.col("k") == 2)
    assert kept.with_columns(t=text_of("t/{}", "a")).collect()["t"].unique().to_list() == ["t/" + "word" * 5]


@pytest.mark.parametrize("head", [b"\x1f\x8b", b"x\x01", b"x^", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd"])
def test_a_text_that_begins_like_a_compressed_file_is_not_unpacked(head: bytes) -> None:
    text = head + b"ost:7:7 [0] NCCL INFO\nnext\n"
    assert taken_for_packed(text)
    text = text if head in (b"x\x01", b"x^") else text.decode("utf-8", "replace").encode()
    assert lines_of(text).to_list() == text.decode().removesuffix("\n").split("\n")


def test_a_host_whose_name_begins_with_the_same_letter_takes_the_fast_way() -> None:
    assert not taken_for_packed(b"x3006c0s1b1n0:7:7 [0] NCCL INFO")


def test_small_evidence_is_judged_in_memory_and_the_choice_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLARS_ENGINE_AFFINITY", raising=False)
    with engine_for(1 << 20):
        assert os.environ["POLARS_ENGINE_AFFINITY"] == "in-memory"
    assert os.environ.get("POLARS_ENGINE_AFFINITY") in (None, "auto")
    with engine_for(1 << 40):
        assert os.environ.get("POLARS_ENGINE_AFFINITY") in (None, "auto")
