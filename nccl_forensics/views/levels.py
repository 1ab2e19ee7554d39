"""Whether ranks are level with each other, told by how far they got in their groups."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl


def came_after_all(rank: int, waiters: Iterable[int], progress: pl.LazyFrame) -> bool:
    """Whether recorders of this rank and of all who were seen waiting for it are level and it has nothing unfinished itself: it came, and
    finished what they waited in. False where a recorder is missing."""
    ranks = {rank, *waiters}
    seen = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_in(sorted(ranks))).collect()
    if not ranks <= set(seen["rank"].to_list()):
        return False
    own = seen.filter(pl.col("rank") == rank)["first_pending"]
    return own.null_count() == own.len() and seen.group_by("group_key").agg(pl.col("last_seq").n_unique())["last_seq"].max() == 1
