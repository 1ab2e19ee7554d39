"""Tests of the upload page leave no file of theirs open: Python 3.13 and later warn of a database that nobody closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from nccl_forensics.serve.database import Database


@pytest.fixture(autouse=True)
def _databases_are_closed() -> Iterator[None]:
    opened: list[Database] = []
    real = Database.__init__

    def init(self: Database, file: Path) -> None:
        real(self, file)
        opened.append(self)

    with pytest.MonkeyPatch.context() as own:  # a test that undoes its own changes must not undo this one
        own.setattr(Database, "__init__", init)
        yield
    for database in opened:
        database.close()
