"""Unpacking archives safely: kinds are told by content, members are written under numbers, never under their own names.

Nothing is followed (links, devices, FIFOs are passed over and recorded), nothing is written outside the scratch folder, and limits on
bytes, members, depth and ratio end the reading with an error that names the limit. A broken or cut archive yields what lies before the
break and a row that says so. Compressed tars are unpacked as they stream: no whole tar is written down in between.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import shutil
import signal
import stat
import tarfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, cast

import zstandard

try:  # two to three times as fast; there are systems for which it is not built
    from isal import igzip, isal_zlib
except ImportError:
    igzip = isal_zlib = None

from nccl_forensics.errors import LimitReached, OutputError
from nccl_forensics.limits import Limits, met

_CHUNK = 1 << 20
_BLOCK = 512
#: Least bytes of a zip's directory entry, the end of the file that holds its end record, and the largest directory that is read.
_ZIP_ENTRY, _ZIP_TAIL, _LARGEST_DIRECTORY = 46, (1 << 16) + 22 + 76, 256 << 20
#: So many first bytes tell the kind of an archive.
HEAD = _BLOCK
#: Largest extended header (pax, GNU long name) that is believed; real ones are a few KiB.
_LARGEST_HEADER = 8 << 20
#: Room that unpacking always leaves free on the scratch file system.
_RESERVE = 256 << 20
#: What reading a damaged archive or compressed stream raises.
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    lzma.LZMAError,
    zlib.error,
    zstandard.ZstdError,
    tarfile.TarError,
    zipfile.BadZipFile,
    *((isal_zlib.error,) if isal_zlib is not None else ()),
)


@dataclass(slots=True)
class Budget:
    """What is used up of the limits. ``room`` is what the scratch file system can take."""

    limits: Limits
    room: int | None = None
    written: int = 0
    count: int = 0
    _since: float = field(default_factory=time.monotonic)

    def member(self, where: str) -> None:
        """Count one member."""
        self.count += 1
        if self.count > self.limits.members:
            raise LimitReached(f"{where}: more than {self.limits.members} members {met('members')}")
        self._in_time(where)

    def bytes(self, n: int, where: str) -> None:
        """Count unpacked bytes."""
        self.written += n
        if self.written > self.limits.total_bytes:
            raise LimitReached(f"{where}: more than {self.limits.total_bytes} bytes unpacked in all {met('total-bytes')}")
        if self.room is not None and self.written > self.room:
            raise LimitReached(f"{where}: unpacking needs more room than the scratch folder has left (limit: scratch space)")
        self._in_time(where)

    def _in_time(self, where: str) -> None:
        if time.monotonic() - self._since > self.limits.seconds:
            raise LimitReached(f"{where}: unpacking takes longer than {self.limits.seconds:g} s {met('seconds')}")


def room_in(scratch: Path) -> int:
    """Bytes that may be written to the scratch folder's file system."""
    return max(0, shutil.disk_usage(scratch).free - _RESERVE)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """One plain file in scratch and the path it had, or an error in its place. With a ``url`` it lies there still."""

    path: str
    file: Path | None
    bytes: int
    error: str | None = None
    url: str | None = None


class _Readable(Protocol):
    def read(self, n: int, /) -> bytes: ...


