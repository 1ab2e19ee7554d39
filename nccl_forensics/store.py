"""The tables of one bundle, and the same restricted to one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from nccl_forensics.folding import ROWS, SORT, WORDS, FoldedTable, unfold
from nccl_forensics.frames import typed
from nccl_forensics.tables import TABLES

SOURCES = typed(
    "source_id:u32 path:str formats:list[str] bytes:i64 lines:i64 records:i64 gaps:i64 unmodelled:i64 foreign:i64 invalid_utf8:i64",
    "error:str duplicate_of:u32 sha256:str",
)
#: In every bundle, whatever it holds.
ALWAYS = frozenset({"sources", "gaps", "unmodelled"})


def schema_of(table: str) -> dict[str, pl.DataType]:
    """Columns of a table as it is scanned: those of the format's rows after ``source_id``."""
    return {"source_id": pl.UInt32(), **TABLES[table].schema}


@dataclass(frozen=True, slots=True)
class Store:
    """Rows by table, with ``source_id``, in the order of source and line.

    ``present``: tables that a source of the bundle was read for (empty is not absent). A table is a frame, or files where it is big;
    files live as long as the bundle's scratch folder, or are tables saved earlier.
    """

    sources: pl.DataFrame
    present: frozenset[str]
    _tables: Mapping[str, pl.DataFrame | pl.LazyFrame | tuple[Path, ...]] = field(default_factory=dict)
    _exclude: frozenset[int] = frozenset()

    @property
    def on_disk(self) -> bool:
        """Whether some table is held in files rather than in memory."""
        return any(isinstance(held, tuple) for held in self._tables.values())

    def has(self, table: str) -> bool:
        """Whether something in the bundle could have filled the table."""
        return table in self.present

    def holds(self, table: str) -> bool:
        """Whether a table has any rows; those of a folded one are not unfolded for it."""
        rows = self._held(table + ROWS)
        return (self.scan(table) if rows is None else self._counting(rows)).head(1).collect().height > 0

    def scan(self, table: str) -> pl.LazyFrame:
        """Rows of a table in the order of source and line; empty with the right columns where there are none."""
        if table == "sources":
            return self._counting(self.sources.lazy())
        rows, words = (self._held(table + end) for end in (ROWS, WORDS))
        if rows is not None and words is not None:
            return unfold(self._counting(rows), words, ["source_id", SORT], schema_of(table))
        held = self._held(table)
        return self._counting(held) if held is not None else pl.LazyFrame(schema=schema_of(table))

    def folded(self, table: str) -> FoldedTable:
        """The same rows folded, of a table that has columns of its own for each row."""
        rows, words = self._tables.get(table + ROWS), self._held(table + WORDS)
        if rows is None or words is None or isinstance(rows, pl.LazyFrame):
            return FoldedTable.of(self.scan(table), TABLES[table].own)
        parts = rows if isinstance(rows, tuple) else (rows,)
        return FoldedTable(self.scan(table), parts, self._counting(words).collect(), self._exclude)

    def _held(self, name: str) -> pl.LazyFrame | None:
        held = self._tables.get(name)
        return pl.scan_ipc(list(held)) if isinstance(held, tuple) else held.lazy() if held is not None else None

    def _counting(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Without the sources that do not count."""
        return frame.filter(~pl.col("source_id").is_in(list(self._exclude))) if self._exclude else frame

    def without(self, sources: frozenset[int]) -> Store:
        """The same store without some sources (those of other runs)."""
        return Store(self.sources, self.present, self._tables, self._exclude | sources)

    def holding(self, table: str, rows: pl.DataFrame) -> Store:
        """The same store with these rows as a table."""
        return Store(self.sources, self.present, {**self._tables, table: rows}, self._exclude)

    @staticmethod
    def from_frames(frames: Mapping[str, pl.DataFrame], sources: pl.DataFrame | None = None) -> Store:
        """A store of frames that already carry ``source_id``, for tests and notebooks."""
        full = {n: pl.concat([pl.DataFrame(schema={"source_id": pl.UInt32()}), f], how="diagonal_relaxed") for n, f in frames.items()}
        ready = {
            n: f.select(
                pl.col("source_id").cast(pl.UInt32),
                *(
                    pl.col(c).cast(t, strict=False) if c in f.columns else pl.lit(None, dtype=t).alias(c)
                    for c, t in TABLES[n].schema.items()
                ),
            )
            for n, f in full.items()
        }
        known = sources if sources is not None else pl.DataFrame(schema=SOURCES)
        return Store(known, ALWAYS | frozenset(ready), ready)
