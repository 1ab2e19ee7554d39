"""What a host's processes wait for, with the resource that a copied file of /proc/pressure names only in its path."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views import view

_FILE = r"(?:^|/)pressure/(cpu|memory|io|irq)$"


@view(rows="lines of /proc/pressure, and at most five per vmstat")
def pressures(host_facts: pl.LazyFrame, sources: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.LazyFrame:
    """Figures of /proc/pressure and vmstat: ``host``, ``name`` (memory-pressure-full, swap-in-kb-s ...), ``value``, ``number``,
    ``source_id``, ``line_no``. ``number`` is the average of a minute in percent, or vmstat's figure.
    """
    told = sources.select("source_id", resource=pl.col("path").str.extract(_FILE, 1))
    waits = pl.col("name").is_in(["swap-in-kb-s", "swap-out-kb-s", "blocked", "steal-percent"]) | (pl.col("kind") == "pressure")
    rows = host_facts.filter(waits).join(told, on="source_id", how="left")
    if source_hosts is not None:
        rows = rows.join(source_hosts.select("source_id", of_source="host").unique("source_id"), on="source_id", how="left")
    else:
        rows = rows.with_columns(of_source=pl.lit(None, dtype=pl.String()))
    unnamed = pl.col("name").str.starts_with("unknown-") & pl.col("resource").is_not_null()
    return rows.select(
        host=pl.coalesce("host", "hint_host", "of_source"),
        name=pl.when(unnamed).then(pl.col("resource") + pl.col("name").str.strip_prefix("unknown")).otherwise("name"),
        value="value",
        number="number",
        source_id="source_id",
        line_no="line_no",
    ).sort("source_id", "line_no", "name")
