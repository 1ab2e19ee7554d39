"""From bytes to incidents: a form in one go, or files that arrive piece by piece and go on where they stopped.

How much of a file has arrived is the size of that file and nothing else, so a killed service forgets no byte and invents none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio.to_thread
from starlette.requests import Request

from nccl_forensics.serve.arrivals import ClientGone, Form, Gate, Writer, boundary_of
from nccl_forensics.serve.clock import now_ms
from nccl_forensics.serve.database import Database
from nccl_forensics.serve.folders import Folders, Names, new_identifier
from nccl_forensics.serve.incidents import EvidenceFile, Incidents
from nccl_forensics.serve.problems import Problem, no_room, not_found
from nccl_forensics.serve.settings import Settings

#: What a client is advised to send in one request.
PIECE_BYTES = 8 << 20
_TITLE, _JOB = 200, 200
_OPEN_UPLOADS = 1000


@dataclass(frozen=True, slots=True)
class Upload:
    """A resumable upload: its files in the order in which they were announced."""

    id: str
    title: str | None
    job: str | None
    files: tuple[EvidenceFile, ...]


def line(value: object, name: str, most: int) -> str | None:
    """One line of text from a client, None where it is empty. Raises ``Problem``."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise Problem(422, "bad-field", f"{name} is a text")
    text = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    if len(text) > most:
        raise Problem(422, "bad-field", f"{name} may have {most} characters at most")
    return text or None


def title_of(value: object) -> str | None:
    """A title from a client."""
    return line(value, "title", _TITLE)


def job_of(value: object) -> str | None:
    """A job name from a client."""
    return line(value, "job", _JOB)


