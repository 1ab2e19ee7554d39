"""Text put together from columns."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.frames import text_of


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
