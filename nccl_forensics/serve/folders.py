"""Where the bytes lie: one folder for each incident and each upload under way, and nothing outside the data folder.

``incidents/<id>/evidence`` is what was handed in, ``incidents/<id>/result`` what came out of it; both appear by a rename, whole or not at
all.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nccl_forensics.errors import OutputError, UsageError

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_PART_BYTES, _DEPTH = 200, 24
IDENTIFIER = re.compile(f"[{_ALPHABET}]{{12}}")
_WINDOWS = os.name == "nt"
RESULTS = {
    "report.json": "application/json",
    "postmortem.html": "text/html; charset=utf-8",
    "postmortem.md": "text/markdown; charset=utf-8",
}


def new_identifier() -> str:
    """A name for an incident that is also the end of its permanent link."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(12))


@dataclass(frozen=True, slots=True)
class Folders:
    """The data folder. Made with access for its owner alone."""

    root: Path

    def make(self) -> None:
        """Make what is not there. Raises ``OutputError``."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (self._incidents, self._uploads, self._scratch, self._trash):
                part.mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise OutputError(f"{self.root}: cannot be used as the data folder: {problem.strerror}") from problem

    @property
    def database(self) -> Path:
        return self.root / "store.sqlite"

    @property
    def _incidents(self) -> Path:
        return self.root / "incidents"

    @property
    def _uploads(self) -> Path:
        return self.root / "uploads"

    @property
    def _scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def _trash(self) -> Path:
        return self.root / "trash"

    def incident(self, identifier: str) -> Path:
        """Everything of an incident."""
        return self._incidents / identifier

    def evidence(self, identifier: str) -> Path:
        """What was handed in."""
        return self.incident(identifier) / "evidence"

    def result(self, identifier: str) -> Path:
        """What the analysis wrote; is there only once it is complete."""
        return self.incident(identifier) / "result"

    def partial(self, identifier: str) -> Path:
        """What the analysis has written so far."""
        return self.incident(identifier) / "result.partial"

    def upload(self, identifier: str) -> Path:
        """Files that are still arriving."""
        return self._uploads / identifier

    def scratch(self, identifier: str) -> Path:
        """Where the analysis unpacks."""
        return self._scratch / identifier

    def incidents(self) -> list[str]:
        """Identifiers that have a folder."""
        return [p.name for p in self._incidents.iterdir()]

    def uploads(self) -> list[str]:
        """Identifiers of uploads that have a folder."""
        return [p.name for p in self._uploads.iterdir()]

    def adopt(self, identifier: str) -> None:
        """Turn a complete upload into the evidence of an incident. The data is on disk before the rename; safe to repeat."""
        arrived, evidence = self.upload(identifier), self.evidence(identifier)
        if arrived.is_dir():
            for file in sorted(p for p in arrived.rglob("*") if p.is_file()):
                sync(file)
            evidence.parent.mkdir(mode=0o700, exist_ok=True)
            arrived.rename(evidence)
            sync(evidence.parent)
            sync(self._incidents)

    def discard(self, folder: Path) -> None:
        """Remove a folder: out of sight at once, then file by file."""
        if folder.exists():
            grave = self._trash / secrets.token_hex(8)
            try:
                folder.rename(grave)
            except OSError:
                grave = folder
            shutil.rmtree(grave, ignore_errors=True)

    def clear_scratch(self) -> None:
        """Remove what an earlier process left: half-unpacked archives and half-removed folders."""
        for left in (*self._scratch.iterdir(), *self._trash.iterdir()):
            shutil.rmtree(left, ignore_errors=True)

    def free_bytes(self) -> int:
        """Bytes free on the disk of the data folder."""
        return shutil.disk_usage(self.root).free

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the data folder for this process alone. Raises ``UsageError`` where another has it."""
        with (self.root / "lock").open("ab") as stream:
            try:
                _lock(stream.fileno())
            except OSError as problem:
                raise UsageError(f"{self.root}: another process serves this data folder") from problem
            yield


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed. Raises ``OSError`` where another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        os.lseek(descriptor, 0, os.SEEK_SET)  # it locks bytes, from where the file stands
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]  # there on Windows alone
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync(path: Path) -> None:
    """Have the system write a file or folder to disk. Windows opens no folders, and flushes only what is open for writing."""
    if _WINDOWS:
        if path.is_dir():
            return
        descriptor = os.open(path, os.O_RDWR)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Names:
    """Names for the files of one folder, whatever their sender called them: relative paths that stay inside and never meet.

    Names matter: evidence may say only in its path whose it is. So they are kept, but for drives, parent steps, control characters and
    what no file system takes. Two names that some file systems hold for one are told apart by a number.
    """

    _files: set[str] = field(default_factory=set)
    _folders: set[str] = field(default_factory=set)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, name: str) -> str:
        """A path for one more file."""
        parts = []
        for raw in name.replace("\\", "/").split("/"):
            part = "".join(c if c.isprintable() and c not in '<>:"|?*' else "_" for c in raw).strip()
            if part not in ("", ".", "..") and not re.fullmatch(r"[A-Za-z]_", part):
                parts.append(_shortened(part))
        if len(parts) > _DEPTH:
            parts = [*parts[: _DEPTH - 1], _shortened("~".join(parts[_DEPTH - 1 :]))]
        *folders, base = parts or ["file"]
        if any(parent in self._files for parent in _parents(folders)):
            folders, base = [], "~".join([*folders, base])
        stem, dot, suffix = base.partition(".")
        first = key = "/".join([*folders, base]).lower()
        while key in self._files or key in self._folders:
            # Goes on where the last one of this name stopped: ten thousand equal names are no work.
            self._numbers[first] = number = self._numbers.get(first, 1) + 1
            base = f"{stem}~{number}{dot}{suffix}"
            key = "/".join([*folders, base]).lower()
        self._files.add(key)
        self._folders.update(_parents(folders))
        return "/".join([*folders, base])


def _parents(folders: list[str]) -> list[str]:
    return ["/".join(folders[:n]).lower() for n in range(1, len(folders) + 1)]


def _shortened(part: str) -> str:
    """At most 200 bytes: the beginning and the end, where the suffixes are."""
    raw = part.encode("utf-8", "replace")
    if len(raw) <= _PART_BYTES:
        return raw.decode("utf-8")
    return raw[: _PART_BYTES // 2].decode("utf-8", "ignore") + "~" + raw[1 - _PART_BYTES // 2 :].decode("utf-8", "ignore")