@dataclass(slots=True)
class Unpacker:
    """Unpacks files into a scratch folder. ``skipped`` names what was passed over and why."""

    scratch: Path
    budget: Budget
    skipped: list[tuple[str, str]] = field(default_factory=list)
    _number: int = 0

    def unpack(self, file: Path, path: str, depth: int = 0, inside: str | None = None) -> Iterator[Unpacked]:
        """The plain files inside ``file``: itself if it is no archive. Broken archives yield what lies before the break and an error.

        ``inside`` is what the paths of members start with, ``path!/`` unless given.
        """
        kind = sniff(file)
        if kind is None:
            yield Unpacked(path, file, file.stat().st_size)
            return
        if depth > self.budget.limits.depth:
            raise LimitReached(f"{path}: archives nested deeper than {self.budget.limits.depth} {met('depth')}")
        inside = f"{path}!/" if inside is None else inside
        seen = self.budget.count
        if kind == "zip":
            yield from self._zip(file, path, inside, depth)
        elif kind == "tar":
            with file.open("rb") as raw:
                yield from self._tar(_Forward(raw), path, inside, depth)
        else:
            yield from self._compressed(file, path, inside, kind, depth)
        if kind in ("tar", "zip") and seen == self.budget.count:
            self.skipped.append((path, "an archive without members: it is empty"))

    def _compressed(self, file: Path, path: str, inside: str, kind: str, depth: int) -> Iterator[Unpacked]:
        opener: Callable[[IO[bytes]], _Readable] = _OPENERS[kind]
        with file.open("rb") as raw:
            limits = self.budget.limits
            stream = _Forward(_Metered(opener(raw), path, max(1, file.stat().st_size), limits.ratio, limits.ratio_from_bytes))
            try:
                head = stream.read(_BLOCK)
                stream.seek(0)
            except _BROKEN as problem:
                yield Unpacked(path, None, 0, f"compressed data is broken: {_words(problem)}")
                return
            if kind_of(head) == "tar":
                yield from self._tar(stream, path, inside, depth)
                return
            target = self.target()
            size, error = self._copy(stream, target, path)
        if size == 0:
            yield Unpacked(path, None, 0, error or "empty after decompression")
        else:
            yield from self._inner(target, path, depth, error, inside)

    def _tar(self, stream: _Forward, path: str, inside: str, depth: int) -> Iterator[Unpacked]:
        error: str | None = None
        try:
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:", errorlevel=0) as archive:
                while error is None and (member := archive.next()) is not None:
                    vars(archive)["members"].clear()  # tarfile keeps every header it has seen
                    self.budget.member(path)
                    name = inside + _clean(member.name)
                    if member.isdir() or self._passed_over(name):
                        continue
                    if not member.isreg() or member.issparse():
                        self.skipped.append((name, "not a plain file (link, device, FIFO or sparse)"))
                        continue
                    content = archive.extractfile(member)
                    if content is None:
                        continue
                    target = self.target()
                    size, error = self._copy(content, target, name)
                    if size < member.size:
                        error = error or "the archive ends inside a file"
                    yield from self._inner(target, name, depth, f"cut off: {error}" if error else None)
                if error is None:
                    stream.seek(archive.offset)
                    error = _after_the_end(stream)
        except (*_BROKEN, RecursionError) as problem:
            error = _words(problem)
        if error:
            yield Unpacked(path, None, 0, f"archive is broken or cut off: {error}")

    def _zip(self, file: Path, path: str, inside: str, depth: int) -> Iterator[Unpacked]:
        limits = self.budget.limits
        packed, unpacked = max(1, file.stat().st_size), 0
        try:
            self._directory_fits(file, path)
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    self.budget.member(path)
                    name = inside + _clean(info.filename)
                    if info.is_dir() or self._passed_over(name):
                        continue
                    if info.flag_bits & 1:
                        yield Unpacked(name, None, 0, "encrypted")
                        continue
                    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
                        self.skipped.append((name, "not a plain file (link, device or FIFO)"))
                        continue
                    target = self.target()
                    try:
                        with _opened(archive, info) as content:
                            # Entries may overlap in the file, so the whole archive is metered, not each entry alone.
                            stream = _Metered(content, path, packed, limits.ratio, limits.ratio_from_bytes, unpacked)
                            _, error = self._copy(stream, target, name)
                            unpacked = stream.seen
                    except _BROKEN as problem:
                        yield Unpacked(name, None, 0, f"cannot be unpacked: {_words(problem)}")
                        continue
                    yield from self._inner(target, name, depth, f"cannot be unpacked: {error}" if error else None)
        except _BROKEN as problem:
            yield Unpacked(path, None, 0, f"archive is broken or cut off: {_words(problem)}")

    def _directory_fits(self, file: Path, path: str) -> None:
        """Refuses a zip whose directory lists more members than may be, before it is read: each entry takes ten times its size in
        memory."""
        size = _directory_bytes(file)
        if size // _ZIP_ENTRY > self.budget.limits.members or size > _LARGEST_DIRECTORY:
            raise LimitReached(f"{path}: a directory of {size} bytes lists more than {self.budget.limits.members} members {met('members')}")

    def _passed_over(self, name: str) -> bool:
        if junk(name):
            self.skipped.append((name, "left by a file manager"))
            return True
        return False

    def _inner(self, target: Path, path: str, depth: int, error: str | None, inside: str | None = None) -> Iterator[Unpacked]:
        """What was just unpacked: a plain file, or an archive in its turn, of which only the members are kept."""
        if sniff(target) is None:
            yield Unpacked(path, target, target.stat().st_size, error)
            return
        yield from self.unpack(target, path, depth + 1, inside)
        target.unlink(missing_ok=True)
        if error:
            yield Unpacked(path, None, 0, error)

    def _copy(self, stream: _Readable, target: Path, where: str) -> tuple[int, str | None]:
        """Write a stream to a file; the bytes written, and what broke the stream off."""
        size = 0
        with _writing(where), target.open("wb", buffering=0) as out:
            while True:
                try:
                    chunk = stream.read(_CHUNK)
                except _BROKEN as problem:
                    return size, _words(problem)
                if not chunk:
                    return size, None
                size += len(chunk)
                self.budget.bytes(len(chunk), where)
                if size > self.budget.limits.member_bytes:
                    raise LimitReached(f"{where}: larger than {self.budget.limits.member_bytes} bytes {met('member-bytes')}")
                rest = memoryview(chunk)
                while rest:
                    rest = rest[out.write(rest) :]

    def spool(self, stream: _Readable, name: str) -> Path:
        """Write a stream that cannot be read twice (standard input, a pipe) to scratch."""
        # Polars' handler of interrupts lets a read that waits go on waiting; this one must end.
        if hasattr(signal, "siginterrupt"):
            signal.siginterrupt(signal.SIGINT, True)
        target = self.target()
        _, error = self._copy(stream, target, name)
        if error:
            raise OutputError(f"{name}: cannot be read to its end: {error}")
        return target

    def target(self) -> Path:
        """A new place in scratch."""
        self._number += 1
        return self.scratch / f"{self._number:07d}"


