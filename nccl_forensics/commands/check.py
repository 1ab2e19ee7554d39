"""`check`: the gate over archived runs."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from nccl_forensics.commands.output import progress_bar, redact_option, write
from nccl_forensics.commands.reading import means, reading_options
from nccl_forensics.model import SEVERITIES, Severity

if TYPE_CHECKING:
    from nccl_forensics.redaction import Level


def format_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Formats that continue a list separated by commas, for the shell."""
    from nccl_forensics.formats import all_formats

    before, comma, begun = incomplete.rpartition(",")
    return [CompletionItem(before + comma + f.name, help=f.title) for f in all_formats() if f.name.startswith(begun)]


@click.command()
@click.argument("evidence", nargs=-1, required=True, type=click.Path())
@click.option("--fail-on", type=click.Choice(SEVERITIES), help="Fail for findings of this severity and worse.  [default: error]")
@click.option(
    "--require",
    multiple=True,
    metavar="FORMAT,…",
    shell_complete=format_names,
    help="Fail (exit code 3) where evidence of one of these formats is absent; may be repeated.",
)
@click.option(
    "--baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="REPORT.json",
    help="report.json of a good run: fail for regressions.",
)
@click.option("--allow-insufficient", is_flag=True, help="Do not fail where the evidence is not enough to say anything.")
@click.option("--junit", metavar="F", help="Write JUnit XML to F ('-' for standard output).")
@click.option("--sarif", metavar="F", help="Write SARIF 2.1.0 to F ('-' for standard output).")
@click.option("--github", is_flag=True, help="Print annotations of GitHub Actions.")
@click.option("--json", "json_file", metavar="F", help="Write report.json to F: the baseline of later checks.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="F",
    help="Configuration file.  [default: nccl-forensics.toml, or pyproject.toml with [tool.nccl-forensics]]",
)
@click.option(
    "--today",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="The day by which suppressions expire.  [default: the newest day in the evidence]",
)
@redact_option
@reading_options
@click.option("--quiet", is_flag=True, help="No progress, and nothing on standard output but what was asked for.")
@click.option("--no-color", is_flag=True, help="No colour (NO_COLOR is honoured too).")
def check(
    evidence: tuple[str, ...],
    fail_on: str | None,
    require: tuple[str, ...],
    baseline: Path | None,
    allow_insufficient: bool,
    junit: str | None,
    sarif: str | None,
    github: bool,
    json_file: str | None,
    config: Path | None,
    today: datetime | None,
    redact: Level,
    quiet: bool,
    no_color: bool,
) -> None:
    """Fail where an archived run shows a fault, or falls behind the report of a good run.

    Exit codes: 0 passed; 1 a finding at or above --fail-on, a regression, a failure without a proved cause, or too little evidence;
    2 wrong options or configuration; 3 unusable or required evidence is absent; 70 a rule crashed.
    """
    from nccl_forensics import api
    from nccl_forensics import config as configuration
    from nccl_forensics.errors import ForensicsError
    from nccl_forensics.gate import Demands
    from nccl_forensics.reporters import annotations, gate_text, json_report
    from nccl_forensics.reporters import junit as junit_report
    from nccl_forensics.reporters import sarif as sarif_report
    from nccl_forensics.rules import all_rules

    file = config or configuration.discover(Path.cwd())
    configured = configuration.load(file) if file is not None else configuration.Config()
    wanted = [name.strip() for names in require for name in names.split(",") if name.strip()]
    required = configuration.formats(wanted, "--require")
    severity: Severity | None = next((s for s in SEVERITIES if s == fail_on), None) if fail_on else None
    demands = Demands(
        severity or configured.fail_on or "error",
        tuple(dict.fromkeys((*configured.require, *required))),
        allow_insufficient or configured.allow_insufficient,
        configured.suppressions,
        configured.tolerance,
    )
    read = means(limits=configured.limits)
    try:
        gate, incident = api.check(
            evidence,
            demands,
            baseline=baseline or configured.baseline,
            engine=read.engine,
            cache=read.cache,
            scratch=read.scratch,
            limits=read.limits,
            overrides=configured.thresholds,
            today=today.date() if today is not None else None,
            redact=redact,
            progress=progress_bar(quiet),
        )
    except ForensicsError as problem:
        if problem.exit_code in (3, 4):
            write(junit, junit_report.render_error(", ".join(evidence), str(problem)))
            if github:
                click.echo(annotations.render_error(str(problem)), nl=False)
        raise
    write(json_file, json_report.render(incident.report))
    write(junit, junit_report.render(gate))
    if sarif is not None:
        write(sarif, sarif_report.render(gate, {r.name: (r.title, r.page) for r in all_rules()}))
    if not quiet and "-" not in (junit, sarif, json_file):
        color = not no_color and "NO_COLOR" not in os.environ and sys.stdout.isatty()
        click.echo(gate_text.render(gate, color=color), nl=False, color=color)
    if github:
        click.echo(annotations.render(gate), nl=False)
    sys.exit(gate.exit_code)
