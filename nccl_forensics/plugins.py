"""Extensions of other packages, found by entry points and kept apart: one that is broken is reported and never fatal.

A package declares in its ``pyproject.toml`` what it brings (see docs/extending.md)::

    [project.entry-points."nccl_forensics.rules"]
    acme = "acme_forensics.rules"

Each kind has its own home, which says what it accepts: ``tables``, ``formats``, ``rules``, ``reporters``. This module only finds and loads,
so it knows none of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Generic, TypeVar

T = TypeVar("T")
Held = TypeVar("Held", covariant=True)

GROUPS = {kind: f"nccl_forensics.{kind}" for kind in ("tables", "formats", "rules", "reporters")}
#: Set to anything but the empty text, no extension is looked for: to tell a fault of the program from one of an extension.
OFF = "NCCL_FORENSICS_NO_PLUGINS"
_LONGEST_ERROR = 300


class Unacceptable(Exception):
    """What an entry point holds cannot be taken; the message says why, for its author."""


@dataclass(frozen=True, slots=True)
class Plugin(Generic[Held]):
    """One entry point: ``origin`` is its distribution and version, ``values`` what it brought, ``error`` why it brought nothing."""

    kind: str
    name: str
    origin: str
    values: tuple[Held, ...] = ()
    error: str | None = None


def installed(kind: str) -> tuple[metadata.EntryPoint, ...]:
    """Entry points of one kind, by distribution and name; none where extensions are switched off."""
    if os.environ.get(OFF):
        return ()
    return tuple(sorted(_declared(tuple(sys.path)).get(kind, ()), key=lambda e: (origin(e), e.name, e.value)))


@cache
def _declared(_path: tuple[str, ...]) -> dict[str, tuple[metadata.EntryPoint, ...]]:
    """Entry points of all kinds: to find them, the metadata of every distribution on this path is read."""
    found = metadata.entry_points()
    return {kind: tuple(found.select(group=group)) for kind, group in GROUPS.items()}


def origin(entry: metadata.EntryPoint) -> str:
    """Distribution and version of an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown distribution"


def load(kind: str, accept: Callable[[object], Iterable[T]]) -> tuple[Plugin[T], ...]:
    """Load all entry points of a kind. ``accept`` takes what one holds and returns its values, or raises ``Unacceptable``.

    Whatever an extension does while it is imported (also leaving the program) costs that extension alone.
    """
    found: list[Plugin[T]] = []
    for entry in installed(kind):
        try:
            values = tuple(accept(entry.load()))
            found.append(Plugin(kind, entry.name, origin(entry), values))
        except Unacceptable as problem:
            found.append(Plugin(kind, entry.name, origin(entry), error=str(problem)[:_LONGEST_ERROR]))
        except (Exception, SystemExit) as problem:
            found.append(Plugin(kind, entry.name, origin(entry), error=f"{type(problem).__name__}: {problem}"[:_LONGEST_ERROR]))
    return tuple(found)


def gathered(held: object, wanted: type[T] | tuple[type[T], ...], attributes: tuple[str, ...] = ()) -> list[T]:
    """The values of one type in what an entry point holds: one, a tuple or list of them, or a module.

    Of a module those are taken that ``attributes`` name, or without such names all its members of that type. Raises ``Unacceptable`` where
    there is none, or where a list holds something else.
    """
    if isinstance(held, ModuleType):
        members = vars(held)
        named = [value for name in attributes if name in members for value in _listed(members[name])]
        found = named if attributes else [value for value in members.values() if isinstance(value, wanted)]
        where = f"module {held.__name__}"
    else:
        found, where = _listed(held), "it"
    words = " or ".join(t.__name__ for t in (wanted if isinstance(wanted, tuple) else (wanted,)))
    if not found:
        raise Unacceptable(f"{where} holds no {words}{' in ' + ' or '.join(attributes) if attributes else ''}")
    for value in found:
        if not isinstance(value, wanted):
            raise Unacceptable(f"{where} holds a {type(value).__name__} where a {words} is wanted")
    return [value for value in found if isinstance(value, wanted)]


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, tuple | list) else [value]


def identity() -> str:
    """Name and version of every distribution that extends reading: what was read with others must not be taken for the same."""
    return ", ".join(sorted({origin(entry) for kind in ("tables", "formats") for entry in installed(kind)}))


__all__ = ["GROUPS", "OFF", "Plugin", "Unacceptable", "gathered", "identity", "installed", "load", "origin"]
