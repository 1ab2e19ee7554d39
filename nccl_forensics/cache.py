"""Tables of sources that were read before, so that a second analysis reads only what is new.

An entry holds what reading made of one source: facts for its row and its frames, without ``source_id``. It is found by the SHA-256 of the
source's bytes, its size, and the fingerprint of everything that reading depends on (this program's code below the views, its grammars,
extensions, Python and the libraries that parse), so it never has to be invalidated.

An entry is a file, written aside and renamed, that ends with the SHA-256 of all that stands before: one that was cut off, damaged or
meddled with is passed over and the source is read again. Nothing in it is executed (JSON and Arrow IPC). The folder is private; one that
others can write to is not used. What the cache cannot do, for whatever reason, costs time and nothing else.

Layout: ``<folder>/<fingerprint>/<two digits>/<sha256>-<bytes>.tables``. The least recently used entries are removed beyond a bound.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache as once
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import orjson
import polars as pl
from polars.exceptions import PanicException

from nccl_forensics import __version__, plugins
from nccl_forensics.resources import grammars_folder

#: The folder and its bound where nothing else is said.
DEFAULT_BYTES = 4 << 30
#: Packages and modules that stand above reading or beside it: what they do does not change what is read.
ABOVE = frozenset(
    {
        "api", "changes", "cli", "collect", "commands", "conclusions", "config", "drawings", "exhibits", "extensions", "figures", "gate", "lab", "pictures",
        "presentation", "pseudonyms", "query", "redaction", "render", "reporters", "rules", "serve", "simulate", "suppressions", "views", "watching",
    }
)  # fmt: skip
#: Libraries whose release may change what is read.
_PARSERS = ("lark", "msgspec", "orjson", "polars", "pyyaml")
_MAGIC = b"nccl-forensics tables 1\n"
_DIGEST = 32
_ENTRY = re.compile(r"([0-9a-f]{64})-([0-9]+)\.tables")
_PARTIAL = re.compile(r"^[0-9a-z_]+\.partial")
_FINGERPRINT, _FAN = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{2}")
#: Room that is always left on the file system.
_RESERVE = 1 << 30
#: What a run that was killed left behind is removed after this time.
_STALE_SECONDS = 86_400
#: After trimming this share of the bound is in use, so that not every run trims.
_KEEP = 0.9
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Tables that nccl-forensics can make again; see https://bford.info/cachedir/\n"
_BROKEN = (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError, PanicException)


@dataclass(frozen=True, slots=True)
class Packed:
    """A frame without ``source_id`` as an Arrow IPC stream; ``size`` is what it takes in memory, in bytes."""

    rows: int
    size: int
    stream: bytes

    def frame(self) -> pl.DataFrame:
        """The frame."""
        return pl.read_ipc_stream(io.BytesIO(self.stream))


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept of one source."""

    facts: dict[str, object]
    formats: tuple[str, ...]
    fills: tuple[str, ...]
    frames: dict[str, Packed]


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of entries. Plain values, so that a worker process gets it by message."""

    folder: Path
    limit_bytes: int = DEFAULT_BYTES
    fingerprint: str = ""

    @property
    def _home(self) -> Path:
        return self.folder / self.fingerprint

    def sizes(self) -> frozenset[int]:
        """Sizes of the sources of which there are entries: what is of no such size need not be hashed to know that it is new."""
        found: set[int] = set()
        for fan in _folders(self._home, _FAN):
            found |= {int(name[2]) for _, name in _files(fan, _ENTRY)}
        return frozenset(found)

    def load(self, digest: str, size: int) -> Entry | None:
        """The entry of a source, if there is one and it is whole."""
        file = self._file(digest, size)
        try:
            with file.open("rb") as stream:
                entry = _unpack(stream, digest)
            os.utime(file)  # it was used just now
        except _BROKEN:
            return None
        return entry

    def save(
        self,
        digest: str,
        size: int,
        facts: Mapping[str, object],
        formats: tuple[str, ...],
        fills: tuple[str, ...],
        frames: Mapping[str, pl.DataFrame],
    ) -> None:
        """Keep what reading made of a source. What fails here is left undone."""
        room = sum(frame.estimated_size() for frame in frames.values())
        partial: Path | None = None
        try:
            if room > self.limit_bytes // 2 or shutil.disk_usage(self.folder).free < room + _RESERVE:
                return
            file = self._file(digest, size)
            self._home.mkdir(mode=0o700, exist_ok=True)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            handle, name = tempfile.mkstemp(suffix=".partial", prefix="", dir=file.parent)  # readable by its owner only
            partial = Path(name)
            with os.fdopen(handle, "w+b") as stream:
                _pack(stream, digest, facts, formats, fills, frames)
            partial.replace(file)
        except _BROKEN:
            if partial is not None:
                with contextlib.suppress(OSError):
                    partial.unlink()

    def trim(self) -> None:
        """Remove the least recently used entries beyond the bound, and what killed runs left. Touches nothing that is not the cache's."""
        now = time.time()
        entries: list[tuple[float, int, str]] = []
        for home in _folders(self.folder, _FINGERPRINT):
            for fan in _folders(home, _FAN):
                for item, _ in _files(fan, _ENTRY):
                    with contextlib.suppress(OSError):
                        told = item.stat(follow_symlinks=False)
                        entries.append((told.st_mtime, told.st_size, item.path))
                for item, _ in _files(fan, _PARTIAL):
                    with contextlib.suppress(OSError):
                        if now - item.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS:
                            os.unlink(item.path)
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self.limit_bytes * _KEEP:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
        for home in _folders(self.folder, _FINGERPRINT):
            for fan in _folders(home, _FAN):
                with contextlib.suppress(OSError):
                    os.rmdir(fan)
            with contextlib.suppress(OSError):
                os.rmdir(home)

    def _file(self, digest: str, size: int) -> Path:
        return self._home / digest[:2] / f"{digest}-{size}.tables"


