"""Where results go: files written whole or not at all, standard output, and progress on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click

from nccl_forensics.aside import written_aside
from nccl_forensics.errors import OutputError
from nccl_forensics.reading import remote

_BAR = 30
#: The option of the commands that write reports.
redact_option = click.option(
    "--redact",
    type=click.Choice(["secrets", "identity"]),
    default="secrets",
    show_default=True,
    help="What no output shows: secrets alone, or with 'identity' hosts, users, jobs, addresses and paths too (pseudonyms stand for them).",
)


def make_folder(folder: Path) -> None:
    """Make an output folder. Raises ``OutputError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OutputError(f"{folder}: cannot be written: {problem.strerror}") from problem


def write(target: str | Path | None, content: bytes) -> None:
    """Write a whole file or nothing; ``-`` is standard output, ``None`` nowhere, a URL an object. Raises ``OutputError``."""
    if target is None:
        return
    if str(target) == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    if remote.is_url(target):
        remote.write(str(target), content)
        return
    path = Path(target)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device or pipe such as /dev/null, which must not be replaced by a file
            return
        with written_aside(path) as partial:
            partial.write_bytes(content)
    except OSError as problem:
        raise OutputError(f"{path}: cannot be written: {problem.strerror}") from problem


def width() -> int:
    """Columns of the terminal, between 60 and 120."""
    return max(60, min(120, shutil.get_terminal_size((100, 40)).columns))


def progress_bar(quiet: bool) -> Callable[[str, int, int], None] | None:
    """A progress callback for `api.analyze` that writes to standard error; ``None`` where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(stage: str, done: int, total: int) -> None:
        filled = _BAR * done // total if total else _BAR
        end = "\n" if done >= total else ""
        click.echo(f"\r{stage} {'━' * filled}{'─' * (_BAR - filled)} {done:,}/{total:,}{end}", nl=False, err=True)

    return show
