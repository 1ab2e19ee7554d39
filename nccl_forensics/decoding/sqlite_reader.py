"""SQLite files of strangers, opened so that they can be read and do nothing else: the one home of ``sqlite3``.

A database is untrusted input: its schema can hold views, triggers and virtual tables that run functions when they are touched. Here it is
opened read-only and immutable, its schema is not trusted, pages are checked, everything but reading plain tables is refused by an
authorizer, and values, columns and running time are bounded (https://www.sqlite.org/security.html, "Untrusted SQLite Database Files").
"""

from __future__ import annotations

import contextlib
import mmap
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import polars as pl

#: Rows that are fetched in one piece.
_BATCH = 100_000
_LONGEST_VALUE = 16 << 20
#: Steps of SQLite's virtual machine between two looks at the budget, and how many looks there are: about 10^10 steps in all.
_STEPS, _LOOKS = 1_000_000, 10_000
#: sqlite3.SQLITE_CREATE_... and the rest are refused; these read.
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_TRANSACTION})
_PRAGMAS = frozenset({"table_info", "table_list", "query_only", "trusted_schema", "cell_size_check", "mmap_size"})
_TYPES: dict[str, pl.DataType] = {"int": pl.Int64(), "text": pl.String(), "real": pl.Float64()}


class BrokenDatabase(Exception):
    """The file is no database, is damaged, or asks for more than may be spent on it."""


@dataclass(slots=True)
class Database:
    """One open database. ``tables`` are its plain tables with their columns, as the file spells them."""

    _connection: sqlite3.Connection
    _file: Path
    _looks: int = 0
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()
        self._file.unlink(missing_ok=True)

    def has(self, table: str, *columns: str) -> bool:
        """Whether a plain table of this name has these columns."""
        return table in self.tables and set(columns) <= set(self.tables[table])

    def rows(self, table: str, columns: Sequence[str], order: str | None = None) -> Iterator[list[tuple[object, ...]]]:
        """Batches of rows of a plain table: ``rowid`` first, then the columns; a column that the table lacks is null.

        Raises ``BrokenDatabase`` where a page is damaged or the budget is spent.
        """
        if table not in self.tables:
            return
        known = self.tables[table]
        listed = ", ".join(_quoted(c) if c in known else "NULL" for c in columns)
        sorting = f" ORDER BY {_quoted(order)}" if order in known else ""
        try:
            # Names are quoted and come from our own constants or from the file's list of columns.
            cursor = self._connection.execute(f"SELECT rowid, {listed} FROM {_quoted(table)}{sorting}")  # noqa: S608 (see above)
            while batch := cursor.fetchmany(_BATCH):
                yield batch
        except sqlite3.Error as problem:
            raise BrokenDatabase(f"{table}: {problem}") from problem

    def frame(self, table: str, columns: dict[str, str]) -> pl.DataFrame:
        """All rows of a table as a frame: ``rowid`` and the columns with types int, text or real; what does not fit is null."""
        schema: dict[str, pl.DataType] = {"rowid": pl.Int64(), **{name: _TYPES[kind] for name, kind in columns.items()}}
        parts = [
            pl.DataFrame(
                [[_fit(row[i], kind) for row in batch] for i, kind in enumerate(["int", *columns.values()])], schema=schema, strict=False
            )
            for batch in self.rows(table, list(columns))
        ]
        return pl.concat(parts) if parts else pl.DataFrame(schema=schema)

    def _look(self) -> int:
        self._looks += 1
        return int(self._looks > _LOOKS)


def _fit(value: object, kind: str) -> object:
    """The value where it is of the kind; SQLite stores any type in any column."""
    if kind == "text":
        return value if isinstance(value, str) else None if not isinstance(value, int | float) else str(value)
    if kind == "int":
        return value if isinstance(value, int) else None
    return float(value) if isinstance(value, int | float) else None


def open_database(data: bytes | mmap.mmap) -> Database:
    """A database from its content. The content is spooled to a temporary file, so that memory does not grow with it.

    Raises ``BrokenDatabase`` where it cannot be opened as one.
    """
    with tempfile.NamedTemporaryFile(prefix="nccl-forensics-", suffix=".sqlite", delete=False) as spool:
        file = Path(spool.name)
        try:
            for start in range(0, len(data), 16 << 20):
                spool.write(data[start : start + (16 << 20)])
        except OSError:
            file.unlink(missing_ok=True)
            raise
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    except sqlite3.Error as problem:
        file.unlink(missing_ok=True)
        raise BrokenDatabase(str(problem)) from problem
    database = Database(connection, file)
    try:
        _defend(connection, database)
        database.tables = _plain_tables(connection)
    except sqlite3.Error as problem:
        database.__exit__(None, None, None)
        raise BrokenDatabase(str(problem)) from problem
    return database


def _defend(connection: sqlite3.Connection, database: Database) -> None:
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 200)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
    with contextlib.suppress(AttributeError):  # from Python 3.12 on
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # type: ignore[attr-defined,unused-ignore]  # types of Python 3.11 lack it
    for pragma in ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}")
    connection.set_progress_handler(database._look, _STEPS)
    connection.set_authorizer(_authorize)


def _authorize(action: int, first: str | None, second: str | None, schema: str | None, inside: str | None) -> int:
    """Reading is allowed, and asking for columns; what a view or trigger would do on its own is not (``inside`` names it)."""
    if action not in _ALLOWED or inside is not None:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and first not in _PRAGMAS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _plain_tables(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Tables that are stored in the file, with a rowid; views, virtual and shadow tables are left out."""
    listed = connection.execute("PRAGMA table_list").fetchall()
    plain = [str(row[1]) for row in listed if row[0] == "main" and row[2] == "table" and not row[4]]
    out: dict[str, tuple[str, ...]] = {}
    for name in plain[:1000]:
        columns = connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
        out[name] = tuple(str(c[1]) for c in columns)
    return out


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
