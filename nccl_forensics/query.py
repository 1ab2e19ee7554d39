"""SQL over the tables and views of an incident, read from evidence or from a folder of tables saved earlier.

Polars runs the query. Every table of the program can be named, and is empty where nothing in the evidence fills it; views are derived
only where the query names them.
"""

from __future__ import annotations

import difflib
import re
from datetime import date, timedelta
from pathlib import Path

import polars as pl
from polars.exceptions import PanicException, PolarsError

from nccl_forensics.errors import UnusableEvidence, UsageError
from nccl_forensics.store import ALWAYS, SOURCES, Store, schema_of
from nccl_forensics.tables import TABLES, third_party
from nccl_forensics.views import Resolver, all_views

_UNKNOWN_TABLE = re.compile(r"relation '([^']*)' was not found")
_UNKNOWN_COLUMN = re.compile(r'unable to find column "([^"]*)"; valid columns: \[([^\]]*)\]')
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What begins a statement that changes tables, behind comments; Polars runs some of them, on its own copies.
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_CHANGES = frozenset({"alter", "create", "delete", "drop", "insert", "merge", "replace", "truncate", "update"})


def select(store: Store, query: str) -> pl.DataFrame:
    """Rows of a query in Polars' SQL.

    Raises ``UsageError`` for a query that cannot be run, with the nearest name where one is mistyped, and ``UnusableEvidence`` where it
    reads a view that nothing in the evidence can fill.
    """
    first = _WORD.search(_COMMENT.sub(" ", query))
    if first is not None and first.group().lower() in _CHANGES:
        raise UsageError(f"{first.group().upper()} is no query: tables are read with SELECT, and cannot be changed")
    frames: dict[str, pl.LazyFrame] = {name: store.scan(name) for name in ("sources", *TABLES)}
    resolver = Resolver(store)
    words = {w.lower() for w in _WORD.findall(query)}
    absent: dict[str, UnusableEvidence] = {}
    for name in sorted(words & (all_views().keys() - frames.keys())):
        frame = resolver.get(name)
        if frame is None:
            absent[name] = _unfilled(name, resolver)
        else:
            frames[name] = frame
    try:
        return pl.SQLContext(frames=frames).execute(query, eager=True)
    except (PolarsError, PanicException) as problem:
        raise _explained(str(problem), absent) from None


def table(store: Store, name: str) -> pl.LazyFrame:
    """A table or view by name; a table that nothing fills is empty. Raises as ``select``."""
    if name == "sources" or name in TABLES:
        return store.scan(name)
    if name not in all_views():
        raise UsageError(f"no table {name!r}{_near(name, ['sources', *TABLES, *all_views()])}")
    resolver = Resolver(store)
    frame = resolver.get(name)
    if frame is None:
        raise _unfilled(name, resolver)
    return frame


def _unfilled(name: str, resolver: Resolver) -> UnusableEvidence:
    inputs = all_views()[name].inputs
    return UnusableEvidence(f"view {name!r} cannot be derived: the evidence has no {', '.join(resolver.missing(inputs) or inputs.names)}")


def _explained(problem: str, absent: dict[str, UnusableEvidence]) -> UsageError | UnusableEvidence:
    first = problem.split("\n", 1)[0].strip()
    if (unknown := _UNKNOWN_TABLE.search(problem)) is not None:
        name = unknown.group(1)
        if name.lower() in absent:
            return absent[name.lower()]
        known = ["sources", *TABLES, *all_views()]
        return UsageError(f"no table {name!r}{_near(name, known) or ' (`nccl-forensics tables` lists them)'}")
    if (column := _UNKNOWN_COLUMN.search(problem)) is not None:
        known = re.findall(r'"([^"]*)"', column.group(2))
        name = column.group(1)
        return UsageError(f"no column {name!r}{_near(name, known)}; there are {', '.join(known[:40])}")
    return UsageError(f"the query cannot be run: {first}")


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def newest_day(store: Store) -> date | None:
    """The day of the newest wall-clock time in any table; None where the evidence has none. Local times count as if they were UTC."""
    newest: int | None = None
    for name in sorted(store.present & TABLES.keys()):
        if not {"time_raw_ns", "time_kind"} <= TABLES[name].schema.keys():
            continue
        wall = store.scan(name).filter(pl.col("time_kind").is_in(["epoch", "local-unzoned"]))
        value = wall.select(pl.col("time_raw_ns").max()).collect().item()
        if value is not None:
            newest = max(newest or value, value)
    if store.has("fr_dumps"):
        value = store.scan("fr_dumps").select(pl.col("last_created_ns").max()).collect().item()
        newest = max(newest or value, value) if value is not None else newest
    try:
        return date(1970, 1, 1) + timedelta(days=newest // 86_400_000_000_000) if newest is not None else None
    except OverflowError:
        return None


def saved_store(folder: Path) -> Store | None:
    """The tables that `analyze` wrote into a folder (or into `tables/` of it); None where the folder holds none.

    Tables of another version of the program take today's columns: those they lack are null.
    """
    place = next((p for p in (folder, folder / "tables") if (p / "sources.parquet").is_file()), None)
    if place is None:
        return None
    third_party()  # they may have tables of their own
    names = sorted(f.stem for f in place.glob("*.parquet") if f.stem in TABLES)
    try:
        sources = _conformed(pl.scan_parquet(place / "sources.parquet"), SOURCES).collect()
        tables = {name: _conformed(pl.scan_parquet(place / f"{name}.parquet"), schema_of(name)) for name in names}
    except (PolarsError, OSError) as problem:
        raise UnusableEvidence(f"{place}: tables cannot be read: {str(problem).splitlines()[0]}") from problem
    return Store(sources, ALWAYS | frozenset(names), tables)


def _conformed(frame: pl.LazyFrame, schema: dict[str, pl.DataType]) -> pl.LazyFrame:
    there = frame.collect_schema().names()
    return frame.select(pl.col(c).cast(t, strict=False) if c in there else pl.lit(None, dtype=t).alias(c) for c, t in schema.items())
