"""The tables that formats fill and views read, found by walking this folder (``TABLES`` of each module)."""

from __future__ import annotations

import importlib
import pkgutil

from nccl_forensics.tables.base import Table


def _all() -> dict[str, Table]:
    found: dict[str, Table] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        for table in getattr(importlib.import_module(f"{__name__}.{info.name}"), "TABLES", ()):
            found[table.name] = table
    return found


TABLES: dict[str, Table] = _all()

__all__ = ["TABLES", "Table"]
