"""What tests of the upload page share. They leave no file of theirs open: Python 3.13 and later warn of a database that nobody closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from nccl_forensics.serve.database import Database
from tests.serve.running import Running, running, tarball


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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that asks nobody for a token, one for all tests of a module."""
    with running(tmp_path_factory.mktemp("serve") / "data") as service:
        yield service


@pytest.fixture(scope="module")
def done(service: Running) -> str:
    """An incident that was uploaded as scripts do it, and read."""
    identifier = service.upload(("incident.tar.gz", tarball("skipped-collective-8r")), title="step 4200 hang", job="llm-70b")
    assert service.wait(identifier)["status"] == "done"
    return identifier
