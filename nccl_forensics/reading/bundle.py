"""The bundle: every file of what was handed in, as plain bytes on disk, and its lines for quoting."""

from __future__ import annotations

import codecs
import mmap
import os
import shutil
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType

from nccl_forensics.decoding import journal
from nccl_forensics.decoding.archives import HEAD, Budget, Unpacked, Unpacker, junk, kind_of, room_in, shown, sniff
from nccl_forensics.errors import ForensicsError, UnusableEvidence
from nccl_forensics.limits import Limits
from nccl_forensics.reading import remote

#: Lines between those whose offsets are kept.
_MARK_EVERY = 1024
_CUT = 4096
#: Bytes in which line ends are counted at once, and lines of which each end is looked for.
_COUNTED, _FEW_LINES = 8192, 64
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Member:
    """One source: ``path`` as reports show it, ``file`` with its plain bytes (None where unreadable), or where they go once they are
    fetched from ``url``.

    ``path`` lies inside what was handed in: relative to a folder, inside an archive, ``node3.tar.gz!/logs/x.log`` for an archive in it;
    where several things were handed in, it starts with their names.
    """

    source_id: int
    path: str
    bytes: int
    file: Path | None
    error: str | None
    url: str | None = None

    def fetched(self) -> Path | None:
        """The file, fetched if it lies in a store still. Raises ``UnusableEvidence``."""
        if self.url is not None and self.file is not None and not self.file.exists():
            partial = self.file.with_suffix(".partial")
            remote.get(self.url, partial)
            partial.replace(self.file)
        return self.file


@dataclass(slots=True)
class Bundle:
    """All members in the order of their paths. Removes its scratch folder when closed."""

    inputs: tuple[str, ...]
    members: tuple[Member, ...]
    skipped: tuple[tuple[str, str], ...]
    scratch: Path
    _marks: dict[int, _Marks] = field(default_factory=dict)
    _lines: dict[int, int] = field(default_factory=dict)
    _plain: dict[int, Path] = field(default_factory=dict)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def drop_sources(self) -> None:
        """Remove what was unpacked, keeping the tables that reading wrote into scratch."""
        for file in self.scratch.rglob("*"):
            if file.suffix != ".arrow" and (file.is_file() or file.is_symlink()):
                file.unlink(missing_ok=True)

    def counted(self, lines: Mapping[int, int]) -> None:
        """Say how many lines sources have, ended or not: what stands near the end of a long log is then looked for from there."""
        self._lines |= lines

    def quote(self, source_id: int, line: int, before: int = 0, after: int = 0) -> list[tuple[int, str]]:
        """Raw lines around a 1-based line, each cut at 4,096 bytes; lines are LF-separated as ``sed -n Np`` counts."""
        member = self.members[source_id]
        try:
            plain = member.fetched()
        except ForensicsError:
            return []  # what cannot be fetched now was read before, and is cited by its line
        if plain is None or line < 1:
            return []
        file = self._utf8(member.source_id, plain)
        if file.stat().st_size == 0:
            return []
        first = max(1, line - before)
        out: list[tuple[int, str]] = []
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position = self._seek(source_id, data, first)
            for number in range(first, line + after + 1):
                if position >= len(data):
                    break
                end = data.find(b"\n", position)
                end = len(data) if end < 0 else end
                raw = data[position : min(end, position + _CUT)]
                # A character that the cut divides is left away, not shown as broken.
                text, _ = codecs.utf_8_decode(raw, "replace", end - position <= _CUT)
                out.append((number, text.rstrip("\r")))
                position = end + 1
        return out

    def _utf8(self, source_id: int, file: Path) -> Path:
        """The file itself, or its text in scratch where it is UTF-16 or a journal of systemd, as the reader saw it."""
        if source_id not in self._plain:
            with file.open("rb") as stream:
                head = stream.read(8)
            target = self.scratch / f"{source_id}.utf8"
            if journal.is_journal(head):
                with file.open("rb") as stream, target.open("wb") as out, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    journal.write_text(data, out.write)
                file = target
            elif head[:2] in _UTF16:
                with file.open(encoding="utf-16", errors="replace", newline="") as source, target.open("wb") as out:
                    while piece := source.read(1 << 20):
                        out.write(piece.encode("utf-8", "replace"))
                file = target
            self._plain[source_id] = file
        return self._plain[source_id]

    def _seek(self, source_id: int, data: mmap.mmap, line: int) -> int:
        """Offset of a line, sought from the nearest one whose offset is known; the end where there are fewer lines."""
        marks = self._marks.get(source_id)
        if marks is None:
            marks = self._marks[source_id] = _Marks()
            # A file that was still being written to has more lines now than were counted.
            if source_id in self._lines and len(data) == self.members[source_id].bytes:
                last = data.rfind(b"\n") + 1
                marks.add(self._lines[source_id] + (last == len(data)), last)
        return marks.seek(data, line)


