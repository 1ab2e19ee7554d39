"""The command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from nccl_forensics import __version__
from nccl_forensics.errors import ForensicsError, OutputError

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="nccl-forensics")
def cli() -> None:
    """Say which rank, host and collective broke a distributed training job, with proof.

    Hand it whatever was gathered: nccl-forensics analyze incident.tar.gz -o out
    """


@cli.command()
@click.argument("evidence", nargs=-1, required=True)
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
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file with thresholds.")
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
    from nccl_forensics.config import thresholds
    from nccl_forensics.reporters import html, json_report, markdown, terminal

    overrides = thresholds(config) if config is not None else None
    if output is not None:
        _folder(output)
    incident = api.analyze(
        evidence, overrides=overrides, tables=tables or (output / "tables" if output is not None else None), progress=_progress(quiet)
    )
    to_stdout = "-" in (html_file, markdown_file, json_file)
    if json_file or output is not None:
        content = json_report.render(incident.report)
        _write(json_file, content)
        _write(output / "report.json" if output else None, content)
    if markdown_file or output is not None:
        text = markdown.render(incident.report, incident.extras).encode()
        _write(markdown_file, text)
        _write(output / "postmortem.md" if output else None, text)
    if html_file or output is not None:
        page = html.render(incident.report, incident.extras).encode()
        _write(html_file, page)
        _write(output / "postmortem.html" if output else None, page)
    if not quiet and not to_stdout:
        color = not no_color and "NO_COLOR" not in os.environ and sys.stdout.isatty()
        click.echo(terminal.render(incident.report, incident.extras, color=color, width=_width()), color=color)
        if output is not None:
            click.echo(f"\npostmortem: {output / 'postmortem.html'}")


@cli.command()
def formats() -> None:
    """What can be read."""
    from nccl_forensics.formats import all_formats

    for f in all_formats():
        click.echo(f"{f.name:24} {f.title}")


@cli.command()
def rules() -> None:
    """What is checked."""
    from nccl_forensics.rules import all_rules

    for r in all_rules():
        click.echo(f"{r.code}  {r.name:24} {r.severity:9} {r.title}")


@cli.command()
@click.argument("name")
def rule(name: str) -> None:
    """One rule's page, with its inputs and thresholds."""
    import difflib

    from nccl_forensics.rules import all_rules

    known = {key: r for r in all_rules() for key in (r.name, r.code)}
    found = known.get(name) or known.get(name.replace("_", "-"))
    if found is None:
        near = difflib.get_close_matches(name, sorted(known), n=1)
        raise click.UsageError(f"no rule {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    click.echo(f"{found.code} {found.name} (cause: {found.cause}, severity: {found.severity})\n\n{found.page}\n")
    click.echo(f"Reads: {', '.join(found.inputs.names)}")
    for t in found.inputs.thresholds:
        click.echo(f"Threshold {t.name} = {t.default}: {t.meaning}")


@cli.command()
def tables() -> None:
    """What tables there are and their columns."""
    from nccl_forensics.tables import TABLES

    for table in TABLES.values():
        click.echo(f"{table.name}: {table.doc}")
        for column, (dtype, meaning) in table.columns.items():
            click.echo(f"    {column:24} {dtype!s:16} {meaning}")


def _folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OutputError(f"{folder}: cannot be written: {problem.strerror}") from problem


def _write(target: str | Path | None, content: bytes) -> None:
    if target is None:
        return
    if str(target) == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {problem.strerror}") from problem


def _width() -> int:
    import shutil

    return max(60, min(120, shutil.get_terminal_size((100, 40)).columns))


def _progress(quiet: bool):  # type: ignore[no-untyped-def]
    if quiet or not sys.stderr.isatty():
        return None

    def show(stage: str, done: int, total: int) -> None:
        end = "\n" if done == total else ""
        click.echo(f"\r{stage}: {done}/{total}{end}", nl=False, err=True)

    return show


def main() -> None:
    """Run the command line with the exit codes of the contract."""
    import signal

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as left:
        sys.exit(left.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as problem:
        problem.show()
        sys.exit(2)
    except ForensicsError as problem:
        click.echo(f"nccl-forensics: {problem}", err=True)
        sys.exit(problem.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
