"""All formats, found by walking this folder: a module that defines ``FORMAT`` or ``FORMATS`` is one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from nccl_forensics.formats.base import DocumentFormat, Format, TextFormat


@cache
def all_formats() -> tuple[Format, ...]:
    """Every format in reading order (priority, then name)."""
    found: list[Format] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found.extend(getattr(module, "FORMATS", ()))
        if hasattr(module, "FORMAT"):
            found.append(module.FORMAT)
    return tuple(sorted(found, key=lambda f: (f.priority, f.name)))


def text_formats() -> tuple[TextFormat, ...]:
    """The formats that claim lines or blocks."""
    return tuple(f for f in all_formats() if isinstance(f, TextFormat))


def document_formats() -> tuple[DocumentFormat, ...]:
    """The formats that claim whole files."""
    return tuple(f for f in all_formats() if isinstance(f, DocumentFormat))