@dataclass(slots=True)
class _Marks:
    """Offsets of some lines of a text, in their order: as many as were come by, and at most so far apart where one was looked for."""

    lines: list[int] = field(default_factory=lambda: [1])
    offsets: list[int] = field(default_factory=lambda: [0])

    def add(self, line: int, offset: int) -> None:
        """Remember where a line begins."""
        at = bisect_left(self.lines, line)
        if at == len(self.lines) or self.lines[at] != line:
            self.lines.insert(at, line)
            self.offsets.insert(at, offset)

    def seek(self, data: mmap.mmap, line: int) -> int:
        """Offset of a line, or the end where there are fewer."""
        at = bisect_right(self.lines, line) - 1
        number, position = self.lines[at], self.offsets[at]
        if at + 1 < len(self.lines) and self.lines[at + 1] - line < line - number:
            number, position = self.lines[at + 1], self.offsets[at + 1]
            while number - line > _MARK_EVERY:
                number, position = number - _MARK_EVERY, _back(data, position, _MARK_EVERY)
                self.add(number, position)
            return _back(data, position, number - line)
        while line - number > _MARK_EVERY:
            number, position = number + _MARK_EVERY, _skip(data, position, _MARK_EVERY)
            if position >= len(data):
                return len(data)
            self.add(number, position)
        return _skip(data, position, line - number)


def _skip(data: mmap.mmap, position: int, lines: int) -> int:
    """Offset after so many lines, or the end."""
    # Line ends are counted piece by piece, several times faster than they are found one by one.
    while lines > _FEW_LINES and position < len(data):
        ends = data[position : position + _COUNTED].count(b"\n")
        if ends >= lines:
            break
        lines -= ends
        position += _COUNTED
    if position >= len(data):
        return len(data)
    for _ in range(lines):
        end = data.find(b"\n", position)
        if end < 0:
            return len(data)
        position = end + 1
    return position


def _back(data: mmap.mmap, position: int, lines: int) -> int:
    """Offset of the line so many before the one that begins at ``position``, or the beginning."""
    ends, stop = lines + 1, position  # the line begins behind so many line ends back from here
    while ends > _FEW_LINES and stop > _COUNTED:
        here = data[stop - _COUNTED : stop].count(b"\n")
        if here >= ends:
            break
        ends -= here
        stop -= _COUNTED
    for _ in range(ends):
        stop = data.rfind(b"\n", 0, stop)
        if stop < 0:
            return 0
    return stop + 1


def open_bundle(inputs: Sequence[str | Path], *, limits: Limits | None = None, scratch: Path | None = None, fetch: bool = True) -> Bundle:
    """Gather folders, archives (nested too), single files and ``-`` (an archive on standard input) into one bundle.

    Unpacked files live in a new folder below ``scratch`` (default: the system's place for temporary files). Without ``fetch``, plain
    objects of a store stay there until a line of them is quoted: for engines that read them where they lie.
    Raises ``UnusableEvidence`` for a missing path or where nothing is inside, ``LimitReached`` where a bound is met.
    """
    names = [str(i) for i in inputs]
    if not names:
        raise UnusableEvidence("no evidence was named")
    own = Path(tempfile.mkdtemp(prefix="nccl-forensics-", dir=scratch))
    try:
        unpacker = Unpacker(own, Budget(limits or Limits(), room_in(own)))
        labels = _labels(names)
        found: list[Unpacked] = []
        for name, label in zip(names, labels, strict=True):
            found.extend(_gather(name, label, unpacker, several=len(names) > 1, fetch=fetch))
        found.sort(key=lambda u: u.path)
        paths = _told_apart(found)
        members = tuple(Member(i, paths[i], u.bytes, u.file, u.error, u.url) for i, u in enumerate(found))
        if not any(m.file is not None and m.bytes > 0 for m in members):
            raise UnusableEvidence(_why_nothing(names, members, unpacker.skipped))
        return Bundle(tuple(names), members, tuple(sorted(unpacker.skipped)), own)
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise


def _told_apart(found: Sequence[Unpacked]) -> list[str]:
    """The paths; members of one name in one archive are numbered, so that a citation means one of them."""
    taken = {u.path for u in found}
    seen: Counter[str] = Counter()
    out = []
    for one in found:
        seen[one.path] += one.file is not None or one.url is not None
        number = seen[one.path]
        path = one.path if number < 2 else f"{one.path}#{number}"
        while number > 1 and path in taken:
            number += 1
            path = f"{one.path}#{number}"
        taken.add(path)
        out.append(path)
    return out


