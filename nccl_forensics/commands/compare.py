"""`compare`: two runs side by side."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nccl_forensics.commands.output import make_folder, progress_bar, redact_option, width, write
from nccl_forensics.commands.reading import means, reading_options

if TYPE_CHECKING:
    from nccl_forensics.redaction import Level


@click.command()
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for comparison.html, comparison.md and comparison.json.",
)
@click.option("--html", "html_file", metavar="F", help="Write the comparison as HTML to F ('-' for standard output).")
@click.option("--markdown", "markdown_file", metavar="F", help="Write it as Markdown to F ('-' for standard output).")
@click.option("--json", "json_file", metavar="F", help="Write it as JSON to F ('-' for standard output).")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file with thresholds.")
@redact_option
@reading_options
@click.option("--quiet", is_flag=True, help="No progress and nothing on the terminal.")
@click.option("--no-color", is_flag=True, help="No colour (NO_COLOR is honoured too).")
def compare(
    before: str,
    after: str,
    output: Path | None,
    html_file: str | None,
    markdown_file: str | None,
    json_file: str | None,
    config: Path | None,
    redact: Level,
    quiet: bool,
    no_color: bool,
) -> None:
    """Lay two runs side by side: what got slower, what fell back, what changed in the environment.

    BEFORE and AFTER are folders, archives or single files, as for `analyze`, or what it wrote: a report.json, or the folder of -o.
    """
    from nccl_forensics import api
    from nccl_forensics.config import Config, load
    from nccl_forensics.reporters import comparison_html, comparison_json, comparison_markdown, comparison_terminal

    configured = load(config) if config is not None else Config()
    if output is not None:
        make_folder(output)
    read = means(limits=configured.limits)
    compared = api.compare(
        before,
        after,
        engine=read.engine,
        cache=read.cache,
        scratch=read.scratch,
        limits=read.limits,
        overrides=configured.thresholds,
        redact=redact,
        progress=progress_bar(quiet),
    ).differences
    for name, file, render in (
        ("comparison.json", json_file, comparison_json.render),
        ("comparison.md", markdown_file, comparison_markdown.render),
        ("comparison.html", html_file, comparison_html.render),
    ):
        if file or output is not None:
            content = render(compared)
            write(file, content)
            write(output / name if output else None, content)
    if not quiet and "-" not in (html_file, markdown_file, json_file):
        color = not no_color and "NO_COLOR" not in os.environ and sys.stdout.isatty()
        click.echo(comparison_terminal.render(compared, color=color, width=width()), nl=False, color=color)
        if output is not None:
            click.echo(f"\ncomparison: {output / 'comparison.html'}")
