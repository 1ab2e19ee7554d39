"""Unpacking archives safely: kinds are told by content, members are written under numbers, never under their own names.

Nothing is followed (links, devices, FIFOs are passed over and recorded), nothing is written outside the scratch folder, and limits on
bytes, members, depth and ratio end the reading with an error that names the limit.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import zstandard

from nccl_forensics.errors import LimitReached

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is unpacked. Each is met with ``LimitReached`` that names it."""

    total_bytes: int = 64 << 30
    member_bytes: int = 32 << 30
    members: int = 2_000_000
    depth: int = 6
    ratio: int = 2_000
    ratio_from_bytes: int = 256 << 20


@dataclass(slots=True)
class Budget:
    """What is used up of the limits."""

    limits: Limits
    written: int = 0
    count: int = 0

    def member(self, where: str) -> None:
        """Count one member."""
        self.count += 1
        if self.count > self.limits.members:
            raise LimitReached(f"{where}: more than {self.limits.members} members (limit: members)")

    def bytes(self, n: int, where: str) -> None:
        """Count unpacked bytes."""
        self.written += n
        if self.written > self.limits.total_bytes:
            raise LimitReached(f"{where}: more than {self.limits.total_bytes} bytes unpacked in all (limit: total bytes)")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """One plain file in scratch and the path it had, or an error in its place."""

    path: str
    file: Path | None
    bytes: int
    error: str | None = None


@dataclass(slots=True)
class Unpacker:
    """Unpacks files into a scratch folder. ``skipped`` names what was passed over and why."""

    scratch: Path
    budget: Budget
    skipped: list[tuple[str, str]] = field(default_factory=list)
    _number: int = 0

    def unpack(self, file: Path, path: str, depth: int = 0) -> Iterator[Unpacked]:
        """The plain files inside ``file``: itself if it is no archive. Broken archives yield what lies before the break and an error."""
        kind = sniff(file)
        if kind is None:
            yield Unpacked(path, file, file.stat().st_size)
            return
        if depth > self.budget.limits.depth:
            raise LimitReached(f"{path}: archives nested deeper than {self.budget.limits.depth} (limit: depth)")
        if kind == "zip":
            yield from self._zip(file, path, depth)
        elif kind == "tar":
            yield from self._tar(file, path, depth)
        else:
            yield from self._compressed(file, path, kind, depth)

    def _compressed(self, file: Path, path: str, kind: str, depth: int) -> Iterator[Unpacked]:
        opener: Callable[[IO[bytes]], IO[bytes]] = _OPENERS[kind]
        target = self._target()
        error = None
        with file.open("rb") as raw:
            try:
                with opener(raw) as stream:
                    self._copy(stream, target, path, max(1, file.stat().st_size))
            except (OSError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError) as problem:
                error = f"compressed data is broken or cut off: {problem}"
        if not target.exists() or target.stat().st_size == 0:
            yield Unpacked(path, None, 0, error or "empty after decompression")
            return
        inner = sniff(target)
        if inner == "tar":
            yield from self._tar(target, path, depth)
            target.unlink(missing_ok=True)
            if error:
                yield Unpacked(path, None, 0, error)
        elif inner is not None:
            yield from self.unpack(target, path, depth + 1)
        else:
            yield Unpacked(path, target, target.stat().st_size, error)

    def _tar(self, file: Path, path: str, depth: int) -> Iterator[Unpacked]:
        try:
            with tarfile.open(file, mode="r:") as archive:
                while True:
                    member = archive.next()
                    if member is None:
                        break
                    self.budget.member(path)
                    name = _clean(member.name)
                    if member.isdir():
                        continue
                    if not member.isfile() or member.issparse():
                        self.skipped.append((f"{path}!/{name}", "not a plain file (link, device, FIFO or sparse)"))
                        continue
                    if _junk(name):
                        continue
                    stream = archive.extractfile(member)
                    if stream is None:
                        continue
                    target = self._target()
                    copied = self._copy(stream, target, f"{path}!/{name}", None)
                    if copied < member.size:
                        yield Unpacked(f"{path}!/{name}", target, copied, "cut off: the archive ends inside this file")
                        continue
                    yield from self._inner(target, f"{path}!/{name}", depth)
        except (tarfile.TarError, OSError, EOFError, ValueError) as problem:
            yield Unpacked(path, None, 0, f"archive is broken or cut off: {problem}")

    def _zip(self, file: Path, path: str, depth: int) -> Iterator[Unpacked]:
        try:
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    self.budget.member(path)
                    name = _clean(info.filename)
                    if info.is_dir() or _junk(name):
                        continue
                    if info.flag_bits & 1:
                        yield Unpacked(f"{path}!/{name}", None, 0, "encrypted")
                        continue
                    if (info.external_attr >> 16) & 0o170000 == 0o120000:
                        self.skipped.append((f"{path}!/{name}", "not a plain file (link)"))
                        continue
                    target = self._target()
                    try:
                        with archive.open(info) as stream:
                            self._copy(stream, target, f"{path}!/{name}", max(1, info.compress_size))
                    except (zipfile.BadZipFile, OSError, EOFError, zlib.error, NotImplementedError, RuntimeError) as problem:
                        yield Unpacked(f"{path}!/{name}", None, 0, f"cannot be unpacked: {problem}")
                        continue
                    yield from self._inner(target, f"{path}!/{name}", depth)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError) as problem:
            yield Unpacked(path, None, 0, f"archive is broken or cut off: {problem}")

    def _inner(self, target: Path, path: str, depth: int) -> Iterator[Unpacked]:
        if sniff(target) is None:
            yield Unpacked(path, target, target.stat().st_size)
        else:
            yield from self.unpack(target, path, depth + 1)

    def _copy(self, stream: IO[bytes], target: Path, where: str, packed: int | None) -> int:
        limits = self.budget.limits
        size = 0
        with target.open("wb") as out:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                self.budget.bytes(len(chunk), where)
                if size > limits.member_bytes:
                    raise LimitReached(f"{where}: larger than {limits.member_bytes} bytes (limit: member bytes)")
                if packed is not None and size > limits.ratio_from_bytes and size > packed * limits.ratio:
                    raise LimitReached(f"{where}: unpacks to more than {limits.ratio} times its size (limit: ratio)")
                out.write(chunk)
        return size

    def _target(self) -> Path:
        self._number += 1
        return self.scratch / f"{self._number:07d}"


