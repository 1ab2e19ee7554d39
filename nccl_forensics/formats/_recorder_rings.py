"""Flight Recorder dumps of whose entries one of each sort was unpickled, as folded tables: many dumps at once, as a table costs the start
of some tens of queries whatever it holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

import polars as pl

from nccl_forensics import folding
from nccl_forensics.decoding.alike_pickle import Alike, Alikes, numbers_of
from nccl_forensics.folding import SORT, Folded
from nccl_forensics.formats._recorder_columns import OWN, TIMES, Budget, entries_frame, pointers, unset
from nccl_forensics.formats._recorder_head import SPANS, content_keys, dump_row, group_rows, operations, placed, repeated, status_rows
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
    def height(self) -> int:
        """How many entries it has."""
        return self.alike.sorts.len()


_Document = dict[object, object]


def _kept(document: _Document) -> list[Mapping[str, object]]:
    """The first entry of each sort."""
    kept = document["entries"]
    assert isinstance(kept, list)
    return kept


@dataclass(frozen=True, slots=True)
class _Firsts:
    """What the first entries of each sort tell that several documents keep: as rows of ``fr_entries`` (``frame``), those of each document
    between two of the ``bounds``; what their texts take (``lengths``) and whom they call in which group (``operations``).

    ``words``: the same folded, with the place of the document, so many of each (``told``); ``numbers``: for each row the sort among those
    of its document.
    """

    documents: tuple[_Document, ...]
    frame: pl.DataFrame
    bounds: list[int]
    lengths: pl.Series
    operations: pl.Series
    words: pl.DataFrame
    told: list[int]
    numbers: pl.Series

    @staticmethod
    def of(documents: tuple[_Document, ...], budget: Budget) -> _Firsts:
        kept = [_kept(document) for document in documents]
        heights = list(map(len, kept))
        frame = entries_frame([(0, entry) for entry in chain.from_iterable(kept)], budget)
        texts = pl.col("input_sizes", "output_sizes", "frames").str.len_bytes().fill_null(0)
        lengths = frame.select(pl.sum_horizontal(texts).cast(pl.Int64)).to_series()
        folded = folding.fold(frame.clone().insert_column(0, repeated(range(len(kept)), heights)), TABLES["fr_entries"].own)
        words = folded.words.with_columns(pl.col(SORT) - pl.col(SORT).min().over(PLACE))
        told = words.get_column(PLACE).rle().struct.field("len").to_list()
        numbers = words.get_column(SORT).gather(folded.rows.get_column(SORT))
        return _Firsts(documents, frame, list(accumulate(heights, initial=0)), lengths, operations(frame), words, told, numbers)

    def words_of(self, which: Sequence[int]) -> pl.Series:
        """The rows of ``words`` that are of these documents, one after the other."""
        begins = list(accumulate(self.told, initial=0))
        return pl.concat([pl.int_range(begins[n], begins[n + 1], dtype=pl.UInt32(), eager=True) for n in which])


#: What was made of the documents of a batch before: dumps of a job that go well hold the same one.
_RECENT: list[_Firsts] = []
#: So many batches are remembered, of so many documents each.
_BATCHES, _DOCUMENTS = 2, 4


def _firsts(rings: Sequence[Ring], budget: Budget) -> tuple[_Firsts, list[int]]:
    """What is told of the documents of dumps, and the place of each dump's own among these."""
    places: dict[int, int] = {}
    which = [places.setdefault(id(ring.alike.document), len(places)) for ring in rings]
    documents = tuple(rings[which.index(n)].alike.document for n in range(len(places)))
    for known in _RECENT:
        if len(known.documents) == len(documents) and all(a is b for a, b in zip(known.documents, documents, strict=True)):
            return known, which
    firsts = _Firsts.of(documents, budget)
    if len(documents) <= _DOCUMENTS and not budget.exceeded:
        _RECENT[:] = [firsts, *_RECENT[: _BATCHES - 1]]
    return firsts, which


def read_rings(rings: Sequence[Ring]) -> Several:
    """The tables of dumps, each row with its place, in the order given. Dumps are left out of which a number is none that entries have, or
    whose texts would unfold to more than they may."""
    budget = Budget(sum(ring.size for ring in rings))
    firsts, which = _firsts(rings, budget)
    begins = [ring.alike.sorts + firsts.bounds[n] for ring, n in zip(rings, which, strict=True)]
    sorts = pl.concat(begins, rechunk=True).alias(SORT)
    unfolded = firsts.lengths.gather(sorts)
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
            return _tables(rings, firsts, which, sorts, own)
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
    times = pl.any_horizontal(unset(c) for c in TIMES)
    return own.select((times.fill_null(False) | pl.col(_FLOAT).is_finite().not_().fill_null(False)).arg_true()).to_series()


def _tables(rings: Sequence[Ring], firsts: _Firsts, which: Sequence[int], sorts: pl.Series, own: pl.DataFrame) -> Several:
    """``which``: for each dump which document is its own; ``sorts``: for each entry which row of ``firsts`` tells its sort; ``own``: what
    each has of its own."""
    status = [status_rows(ring.alike.document.get("pg_status")) for ring in rings]
    groups = [group_rows(ring.alike.document.get("pg_config")) for ring in rings]
    places = [ring.place for ring in rings]
    counters = placed("fr_status", places, status)
    heights = [ring.height for ring in rings]
    keys = content_keys(firsts.operations.gather(sorts), own, heights, counters.drop(PLACE), list(map(len, status)))
    threads = firsts.frame.get_column(_THREAD).to_list()
    dumps: list[list[dict[str, object]]] = []
    numbers, first = [own.get_column(c) for c in SPANS], 0
    for ring, n, key in zip(rings, which, keys, strict=True):
        mine = [column.slice(first, ring.height) for column in numbers]
        spans = [bound for column in mine for bound in (column.min(), column.max())]
        first += ring.height
        told = threads[firsts.bounds[n] : firsts.bounds[n + 1]]
        dumps.append([dump_row(ring.alike.document, "pickle", ring.height, spans, told, key)])
    frames = {"fr_dumps": placed("fr_dumps", places, dumps), "fr_groups": placed("fr_groups", places, groups), "fr_status": counters}
    records = {ring.place: 1 + ring.height for ring in rings}
    return Several(frames, {"fr_entries": _folded(rings, firsts, which, sorts, own)}, records)


def _folded(rings: Sequence[Ring], firsts: _Firsts, which: Sequence[int], sorts: pl.Series, own: pl.DataFrame) -> Folded:
    """The entries, each with the number of its sort among those of its dump."""
    places, heights = [ring.place for ring in rings], [ring.height for ring in rings]
    words = firsts.words[firsts.words_of(which)].with_columns(repeated(places, [firsts.told[n] for n in which]))
    pointers = [_pointers(1 << max(heights).bit_length())[:height] for height in heights]
    columns = [own.get_column(c) for c in TABLES["fr_entries"].own if c != "record"]
    rows = pl.DataFrame([repeated(places, heights), pl.concat(pointers).alias("record"), *columns, firsts.numbers.gather(sorts)])
    return Folded(rows, words)


@lru_cache(maxsize=2)
def _pointers(height: int) -> pl.Series:
    """The pointers to so many entries, which are those of every dump."""
    return pl.select(pointers(pl.int_range(height, dtype=pl.UInt32()))).to_series()
