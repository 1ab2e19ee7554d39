"""Sources that hold the same bytes in the same place: one of them is read."""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterable

from nccl_forensics.reading.bundle import Member

#: Members of one size are told apart by so many first bytes before they are read whole.
_HEAD = 64 << 10


def twins_of(members: Iterable[Member]) -> dict[int, int]:
    """Members whose bytes another member before them has too, in the same folder and under the same name but for its compression.

    Some evidence says only in its path whose it is or when it was taken (a Flight Recorder dump holds no rank, two samples of a stuck
    process are alike), so equal bytes elsewhere are other facts. Only files of one size and one beginning are read for it.
    """
    alike: dict[tuple[int, str], list[Member]] = defaultdict(list)
    sizes: dict[tuple[int, str], list[Member]] = defaultdict(list)
    for member in members:
        if member.file is not None and member.bytes:
            name = member.path
            for suffix in (".gz", ".zst", ".xz", ".bz2"):
                name = name.removesuffix(suffix)
            sizes[member.bytes, name].append(member)
    for (size, name), same in sizes.items():
        for member in same if len(same) > 1 else ():
            with contextlib.suppress(OSError):
                alike[size, name + _digest(member, _HEAD)].append(member)
    twin: dict[int, int] = {}
    for (size, start), same in alike.items():
        seen: dict[str, int] = {}
        for member in same if len(same) > 1 else ():
            with contextlib.suppress(OSError):
                first = seen.setdefault(start if size <= _HEAD else _digest(member), member.source_id)
                if first != member.source_id:
                    twin[member.source_id] = first
    return twin


def _digest(member: Member, upto: int | None = None) -> str:
    file = member.fetched()
    assert file is not None
    with file.open("rb") as stream:
        return (hashlib.sha256(stream.read(upto)) if upto else hashlib.file_digest(stream, "sha256")).hexdigest()
