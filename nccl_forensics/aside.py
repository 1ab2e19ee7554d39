"""Files that are there whole or not at all: written under a name of their own and renamed when they are complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A place beside ``path`` to write to; it takes the place of ``path`` at the end, and is removed if anything is raised.

    The name holds the process's number, so that runs at the same time do not write into each other's file.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
