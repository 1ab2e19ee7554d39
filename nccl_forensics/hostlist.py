"""Slurm's short form of host names: ``node[001-003,007],login1`` is five hosts."""

from __future__ import annotations

import re

_PIECE = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)")
_MOST = 100_000


def expand(text: str | None) -> list[str]:
    """All hosts in the order written; text that is no host list gives what can be read of it."""
    out: list[str] = []
    for before, inside, behind in _PIECE.findall((text or "").strip()):
        if not (before or inside):
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
        if dash and first.isdigit() and last.isdigit() and int(last) - int(first) < _MOST:
            out.extend(str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
        elif first:
            out.append(part.strip())
    return out
