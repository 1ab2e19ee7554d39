"""Options of every command that reads evidence: whether and where the tables that were read are kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from nccl_forensics.cache import Cache

_Command = TypeVar("_Command", bound=Callable[..., object])
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType[int]):
    """A number of bytes such as ``500M`` or ``4G`` (powers of 1024)."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is no size such as 500M or 4G", param, ctx)
        return int(float(found[1]) * _UNITS[found[2].upper()])


def cache_options(command: _Command) -> _Command:
    """Adds ``--no-cache``, ``--cache-dir`` and ``--cache-size``."""
    for option in (
        click.option(
            "--cache-size",
            type=Size(),
            default="4G",
            show_default=True,
            envvar="NCCL_FORENSICS_CACHE_SIZE",
            help="Bound on what is kept; the least recently used goes first.",
        ),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False, path_type=Path),
            envvar="NCCL_FORENSICS_CACHE_DIR",
            help="Where tables that were read are kept for the next time.  [default: $XDG_CACHE_HOME/nccl-forensics]",
        ),
        click.option("--no-cache", is_flag=True, envvar="NCCL_FORENSICS_NO_CACHE", help="Read everything anew and keep nothing."),
    ):
        command = option(command)
    return command


def chosen_cache(no_cache: bool, cache_dir: Path | None, cache_size: int) -> Cache | None:
    """The cache that the options ask for. Where there can be none, all is read; that is said only where one was asked for."""
    if no_cache:
        return None
    from nccl_forensics.cache import open_cache

    found, why = open_cache(cache_dir, cache_size)
    if why is not None and cache_dir is not None:
        click.echo(f"nccl-forensics: tables are not kept: {why}", err=True)
    return found
