"""Bounds on what evidence may cost, each with the name by which it is set (``--limit``, ``[limits]`` of the configuration)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nccl_forensics.errors import UsageError

#: Powers of 1024, by the letter of a size.
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on unpacking, each met with ``LimitReached`` that names it, and on reading one source, which cost that source.

    ``ratio`` is unpacked over packed size and counts only once ``ratio_from_bytes`` came out: logs shrink to a hundredth, zeros in gzip
    to a thousandth. ``seconds`` is the time of unpacking in all. ``source_memory_bytes`` is what the reader of one source may hold,
    ``source_seconds`` its time, to which 0.6 s per MB come.
    """

    total_bytes: int = 64 << 30
    member_bytes: int = 32 << 30
    members: int = 2_000_000
    depth: int = 6
    ratio: int = 500
    ratio_from_bytes: int = 256 << 20
    seconds: float = 7200.0
    source_memory_bytes: int = 6 << 30
    source_seconds: float = 120.0


#: Name of each setting -> its field, whether it is a size, and what it bounds.
SETTINGS: dict[str, tuple[str, bool, str]] = {
    "total-bytes": ("total_bytes", True, "bytes unpacked in all"),
    "member-bytes": ("member_bytes", True, "bytes of one file in an archive"),
    "members": ("members", False, "files and folders in all archives and folders"),
    "depth": ("depth", False, "archives inside archives"),
    "ratio": ("ratio", False, "unpacked over packed size"),
    "seconds": ("seconds", False, "time of unpacking"),
    "source-memory": ("source_memory_bytes", True, "memory of the reader of one source"),
    "source-seconds": ("source_seconds", False, "time to read one source"),
}


def changed(limits: Limits, settings: Mapping[str, object], where: str) -> Limits:
    """The limits with some set anew: numbers, or sizes such as ``500M`` or ``4G`` (powers of 1024). Raises ``UsageError``."""
    values: dict[str, float] = {}
    for name, value in settings.items():
        if name not in SETTINGS:
            raise UsageError(f"{where}: there is no limit {name!r}; there are {', '.join(SETTINGS)}")
        field, size, _ = SETTINGS[name]
        found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)[ ]?([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        number = float(found[1]) * UNITS[found[2].upper()] if found is not None and (size or not found[2]) else 0.0
        if isinstance(value, bool) or number <= 0:
            raise UsageError(f"{where}: {name} must be {'a size such as 500M or 4G' if size else 'a number above 0'}, not {value!r}")
        values[field] = number if field in ("seconds", "source_seconds") else int(number)
    return replace(limits, **values)  # type: ignore[arg-type]  # the names were looked up among the fields, all of them numbers


def met(name: str) -> str:
    """What a message about a limit ends with: which one it is, and how to raise it."""
    return f"(limit: {name.replace('-', ' ')}; raise it with --limit {name}=…)"


__all__ = ["SETTINGS", "UNITS", "Limits", "changed", "met"]
