"""Blocks of lines in a text source: a heading and what follows it, line by line with kind and columns.

For tools that print a heading and then indented lines. Sources may be large and blocks few, so only the lines after a heading are looked
at; the line kinds come from a grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl

from nccl_forensics.grammar.lines import load

#: Columns of a line that say who printed it and when.
ORIGIN = ("hint_rank", "hint_scope", "hint_host", "hint_pid", "time_raw_ns", "time_kind")
#: Lines looked at after a heading.
REACH = 600


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its number, text, kind in the grammar (or None), columns, and what its prefixes said."""

    number: int
    text: str
    kind: str | None
    fields: dict[str, str | None] = field(default_factory=dict)
    origin: dict[str, object] = field(default_factory=dict)

    def get(self, column: str) -> str | None:
        """A column, or None where it is absent or blank."""
        value = self.fields.get(column)
        return value if value is None or value.strip() else None

    @property
    def where(self) -> dict[str, object]:
        """Columns of a row that cite this line."""
        return {"line_no": self.number, **self.origin}


def after(lines: pl.DataFrame, heading: pl.Expr, reach: int = REACH) -> pl.DataFrame:
    """The lines from each heading on, ``reach`` of them at most or up to the next heading; nothing from before the first."""
    marked = lines.with_columns(block=heading.fill_null(False).cum_sum())
    counted = marked.filter(pl.col("block") > 0).with_columns(place=pl.int_range(pl.len()).over("block"))
    return counted.filter(pl.col("place") < reach).drop("place", "block")


def classify(lines: pl.DataFrame, grammar: str, *, strip: bool = False) -> list[Line]:
    """Every line with its kind and columns; ``strip`` takes off the blanks in front before the grammar sees the text."""
    text = lines.get_column("text")
    extraction = load(grammar).extract(text.str.strip_chars_start(" \t") if strip else text)
    columns: dict[int, dict[str, str | None]] = {}
    for frame in extraction.frames.values():
        for row in frame.iter_rows(named=True):
            columns[row.pop("row")] = row
    names = [c for c in ORIGIN if c in lines.columns]
    origins = lines.select(names).iter_rows(named=True) if names else iter([{}] * lines.height)
    return [
        Line(number, body, kind, columns.get(i, {}), {k: v for k, v in origin.items() if v is not None})
        for i, (number, body, kind, origin) in enumerate(zip(lines.get_column("line_no"), text, extraction.kind, origins, strict=True))
    ]


_LABEL = re.compile(r'(?<!\w)(\w++)="([^"]*+)"')


def labels_of(text: str) -> dict[str, str]:
    """The labels of a metric as Prometheus writes them: ``gpu="0",Hostname="node7"``."""
    return dict(_LABEL.findall(text))


def whole(text: str | None) -> int | None:
    """An integer, decimal or 0x hex; None for anything else (``N/A`` is not a number)."""
    if text is None:
        return None
    body = text.strip().replace(",", "")
    try:
        return int(body, 16) if body[:2].lower() == "0x" else int(body)
    except ValueError:
        return None


def real(text: str | None) -> float | None:
    """A finite number; None for anything else."""
    if text is None:
        return None
    try:
        value = float(text.strip())
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def moment(text: str | None) -> int | None:
    """Nanoseconds of ``2024-05-06T07:08:09`` as if it were UTC; None for anything else (``Unknown``, ``None``)."""
    if text is None:
        return None
    try:
        stamp = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    aware = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
    return int(aware.timestamp()) * 1_000_000_000


def glog_timed(lines: pl.DataFrame) -> pl.DataFrame:
    """Month, day and time of day as ns of the year 1970, where the line's own prefix is the only clock: it has neither year nor zone."""
    if "date" not in lines.columns or "time" not in lines.columns:
        return lines
    stamp = pl.lit("1970") + pl.col("date").str.zfill(4) + pl.lit(" ") + pl.col("time")
    own = stamp.str.to_datetime("%Y%m%d %H:%M:%S%.f", time_unit="ns", strict=False).cast(pl.Int64)
    unzoned = pl.when(pl.col("time_raw_ns").is_null() & own.is_not_null()).then(pl.lit("local-unzoned")).otherwise(pl.col("time_kind"))
    return lines.with_columns(time_kind=unzoned, time_raw_ns=pl.coalesce("time_raw_ns", own))
