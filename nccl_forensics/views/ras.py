"""What NCCL's RAS service says of processes that do not answer it."""

from __future__ import annotations

import polars as pl


def mute_processes(nccl_ras_items: pl.LazyFrame) -> pl.LazyFrame:
    """Lines about processes of which two reports or more had no answer; one may only have answered late."""
    asked = (
        (pl.col("kind") == "INCOMPLETE")
        & pl.col("subject").fill_null("").str.contains("job process", literal=True)
        & pl.col("pid").is_not_null()
    )
    return nccl_ras_items.filter(asked).filter(pl.len().over("host", "pid") > 1)
