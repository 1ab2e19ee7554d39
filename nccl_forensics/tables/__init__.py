"""The tables that formats fill and views read, found by walking this folder (``TABLES`` of each module)."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache

from nccl_forensics.plugins import Plugin, Unacceptable, gathered, load
from nccl_forensics.tables.base import Table

#: Tables of extensions bear this at the start of their names, so that no table of the program ever takes one of them.
EXTENSION = "x_"


def _all() -> dict[str, Table]:
    found: dict[str, Table] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        for table in getattr(importlib.import_module(f"{__name__}.{info.name}"), "TABLES", ()):
            found[table.name] = table
    return found


TABLES: dict[str, Table] = _all()


@cache
def third_party() -> tuple[Plugin[Table], ...]:
    """Tables of extensions, which this adds to ``TABLES`` when it is first called.

    Not while this package is imported: an extension whose formats and tables stand in one module imports it itself.
    """
    taken = set(TABLES)

    def accept(held: object) -> list[Table]:
        tables = gathered(held, Table, ("TABLES",))
        for table in tables:
            if not re.fullmatch(f"{EXTENSION}[a-z0-9_]+", table.name):
                raise Unacceptable(f"table {table.name!r}: names of an extension's tables start with {EXTENSION!r} (a-z, 0-9 and _)")
            if table.name in taken:
                raise Unacceptable(f"table {table.name!r} is there already")
            if not {"line_no", "record"} & table.columns.keys():
                raise Unacceptable(f"table {table.name!r} has neither 'line_no' nor 'record': its rows could not be cited")
            taken.add(table.name)
        return tables

    found = load("tables", accept)
    TABLES.update((table.name, table) for plugin in found for table in plugin.values)
    return found


__all__ = ["EXTENSION", "TABLES", "Table", "third_party"]
