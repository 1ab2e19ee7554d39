"""Evidence and results in object stores: ``s3://``, ``gs://`` and what else fsspec knows, where it is installed.

Credentials come from where each store's library looks for them (environment, instance role, files); none are taken from the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from nccl_forensics.errors import ForensicsError, OutputError, UnusableEvidence, UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def mask(text: str) -> str:
    """The text without secrets. Loaded when it is needed: every command imports this module, and masking brings Polars along."""
    from nccl_forensics.masking import mask as masked

    return masked(text)


@dataclass(frozen=True, slots=True)
class Object:
    """One object: its path below what was named ("" where that is itself an object), its URL and its size."""

    path: str
    url: str
    bytes: int


def is_url(text: str | Path) -> bool:
    """Whether it names something in a store rather than a file here."""
    return _URL.match(str(text)) is not None


def last_name(url: str) -> str:
    """The last part of a URL, for showing."""
    return url.rstrip("/").rsplit("/", 1)[-1] or "store"


def objects(url: str) -> list[Object]:
    """The objects below a URL, or itself, in the order of their paths. Raises ``UsageError`` and ``UnusableEvidence``."""
    store, place = _open(url)
    with _reading(url):
        if store.isfile(place):
            return [Object("", url, int(store.size(place) or 0))]
        found = {str(name): int(told.get("size") or 0) for name, told in store.find(place, detail=True).items()}
    if not found:
        raise UnusableEvidence(f"{mask(url)}: nothing is there")
    base = place.rstrip("/") + "/"
    return [Object(name.removeprefix(base), store.unstrip_protocol(name), size) for name, size in sorted(found.items())]


def heads(items: Sequence[Object], size: int) -> list[bytes]:
    """The first bytes of objects of one store, asked for side by side. Raises ``UsageError`` and ``UnusableEvidence``."""
    if not items:
        return []
    store, _ = _open(items[0].url)
    with _reading(items[0].url):
        places = [str(store._strip_protocol(item.url)) for item in items]
        return [bytes(head) for head in store.cat_ranges(places, [0] * len(places), [min(size, item.bytes) for item in items])]


@contextmanager
def opened(url: str) -> Iterator[IO[bytes]]:
    """An object to read from. Raises ``UsageError`` and ``UnusableEvidence``."""
    store, place = _open(url)
    with _reading(url), store.open(place, "rb") as stream:
        yield cast(IO[bytes], stream)


def write(url: str, content: bytes) -> None:
    """Write an object whole. Raises ``UsageError`` and ``OutputError``."""
    store, place = _open(url)
    with _writing(url):
        _make_room(store, place)
        store.pipe_file(place, content)


def put(file: Path, url: str) -> None:
    """Copy a file into a store. Raises ``UsageError`` and ``OutputError``."""
    store, place = _open(url)
    with _writing(url):
        _make_room(store, place)
        store.put_file(str(file), place)


def get(url: str, file: Path) -> None:
    """Copy an object to a file. Raises ``UsageError`` and ``UnusableEvidence``."""
    store, place = _open(url)
    with _reading(url):
        store.get_file(place, str(file))


def remove(url: str) -> None:
    """Remove an object or all objects below a URL, if they are there. Raises ``UsageError`` and ``OutputError``."""
    store, place = _open(url)
    with _writing(url):
        if store.exists(place):
            store.rm(place, recursive=True)


def put_folder(folder: Path, url: str) -> None:
    """Copy all files of a folder into a store. Raises ``UsageError`` and ``OutputError``."""
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        put(file, f"{url.rstrip('/')}/{file.relative_to(folder).as_posix()}")


def _make_room(store: AbstractFileSystem, place: str) -> None:
    """Folders above a file, where a store has folders."""
    store.makedirs(place.rsplit("/", 1)[0], exist_ok=True)


def _open(url: str) -> tuple[AbstractFileSystem, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as problem:
        raise UsageError(f"{mask(url)}: to read and write object stores install nccl-forensics[remote]") from problem
    try:
        store, place = url_to_fs(url)
    except (ImportError, ValueError) as problem:  # no library for this store, or no such protocol
        raise UsageError(f"{mask(url)}: {problem}") from problem
    return store, str(place)


@contextmanager
def _reading(url: str) -> Iterator[None]:
    """Libraries of stores raise errors of their own for what a user can mend: a missing object, refused credentials, no network."""
    try:
        yield
    except ForensicsError:
        raise
    except Exception as problem:
        raise UnusableEvidence(f"{mask(url)}: cannot be read: {_words(problem)}") from problem


@contextmanager
def _writing(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as problem:
        raise OutputError(f"{mask(url)}: cannot be written: {_words(problem)}") from problem


def _words(problem: Exception) -> str:
    return mask(f"{type(problem).__name__}: {problem}"[:300])


__all__ = ["Object", "get", "heads", "is_url", "last_name", "objects", "opened", "put", "put_folder", "remove", "write"]
