"""`analyze`: the main job."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nccl_forensics.commands.caching import cache_options, chosen_cache
from nccl_forensics.commands.output import make_folder, progress_bar, width, write
from nccl_forensics.errors import LimitReached, UnusableEvidence, UsageError

if TYPE_CHECKING:
    from nccl_forensics.api import Incident


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where the results go."""

    folder: Path | None
    html: str | None
    markdown: str | None
    json: str | None
    tables: Path | None

    @property
    def to_stdout(self) -> bool:
        return "-" in (self.html, self.markdown, self.json)

    @property
    def places(self) -> list[Path]:
        return [Path(p) for p in (self.folder, self.html, self.markdown, self.json, self.tables) if p is not None]

    def write(self, incident: Incident) -> None:
        """Write what was asked for. Raises ``OutputError``."""
        from nccl_forensics.reporters import html, json_report, markdown

        if self.json or self.folder is not None:
            self._put(self.json, "report.json", json_report.render(incident.report))
        if self.markdown or self.folder is not None:
            self._put(self.markdown, "postmortem.md", markdown.render(incident.report, incident.extras).encode())
        if self.html or self.folder is not None:
            self._put(self.html, "postmortem.html", html.render(incident.report, incident.extras).encode())

    def _put(self, file: str | None, name: str, content: bytes) -> None:
        write(file, content)
        write(self.folder / name if self.folder is not None else None, content)


@click.command()
@click.argument("evidence", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for postmortem.html, postmortem.md, report.json and tables/.",
)
@click.option("--html", "html_file", metavar="F", help="Write the HTML postmortem to F ('-' for standard output).")
@click.option("--markdown", "markdown_file", metavar="F", help="Write the Markdown postmortem to F ('-' for standard output).")
@click.option("--json", "json_file", metavar="F", help="Write report.json to F ('-' for standard output).")
@click.option("--tables", type=click.Path(file_okay=False, path_type=Path), help="Write every table as parquet into this folder.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file with thresholds and suppressions.")
@click.option(
    "--watch", is_flag=True, help="Go on: analyse again when files changed and stand still, and print what changed in the verdict."
)
@click.option("--settle", type=click.FloatRange(0.1), default=3.0, show_default=True, metavar="SECONDS",
              help="With --watch: how long no file must have changed.")  # fmt: skip
@cache_options
@click.option("--quiet", is_flag=True, help="No progress and no verdict on the terminal.")
@click.option("--no-color", is_flag=True, help="No colour (NO_COLOR is honoured too).")
def analyze(
    evidence: tuple[str, ...],
    output: Path | None,
    html_file: str | None,
    markdown_file: str | None,
    json_file: str | None,
    tables: Path | None,
    config: Path | None,
    watch: bool,
    settle: float,
    no_cache: bool,
    cache_dir: Path | None,
    cache_size: int,
    quiet: bool,
    no_color: bool,
) -> None:
    """Analyse folders, archives (nested too), single files, or '-' for an archive on standard input."""
    from nccl_forensics import api
    from nccl_forensics.config import Config, load
    from nccl_forensics.reporters import terminal

    configured = load(config) if config is not None else Config()
    outputs = _Outputs(output, html_file, markdown_file, json_file, tables or (output / "tables" if output is not None else None))
    if watch:
        _refuse(evidence, outputs)
    if output is not None:
        make_folder(output)
    color = not no_color and "NO_COLOR" not in os.environ and sys.stdout.isatty()
    with ExitStack() as own:
        cache = chosen_cache(no_cache, cache_dir, cache_size)
        if cache is None and watch and not no_cache:
            from nccl_forensics.cache import open_cache

            cache, _ = open_cache(Path(own.enter_context(tempfile.TemporaryDirectory(prefix="nccl-forensics-"))), cache_size)

        def once() -> Incident:
            incident = api.analyze(
                evidence,
                cache=cache,
                overrides=configured.thresholds,
                suppressions=configured.suppressions,
                tables=outputs.tables,
                progress=progress_bar(quiet),
            )
            outputs.write(incident)
            return incident

        def show(incident: Incident) -> None:
            if not quiet and not outputs.to_stdout:
                click.echo(terminal.render(incident.report, incident.extras, color=color, width=width()), color=color)
                if output is not None:
                    click.echo(f"\npostmortem: {output / 'postmortem.html'}")

        if watch:
            _watch(evidence, once, show, settle, quiet)
        else:
            show(once())


def _refuse(evidence: tuple[str, ...], outputs: _Outputs) -> None:
    """What cannot be watched. Raises ``UsageError``."""
    if "-" in evidence:
        raise UsageError("--watch: standard input can be read only once")
    if outputs.to_stdout:
        raise UsageError("--watch: reports go to files, standard output tells what changed")
    for place in outputs.places:
        for watched in map(Path, evidence):
            if watched.resolve() in (place.resolve(), *place.resolve().parents):
                raise UsageError(f"--watch: {place} lies inside {watched}, which is watched")


def _watch(evidence: tuple[str, ...], once: Callable[[], Incident], show: Callable[[Incident], None], settle: float, quiet: bool) -> None:
    """Analyse until interrupted. Evidence that cannot be used yet is waited for."""
    from nccl_forensics.watching import Pace, State, files_changed, look, rounds, verdict_changes

    if not quiet:
        click.echo(f"watching {', '.join(evidence)} (Ctrl-C ends)", err=True)
    files: State = {}
    report: dict[str, object] | None = None
    for state in rounds(lambda: look(evidence), time.sleep, time.monotonic, Pace(min(1.0, settle), settle)):
        told, files = files_changed(files, state), state
        try:
            incident = once()
        except (UnusableEvidence, LimitReached) as problem:
            if not quiet:
                click.echo(f"{told}; not yet: {problem}")
            continue
        before, report = report, incident.report
        lines = verdict_changes(before, report) if before is not None else ()
        if not quiet and before is not None:
            click.echo(f"{told}; " + ("the verdict is the same" if not lines else "what changed:"))
            for line in lines:
                click.echo(f"  {line}")
        if before is None or any(line.startswith(("status", "cause", "culprits")) for line in lines):
            show(incident)
        del incident  # its tables may be large, and the next round makes its own


__all__ = ["analyze"]
