"""Who wrote NCCL's error lines: the ranks and hosts behind them."""

from __future__ import annotations

import polars as pl


def where_reported(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame) -> pl.DataFrame:
    """Error lines with the global ``rank`` of the process that wrote them, in the order of source and line."""
    people = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    joined = nccl_errors.join(people, on=["host", "pid"], how="left", nulls_equal=True)
    return (
        joined.with_columns(rank=pl.coalesce("rank", pl.when(pl.col("hint_scope") == "global").then(pl.col("hint_rank"))))
        .sort("source_id", "line_no")
        .collect()
    )


def hosts_of(rows: pl.DataFrame) -> tuple[str, ...]:
    """Distinct hosts, sorted."""
    return tuple(sorted({str(h) for h in rows["host"].to_list() if h}))


def ranks_of(rows: pl.DataFrame) -> tuple[int, ...]:
    """Distinct known ranks, sorted."""
    return tuple(sorted({int(r) for r in rows["rank"].to_list() if r is not None}))