def _opened(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """A member of a zip. Python 3.14 warns of entries that overlap; here they are metered, and nobody reads warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Overlapped entries")
        return archive.open(info)


def _directory_bytes(file: Path) -> int:
    """What the end record of a zip says its directory takes: the larger of its 32-bit and its 64-bit field, at most the file's size."""
    total = file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(max(0, total - _ZIP_TAIL))
        tail = stream.read()
    at, stated = tail.rfind(b"PK\x05\x06"), 0
    if 0 <= at <= len(tail) - 22:
        stated = int.from_bytes(tail[at + 12 : at + 16], "little")
    wide = tail.rfind(b"PK\x06\x06")
    if stated == 0xFFFFFFFF and 0 <= wide <= len(tail) - 56:
        stated = int.from_bytes(tail[wide + 40 : wide + 48], "little")
    return min(stated, total)


@contextmanager
def _writing(where: str) -> Iterator[None]:
    """Turns a full disk into the limit that it is."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise LimitReached(f"{where}: the scratch folder is full (limit: scratch space)") from problem
        raise OutputError(f"{where}: cannot be unpacked to the scratch folder: {problem}") from problem


class _Metered:
    """Reads a decompressor and holds what came out against what went in."""

    def __init__(self, stream: _Readable, where: str, packed: int, ratio: int, ratio_from: int, seen: int = 0) -> None:
        self._stream, self._where, self._packed, self._ratio, self._from = stream, where, packed, ratio, ratio_from
        self.seen = seen

    def read(self, n: int, /) -> bytes:
        chunk = self._stream.read(n)
        self.seen += len(chunk)
        if self.seen > self._from and self.seen > self._packed * self._ratio:
            raise LimitReached(f"{self._where}: unpacks to more than {self._ratio} times its size {met('ratio')}")
        return chunk


class _Forward:
    """A stream for ``tarfile`` that seeks forward by reading on, and back by the little that it keeps."""

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream
        self._kept = b""
        self._start = 0
        self._at = 0
        self.problem: Exception | None = None

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = 0) -> int:
        if whence != 0 or position < self._start:
            raise tarfile.ReadError("headers point backwards")
        while position > self._start + len(self._kept):
            self._at = self._start + len(self._kept)
            if not self.read(min(_CHUNK, position - self._at)):
                break
        self._at = min(position, self._start + len(self._kept))
        return self._at

    def read(self, n: int, /) -> bytes:
        if n > _LARGEST_HEADER:
            raise tarfile.ReadError("a header is impossibly large")
        missing = self._at + n - self._start - len(self._kept)
        parts = [self._kept]
        while missing > 0 and self.problem is None:
            try:
                chunk = self._stream.read(max(missing, 1 << 16))
            except _BROKEN as problem:
                self.problem = problem  # raised once what came before it is used up
                break
            if not chunk:
                break
            parts.append(chunk)
            missing -= len(chunk)
        if len(parts) > 1:
            self._kept = b"".join(parts)
        first = self._at - self._start
        out = self._kept[first : first + n]
        if not out and self.problem is not None:
            raise self.problem
        self._at += len(out)
        # tarfile looks back by one byte, the search for the end mark by one block.
        drop = self._at - self._start - 2 * _BLOCK
        if drop > _CHUNK // 4:
            self._kept = self._kept[drop:]
            self._start += drop
        return out


def _after_the_end(stream: _Forward) -> str | None:
    """What is wrong with the end of a tar: no end mark, or something after it. Reading on also checks the compression's sum."""
    mark = stream.read(_BLOCK)
    if stream.problem is not None:
        return _words(stream.problem)
    if not mark:
        return "it ends without an end mark"
    if mark.count(0) != len(mark):
        return "a header is damaged; what follows it was not read"
    while chunk := stream.read(_CHUNK):
        if chunk.count(0) != len(chunk):
            return "more data after its end mark was not read"
    return None


def sniff(file: Path) -> str | None:
    """Kind of archive by content: gz, bz2, xz, zst, zip, tar, or None."""
    with file.open("rb") as stream:
        head = stream.read(_BLOCK)
        if head.count(0) == _BLOCK and (size := file.stat().st_size) <= _CHUNK and size % _BLOCK == 0:
            # A tar without members is nothing but its end mark.
            return "tar" if stream.read().count(0) == size - _BLOCK else None
        return kind_of(head)


def kind_of(head: bytes) -> str | None:
    """Kind of archive by its first 512 bytes."""
    if head[:3] == b"\x1f\x8b\x08":
        return "gz"
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return "zst"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if len(head) == _BLOCK and (head[257:262] == b"ustar" or _old_tar(head)):
        return "tar"
    return None


def _old_tar(head: bytes) -> bool:
    """A pre-POSIX tar header: its checksum must be right."""
    try:
        stated = int(head[148:156].rstrip(b"\x00 ") or b"x", 8)
    except ValueError:
        return False
    return bool(head[0]) and stated == sum(head[:148]) + 8 * 32 + sum(head[156:])


class _AtHand:
    """Reads what a decompressor has at hand: asking for more would lose what came out before an error."""

    def __init__(self, stream: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile) -> None:
        self._stream = stream

    def read(self, n: int, /) -> bytes:
        return self._stream.read1(n)


class _Zstd:
    """Zstandard frames one after the other; unlike the library's own reader it tells a cut-off stream from a finished one."""

    #: Input per step: a block of 4 bytes may unpack to 128 KiB, so that one step yields 32 MiB at most.
    _STEP = 1 << 10

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame = self._library.decompressobj()
        self._input = b""
        self._ready = bytearray()
        self._started = False

    def read(self, n: int, /) -> bytes:
        while len(self._ready) < n:
            if not self._input:
                self._input = self._raw.read(1 << 16)
                if not self._input:
                    if self._started and not self._ready:
                        raise EOFError("the compressed data ends before its end mark")
                    break
            if self._frame.eof:
                self._frame = self._library.decompressobj()
            step, self._input = self._input[: self._STEP], self._input[self._STEP :]
            self._ready += self._frame.decompress(step)
            self._started = not self._frame.eof
            if self._frame.eof:
                self._input = self._frame.unused_data + self._input
        out = bytes(self._ready[:n])
        del self._ready[:n]
        return out


def unpack_zstd(packed: bytes, at_most: int) -> bytes:
    """The first bytes of a frame of Zstandard; one that is cut off gives what it holds. Raises ``ValueError``."""
    try:
        return bytes(zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed).read(at_most))
    except zstandard.ZstdError as problem:
        raise ValueError(str(problem)) from problem