def sniff(file: Path) -> str | None:
    """Kind of archive by content: gz, bz2, xz, zst, zip, tar, or None."""
    with file.open("rb") as stream:
        head = stream.read(512)
    if head[:2] == b"\x1f\x8b":
        return "gz"
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return "zst"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if len(head) == 512 and (head[257:262] == b"ustar" or _old_tar(head)):
        return "tar"
    return None


def _old_tar(head: bytes) -> bool:
    """A pre-POSIX tar header: its checksum must be right."""
    try:
        stated = int(head[148:156].rstrip(b"\x00 ") or b"x", 8)
    except ValueError:
        return False
    return bool(head[0]) and stated == sum(head[:148]) + 8 * 32 + sum(head[156:])


def _zst(raw: IO[bytes]) -> IO[bytes]:
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(raw, read_across_frames=True)


_OPENERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    "gz": lambda raw: cast(IO[bytes], gzip.GzipFile(fileobj=raw)),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zst": _zst,
}


def _clean(name: str) -> str:
    """A member's name for showing: no drive, no leading slash, no parent steps, no control characters."""
    parts = [p for p in name.replace("\\", "/").split("/") if p not in ("", ".", "..")]
    text = "/".join(parts) or "unnamed"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)[:1024]


def _junk(name: str) -> bool:
    base = name.rsplit("/", 1)[-1]
    return base == ".DS_Store" or base.startswith("._") or "__MACOSX/" in name


def spool(stream: IO[bytes], target: Path, budget: Budget) -> None:
    """Write a stream (standard input) to a file within the limits."""
    with target.open("wb") as out:
        while chunk := stream.read(_CHUNK):
            budget.bytes(len(chunk), "-")
            out.write(chunk)


__all__ = ["Budget", "Limits", "Unpacked", "Unpacker", "sniff", "spool"]
