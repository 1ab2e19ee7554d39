"""Incidents in the store: what is kept of each, and every change of its state as one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.serve.clock import iso, now_ms
from nccl_forensics.serve.database import Database
from nccl_forensics.serve.index import VERSION, Index
from nccl_forensics.serve.problems import Problem, not_found

#: An analysis that was interrupted so often is not tried again: it may be what brings the service down.
MOST_ATTEMPTS = 3
STATES = ("queued", "running", "done", "failed")


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """One file as the client named it."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Incident:
    """One row. Times in milliseconds since 1970; ``happened_ms`` is when the job ended by the evidence."""

    id: str
    title: str
    job: str | None
    status: str
    created_ms: int
    started_ms: int | None
    finished_ms: int | None
    happened_ms: int | None
    attempts: int
    files: tuple[EvidenceFile, ...]
    size_bytes: int
    error: str | None
    error_code: str | None
    verdict: Mapping[str, object] | None
    notes: str
    pinned: bool
    revision: int
    evidence: bool

    def as_json(self, progress: Mapping[str, object] | None = None) -> dict[str, object]:
        """The incident of the contract, and more beside it."""
        return {
            "id": self.id,
            "url": f"/incidents/{self.id}",
            "title": self.title,
            "job": self.job,
            "status": self.status,
            "progress": progress,
            "error": self.error,
            "error_code": self.error_code,
            "verdict": self.verdict,
            "created_at": iso(self.created_ms),
            "started_at": iso(self.started_ms),
            "finished_at": iso(self.finished_ms),
            "happened_at": iso(self.happened_ms),
            "files": [{"name": f.name, "bytes": f.bytes} for f in self.files],
            "size_bytes": self.size_bytes,
            "notes": self.notes,
            "pinned": self.pinned,
            "revision": self.revision,
            "evidence_kept": self.evidence,
        }


def incident_of(row: sqlite3.Row) -> Incident:
    """The incident of a row of ``incidents``."""
    return Incident(
        **{
            key: row[key]
            for key in (
                "id",
                "title",
                "job",
                "status",
                "created_ms",
                "started_ms",
                "finished_ms",
                "happened_ms",
                "attempts",
                "size_bytes",
                "error",
                "error_code",
                "notes",
                "revision",
            )
        },
        files=tuple(EvidenceFile(name, size) for name, size in json.loads(row["files"])),
        verdict=json.loads(row["verdict"]) if row["verdict"] else None,
        pinned=bool(row["pinned"]),
        evidence=bool(row["evidence"]),
    )


