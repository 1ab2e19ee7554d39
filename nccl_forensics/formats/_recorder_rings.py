"""Flight Recorder dumps of whose entries one of each sort was unpickled, as folded tables: many dumps at once, as a table costs the start of some
tens of queries whatever it holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

import polars as pl

from nccl_forensics import folding
from nccl_forensics.alike_pickle import Alike
from nccl_forensics.folding import SORT, Folded
from nccl_forensics.formats._recorder_columns import OWN, TIMES, Budget, decimal, entries_frame, integer, pointers
from nccl_forensics.formats._recorder_head import IDENTITY, SPANS, Row, dump_row, group_rows, status_rows
from nccl_forensics.formats.base import PLACE, Several
from nccl_forensics.tables import TABLES

_THREAD, _FLOAT = "thread_id", "duration_ms"
#: What a number becomes that has the other type than its column: whether it is a column of floats decides.
_PLAIN = (integer, decimal)


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


def read_rings(rings: Sequence[Ring]) -> Several:
    """The tables of dumps, each row with its place, in the order given. Dumps are left out of which a number is none that entries have, or whose
    texts would unfold to more than they may."""
    budget = Budget(sum(ring.size for ring in rings))
    firsts = entries_frame([(0, entry) for ring in rings for entry in ring.kept], budget)
    bounds = list(accumulate((len(ring.kept) for ring in rings), initial=0))
    texts = pl.col("input_sizes", "output_sizes", "frames").str.len_bytes().fill_null(0)
    lengths = firsts.select(pl.sum_horizontal(texts)).to_series().to_list()
    told = {c: firsts.get_column(c).to_list() for c in OWN}
    columns = _Columns({c: [] for c in OWN}, [])
    fit: list[Ring] = []
    sorts: list[int] = []
    for ring, first in zip(rings, bounds, strict=False):
        own = [first + sort for sort in ring.alike.sorts]
        if not budget.exceeded and Budget(ring.size).take(sum(map(lengths.__getitem__, own))):
            columns.add(ring.alike, own, told, first)
            sorts += own
            fit.append(ring)
    if len(fit) == len(rings):
        own_columns = columns.frame()
        odd = _odd(own_columns)
        if odd.is_empty():
            return _tables(rings, firsts, bounds, sorts, own_columns)
        ends = list(accumulate(len(ring.alike.sorts) for ring in rings))
        spoilt = {bisect_right(ends, row) for row in odd.to_list()}
        fit = [ring for n, ring in enumerate(rings) if n not in spoilt]
    return read_rings(fit) if fit else Several({}, {}, {})


def _odd(own: pl.DataFrame) -> pl.Series:
    """Rows in which a number is none that entries have."""
    times = pl.any_horizontal(pl.col(TIMES) <= 0)
    return own.select((times.fill_null(False) | pl.col(_FLOAT).is_finite().not_().fill_null(False)).arg_true()).to_series()


@dataclass(frozen=True, slots=True)
class _Columns:
    """Values of what differs from entry to entry, and for each the row that it is of."""

    values: dict[str, list[object]]
    rows: list[int]

    def add(self, alike: Alike, own: Sequence[int], told: Mapping[str, Sequence[object]], begin: int) -> None:
        """Add a dump. ``own``: for each entry which of those that were unpickled is of its sort, counted from ``begin`` on, and ``told`` the values of
        these."""
        first = len(self.rows)
        for column, names in OWN.items():
            of_sort, values = told[column], self.values[column]
            values += [of_sort[own[place]] for place in alike.alone]
            for numbers in alike.numbers:
                cut = numbers.by_key.get(next((name for name in names if name in numbers.like), ""))
                if cut is not None:
                    values += cut if isinstance(cut[0], float) == (column == _FLOAT) else map(_PLAIN[column == _FLOAT], cut)
                    continue
                shared = {of_sort[begin + sort] for sort in numbers.sorts}
                values += [*shared] * len(numbers.places) if len(shared) == 1 else [of_sort[own[place]] for place in numbers.places]
        for places in (alike.alone, *(numbers.places for numbers in alike.numbers)):
            self.rows.extend(map(first.__add__, places))

    def frame(self) -> pl.DataFrame:
        """The columns in the order of rows."""
        made = {c: pl.Series(values, dtype=pl.Float64() if c == _FLOAT else pl.Int64()) for c, values in self.values.items()}
        return pl.DataFrame(made)[pl.Series(self.rows, dtype=pl.UInt32()).arg_sort()]


def _tables(rings: Sequence[Ring], firsts: pl.DataFrame, bounds: Sequence[int], sorts: Sequence[int], own: pl.DataFrame) -> Several:
    """``bounds``: from which row of ``firsts`` to which the sorts of each dump are told; ``sorts``: for each entry which row of these tells its
    sort; ``own``: what each has of its own."""
    sort = pl.Series(SORT, sorts, dtype=pl.UInt32())
    identity = pl.DataFrame(
        [firsts.get_column(c).gather(sort) if c in firsts.columns and c not in OWN else own.get_column(c) for c in IDENTITY]
    )
    threads = firsts.get_column(_THREAD).to_list()
    status = [status_rows(ring.alike.document.get("pg_status")) for ring in rings]
    groups = [group_rows(ring.alike.document.get("pg_config")) for ring in rings]
    counters = _placed("fr_status", rings, status)
    dumps: list[list[Row]] = []
    entry = counter = 0
    for n, ring in enumerate(rings):
        height = len(ring.alike.sorts)
        mine = own.select(SPANS)[entry : entry + height]
        spans = [bound for c in SPANS for bound in (mine[c].min(), mine[c].max())]
        counted = counters[counter : counter + len(status[n])].to_dicts()
        row = dump_row(ring.alike.document, "pickle", identity[entry : entry + height], spans, threads[bounds[n] : bounds[n + 1]], counted)
        dumps.append([row])
        entry, counter = entry + height, counter + len(status[n])
    frames = {"fr_dumps": _placed("fr_dumps", rings, dumps), "fr_groups": _placed("fr_groups", rings, groups), "fr_status": counters}
    records = {ring.place: 1 + len(ring.alike.sorts) for ring in rings}
    return Several(frames, {"fr_entries": _folded(rings, firsts, sort, own)}, records)


def _placed(table: str, rings: Sequence[Ring], rows: Sequence[list[Row]]) -> pl.DataFrame:
    """The rows of each dump as one frame, with their places in front."""
    frame = TABLES[table].frame(list(chain.from_iterable(rows)))
    return frame.insert_column(0, _places(rings, map(len, rows)))


def _places(rings: Sequence[Ring], heights: Iterable[int]) -> pl.Series:
    own = (pl.repeat(ring.place, height, dtype=pl.UInt32(), eager=True) for ring, height in zip(rings, heights, strict=True))
    return pl.concat(list(own)).alias(PLACE)


def _folded(rings: Sequence[Ring], firsts: pl.DataFrame, sort: pl.Series, own: pl.DataFrame) -> Folded:
    """The entries, each with the number of its sort among those of its dump."""
    placed = firsts.clone().insert_column(0, _places(rings, (len(ring.kept) for ring in rings)))
    folded = folding.fold(placed, TABLES["fr_entries"].own)
    begins = pl.col(SORT) - pl.col(SORT).min().over(PLACE)
    words = folded.words.with_columns(begins.alias(SORT))
    numbers = words.get_column(SORT).gather(folded.rows.get_column(SORT))
    heights = [len(ring.alike.sorts) for ring in rings]
    pointers = [_pointers(1 << max(heights).bit_length())[:height] for height in heights]
    columns = [own.get_column(c) for c in TABLES["fr_entries"].own if c != "record"]
    rows = pl.DataFrame([_places(rings, heights), pl.concat(pointers).alias("record"), *columns, numbers.gather(sort)])
    return Folded(rows, words)


@lru_cache(maxsize=2)
def _pointers(height: int) -> pl.Series:
    """The pointers to so many entries, which are those of every dump."""
    return pl.select(pointers(pl.int_range(height, dtype=pl.UInt32()))).to_series()
