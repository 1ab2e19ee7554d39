"""``--report NAME=F``: reports by name, those of extensions among them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from nccl_forensics.commands.output import write
from nccl_forensics.errors import OutputError

if TYPE_CHECKING:
    from nccl_forensics.api import Incident
    from nccl_forensics.reporters.base import Reporter


def named_reports(given: Sequence[str]) -> list[tuple[Reporter, str]]:
    """Reporter and file of each ``NAME=F``. Raises ``click.UsageError``."""
    return [_named(one) for one in given]


def _named(given: str) -> tuple[Reporter, str]:
    from nccl_forensics.extensions import broken
    from nccl_forensics.reporters.base import all_reporters

    name, _, target = given.partition("=")
    known = all_reporters()
    if name in known and target:
        return known[name], target
    if name in known:
        raise click.UsageError(f"--report {given}: say where to: --report {name}=FILE")
    near = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(known))}"
    raise click.UsageError("\n".join([f"no report {name!r}{hint}", *broken()]))


def write_reports(wanted: Sequence[tuple[Reporter, str]], incident: Incident) -> None:
    """Write them all; one that an extension's reporter cannot make costs its own file. Raises ``OutputError`` when the others are
    written."""
    failed = [problem for reporter, target in wanted if (problem := _write(reporter, target, incident)) is not None]
    if failed:
        raise OutputError("; ".join(failed))


def _write(reporter: Reporter, target: str, incident: Incident) -> str | None:
    try:
        made = reporter.render(incident.report, incident.extras)
        content = made.encode() if isinstance(made, str) else bytes(made)
    except Exception as problem:
        return f"{target}: report {reporter.name!r} could not be made: {type(problem).__name__}: {problem}"
    write(target, content)
    return None
