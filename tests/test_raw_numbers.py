"""Columns made of bytes hold the numbers that stand there."""

from __future__ import annotations

import random
import struct

import pytest

from nccl_forensics.decoding import raw_numbers
from nccl_forensics.decoding.raw_numbers import byte_column, bytes_of, number_column


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", "BHiqd")
def test_numbers_leave_bytes_and_become_them_again(monkeypatch: pytest.MonkeyPatch, kind: str, plain: bool):
    monkeypatch.setattr(raw_numbers, "_MOST", 3000)
    if plain:  # a release of Polars whose streams are otherwise
        monkeypatch.setattr(raw_numbers, "_around", lambda *_: None)
    dice = random.Random(kind)
    for count in (0, 1, 5, 1023, 1024, 1025, 3000, 7001):
        data = dice.randbytes(count * struct.calcsize(kind)).replace(b"\xff", b"\x3f").replace(b"\x7f", b"\x3f")  # no NaN
        column = number_column(data, kind)
        assert column.to_list() == list(struct.unpack(f"<{count}{kind}", data))
        assert bytes_of(column) == data


def test_streams_of_numbers_are_as_they_are_taken_for():
    assert all(raw_numbers._around(kind, 1024) is not None for kind in "BHiqd")


def test_bytes_are_a_column():
    assert byte_column(b"").to_list() == []
    assert byte_column(b"a\x00\xff").to_list() == [97, 0, 255]
