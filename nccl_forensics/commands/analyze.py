"""`analyze`: the main job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from nccl_forensics.commands.output import make_folder, progress_bar, width, write


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
    quiet: bool,
    no_color: bool,
) -> None:
    """Analyse folders, archives (nested too), single files, or '-' for an archive on standard input."""
    from nccl_forensics import api
    from nccl_forensics.config import Config, load
    from nccl_forensics.reporters import html, json_report, markdown, terminal

    configured = load(config) if config is not None else Config()
    if output is not None:
        make_folder(output)
    incident = api.analyze(
        evidence,
        overrides=configured.thresholds,
        suppressions=configured.suppressions,
        tables=tables or (output / "tables" if output is not None else None),
        progress=progress_bar(quiet),
    )
    to_stdout = "-" in (html_file, markdown_file, json_file)
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
