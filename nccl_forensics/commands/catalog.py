"""`formats`, `rules`, `rule`, `tables`, `plugins`: what the program knows, and what extensions added."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


@click.command()
def formats() -> None:
    """What can be read."""
    from nccl_forensics.extensions import origins
    from nccl_forensics.formats import all_formats

    added = origins("formats")
    for f in all_formats():
        click.echo(f"{f.name:24} {f.title}{_of(added.get(f.name))}")
    _say_broken()


@click.command()
def rules() -> None:
    """What is checked."""
    from nccl_forensics.extensions import origins
    from nccl_forensics.rules import all_rules

    added = origins("rules")
    for r in all_rules():
        click.echo(f"{r.code}  {r.name:24} {r.severity:9} {r.title}{_of(added.get(r.name))}")
    _say_broken()


def rule_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Rules whose name or code begins with what was typed, for the shell."""
    from nccl_forensics.rules import all_rules

    return [
        CompletionItem(word, help=r.title)
        for r in all_rules()
        for word in (r.name, r.code)
        if word.startswith(incomplete) and (word == r.name or incomplete[:1].isupper())
    ]


@click.command()
@click.argument("name", shell_complete=rule_names)
def rule(name: str) -> None:
    """One rule's page, with its inputs and thresholds."""
    import difflib

    from nccl_forensics.extensions import origins
    from nccl_forensics.rules import all_rules

    known = {key: r for r in all_rules() for key in (r.name, r.code)}
    found = known.get(name) or known.get(name.replace("_", "-"))
    if found is None:
        near = difflib.get_close_matches(name, sorted(known), n=1)
        raise click.UsageError(f"no rule {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    click.echo(f"{found.code} {found.name} (cause: {found.cause}, severity: {found.severity}){_of(origins('rules').get(found.name))}\n")
    click.echo(f"{found.page}\n")
    click.echo(f"Reads: {', '.join(found.inputs.names)}")
    for t in found.inputs.thresholds:
        click.echo(f"Threshold {t.name} = {t.default}: {t.meaning}")


@click.command()
def tables() -> None:
    """What tables there are and their columns."""
    from nccl_forensics.extensions import origins
    from nccl_forensics.tables import TABLES

    added = origins("tables")
    for table in TABLES.values():
        click.echo(f"{table.name}: {table.doc}{_of(added.get(table.name))}")
        for column, (dtype, meaning) in table.columns.items():
            click.echo(f"    {column:24} {dtype!s:16} {meaning}")
    _say_broken()


@click.command()
def plugins() -> None:
    """What extensions are installed, what they bring, and why one is not used."""
    from nccl_forensics.extensions import extensions
    from nccl_forensics.plugins import GROUPS, OFF

    rows = extensions()
    for row in rows:
        names = row["brings"]
        said = row["error"] or (", ".join(names) if isinstance(names, list) else "")
        click.echo(f"{row['status']!s:7} {row['kind']!s:10} {row['name']!s:20} {row['origin']!s:28} {said}")
    if not rows:
        click.echo(f"No extension is installed, or {OFF} is set. They are found by the entry points {', '.join(GROUPS.values())}.")


def _of(origin: str | None) -> str:
    return f" [{origin}]" if origin else ""


def _say_broken() -> None:
    from nccl_forensics.extensions import broken

    for line in broken():
        click.echo(f"nccl-forensics: {line}", err=True)
