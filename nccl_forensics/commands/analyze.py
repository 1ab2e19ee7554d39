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

from nccl_forensics.commands.named_reports import named_reports, write_reports
from nccl_forensics.commands.output import make_folder, progress_bar, redact_option, width, write
from nccl_forensics.commands.reading import means, reading_options
from nccl_forensics.errors import LimitReached, UnusableEvidence, UsageError
from nccl_forensics.reading import remote

if TYPE_CHECKING:
    from nccl_forensics.api import Incident
    from nccl_forensics.config import Config
    from nccl_forensics.redaction import Level


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where the results go. ``copies`` are folders that stand here for those in a store: copied there when they are written."""

    folder: Path | None
    html: str | None
    markdown: str | None
    json: str | None
    tables: Path | None
    copies: tuple[tuple[Path, str], ...] = ()

    @property
    def to_stdout(self) -> bool:
        return "-" in (self.html, self.markdown, self.json)

    @property
    def places(self) -> list[Path]:
        return [Path(p) for p in (self.folder, self.html, self.markdown, self.json, self.tables) if p is not None and not remote.is_url(p)]

    def write(self, incident: Incident) -> None:
        """Write what was asked for. Raises ``OutputError``."""
        if self.json or self.folder is not None:
            self._put(self.json, "report.json", incident.json())
        if self.markdown or self.folder is not None:
            self._put(self.markdown, "postmortem.md", incident.markdown().encode())
        if self.html or self.folder is not None:
            self._put(self.html, "postmortem.html", incident.html().encode())
        for folder, url in self.copies:
            remote.put_folder(folder, url)

    def _put(self, file: str | None, name: str, content: bytes) -> None:
        write(file, content)
        write(self.folder / name if self.folder is not None else None, content)


@click.command()
@click.argument("evidence", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    help="Folder (or URL) for postmortem.html, postmortem.md, report.json and tables/.",
)
@click.option("--html", "html_file", metavar="F", help="Write the HTML postmortem to F ('-' for standard output).")
@click.option("--markdown", "markdown_file", metavar="F", help="Write the Markdown postmortem to F ('-' for standard output).")
@click.option("--json", "json_file", metavar="F", help="Write report.json to F ('-' for standard output).")
@click.option(
    "--report",
    "reports",
    metavar="NAME=F",
    multiple=True,
    help="Write the report of this name to F: html, markdown, json, or one that an extension brings (`plugins` lists them).",
)
@click.option("--tables", type=click.Path(file_okay=False), help="Write every table as parquet into this folder (or URL).")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file with thresholds and suppressions.")
@click.option(
    "--watch", is_flag=True, help="Go on: analyse again when files changed and stand still, and print what changed in the verdict."
)
@click.option("--settle", type=click.FloatRange(0.1), default=3.0, show_default=True, metavar="SECONDS",
              help="With --watch: how long no file must have changed.")  # fmt: skip
@redact_option
@reading_options
@click.option("--quiet", is_flag=True, help="No progress and no verdict on the terminal.")
@click.option("--no-color", is_flag=True, help="No colour (NO_COLOR is honoured too).")
def analyze(
    evidence: tuple[str, ...],
    output: str | None,
    html_file: str | None,
    markdown_file: str | None,
    json_file: str | None,
    reports: tuple[str, ...],
    tables: str | None,
    config: Path | None,
    watch: bool,
    settle: float,
    redact: Level,
    quiet: bool,
    no_color: bool,
) -> None:
    """Analyse folders, archives (nested too), single files, or '-' for an archive on standard input."""
    from nccl_forensics import api

    named = named_reports(reports)
    configured = _configured(config)
    color = not no_color and "NO_COLOR" not in os.environ and sys.stdout.isatty()
    with ExitStack() as own:

        def folder() -> Path:
            return Path(own.enter_context(tempfile.TemporaryDirectory(prefix="nccl-forensics-")))

        outputs = _outputs(output, html_file, markdown_file, json_file, tables, folder)
        if watch:
            _refuse(evidence, outputs)
        if outputs.folder is not None:
            make_folder(outputs.folder)
        read = means(own_cache=folder() if watch else None, limits=configured.limits if configured is not None else None)

        shown = not quiet and not outputs.to_stdout and all(target != "-" for _, target in named)
        pictures = shown or bool(named) or any((outputs.folder, outputs.html, outputs.markdown))

        def once() -> Incident:
            incident = api.analyze(
                evidence,
                engine=read.engine,
                cache=read.cache,
                scratch=read.scratch,
                limits=read.limits,
                overrides=configured.thresholds if configured is not None else None,
                suppressions=configured.suppressions if configured is not None else (),
                tables=outputs.tables,
                redact=redact,
                progress=progress_bar(quiet),
                pictures=pictures,
            )
            outputs.write(incident)
            return incident

        def show(incident: Incident) -> None:
            if shown:
                from nccl_forensics.reporters import terminal

                click.echo(terminal.render(incident.report, incident.extras, color=color, width=width()), color=color)
                if output is not None:
                    click.echo(f"\npostmortem: {output.rstrip('/')}/postmortem.html")
            write_reports(named, incident)

        if watch:
            _watch(evidence, once, show, settle, quiet)
        else:
            show(once())


def _configured(file: Path | None) -> Config | None:
    """What a configuration file says. Raises ``UsageError``."""
    if file is None:
        return None
    from nccl_forensics.config import load

    return load(file)


def _outputs(
    output: str | None, html: str | None, markdown: str | None, json: str | None, tables: str | None, folder: Callable[[], Path]
) -> _Outputs:
    """The places that the options name; ``folder`` makes one that stands for a place in a store."""
    copies: list[tuple[Path, str]] = []

    def here(place: str | None) -> Path | None:
        if place is None or not remote.is_url(place):
            return Path(place) if place is not None else None
        copies.append((folder(), place))
        return copies[-1][0]

    whole = here(output)
    listed = here(tables) or (whole / "tables" if whole is not None else None)
    return _Outputs(whole, html, markdown, json, listed, tuple(copies))


def _refuse(evidence: tuple[str, ...], outputs: _Outputs) -> None:
    """What cannot be watched. Raises ``UsageError``."""
    if "-" in evidence:
        raise UsageError("--watch: standard input can be read only once")
    if any(map(remote.is_url, evidence)):
        raise UsageError("--watch: only files and folders can be watched")
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
