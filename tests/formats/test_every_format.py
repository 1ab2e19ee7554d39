"""What every format must have: a fixture of its own that it reads, and tables that exist."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from nccl_forensics.formats import all_formats
from nccl_forensics.formats.base import Format
from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.tables import TABLES
from tests.corpus import ROOT

FIXTURES = ROOT / "fixtures"


def content(file: Path) -> bytes:
    """The bytes of a fixture; a script of SQL stands for the database that it makes."""
    if file.suffix != ".sql":
        return file.read_bytes()
    connection = sqlite3.connect(":memory:")
    connection.executescript(file.read_text(encoding="utf-8"))
    connection.commit()
    data = connection.serialize()
    connection.close()
    return data


@cache
def readings() -> dict[str, list[tuple[Path, SourceReading]]]:
    """Fixtures by the format that got something out of them."""
    found: dict[str, list[tuple[Path, SourceReading]]] = defaultdict(list)
    for file in sorted(FIXTURES.rglob("*")):
        if file.is_file() and "incidents" not in file.parts and file.name != "README.md":
            reading = read_source(content(file))
            for name in reading.filled:
                found[name].append((file, reading))
    return found


@pytest.mark.parametrize("form", all_formats(), ids=lambda f: f.name)
def test_a_format_has_a_fixture_that_it_reads(form: Format) -> None:
    own = readings()[form.name]
    assert own, f"no file below fixtures/ is read by {form.name}"
    assert set(form.tables) <= set(TABLES)
    assert any(set(form.tables) & set(reading.frames) for _, reading in own)


def test_every_fixture_stands_beside_a_note_on_how_it_was_made() -> None:
    folders = {f.parent for f in FIXTURES.rglob("*") if f.is_file() and "incidents" not in f.parts}
    assert not [str(f.relative_to(ROOT)) for f in folders if not (f / "README.md").exists()]
