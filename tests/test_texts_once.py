"""Words of many sources in memory."""

from __future__ import annotations

import io

import polars as pl
import pytest

from nccl_forensics.folding import texts_once


def _taken(frame: pl.DataFrame) -> int:
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer)
    return buffer.tell()


def test_texts_that_many_rows_have_are_held_once() -> None:
    frames = pl.concat([pl.DataFrame({"frames": ["train.py:3\n" * 40, "load.py:9\n" * 40], "n": [1, 2]}) for _ in range(500)], rechunk=True)
    made = texts_once(frames)
    assert made.equals(frames)
    assert _taken(made) * 10 < _taken(frames)


@pytest.mark.parametrize("texts", [[], [None, None], ["", "", None, ""], ["a", "b"], ["same", "same", None, "same", "other"]])
def test_what_a_table_says_stays_as_it_is(texts: list[str | None]) -> None:
    frame = pl.DataFrame({"text": pl.Series(texts, dtype=pl.String), "at": range(len(texts))})
    assert texts_once(frame).equals(frame)
    assert texts_once(frame).schema == frame.schema