@dataclass(frozen=True, slots=True)
class Incidents:
    """The incidents of a database."""

    database: Database

    def get(self, identifier: str) -> Incident:
        """One incident. Raises ``Problem`` where there is none."""
        rows = self.database.read("SELECT * FROM incidents WHERE id = ? AND status <> 'deleting'", (identifier,))
        if not rows:
            raise not_found()
        return incident_of(rows[0])

    def waiting(self) -> int:
        """How many wait to be read."""
        return int(self.database.read("SELECT count(*) AS n FROM incidents WHERE status = 'queued'")[0]["n"])

    def add(self, identifier: str, title: str | None, job: str | None, files: Sequence[EvidenceFile]) -> None:
        """Queue an incident whose evidence has arrived, and forget its upload. Adding it again changes nothing."""
        shown = title or _title(files)
        with self.database.write() as connection:
            connection.execute("DELETE FROM uploads WHERE id = ?", (identifier,))
            connection.execute(
                "INSERT INTO incidents (id, title, job, status, created_ms, files, size_bytes) VALUES (?, ?, ?, 'queued', ?, ?, ?)"
                " ON CONFLICT (id) DO NOTHING",
                (identifier, shown, job, now_ms(), json.dumps([(f.name, f.bytes) for f in files]), sum(f.bytes for f in files)),
            )
            _reword(connection, identifier)

    def take(self) -> Incident | None:
        """The incident that waits longest, now running; None where none waits."""
        with self.database.write() as connection:
            rows = connection.execute(
                "UPDATE incidents SET status = 'running', started_ms = ?, attempts = attempts + 1, error = NULL, error_code = NULL"
                " WHERE id = (SELECT id FROM incidents WHERE status = 'queued' ORDER BY created_ms, id LIMIT 1) RETURNING *",
                (now_ms(),),
            ).fetchall()
        return incident_of(rows[0]) if rows else None

    def finish(self, identifier: str, index: Index) -> None:
        """The result is on disk: the incident is done."""
        with self.database.write() as connection:
            changed = connection.execute(
                "UPDATE incidents SET status = 'done', finished_ms = ?, error = NULL, error_code = NULL WHERE id = ? AND status = 'running'",
                (now_ms(), identifier),
            ).rowcount
            if changed:
                _index(connection, identifier, index)

    def fail(self, identifier: str, code: str, error: str) -> bool:
        """The analysis ended without a result; whether the incident was under way."""
        with self.database.write() as connection:
            changed = connection.execute(
                "UPDATE incidents SET status = 'failed', finished_ms = ?, error = ?, error_code = ? WHERE id = ? AND status IN ('queued', 'running')",
                (now_ms(), error, code, identifier),
            ).rowcount
        return bool(changed)

    def put_back(self, identifier: str) -> None:
        """The service stops in good order: the incident waits again, and this attempt does not count."""
        with self.database.write() as connection:
            connection.execute(
                "UPDATE incidents SET status = 'queued', started_ms = NULL, attempts = attempts - 1 WHERE id = ? AND status = 'running'",
                (identifier,),
            )

    def again(self, identifier: str) -> None:
        """Read the evidence once more, as after an update of the program. Raises ``Problem``."""
        with self.database.write() as connection:
            changed = connection.execute(
                "UPDATE incidents SET status = 'queued', attempts = 0, started_ms = NULL, finished_ms = NULL, error = NULL, error_code = NULL"
                " WHERE id = ? AND status IN ('done', 'failed') AND evidence = 1",
                (identifier,),
            ).rowcount
        if not changed:
            self.get(identifier)
            raise Problem(409, "not-possible", "the incident is under way already, or its evidence is no longer kept")

    def recover(self) -> tuple[int, int]:
        """After a restart: what ran waits again, or fails where that happened too often. Returns both counts."""
        with self.database.write() as connection:
            failed = connection.execute(
                "UPDATE incidents SET status = 'failed', finished_ms = ?, error_code = 'interrupted',"
                " error = 'the service was stopped ' || attempts || ' times while reading this incident; it is not tried again'"
                " WHERE status = 'running' AND attempts >= ?",
                (now_ms(), MOST_ATTEMPTS),
            ).rowcount
            queued = connection.execute("UPDATE incidents SET status = 'queued', started_ms = NULL WHERE status = 'running'").rowcount
        return queued, failed

    def change(self, identifier: str, values: Mapping[str, object], revision: int | None) -> Incident:
        """Set ``title``, ``job``, ``notes`` or ``pinned``. With ``revision``: only if nobody else changed it since. Raises ``Problem``."""
        names = [name for name in ("title", "job", "notes", "pinned") if name in values]
        with self.database.write() as connection:
            rows = connection.execute("SELECT * FROM incidents WHERE id = ? AND status <> 'deleting'", (identifier,)).fetchall()
            if not rows:
                raise not_found()
            held = incident_of(rows[0])
            if revision is not None and revision != held.revision:
                raise Problem(409, "changed-meanwhile", "somebody else changed this incident meanwhile", {"incident": held.as_json()})
            if names:
                assignments = ", ".join(f"{name} = ?" for name in names)
                connection.execute(
                    f"UPDATE incidents SET {assignments}, revision = revision + 1 WHERE id = ?",  # noqa: S608 (names from the tuple above)
                    (*(values[n] for n in names), identifier),
                )
                _reword(connection, identifier)
        return self.get(identifier)

    def hide(self, identifier: str) -> None:
        """The first step of a deletion: from here on nobody sees the incident. Raises ``Problem``."""
        with self.database.write() as connection:
            if not connection.execute(
                "UPDATE incidents SET status = 'deleting' WHERE id = ? AND status <> 'deleting'", (identifier,)
            ).rowcount:
                raise not_found()

    def hidden(self) -> list[str]:
        """Incidents whose deletion has not ended."""
        return [row["id"] for row in self.database.read("SELECT id FROM incidents WHERE status = 'deleting'")]

    def remove(self, identifier: str) -> None:
        """The last step of a deletion, after the files."""
        with self.database.write() as connection:
            connection.execute("DELETE FROM words WHERE rowid = (SELECT number FROM incidents WHERE id = ?)", (identifier,))
            connection.execute("DELETE FROM incidents WHERE id = ? AND status = 'deleting'", (identifier,))
        self.database.forget()

    def without_evidence(self, identifier: str) -> None:
        """The evidence is no longer kept; the report is."""
        with self.database.write() as connection:
            connection.execute("UPDATE incidents SET evidence = 0 WHERE id = ?", (identifier,))

    def known(self) -> set[str]:
        """All identifiers, those in deletion too."""
        return {row["id"] for row in self.database.read("SELECT id FROM incidents")}

    def to_index(self) -> list[str]:
        """Finished incidents, if what is taken from their reports has changed since they were indexed."""
        rows = self.database.read("SELECT value FROM meta WHERE key = 'index'")
        if rows and int(rows[0]["value"]) == VERSION:
            return []
        return [row["id"] for row in self.database.read("SELECT id FROM incidents WHERE status = 'done' ORDER BY created_ms")]

    def reindex(self, indexes: Mapping[str, Index]) -> None:
        """Take the index of all finished incidents anew."""
        with self.database.write() as connection:
            for identifier, index in indexes.items():
                _index(connection, identifier, index)
            connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('index', ?)", (str(VERSION).encode(),))


