"""Flight Recorder dumps of whose entries one of each sort was unpickled, as folded tables: many dumps at once, as a table costs the start of some
tens of queries whatever it holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise

import polars as pl

from nccl_forensics import folding
from nccl_forensics.alike_pickle import Alike, Alikes, numbers_of
from nccl_forensics.folding import SORT, Folded
from nccl_forensics.formats._recorder_columns import OWN, TIMES, Budget, entries_frame, pointers
from nccl_forensics.formats._recorder_head import SPANS, Row, content_keys, dump_row, group_rows, operations, status_rows
from nccl_forensics.formats.base import PLACE, Several
from nccl_forensics.tables import TABLES

_THREAD, _FLOAT = "thread_id", "duration_ms"
_FLOATS = frozenset({_FLOAT})


def alikes() -> Alikes:
    """What reads dumps so."""
    return Alikes("entries", OWN, _FLOATS)


@dataclass(frozen=True, slots=True)
class Ring:
    """A dump that was loaded so: its ``place`` among others, and how many bytes it has."""

    place: int
    alike: Alike
    size: int

    @property
    def kept(self) -> list[Mapping[str, object]]:
        """The first entry of each sort."""
        kept = self.alike.document["entries"]
        assert isinstance(kept, list)
        return kept

    @property
    def height(self) -> int:
        """How many entries it has."""
        return self.alike.sorts.len()


@dataclass(frozen=True, slots=True)
class _Firsts:
    """The first entry of each sort of several dumps, as ``frame``; of a document that some of them share it is told once. ``begins``: from which row
    on those of each dump are, ``document``: which of all documents is its own, ``bounds``: between which rows the sorts of each document are."""

    frame: pl.DataFrame
    begins: list[int]
    document: list[int]
    bounds: list[int]

    @staticmethod
    def of(rings: Sequence[Ring], budget: Budget) -> _Firsts:
        number: dict[int, int] = {}
        kept: list[list[Mapping[str, object]]] = []
        document: list[int] = []
        for ring in rings:
            document.append(number.setdefault(id(ring.alike.document), len(kept)))
            if document[-1] == len(kept):
                kept.append(ring.kept)
        bounds = list(accumulate(map(len, kept), initial=0))
        frame = entries_frame([(0, entry) for entry in chain.from_iterable(kept)], budget)
        return _Firsts(frame, [bounds[n] for n in document], document, bounds)


def read_rings(rings: Sequence[Ring]) -> Several:
    """The tables of dumps, each row with its place, in the order given. Dumps are left out of which a number is none that entries have, or whose
    texts would unfold to more than they may."""
    budget = Budget(sum(ring.size for ring in rings))
    firsts = _Firsts.of(rings, budget)
    texts = pl.col("input_sizes", "output_sizes", "frames").str.len_bytes().fill_null(0)
    lengths = firsts.frame.select(pl.sum_horizontal(texts).cast(pl.Int64)).to_series()
    sorts = pl.concat([ring.alike.sorts + begin for ring, begin in zip(rings, firsts.begins, strict=True)], rechunk=True).alias(SORT)
    unfolded = lengths.gather(sorts)
    bounds = list(accumulate((ring.height for ring in rings), initial=0))
    fit = [
        ring
        for ring, first in zip(rings, bounds, strict=False)
        if not budget.exceeded and Budget(ring.size).take(int(unfolded.slice(first, ring.height).sum()))
    ]
    if len(fit) == len(rings):
        own = _own(rings, firsts.frame, sorts)
        odd = _odd(own)
        if odd.is_empty():
            return _tables(rings, firsts, sorts, own)
        spoilt = {bisect_right(bounds, row) - 1 for row in odd.to_list()}
        fit = [ring for n, ring in enumerate(rings) if n not in spoilt]
    return read_rings(fit) if fit else Several({}, {}, {})


def _own(rings: Sequence[Ring], firsts: pl.DataFrame, sorts: pl.Series) -> pl.DataFrame:
    """What each entry has of its own: its number, or what the first one of its sort has instead."""
    columns: list[pl.Series] = []
    for name, numbers in numbers_of([ring.alike for ring in rings], list(OWN), _FLOATS).items():
        told = firsts.get_column(name)
        shared = numbers.null_count() and told.null_count() < told.len()
        columns.append(numbers.zip_with(numbers.is_not_null(), told.gather(sorts)).alias(name) if shared else numbers)
    return pl.DataFrame(columns)


def _odd(own: pl.DataFrame) -> pl.Series:
    """Rows in which a number is none that entries have."""
    times = pl.any_horizontal(pl.col(TIMES) <= 0)
    return own.select((times.fill_null(False) | pl.col(_FLOAT).is_finite().not_().fill_null(False)).arg_true()).to_series()


def _tables(rings: Sequence[Ring], firsts: _Firsts, sorts: pl.Series, own: pl.DataFrame) -> Several:
    """``sorts``: for each entry which row of ``firsts`` tells its sort; ``own``: what each has of its own."""
    status = [status_rows(ring.alike.document.get("pg_status")) for ring in rings]
    groups = [group_rows(ring.alike.document.get("pg_config")) for ring in rings]
    counters = _placed("fr_status", rings, status)
    heights = [ring.height for ring in rings]
    keys = content_keys(operations(firsts.frame).gather(sorts), own, heights, counters.drop(PLACE), list(map(len, status)))
    threads = firsts.frame.get_column(_THREAD).to_list()
    dumps: list[list[Row]] = []
    numbers, first = [own.get_column(c) for c in SPANS], 0
    for n, (ring, key) in enumerate(zip(rings, keys, strict=True)):
        mine = [column.slice(first, ring.height) for column in numbers]
        spans = [bound for column in mine for bound in (column.min(), column.max())]
        first += ring.height
        which = firsts.document[n]
        told = threads[firsts.bounds[which] : firsts.bounds[which + 1]]
        dumps.append([dump_row(ring.alike.document, "pickle", ring.height, spans, told, key)])
    frames = {"fr_dumps": _placed("fr_dumps", rings, dumps), "fr_groups": _placed("fr_groups", rings, groups), "fr_status": counters}
    records = {ring.place: 1 + ring.height for ring in rings}
    return Several(frames, {"fr_entries": _folded(rings, firsts, sorts, own)}, records)


def _placed(table: str, rings: Sequence[Ring], rows: Sequence[list[Row]]) -> pl.DataFrame:
    """The rows of each dump as one frame, with their places in front."""
    frame = TABLES[table].frame(list(chain.from_iterable(rows)))
    return frame.insert_column(0, _places(rings, map(len, rows)))


def _places(rings: Sequence[Ring], heights: Iterable[int]) -> pl.Series:
    return _repeated([ring.place for ring in rings], heights)


def _repeated(places: Iterable[int], heights: Iterable[int]) -> pl.Series:
    """Each place as many times as told."""
    told = [(place, height) for place, height in zip(places, heights, strict=True) if height]
    own = pl.DataFrame(told, schema={PLACE: pl.UInt32(), "height": pl.UInt32()}, orient="row")
    return own.select(pl.col(PLACE).repeat_by("height").explode()).to_series()


def _folded(rings: Sequence[Ring], firsts: _Firsts, sorts: pl.Series, own: pl.DataFrame) -> Folded:
    """The entries, each with the number of its sort among those of its dump."""
    heights = [end - begin for begin, end in pairwise(firsts.bounds)]
    placed = firsts.frame.clone().insert_column(0, _repeated(range(len(heights)), heights))
    folded = folding.fold(placed, TABLES["fr_entries"].own)
    words = folded.words.with_columns(pl.col(SORT) - pl.col(SORT).min().over(PLACE))
    numbers = words.get_column(SORT).gather(folded.rows.get_column(SORT))
    told = words.get_column(PLACE).rle().struct.field("len").to_list()
    begins = list(accumulate(told, initial=0))
    every = [pl.int_range(begins[n], begins[n + 1], dtype=pl.UInt32(), eager=True) for n in firsts.document]
    words = words[pl.concat(every)].with_columns(_places(rings, [told[n] for n in firsts.document]))
    heights = [ring.height for ring in rings]
    pointers = [_pointers(1 << max(heights).bit_length())[:height] for height in heights]
    columns = [own.get_column(c) for c in TABLES["fr_entries"].own if c != "record"]
    rows = pl.DataFrame([_places(rings, heights), pl.concat(pointers).alias("record"), *columns, numbers.gather(sorts)])
    return Folded(rows, words)


@lru_cache(maxsize=2)
def _pointers(height: int) -> pl.Series:
    """The pointers to so many entries, which are those of every dump."""
    return pl.select(pointers(pl.int_range(height, dtype=pl.UInt32()))).to_series()
