"""Who wrote NCCL's error lines: the ranks and hosts behind them."""

from __future__ import annotations

import polars as pl

#: Where nothing tells of processes.
NOBODY = pl.LazyFrame(schema={"host": pl.String(), "pid": pl.Int64(), "rank": pl.Int32(), "source_id": pl.UInt32()})


def where_reported(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame) -> pl.DataFrame:
    """Error lines with the global ``rank`` of the process that wrote them, in the order of source and line. Lines without a pid, as where it
    was taken out before they were published, are those of the only process of their source."""
    known = processes.filter(pl.col("rank").is_not_null())
    people = known.filter(pl.col("pid").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    bare = known.filter(pl.col("pid").is_null()).select("source_id", alone="rank").unique().unique("source_id", keep="none")
    joined = nccl_errors.join(people, on=["host", "pid"], how="left", nulls_equal=True).join(bare, on="source_id", how="left")
    return (
        joined.with_columns(
            rank=pl.coalesce(
                "rank",
                pl.when(pl.col("hint_scope") == "global").then(pl.col("hint_rank")),
                pl.when(pl.col("pid").is_null()).then(pl.col("alone")),
            )
        )
        .drop("alone")
        .sort("source_id", "line_no")
        .collect()
    )


def hosts_of(rows: pl.DataFrame) -> tuple[str, ...]:
    """Distinct hosts, sorted."""
    return tuple(sorted({str(h) for h in rows["host"].to_list() if h}))


def ranks_of(rows: pl.DataFrame) -> tuple[int, ...]:
    """Distinct known ranks, sorted."""
    return tuple(sorted({int(r) for r in rows["rank"].to_list() if r is not None}))
