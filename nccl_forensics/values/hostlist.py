"""Slurm's short form of host names: ``node[001-003,007],login1`` is five hosts."""

from __future__ import annotations

import re

from nccl_forensics.values.units import is_number

_PIECE = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)")
_MOST = 100_000
#: Characters of a host name (RFC 1123), so that a long prefix is not written a hundred thousand times.
_LONGEST = 255


def expand(text: str | None) -> list[str]:
    """All hosts in the order written; text that is no host list gives what can be read of it."""
    out: list[str] = []
    for before, inside, behind in _PIECE.findall((text or "").strip()):
        if not (before or inside) or len(before) + len(behind) > _LONGEST:
            continue
        for number in _numbers(inside) if inside else [""]:
            out.append(f"{before}{number}{behind}")
            if len(out) >= _MOST:
                return out
    return out


def _numbers(inside: str) -> list[str]:
    out: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and is_number(first) and is_number(last) and int(last) - int(first) < _MOST:
            out.extend(str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
        elif first:
            out.append(part.strip())
    return out
