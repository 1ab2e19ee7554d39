"""What other packages added to this program, and what of it could not be taken: for the report and the lists."""

from __future__ import annotations

from nccl_forensics import formats, rules, tables
from nccl_forensics.plugins import Plugin
from nccl_forensics.reporters import base as reporters


def extensions() -> list[dict[str, object]]:
    """``report.json``'s ``plugins``: one row for each entry point, with the names that it brought or the reason why it brought none."""
    loaded: tuple[tuple[Plugin[object], tuple[str, ...]], ...] = (
        *((p, tuple(t.name for t in p.values)) for p in tables.third_party()),
        *((p, tuple(f.name for f in p.values)) for p in formats.third_party()),
        *((p, tuple(r.name for r in p.values)) for p in rules.third_party()),
        *((p, tuple(r.name for r in p.values)) for p in reporters.third_party()),
    )
    return [
        {
            "kind": plugin.kind,
            "name": plugin.name,
            "origin": plugin.origin,
            "brings": list(names),
            "status": "broken" if plugin.error is not None else "loaded",
            "error": plugin.error,
        }
        for plugin, names in loaded
    ]


def broken() -> list[str]:
    """One line for each extension that could not be loaded."""
    return [
        f"{row['origin']}: {row['kind']} {row['name']!r} is not used: {row['error']}" for row in extensions() if row["error"] is not None
    ]


def origins(kind: str) -> dict[str, str]:
    """Name of a table, format, rule or reporter to the distribution that brought it; without the program's own."""
    found: dict[str, str] = {}
    for row in extensions():
        names = row["brings"]
        if row["kind"] == kind and isinstance(names, list):
            found.update(dict.fromkeys(names, str(row["origin"])))
    return found
