"""Where the numbers of many alike dictionaries stand in their bytes, and their columns."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.decoding.pickle_walk import FLOAT, Shape
from nccl_forensics.decoding.raw_numbers import bytes_of, number_column

_INDEX = pl.UInt32()


@dataclass(frozen=True, slots=True)
class Places:
    """Of so many dictionaries (``height``) the ``bytes`` that are numbers (UInt32: where they stand), those of one width in one ``block``
    (how ``struct`` reads them, their first byte among these, how many they are); ``at``: by column for each dictionary which of all these
    numbers is its own, null where none is."""

    height: int
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
        return Places(sorts.len(), pl.concat(places) if places else pl.Series([], dtype=_INDEX), tuple(blocks), at)

    def numbers(self, raws: Sequence[pl.Series]) -> Numbers:
        """All numbers of several pickles of which these ``bytes`` were taken out."""
        wholes: list[tuple[pl.Series, int]] = []
        fractions: list[tuple[pl.Series, int]] = []
        for code, first, count in self.blocks:
            size = count * struct.calcsize(code)
            stacked = pl.concat([raw.slice(first, size) for raw in raws])
            numbers = number_column(bytes_of(stacked), code[1])
            (fractions if code == FLOAT else wholes).append((numbers if code == FLOAT else numbers.cast(pl.Int64), count))
        whole = _by_pickle(wholes, len(raws)) if wholes else pl.Series([], dtype=pl.Int64)
        number = sum(count for _, count in wholes)
        fraction = _by_pickle([(whole.cast(pl.Float64), number), *fractions], len(raws)) if fractions else whole
        return Numbers(self, len(raws), whole, number, fraction, number + sum(count for _, count in fractions))


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of so many pickles (``many``), pickle after pickle: of each so many (``number``) ``whole`` ones as Int64, and the same
    with its floats behind them (``numbers``: so many) as ``all``, which are Float64 where there are any floats."""

    places: Places
    many: int
    whole: pl.Series
    number: int
    all: pl.Series
    numbers: int
    begins: dict[int, pl.Series] = field(default_factory=dict, repr=False)

    def column(self, name: str, dtype: pl.DataType) -> pl.Series:
        """Those of one column of all dictionaries, pickle after pickle; null where a dictionary has none."""
        at = self.places.at.get(name)
        if at is None:
            return pl.Series([None], dtype=dtype).new_from_index(0, self.many * self.places.height)
        values, step = (self.whole, self.number) if dtype == pl.Int64() else (self.all, self.numbers)
        if self.many > 1:
            at = pl.concat([at] * self.many, rechunk=True) + self._begins(step)
        return values[at].cast(dtype)

    def _begins(self, step: int) -> pl.Series:
        """Where the numbers begin that are of the pickle of each dictionary, where each pickle has so many."""
        if step not in self.begins:
            self.begins[step] = pl.int_range(self.many * self.places.height, dtype=_INDEX, eager=True) // self.places.height * step
        return self.begins[step]


def _by_pickle(blocks: Sequence[tuple[pl.Series, int]], many: int) -> pl.Series:
    """Numbers of several blocks, of each of which a pickle has so many, pickle after pickle."""
    if len(blocks) == 1:
        return blocks[0][0]
    return pl.concat([column.slice(n * count, count) for n in range(many) for column, count in blocks], rechunk=True)


def _each(places: pl.Series, width: int, *, backwards: bool) -> pl.Series:
    """The places of all bytes of numbers that begin at these places."""
    if width == 1:
        return places
    number = pl.int_range(places.len() * width, dtype=_INDEX, eager=True)
    byte = number % width
    return places.gather(number // width) + (width - 1 - byte if backwards else byte)
