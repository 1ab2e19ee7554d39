"""Options of every command that reads evidence: by what engine, in what scratch folder, and what is kept for the next time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from nccl_forensics.errors import OutputError, UsageError
from nccl_forensics.limits import SETTINGS, UNITS, Limits, changed

if TYPE_CHECKING:
    from nccl_forensics.cache import Cache
    from nccl_forensics.reading.engine import Engine

_Command = TypeVar("_Command", bound=Callable[..., object])
_META = "nccl_forensics.reading.source"


class Size(click.ParamType[int]):
    """A number of bytes such as ``500M`` or ``4G`` (powers of 1024)."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is no size such as 500M or 4G", param, ctx)
        return int(float(found[1]) * UNITS[found[2].upper()])


@dataclass(frozen=True, slots=True)
class Means:
    """How evidence is read. ``engine`` None is the default one; where ``cache`` is None nothing is kept."""

    engine: Engine | None
    cache: Cache | None
    scratch: Path | None
    limits: Limits


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    ctx.meta.setdefault(_META, {})[param.name] = value


def reading_options(command: _Command) -> _Command:
    """Adds the options; ``means`` tells what was asked for, so that commands do not pass them on one by one."""
    for option in (
        click.option(
            "--scratch",
            metavar="DIR|URL",
            expose_value=False,
            callback=_keep,
            help="Where archives are unpacked and big tables lie; with --engine ray best on a file system that all nodes share, "
            "or a URL for the tables.  [default: the system's folder for temporary files]",
        ),
        click.option(
            "--address",
            metavar="HOST:PORT",
            expose_value=False,
            callback=_keep,
            help="With --engine ray: the cluster.  [default: $RAY_ADDRESS, else one is started on this machine]",
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            expose_value=False,
            callback=_keep,
            help="Read in processes of this machine, or as tasks of a Ray cluster.",
        ),
        click.option(
            "--cache-size",
            type=Size(),
            default="4G",
            show_default=True,
            envvar="NCCL_FORENSICS_CACHE_SIZE",
            expose_value=False,
            callback=_keep,
            help="Bound on what is kept; the least recently used goes first.",
        ),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False, path_type=Path),
            envvar="NCCL_FORENSICS_CACHE_DIR",
            expose_value=False,
            callback=_keep,
            help="Where tables that were read are kept for the next time.  [default: $XDG_CACHE_HOME/nccl-forensics]",
        ),
        click.option(
            "--limit",
            multiple=True,
            metavar="NAME=VALUE",
            expose_value=False,
            callback=_keep,
            help=f"A bound on what the evidence may cost; may be repeated. Names: {', '.join(SETTINGS)}.",
        ),
        click.option(
            "--no-cache",
            is_flag=True,
            envvar="NCCL_FORENSICS_NO_CACHE",
            expose_value=False,
            callback=_keep,
            help="Read everything anew and keep nothing.",
        ),
    ):
        command = option(command)
    return command


def means(*, own_cache: Path | None = None, limits: Limits | None = None) -> Means:
    """What the options of the running command ask for. Raises ``UsageError`` and ``OutputError``.

    Where there can be no cache, all is read; that is said only where one was asked for. ``own_cache`` is then used instead, unless the
    options want none at all. ``limits`` are those of the configuration; the options go before them.
    """
    asked = click.get_current_context().meta[_META]
    scratch = asked["scratch"]
    bounds = changed(limits or Limits(), dict(_pair(text) for text in asked["limit"]), "--limit")
    return Means(_engine(asked["engine"], asked["address"], scratch, bounds), _cache(asked, own_cache), _folder(scratch), bounds)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--limit: {text!r} is not NAME=VALUE")
    return name.strip(), value


def _cache(asked: dict[str, object], own: Path | None) -> Cache | None:
    if asked["no_cache"]:
        return None
    from nccl_forensics.cache import open_cache

    folder, size = asked["cache_dir"], asked["cache_size"]
    assert folder is None or isinstance(folder, Path)
    assert isinstance(size, int)
    found, why = open_cache(folder, size)
    if why is not None and folder is not None:
        click.echo(f"nccl-forensics: tables are not kept: {why}", err=True)
    return found if found is not None or own is None else open_cache(own, size)[0]


def _engine(name: str, address: str | None, scratch: str | None, limits: Limits) -> Engine | None:
    from nccl_forensics.reading.remote import is_url

    store = scratch if scratch is not None and is_url(scratch) else None
    if name == "ray":
        from nccl_forensics.reading.ray_engine import RayEngine

        return RayEngine(address=address, store=store, memory_bytes=limits.source_memory_bytes, seconds_per_source=limits.source_seconds)
    if address is not None:
        raise UsageError("--address goes with --engine ray")
    if store is not None:
        raise UsageError("--scratch: a URL goes with --engine ray")
    return None


def _folder(scratch: str | None) -> Path | None:
    from nccl_forensics.reading.remote import is_url

    if scratch is None or is_url(scratch):
        return None
    folder = Path(scratch)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OutputError(f"{folder}: cannot be written: {problem.strerror}") from problem
    return folder


__all__ = ["Means", "Size", "means", "reading_options"]
