"""`analyze`: the main job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nccl_forensics.commands.caching import cache_options, chosen_cache
from nccl_forensics.commands.output import make_folder, progress_bar, width, write
from nccl_forensics.errors import OutputError

if TYPE_CHECKING:
    from nccl_forensics.api import Incident
    from nccl_forensics.reporters.base import Reporter


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
@click.option(
    "--report",
    "reports",
    metavar="NAME=F",
    multiple=True,
    help="Write the report of this name to F: html, markdown, json, or one that an extension brings (`plugins` lists them).",
)
@click.option("--tables", type=click.Path(file_okay=False, path_type=Path), help="Write every table as parquet into this folder.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file with thresholds and suppressions.")
@cache_options
@click.option("--quiet", is_flag=True, help="No progress and no verdict on the terminal.")
@click.option("--no-color", is_flag=True, help="No colour (NO_COLOR is honoured too).")
def analyze(
    evidence: tuple[str, ...],
    output: Path | None,
    html_file: str | None,
    markdown_file: str | None,
    json_file: str | None,
    reports: tuple[str, ...],
    tables: Path | None,
    config: Path | None,
    no_cache: bool,
    cache_dir: Path | None,
    cache_size: int,
    quiet: bool,
    no_color: bool,
) -> None:
    """Analyse folders, archives (nested too), single files, or '-' for an archive on standard input."""
    from nccl_forensics import api
    from nccl_forensics.config import Config, load
    from nccl_forensics.reporters import html, json_report, markdown, terminal

    wanted = [_named(report) for report in reports]
    configured = load(config) if config is not None else Config()
    if output is not None:
        make_folder(output)
    incident = api.analyze(
        evidence,
        cache=chosen_cache(no_cache, cache_dir, cache_size),
        overrides=configured.thresholds,
        suppressions=configured.suppressions,
        tables=tables or (output / "tables" if output is not None else None),
        progress=progress_bar(quiet),
    )
    to_stdout = "-" in (html_file, markdown_file, json_file, *(target for _, target in wanted))
    if json_file or output is not None:
        content = json_report.render(incident.report)
        write(json_file, content)
        write(output / "report.json" if output else None, content)
    if markdown_file or output is not None:
        text = markdown.render(incident.report, incident.extras).encode()
        write(markdown_file, text)
        write(output / "postmortem.md" if output else None, text)
    if html_file or output is not None:
        page = html.render(incident.report, incident.extras).encode()
        write(html_file, page)
        write(output / "postmortem.html" if output else None, page)
    if not quiet and not to_stdout:
        color = not no_color and "NO_COLOR" not in os.environ and sys.stdout.isatty()
        click.echo(terminal.render(incident.report, incident.extras, color=color, width=width()), color=color)
        if output is not None:
            click.echo(f"\npostmortem: {output / 'postmortem.html'}")
    failed = [problem for reporter, target in wanted if (problem := _write_report(reporter, target, incident)) is not None]
    if failed:
        raise OutputError("; ".join(failed))


def _named(given: str) -> tuple[Reporter, str]:
    """Reporter and file of ``NAME=F``. Raises ``click.UsageError``."""
    import difflib

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


def _write_report(reporter: Reporter, target: str, incident: Incident) -> str | None:
    """Write one report; what an extension's reporter raises is returned as words, when all else has been written."""
    try:
        made = reporter.render(incident.report, incident.extras)
        content = made.encode() if isinstance(made, str) else bytes(made)
    except Exception as problem:
        return f"{target}: report {reporter.name!r} could not be made: {type(problem).__name__}: {problem}"
    write(target, content)
    return None