def _why_nothing(names: list[str], members: tuple[Member, ...], skipped: list[tuple[str, str]]) -> str:
    problems = [f"{m.path}: {m.error or 'empty file'}" for m in members] + [f"{path}: {why}" for path, why in skipped]
    listed = "; ".join(sorted(set(problems))[:5])
    return f"nothing to read in {', '.join(names)}" + (f" ({listed})" if listed else ": it is empty")


def _labels(names: list[str]) -> list[str]:
    """A name for each input, told apart by as much of its path as that needs."""
    short = [
        remote.last_name(n) if remote.is_url(n) else Path(n).name or Path(n).resolve().name or "root" if n != "-" else "stdin"
        for n in names
    ]
    labels = []
    for name, label in zip(names, short, strict=True):
        if short.count(label) > 1:
            parts = [p for p in PurePosixPath(name).parts if p not in ("/", ".", "..")]
            label = "/".join(parts) or label
        labels.append(shown(label))
    seen: Counter[str] = Counter()
    for i, label in enumerate(labels):
        seen[label] += 1
        if seen[label] > 1:
            labels[i] = f"{label}#{seen[label]}"
    return labels


def _gather(name: str, label: str, unpacker: Unpacker, *, several: bool, fetch: bool) -> Iterator[Unpacked]:
    inside = None if several else ""
    if name == "-":
        yield from unpacker.unpack(unpacker.spool(sys.stdin.buffer, "standard input"), label, inside=inside)
        return
    if remote.is_url(name):
        yield from _stored(name, label, unpacker, several=several, fetch=fetch)
        return
    root = Path(name)
    try:
        if root.is_dir():
            yield from _folder(root, f"{label}/" if several else "", unpacker)
        elif root.is_fifo():
            with root.open("rb") as stream:
                yield from unpacker.unpack(unpacker.spool(stream, name), label, inside=inside)
        elif root.is_file():
            unpacker.budget.member(name)
            yield from unpacker.unpack(root, label, inside=inside)
        elif root.exists():
            raise UnusableEvidence(f"{name}: neither a file nor a folder")
        else:
            raise UnusableEvidence(f"{name}: no such file or folder")
    except (OSError, ValueError) as problem:
        raise UnusableEvidence(f"{name}: cannot be opened: {getattr(problem, 'strerror', None) or problem}") from problem


def _stored(url: str, label: str, unpacker: Unpacker, *, several: bool, fetch: bool) -> Iterator[Unpacked]:
    """What lies in an object store: an object like a file, all below a prefix like a folder. Packed objects are not kept once unpacked."""
    items = remote.objects(url)
    heads = remote.heads(items, HEAD) if not fetch else []
    for number, item in enumerate(items):
        path = shown(f"{label}/{item.path}" if several else item.path) if item.path else label
        if junk(path):
            unpacker.skipped.append((path, "left by a file manager"))
            continue
        unpacker.budget.member(path)
        # A head of zeros may be that of a tar without members, which only its length tells.
        if heads and kind_of(heads[number]) is None and heads[number].strip(b"\x00"):
            yield Unpacked(path, unpacker.target(), item.bytes, url=item.url)
            continue
        with remote.opened(item.url) as stream:
            file = unpacker.spool(stream, path)
        yield from unpacker.unpack(file, path, inside=None if item.path or several else "")
        if sniff(file) is not None:
            file.unlink(missing_ok=True)


def _folder(root: Path, prefix: str, unpacker: Unpacker) -> Iterator[Unpacked]:
    top = root.resolve()

    def unreadable(problem: OSError) -> None:
        where = Path(os.fsdecode(problem.filename or root))
        unpacker.skipped.append((prefix + shown(where.relative_to(root).as_posix()), f"folder cannot be opened: {problem.strerror}"))

    for folder, folders, files in os.walk(root, onerror=unreadable):
        folders.sort()
        for name in folders:
            if (link := Path(folder) / name).is_symlink():
                unpacker.skipped.append((prefix + shown(link.relative_to(root).as_posix()), "link to a folder"))
        for name in sorted(files):
            file = Path(folder) / name
            path = prefix + shown(file.relative_to(root).as_posix())
            if junk(path):
                unpacker.skipped.append((path, "left by a file manager"))
                continue
            try:
                if file.is_symlink() and top not in file.resolve().parents:
                    unpacker.skipped.append((path, "link that leads out of the folder"))
                    continue
                if not file.is_file():
                    unpacker.skipped.append((path, "not a plain file"))
                    continue
                unpacker.budget.member(path)
                yield from unpacker.unpack(file, path)
            except ForensicsError:
                raise
            except (OSError, RuntimeError) as problem:  # RuntimeError: links in a circle, before Python 3.13
                yield Unpacked(path, None, 0, f"cannot be opened: {getattr(problem, 'strerror', None) or problem}")


__all__ = ["Bundle", "Limits", "Member", "open_bundle"]