def open_cache(folder: Path | None = None, limit_bytes: int = DEFAULT_BYTES) -> tuple[Cache | None, str | None]:
    """The cache in a folder (by default in the user's place for caches), or None and why there is none."""
    try:
        place = folder or default_folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = place.stat()
        if os.name == "posix" and (told.st_uid != os.geteuid() or told.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            return None, f"{place} belongs to somebody else or can be written by others"
        if not os.access(place, os.W_OK | os.X_OK):
            return None, f"{place} cannot be written"
        tag = place / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG, encoding="ascii")
        return Cache(place, limit_bytes, fingerprint()), None
    except (OSError, RuntimeError) as problem:  # RuntimeError: there is no home
        return None, str(problem)


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/nccl-forensics``, by default ``~/.cache/nccl-forensics``. Raises ``RuntimeError`` where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "nccl-forensics"


@once
def fingerprint() -> str:
    """16 hex digits that change with whatever reading depends on."""
    package = Path(__file__).resolve().parent
    state = hashlib.sha256(f"{__version__} {sys.implementation.cache_tag} {sys.byteorder}".encode())
    for name in _PARSERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            state.update(f" {name} {metadata.version(name)}".encode())
    state.update(f" {plugins.identity()}".encode())
    code = [f for f in package.rglob("*.py") if f.relative_to(package).parts[0].removesuffix(".py") not in ABOVE]
    # Code first, then grammars: where the two lie must not change the order.
    for file in (*sorted(code), *sorted(grammars_folder().glob("*.lark")), *_added()):
        content = file.read_bytes()
        state.update(f"\n{file.name} {len(content)}\n".encode())
        state.update(content)
    return state.hexdigest()[:16]


def _added() -> Iterator[Path]:
    """The code of extensions that bring formats or tables: one that is being written changes without its version."""
    for top in sorted({entry.module.split(".")[0] for kind in ("formats", "tables") for entry in plugins.installed(kind)}):
        with contextlib.suppress(ImportError, ValueError):
            spec = find_spec(top)
            if spec is not None and spec.submodule_search_locations:
                yield from sorted(f for place in spec.submodule_search_locations for f in Path(place).rglob("*.py"))
            elif spec is not None and spec.origin is not None and Path(spec.origin).is_file():
                yield Path(spec.origin)


def _pack(
    stream: IO[bytes],
    digest: str,
    facts: Mapping[str, object],
    formats: tuple[str, ...],
    fills: tuple[str, ...],
    frames: Mapping[str, pl.DataFrame],
) -> None:
    """Write an entry: magic, frames, index, length of the index (8 bytes), SHA-256 of all before."""
    stream.write(_MAGIC)
    places: dict[str, list[int]] = {}
    for name, frame in frames.items():
        start = stream.tell()
        held = io.BytesIO()
        frame.write_ipc_stream(held, compression="zstd")
        stream.write(held.getbuffer())
        places[name] = [start, stream.tell(), frame.height, int(frame.estimated_size())]
    index = orjson.dumps({"source": digest, "facts": dict(facts), "formats": formats, "fills": fills, "frames": places})
    stream.write(index)
    stream.write(len(index).to_bytes(8, "big"))
    stream.flush()
    stream.seek(0)
    whole = hashlib.file_digest(stream, "sha256").digest()  # type: ignore[arg-type]  # a file opened for reading too
    stream.seek(0, os.SEEK_END)
    stream.write(whole)


def _unpack(stream: IO[bytes], digest: str) -> Entry:
    """Read an entry. Raises one of ``_BROKEN`` for what is not whole."""
    content = stream.read()
    body = memoryview(content)[:-_DIGEST]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != content[-_DIGEST:]:
        raise ValueError("not whole")
    end = len(body) - 8
    index = orjson.loads(body[end - int.from_bytes(body[end:], "big") : end])
    if index["source"] != digest:
        raise ValueError("of another source")
    frames = {name: Packed(rows, size, bytes(body[start:stop])) for name, (start, stop, rows, size) in index["frames"].items()}
    return Entry(dict(index["facts"]), tuple(index["formats"]), tuple(index["fills"]), frames)


def _folders(folder: Path | str, name: re.Pattern[str]) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in sorted((i for i in items if name.fullmatch(i.name)), key=lambda i: i.name):
            if item.is_dir(follow_symlinks=False):
                yield item.path


def _files(folder: str, name: re.Pattern[str]) -> Iterator[tuple[os.DirEntry[str], re.Match[str]]]:
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            match = name.fullmatch(item.name)
            if match is not None:
                yield item, match


__all__ = ["ABOVE", "DEFAULT_BYTES", "Cache", "Entry", "Packed", "default_folder", "fingerprint", "open_cache"]
