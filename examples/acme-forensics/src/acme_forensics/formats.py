"""Reads Acme's prolog log. A line that cannot be read becomes a gap: never an exception, never silence."""

import polars as pl

from nccl_forensics.formats.base import Gap, Reading, Text, TextFormat
from nccl_forensics.tables import TABLES

_LINE = r'^acme-prolog: node=(?<node>\S+) check=(?<check>\S+) result=(?<passed>PASS|FAIL) detail="(?<detail>[^"]*)"$'


def read(text: Text) -> Reading:
    """Lines with the anchor: rows of ``x_acme_checks``, or gaps."""
    lines = text.hits.select("line_no", pl.col("text").str.extract_groups(_LINE).alias("parts")).unnest("parts")
    rows = lines.filter(pl.col("node").is_not_null())
    broken = lines.filter(pl.col("node").is_null())
    return Reading(
        frames={"x_acme_checks": TABLES["x_acme_checks"].conform(rows)},
        lines=rows["line_no"],
        gaps=tuple(Gap("unparsed: not a line of the prolog as we know it", n, n) for n in broken["line_no"]),
    )


FORMAT = TextFormat("acme-prolog", "Acme's checks before a job", ("x_acme_checks",), ("acme-prolog: ",), read)
