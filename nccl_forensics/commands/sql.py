"""`sql`: a query over the tables."""

from __future__ import annotations

import csv
import io
import re
import sys
from typing import TYPE_CHECKING

import click

from nccl_forensics.commands.output import progress_bar, width, write
from nccl_forensics.commands.reading import means, reading_options

if TYPE_CHECKING:
    import polars as pl

#: Rows that a terminal is given; other formats give all.
_ROWS, _CELL = 200, 80
#: What a spreadsheet takes for the start of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?|-")


@click.command()
@click.argument("evidence", nargs=-1, required=True, type=click.Path())
@click.argument("query")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="Form of the result.",
)
@click.option("-o", "--output", metavar="F", default="-", help="Write the result to F instead of standard output.")
@reading_options
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--no-color", is_flag=True, help="Accepted for uniformity; the result has no colour.")
def sql(evidence: tuple[str, ...], query: str, form: str, output: str, quiet: bool, no_color: bool) -> None:
    """Run QUERY (Polars SQL, in quotes, last) over the tables of EVIDENCE, or of a folder that `analyze -o` or `--tables` wrote.

    `nccl-forensics tables` lists the tables and their columns; the views that rules read can be named too.
    """
    from nccl_forensics import api
    from nccl_forensics.errors import UsageError

    if form == "parquet" and output == "-" and sys.stdout.isatty():
        raise UsageError("parquet is not for a terminal: add --output FILE, or redirect standard output")
    read = means()
    rows = api.sql(
        evidence, query, engine=read.engine, cache=read.cache, scratch=read.scratch, limits=read.limits, progress=progress_bar(quiet)
    )
    write(output, _FORMS[form](rows))


def _table(rows: pl.DataFrame) -> bytes:
    """Columns as wide as their longest value, cut to the terminal; foreign text made harmless."""
    from nccl_forensics.plain import columns, cut_columns, plain

    shown = rows.head(_ROWS)
    cells = [[plain(_text(v), _CELL) for v in row] for row in shown.iter_rows()]
    widths = [max([columns(name), *(columns(row[n]) for row in cells)]) for n, name in enumerate(shown.columns)]
    right = [dtype.is_numeric() for dtype in shown.dtypes]

    def line(texts: list[str]) -> str:
        padded = [" " * (w - columns(t)) + t if r else t + " " * (w - columns(t)) for t, w, r in zip(texts, widths, right, strict=True)]
        return cut_columns("  ".join(padded).rstrip(), limit) if limit else "  ".join(padded).rstrip()

    limit = max(width(), 60) if sys.stdout.isatty() else 0
    lines = [line([plain(c, _CELL) for c in shown.columns]), line(["─" * w for w in widths]), *map(line, cells)]
    if rows.height > _ROWS:
        lines.append(f"… {rows.height - _ROWS:,} more rows: add LIMIT and OFFSET, or --format csv")
    lines.append(f"({rows.height:,} {'row' if rows.height == 1 else 'rows'})")
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _csv(rows: pl.DataFrame) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows.columns)
    for row in rows.iter_rows():
        writer.writerow([_inert(_text(v)) for v in row])
    return out.getvalue().encode("utf-8", "replace")


def _inert(value: object) -> object:
    """A text that a spreadsheet would take for a formula gets an apostrophe in front
    (https://owasp.org/www-community/attacks/CSV_Injection)."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _PLAIN_NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def _text(value: object) -> object:
    """Lists as words with blanks between, null as nothing, true and false as SQL writes them."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join("" if v is None else str(_text(v)) for v in value)
    return value


def _json(rows: pl.DataFrame) -> bytes:
    import orjson

    return orjson.dumps(list(rows.iter_rows(named=True)), default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _parquet(rows: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    rows.write_parquet(out)
    return out.getvalue()


_FORMS = {"table": _table, "csv": _csv, "json": _json, "parquet": _parquet}
