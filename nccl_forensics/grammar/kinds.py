"""Kinds of lines as grammars define them, and the file that holds all of them ready made.

To make them, Lark is loaded and reads the grammar, which takes longer than to read most sources. ``grammars/compiled.json`` holds, for each
``.lark`` file, the kinds that ``compiler`` made of it and the digest of its text: of one that was changed since, they do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import orjson

from nccl_forensics.resources import grammars_folder

COMPILED = "compiled.json"


class GrammarError(Exception):
    """A ``.lark`` file breaks the rules of this module: a mistake of its author, found by the tests."""


@dataclass(frozen=True, slots=True)
class LineKind:
    """One kind of line.

    ``pattern`` is valid for Rust's and Python's engines. A column that stands in several places has groups ``name``, ``name__2``, ...,
    at most one of which takes part in a match. ``anchors`` are words that every match contains. ``flat`` is false if parts repeat.
    ``openers`` are words at least one of which every match contains: they decide when the kind is tried. ``required`` is a column that
    every match fills, if there is one.
    """

    name: str
    pattern: str
    columns: tuple[str, ...]
    flat: bool
    anchors: tuple[str, ...]
    openers: tuple[str, ...]
    required: str | None


def ready_made(name: str, text: str) -> tuple[LineKind, ...] | None:
    """The kinds of a grammar of this text, where the file has them."""
    entry = _compiled().get(name)
    if entry is None or entry["sha256"] != _digest(text):
        return None
    return tuple(
        LineKind(
            kind["name"],
            kind["pattern"],
            tuple(kind["columns"]),
            kind["flat"],
            tuple(kind["anchors"]),
            tuple(kind["openers"]),
            kind["required"],
        )
        for kind in entry["kinds"]
    )


@cache
def _compiled() -> dict[str, Any]:
    try:
        return dict(orjson.loads((grammars_folder() / COMPILED).read_bytes()))
    except (OSError, ValueError):
        return {}


def compiled(grammars: Iterable[tuple[str, str, Iterable[LineKind]]]) -> str:
    """The text of the file, one line for each kind: names, texts and kinds of all grammars."""
    entries = []
    for name, text, kinds in grammars:
        lines = ",\n".join(orjson.dumps(asdict(kind)).decode() for kind in kinds)
        entries.append(f'"{name}": {{"sha256": "{_digest(text)}", "kinds": [\n{lines}\n]}}')
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
