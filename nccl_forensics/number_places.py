"""Where the numbers of many alike dictionaries stand in their bytes, and their columns."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from nccl_forensics.pickle_walk import FLOAT, Shape
from nccl_forensics.raw_numbers import bytes_of, number_column

_INDEX = pl.UInt32()


@dataclass(frozen=True, slots=True)
class Places:
    """The ``bytes`` that are numbers (UInt32: where they stand), those of one width in one ``block`` (how ``struct`` reads them, their first byte
    among these, how many they are); ``at``: by column for each dictionary which of all these numbers is its own, null where none is."""

    bytes: pl.Series
    blocks: tuple[tuple[str, int, int], ...]
    at: dict[str, pl.Series]

    @staticmethod
    def of(starts: pl.Series, sorts: pl.Series, shapes: Sequence[Shape]) -> Places:
        """``starts``: where each dictionary begins; ``sorts``: its sort, ``shapes`` has one for each of these."""
        told: dict[str, dict[str, dict[int, int]]] = {}
        for sort, shape in enumerate(shapes):
            for offset, code, column in shape.spans:
                told.setdefault(code, {}).setdefault(column, {})[sort] = offset
        at: dict[str, pl.Series] = {}
        places: list[pl.Series] = []
        blocks: list[tuple[str, int, int]] = []
        first = count = 0
        for code in sorted(told, key=lambda code: (code == FLOAT, code)):
            width, begin = struct.calcsize(code), count
            for column, offsets in told[code].items():
                here = pl.Series([sort in offsets for sort in range(len(shapes))], dtype=pl.Boolean)
                rows = here.gather(sorts).arg_true()
                begins = pl.Series([offsets.get(sort, 0) for sort in range(len(shapes))], dtype=_INDEX)
                places.append(_each(starts.gather(rows) + begins.gather(sorts.gather(rows)), width, backwards=code == FLOAT))
                own = at.get(column, pl.repeat(None, sorts.len(), dtype=_INDEX, eager=True))
                at[column] = own.scatter(rows, pl.int_range(count, count + rows.len(), dtype=_INDEX, eager=True))
                count += rows.len()
            blocks.append((code, first, count - begin))
            first += (count - begin) * width
        return Places(pl.concat(places) if places else pl.Series([], dtype=_INDEX), tuple(blocks), at)

    def numbers(self, raws: Sequence[pl.Series]) -> list[tuple[pl.Series, pl.Series]]:
        """All numbers of each of several pickles of which these ``bytes`` were taken out: Int64, and the same as Float64 with the floats
        behind them."""
        ints: list[list[pl.Series]] = [[] for _ in raws]
        floats: list[list[pl.Series]] = [[] for _ in raws]
        for code, first, count in self.blocks:
            size = count * struct.calcsize(code)
            stacked = pl.concat([raw.slice(first, size) for raw in raws], rechunk=True)
            numbers = number_column(bytes_of(stacked), code[1])
            if code != FLOAT:
                numbers = numbers.cast(pl.Int64)
            for n, into in enumerate(floats if code == FLOAT else ints):
                into.append(numbers.slice(n * count, count))
        none = pl.Series([], dtype=pl.Int64)
        found: list[tuple[pl.Series, pl.Series]] = []
        for whole, fractions in zip(ints, floats, strict=True):
            own = pl.concat(whole, rechunk=True) if whole else none
            found.append((own, pl.concat([own.cast(pl.Float64), *fractions], rechunk=True)))
        return found


def _each(places: pl.Series, width: int, *, backwards: bool) -> pl.Series:
    """The places of all bytes of numbers that begin at these places."""
    if width == 1:
        return places
    number = pl.int_range(places.len() * width, dtype=_INDEX, eager=True)
    byte = number % width
    return places.gather(number // width) + (width - 1 - byte if backwards else byte)
