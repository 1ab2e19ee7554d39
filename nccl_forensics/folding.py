"""Tables of many rows of few sorts: the lines of a log of operations differ in little but their number.

Such a table is kept as two frames: ``rows`` hold what is each row's own and the number of its sort (4 + 8 + 8 + 4 bytes for an operation,
where the whole row takes two hundred), ``words`` one row for each sort with everything else. Unfolded they are the table again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import polars as pl

#: The column of both frames by which they are joined (UInt32, from 0 in each source).
SORT = "sort"
#: What the names of the two frames end with where frames go by name.
ROWS, WORDS = ".rows", ".words"
#: Rows of a table that is not folded yet that are folded together.
_AT_ONCE = 32_768


def told(column: str) -> str:
    """The column of ``words`` that says whether this column of ``rows`` is filled."""
    return f"has_{column}"


@dataclass(frozen=True, slots=True)
class Folded:
    """A table of one source: ``rows`` in the order of its lines, ``words`` in the order in which sorts are met first."""

    rows: pl.DataFrame
    words: pl.DataFrame

    def frame(self, schema: dict[str, pl.DataType]) -> pl.DataFrame:
        """The table, with the columns of its schema."""
        return unfold(self.rows.lazy(), self.words.lazy(), [SORT], schema).collect()


def scans_of(parts: Sequence[pl.DataFrame | Path]) -> list[pl.LazyFrame]:
    """Frames and Arrow files in their order; files that follow each other are one scan, as they may be hundreds."""
    scans: list[pl.LazyFrame] = []
    for _, alike in groupby(parts, lambda part: isinstance(part, Path)):
        same = list(alike)
        files = [p for p in same if isinstance(p, Path)]
        scans += [pl.scan_ipc(files)] if files else [p.lazy() for p in same if isinstance(p, pl.DataFrame)]
    return scans


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """A table of all sources: ``every`` row of it, and the same folded.

    ``parts`` are its rows in their order, as frames or files of Arrow IPC, a source in one of them; ``words`` has those of a source
    together. Both have ``source_id``. ``excluded`` are sources that do not count, though parts may hold them.
    """

    every: pl.LazyFrame
    parts: tuple[pl.DataFrame | Path, ...]
    words: pl.DataFrame
    excluded: frozenset[int] = frozenset()

    @staticmethod
    def of(every: pl.LazyFrame, own: Sequence[str]) -> FoldedTable:
        """A table that is not folded yet: some sources after others, since all at once takes twice what the table does."""
        folded = [fold(part, own, both=["source_id"]) for part in _some_sources(every.collect())]
        return FoldedTable(every, tuple(f.rows for f in folded), pl.concat([f.words for f in folded]))

    def lazy(self) -> pl.LazyFrame:
        """The rows of all parts in one scan, with their sorts; also of sources that do not count."""
        return pl.concat(scans_of(self.parts))

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[pl.DataFrame, pl.Series, Path | None]]:
        """Each part as a frame, with the place of each of its rows among the words, and its file where it lies in one. ``columns``: what is
        read of a part, if not all; a text costs a fifth of the time that a part takes."""
        sources, sorts = (self.words.get_column(c) for c in ("source_id", SORT))
        first = sources.arg_unique()
        known, base = sources.gather(first), first.cast(pl.Int64) - sorts.gather(first).cast(pl.Int64)
        bases = pl.repeat(None, int(str(known.max() or 0)) + 1, dtype=pl.Int64, eager=True).scatter(known, base)
        wanted = None if columns is None else list(dict.fromkeys(("source_id", *columns, SORT)))
        for part in self.parts:
            frame = pl.read_ipc(part, columns=wanted) if isinstance(part, Path) else part if wanted is None else part.select(wanted)
            if self.excluded:
                frame = frame.filter(~pl.col("source_id").is_in(list(self.excluded)))
            sources, sorts = frame.get_column("source_id"), frame.get_column(SORT)
            file = part if isinstance(part, Path) else None
            if sources.len() > 0 and sources.min() == sources.max() and bases[sources[0]] >= 0:
                yield frame, sorts + bases[sources[0]], file
                continue
            yield frame, (sorts.cast(pl.Int64) + bases.gather(sources)).cast(pl.UInt32), file


def _some_sources(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Stretches of whole sources, at least one."""
    sources = frame.get_column("source_id")
    if frame.height <= _AT_ONCE or not sources.is_sorted():
        yield frame
        return
    start = 0
    while start < frame.height:
        end = min(start + _AT_ONCE, frame.height)
        end = int(sources.search_sorted(sources[end - 1], side="right"))
        yield frame.slice(start, end - start)
        start = end


def fold(frame: pl.DataFrame, own: Sequence[str], both: Sequence[str] = ()) -> Folded:
    """A table's frame folded; ``own`` are the columns that differ from row to row, ``both`` those that rows and words shall have."""
    flags = [pl.col(c).is_not_null().alias(told(c)) for c in own]
    keys = frame.select(pl.all().exclude(own), *flags)
    words = keys.unique(maintain_order=True).with_row_index(SORT)
    sorts = keys.join(words, on=keys.columns, how="left", nulls_equal=True, maintain_order="left").get_column(SORT)
    return Folded(frame.select(*both, *own).with_columns(sorts), words)


def joined(parts: Sequence[Folded], order: str) -> Folded:
    """One folded table of several of one source, in the order of a column of its rows."""
    if len(parts) == 1:
        return parts[0]
    offsets, offset = [], 0
    for part in parts:
        offsets.append(offset)
        offset += part.words.height
    together = pl.concat([p.words.with_columns(pl.col(SORT) + o) for p, o in zip(parts, offsets, strict=True)])
    keys = [c for c in together.columns if c != SORT]
    words = together.select(keys).unique(maintain_order=True).with_row_index(SORT)
    numbers = together.select(keys).join(words, on=keys, how="left", nulls_equal=True, maintain_order="left").get_column(SORT)
    rows = pl.concat(
        [p.rows.with_columns(numbers.gather(p.rows.get_column(SORT) + o).alias(SORT)) for p, o in zip(parts, offsets, strict=True)]
    )
    return Folded(rows if rows.get_column(order).is_sorted() else rows.sort(order, maintain_order=True), words)


def texts_once(frame: pl.DataFrame) -> pl.DataFrame:
    """The same frame, each text of a column in memory once where it stands in many rows. Polars keeps each text where it was read, and
    words of thousands of dumps say the same: of 690 bytes that a word of a dump takes 260 are left."""
    return frame.with_columns(map(_once, frame.select(pl.col(pl.String)).get_columns()))


def _once(texts: pl.Series) -> pl.Series:
    different = texts.unique(maintain_order=True).drop_nulls()
    if different.len() * 2 > texts.len():
        return texts
    own = pl.Series(texts.name, different.to_list(), dtype=pl.String)  # what ``unique`` gives still holds all of them
    return own.gather(texts.cast(pl.Enum(own)).to_physical())


def unfold(rows: pl.LazyFrame, words: pl.LazyFrame, on: list[str], schema: dict[str, pl.DataType]) -> pl.LazyFrame:
    """The rows with their words: the table."""
    return rows.join(words, on=on, how="left", maintain_order="left").select(list(schema))
