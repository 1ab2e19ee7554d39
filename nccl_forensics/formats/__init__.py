"""All formats, found by walking this folder (a module that defines ``FORMAT`` or ``FORMATS`` is one), and those of extensions."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache

from nccl_forensics import tables
from nccl_forensics.formats.base import DocumentFormat, Format, TextFormat
from nccl_forensics.plugins import Plugin, Unacceptable, gathered, installed, load

#: A shorter anchor would stand in lines of every kind.
_SHORTEST_ANCHOR = 3


@cache
def own_formats() -> tuple[Format, ...]:
    """Every format of the program in reading order (priority, then name)."""
    found: list[Format] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found.extend(getattr(module, "FORMATS", ()))
        if hasattr(module, "FORMAT"):
            found.append(module.FORMAT)
    return tuple(sorted(found, key=lambda f: (f.priority, f.name)))


@cache
def third_party() -> tuple[Plugin[Format], ...]:
    """Formats of extensions."""
    tables.third_party()  # they may fill tables of their own
    if not installed("formats"):
        return ()  # and the program's own formats, which are many, need not be loaded to compare names with
    taken = {f.name for f in own_formats()}

    def accept(held: object) -> list[Format]:
        formats: list[Format] = list(gathered(held, (TextFormat, DocumentFormat), ("FORMAT", "FORMATS")))
        for form in formats:
            _examine(form, taken)
            taken.add(form.name)
        return formats

    return load("formats", accept)


def _examine(form: Format, taken: set[str]) -> None:
    """Raises ``Unacceptable`` for a format that could not work beside the others."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", form.name):
        raise Unacceptable(f"format {form.name!r}: a name is made of a-z, 0-9 and -")
    if form.name in taken:
        raise Unacceptable(f"format {form.name!r} is there already")
    if unknown := sorted(set(form.tables) - tables.TABLES.keys()):
        raise Unacceptable(f"format {form.name!r} fills {', '.join(unknown)}, which no table is called")
    if isinstance(form, TextFormat) and (not form.anchors or any(len(a) < _SHORTEST_ANCHOR for a in form.anchors)):
        raise Unacceptable(f"format {form.name!r}: it needs anchors, of {_SHORTEST_ANCHOR} characters or more each")


@cache
def all_formats() -> tuple[Format, ...]:
    """Every format in reading order. Extensions are asked last: none can take what the program reads itself."""
    added = [form for plugin in third_party() for form in plugin.values]
    return (*own_formats(), *sorted(added, key=lambda f: (f.priority, f.name)))


def text_formats() -> tuple[TextFormat, ...]:
    """The formats that claim lines or blocks."""
    return tuple(f for f in all_formats() if isinstance(f, TextFormat))


def document_formats() -> tuple[DocumentFormat, ...]:
    """The formats that claim whole files."""
    return tuple(f for f in all_formats() if isinstance(f, DocumentFormat))
