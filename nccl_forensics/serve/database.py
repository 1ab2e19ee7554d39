"""The SQLite file: a connection for each thread, a write-ahead log, and the steps that bring an older file up to date.

A commit is on disk before anybody is told of it (``synchronous=FULL``). What is deleted is overwritten (``secure_delete``).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from nccl_forensics.errors import OutputError, UsageError

#: Applied in order; the number applied stands in ``user_version``. A step that has been released never changes.
STEPS: tuple[str, ...] = (
    # 1: incidents and what the service remembers of itself
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
    CREATE TABLE incidents (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        job TEXT,
        status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'done', 'failed', 'deleting')),
        created_ms INTEGER NOT NULL,
        started_ms INTEGER,
        finished_ms INTEGER,
        attempts INTEGER NOT NULL DEFAULT 0,
        files TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        error TEXT,
        error_code TEXT,
        verdict TEXT
    ) STRICT;
    CREATE INDEX incidents_by_status ON incidents (status, created_ms);
    CREATE INDEX incidents_by_time ON incidents (created_ms);
    """,
    # 2: what incidents are found by; derived from the reports, and made anew from them
    """
    ALTER TABLE incidents ADD COLUMN happened_ms INTEGER;
    CREATE TABLE subjects (
        incident TEXT NOT NULL REFERENCES incidents (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        value TEXT NOT NULL,
        culprit INTEGER NOT NULL,
        PRIMARY KEY (incident, kind, value)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX subjects_by_value ON subjects (kind, value);
    CREATE VIRTUAL TABLE words USING fts5 (title, job, notes, names, text);
    """,
    # 3: notes, pins, evidence that is kept for less time than its report, uploads that can be resumed, logins
    """
    ALTER TABLE incidents ADD COLUMN notes TEXT NOT NULL DEFAULT '';
    ALTER TABLE incidents ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE incidents ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE incidents ADD COLUMN evidence INTEGER NOT NULL DEFAULT 1;
    CREATE TABLE uploads (
        id TEXT PRIMARY KEY,
        title TEXT,
        job TEXT,
        created_ms INTEGER NOT NULL,
        files TEXT NOT NULL
    ) STRICT;
    CREATE TABLE sessions (digest BLOB PRIMARY KEY, key BLOB NOT NULL, expires_ms INTEGER NOT NULL) STRICT;
    """,
)


class Database:
    """Reads run side by side; writes one after the other. Every method may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[sqlite3.Connection] = []
        #: Transactions so far: tells whether anything can have changed.
        self.writes = 0
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    def read(self, sql: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Rows of a query."""
        return self._connection().execute(sql, values).fetchall()

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it or nothing."""
        connection = self._connection()
        with self._lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                # A full disk has already ended the transaction.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            try:
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self.writes += 1

    def forget(self) -> None:
        """Leave nothing of deleted rows behind: neither in the text index nor in the write-ahead log."""
        with self.write() as connection:
            connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        with self._lock:
            self._connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
            self._local = threading.local()

    def _connection(self) -> sqlite3.Connection:
        held: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if held is not None:
            return held
        connection = sqlite3.connect(self._file, timeout=30.0, isolation_level=None, check_same_thread=False)
        self._open.append(connection)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        self._local.connection = connection
        return connection

    def _migrate(self) -> None:
        try:
            with self.write() as connection:
                [version] = connection.execute("PRAGMA user_version").fetchone()
                if version > len(STEPS):
                    raise UsageError(f"{self._file}: written by a later version of this program (schema {version}, known: {len(STEPS)})")
                for number, step in enumerate(STEPS[version:], start=version + 1):
                    for statement in statements(step):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {number}")
        except sqlite3.DatabaseError as problem:
            raise OutputError(f"{self._file}: cannot be used as the store: {problem}") from problem


def statements(script: str) -> Iterator[str]:
    """The statements of a script; ``executescript`` would commit each of them."""
    held = ""
    for line in script.splitlines():
        held += line + "\n"
        if sqlite3.complete_statement(held):
            yield held
            held = ""
