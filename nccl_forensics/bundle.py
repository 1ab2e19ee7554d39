"""The bundle: every file of what was handed in, as plain bytes on disk, and its lines for quoting."""

from __future__ import annotations

import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from nccl_forensics.archives import Budget, Limits, Unpacked, Unpacker, spool
from nccl_forensics.errors import UnusableEvidence

_INDEX_EVERY = 1024
_CUT = 4096


@dataclass(frozen=True, slots=True)
class Member:
    """One source: ``path`` as reports show it, ``file`` with its plain bytes (None where unreadable)."""

    source_id: int
    path: str
    bytes: int
    file: Path | None
    error: str | None


@dataclass(slots=True)
class Bundle:
    """All members in the order of their paths. Removes its scratch folder when closed."""

    inputs: tuple[str, ...]
    members: tuple[Member, ...]
    skipped: tuple[tuple[str, str], ...]
    scratch: Path
    _index: dict[int, list[int]] = field(default_factory=dict)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def quote(self, source_id: int, line: int, before: int = 0, after: int = 0) -> list[tuple[int, str]]:
        """Raw lines around a 1-based line, each cut at 4,096 characters; lines are LF-separated as ``sed -n Np`` counts."""
        member = self.members[source_id]
        if member.file is None or member.file.stat().st_size == 0 or line < 1:
            return []
        first = max(1, line - before)
        out: list[tuple[int, str]] = []
        with member.file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position = self._seek(source_id, data, first)
            for number in range(first, line + after + 1):
                if position >= len(data):
                    break
                end = data.find(b"\n", position)
                end = len(data) if end < 0 else end
                raw = data[position : min(end, position + _CUT)]
                out.append((number, raw.decode("utf-8", "replace").rstrip("\r")))
                position = end + 1
        return out

    def _seek(self, source_id: int, data: mmap.mmap, line: int) -> int:
        """Offset of a line, from a sparse index that grows as far as it was asked for."""
        index = self._index.setdefault(source_id, [0])
        block = (line - 1) // _INDEX_EVERY
        while len(index) <= block:
            position = index[-1]
            for _ in range(_INDEX_EVERY):
                end = data.find(b"\n", position)
                if end < 0:
                    return len(data)
                position = end + 1
            index.append(position)
        position = index[block]
        for _ in range((line - 1) % _INDEX_EVERY):
            end = data.find(b"\n", position)
            if end < 0:
                return len(data)
            position = end + 1
        return position


def open_bundle(inputs: Sequence[str | Path], *, limits: Limits | None = None) -> Bundle:
    """Gather folders, archives (nested too), single files and ``-`` (an archive on standard input) into one bundle.

    Raises ``UnusableEvidence`` for a missing path or where nothing is inside, ``LimitReached`` where a bound is met.
    """
    names = [str(i) for i in inputs]
    if not names:
        raise UnusableEvidence("no evidence was named")
    scratch = Path(tempfile.mkdtemp(prefix="nccl-forensics-"))
    try:
        unpacker = Unpacker(scratch, Budget(limits or Limits()))
        found: list[Unpacked] = []
        for name in names:
            found.extend(_gather(name, unpacker, several=len(names) > 1))
        found.sort(key=lambda u: u.path)
        members = tuple(Member(i, u.path, u.bytes, u.file, u.error) for i, u in enumerate(found))
        if not any(m.file is not None and m.bytes > 0 for m in members):
            problems = "; ".join(sorted({f"{m.path}: {m.error or 'empty file'}" for m in members})[:5])
            raise UnusableEvidence(f"nothing to read in {', '.join(names)}" + (f" ({problems})" if problems else ": it is empty"))
        return Bundle(tuple(names), members, tuple(sorted(unpacker.skipped)), scratch)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _gather(name: str, unpacker: Unpacker, *, several: bool) -> list[Unpacked]:
    if name == "-":
        target = unpacker.scratch / "stdin"
        spool(sys.stdin.buffer, target, unpacker.budget)
        return list(unpacker.unpack(target, "stdin"))
    root = Path(name)
    if not root.exists():
        raise UnusableEvidence(f"{name}: no such file or folder")
    label = root.name or root.resolve().name
    if root.is_file():
        unpacker.budget.member(name)
        return list(unpacker.unpack(root, label))
    out: list[Unpacked] = []
    prefix = f"{label}/" if several else ""
    top = root.resolve()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for file_name in sorted(files):
            file = Path(folder) / file_name
            shown = prefix + file.relative_to(root).as_posix()
            if file_name == ".DS_Store" or file_name.startswith("._"):
                continue
            if file.is_symlink() and top not in file.resolve().parents:
                unpacker.skipped.append((shown, "link that leads out of the folder"))
                continue
            if not file.is_file():
                unpacker.skipped.append((shown, "not a plain file"))
                continue
            unpacker.budget.member(name)
            try:
                out.extend(unpacker.unpack(file, shown))
            except PermissionError as problem:
                out.append(Unpacked(shown, None, 0, f"cannot be opened: {problem.strerror}"))
    return out