def _gunzipped(raw: IO[bytes]) -> _Readable:
    """A gzip stream, by the faster library where it is installed."""
    return _AtHand(igzip.IGzipFile(fileobj=raw) if igzip is not None else gzip.GzipFile(fileobj=raw))


_OPENERS: dict[str, Callable[[IO[bytes]], _Readable]] = {
    "gz": _gunzipped,
    "bz2": lambda raw: _AtHand(bz2.BZ2File(raw)),
    "xz": lambda raw: _AtHand(lzma.LZMAFile(raw)),  # noqa: SIM115 - its caller closes the file below
    "zst": _Zstd,
}


def _words(problem: BaseException) -> str:
    return str(problem)[:200] or type(problem).__name__


def _clean(name: str) -> str:
    """A member's name for showing: no drive, no leading slash, no parent steps, no control characters."""
    parts = [p for p in name.replace("\\", "/").split("/") if p not in ("", ".", "..")]
    return shown("/".join(parts) or "unnamed")


def shown(path: str) -> str:
    """A path that can be printed: control characters and bytes that are no UTF-8 are replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in path)[:1024]


def junk(name: str) -> bool:
    """Whether a file manager, not the job, left this file."""
    base = name.rsplit("/", 1)[-1]
    return base in (".DS_Store", "Thumbs.db", "desktop.ini") or base.startswith("._") or "__MACOSX/" in name


__all__ = ["HEAD", "Budget", "Limits", "Unpacked", "Unpacker", "junk", "kind_of", "room_in", "shown", "sniff", "unpack_zstd"]