def _title(files: Sequence[EvidenceFile]) -> str:
    first = files[0].name.rpartition("/")[2] if files else "incident"
    return first if len(files) < 2 else f"{first} and {len(files) - 1} more"


def _index(connection: sqlite3.Connection, identifier: str, index: Index) -> None:
    if not connection.execute("SELECT 1 FROM incidents WHERE id = ?", (identifier,)).fetchone():
        return
    connection.execute(
        "UPDATE incidents SET verdict = ?, happened_ms = ? WHERE id = ?", (json.dumps(dict(index.verdict)), index.happened_ms, identifier)
    )
    connection.execute("DELETE FROM subjects WHERE incident = ?", (identifier,))
    connection.executemany("INSERT INTO subjects VALUES (?, ?, ?, ?)", ((identifier, k, v, int(c)) for k, v, c in index.subjects))
    _reword(connection, identifier, index)


def _reword(connection: sqlite3.Connection, identifier: str, index: Index | None = None) -> None:
    """Bring the words that an incident is found by up to date; without an index only what people wrote themselves."""
    [number] = connection.execute("SELECT number FROM incidents WHERE id = ?", (identifier,)).fetchone()
    held = connection.execute("SELECT names, text FROM words WHERE rowid = ?", (number,)).fetchone()
    names, text = (index.names, index.text) if index is not None else (held["names"], held["text"]) if held else ("", "")
    connection.execute("DELETE FROM words WHERE rowid = ?", (number,))
    connection.execute(
        "INSERT INTO words (rowid, title, job, notes, names, text) SELECT number, title, coalesce(job, ''), notes, ?, ? FROM incidents WHERE number = ?",
        (names, text, number),
    )