@dataclass(slots=True)
class Uploads:
    """Uploads under way. ``_busy`` holds the files that are being written to right now."""

    settings: Settings
    folders: Folders
    database: Database
    incidents: Incidents
    gate: Gate
    _busy: set[tuple[str, int]] = field(default_factory=set)

    async def form(self, request: Request) -> str:
        """Take a multipart form and queue its incident. Whatever goes wrong, nothing of it is left. Raises ``Problem``, ``ClientGone``."""
        boundary = boundary_of(request.headers.get("content-type", ""))
        async with self.gate.upload(request):
            await self._not_too_many()
            identifier = new_identifier()
            folder = self.folders.upload(identifier)
            folder.mkdir(mode=0o700)
            form = Form(folder, self.folders, self.settings, boundary)
            try:
                async for piece in self.gate.pieces(request.receive):
                    await self.gate.work(partial(form.feed, piece))
                files = form.complete()
                title, job = title_of(form.fields.get("title")), job_of(form.fields.get("job"))
                await self.gate.settle(partial(self._queue, Upload(identifier, title, job, files)))
            except BaseException:
                form.close()
                with anyio.CancelScope(shield=True):
                    await self.gate.settle(partial(self.folders.discard, folder))
                raise
        return identifier

    async def start(self, announced: Mapping[str, object]) -> Upload:
        """Begin a resumable upload. Raises ``Problem``."""
        files = await self.gate.settle(partial(_announced, announced.get("files"), self.settings.upload_files))
        self.gate.room_for(sum(f.bytes for f in files))
        await self._not_too_many()
        upload = Upload(new_identifier(), title_of(announced.get("title")), job_of(announced.get("job")), files)
        await self.gate.settle(partial(self._create, upload))
        return upload

    def get(self, identifier: str) -> Upload:
        """A resumable upload under way. Raises ``Problem``."""
        rows = self.database.read("SELECT * FROM uploads WHERE id = ?", (identifier,))
        if not rows:
            raise not_found("upload")
        files = tuple(EvidenceFile(name, size) for name, size in json.loads(rows[0]["files"]))
        return Upload(identifier, rows[0]["title"], rows[0]["job"], files)

    def received(self, upload: Upload) -> list[int]:
        """Bytes of each file that have arrived."""
        return [_size(self.folders.upload(upload.id) / f.name) for f in upload.files]

    async def append(self, identifier: str, number: int, offset: int, request: Request) -> int:
        """Append a body to a file; returns the bytes that it has now. What arrived of a body that was cut off stays. Raises ``Problem``."""
        upload = await anyio.to_thread.run_sync(self.get, identifier)
        if not 0 <= number < len(upload.files):
            raise not_found("file")
        announced, target = upload.files[number], self.folders.upload(identifier) / upload.files[number].name
        if (identifier, number) in self._busy:
            raise Problem(409, "busy", "another request is writing to this file", {"received": _size(target)}, close=True)
        self._busy.add((identifier, number))
        try:
            async with self.gate.upload(request):
                held = _size(target)
                if offset != held:
                    raise Problem(
                        409, "wrong-offset", f"{held} bytes of this file have arrived; go on there", {"received": held}, close=True
                    )
                writer = Writer(self.folders, self.settings, held)
                with await anyio.to_thread.run_sync(lambda: target.open("ab", buffering=0)) as stream:
                    async for piece in self.gate.pieces(request.receive):
                        if writer.written + len(piece) > announced.bytes:
                            raise Problem(
                                413,
                                "too-long",
                                f"{announced.name} was announced with {announced.bytes} bytes",
                                {"received": held},
                                close=True,
                            )
                        await self.gate.work(partial(writer.write, stream, piece))
            return _size(target)
        finally:
            self._busy.discard((identifier, number))

    async def finish(self, identifier: str) -> str:
        """Queue the incident of an upload that is complete; doing it again changes nothing. Raises ``Problem``."""
        try:
            upload = await anyio.to_thread.run_sync(self.get, identifier)
        except Problem:
            await anyio.to_thread.run_sync(self.incidents.get, identifier)
            return identifier
        if any(held == identifier for held, _ in self._busy):
            raise Problem(409, "busy", "files of this upload are still being written")
        received = await anyio.to_thread.run_sync(self.received, upload)
        missing = [f.name for f, held in zip(upload.files, received, strict=True) if held != f.bytes]
        if missing:
            raise Problem(409, "incomplete", f"not complete yet: {', '.join(missing[:5])}", {"received": received})
        self._busy.add((identifier, -1))
        try:
            await self.gate.settle(partial(self._queue, upload))
        finally:
            self._busy.discard((identifier, -1))
        return identifier

    async def cancel(self, identifier: str) -> None:
        """Give up an upload and remove what arrived. Raises ``Problem``."""
        await anyio.to_thread.run_sync(self.get, identifier)
        if any(held == identifier for held, _ in self._busy):
            raise Problem(409, "busy", "files of this upload are still being written")
        await self.gate.settle(partial(self._drop, identifier))

    def recover(self) -> int:
        """After a restart: complete what had arrived whole, remove what nobody can go on with. Returns the incidents that were
        completed."""
        completed = 0
        rows = {row["id"]: row for row in self.database.read("SELECT id FROM uploads")}
        known = self.incidents.known()
        for identifier in rows:
            if self.folders.evidence(identifier).is_dir() and identifier not in known:
                self._queue(self.get(identifier))
                completed += 1
        for identifier in self.folders.uploads():
            if identifier not in rows:
                self.folders.discard(self.folders.upload(identifier))
        known = self.incidents.known()
        for identifier in self.folders.incidents():
            if identifier not in known:
                self.folders.discard(self.folders.incident(identifier))
        self.expire()
        return completed

    def expire(self) -> None:
        """Remove uploads to which nothing was added for long."""
        for row in self.database.read("SELECT id, created_ms FROM uploads"):
            folder = self.folders.upload(row["id"])
            files = [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
            last = max([row["created_ms"], *(int(p.stat().st_mtime * 1000) for p in files)])
            if now_ms() - last > self.settings.resume_seconds * 1000 and not any(held == row["id"] for held, _ in self._busy):
                self._drop(row["id"])

    def _create(self, upload: Upload) -> None:
        folder = self.folders.upload(upload.id)
        try:
            for file in upload.files:
                target = folder / file.name
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                target.touch(mode=0o600)
            with self.database.write() as connection:
                [count] = connection.execute("SELECT count(*) FROM uploads").fetchone()
                if count >= _OPEN_UPLOADS:
                    raise Problem(503, "busy", "too many uploads have been started and not finished; try again later")
                connection.execute(
                    "INSERT INTO uploads VALUES (?, ?, ?, ?, ?)",
                    (upload.id, upload.title, upload.job, now_ms(), json.dumps([(f.name, f.bytes) for f in upload.files])),
                )
        except BaseException as problem:
            self.folders.discard(folder)
            if isinstance(problem, OSError):
                raise no_room() from problem
            raise

    def _queue(self, upload: Upload) -> None:
        self.folders.adopt(upload.id)
        self.incidents.add(upload.id, upload.title, upload.job, upload.files)

    def _drop(self, identifier: str) -> None:
        with self.database.write() as connection:
            connection.execute("DELETE FROM uploads WHERE id = ?", (identifier,))
        self.folders.discard(self.folders.upload(identifier))

    async def _not_too_many(self) -> None:
        waiting = await anyio.to_thread.run_sync(self.incidents.waiting)
        if waiting >= self.settings.waiting:
            raise Problem(503, "busy", f"{waiting} incidents are waiting to be read; try again later", close=True)


def _announced(files: object, most: int) -> tuple[EvidenceFile, ...]:
    if not isinstance(files, Sequence) or isinstance(files, str) or not files:
        raise Problem(422, "bad-field", "files is a list of {name, bytes}")
    if len(files) > most:
        raise Problem(413, "too-many", f"an upload may have {most} files at most")
    out: list[EvidenceFile] = []
    names = Names()
    for one in files:
        name, size = (one.get("name"), one.get("bytes")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 53:
            raise Problem(422, "bad-field", "files is a list of {name, bytes}")
        out.append(EvidenceFile(names.add(name), size))
    if not any(f.bytes for f in out):
        raise Problem(422, "empty", "the files are empty")
    return tuple(out)


def _size(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


__all__ = ["PIECE_BYTES", "ClientGone", "Upload", "Uploads", "job_of", "title_of"]
