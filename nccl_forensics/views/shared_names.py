"""Groups that bear one name: a communicator that is split gives all its parts the same one, so that only their ranks tell them apart."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import text_of, typed
from nccl_forensics.values.ranklist import unfold
from nccl_forensics.views import view

SHARED = typed("rank:i32 pg_name:str part:str")


@view(rows="ranks x groups")
def shared_names(fr_groups: pl.LazyFrame) -> pl.LazyFrame:
    """Of each name that dumps give to several groups without a rank in common: ``rank``, ``pg_name``, and the ``part`` it is in, the folded
    list of its ranks. Lists that overlap are several accounts of one group, and its name stays one.
    """
    stated = fr_groups.filter(pl.col("ranks").is_not_null() & (pl.col("ranks") != "") & pl.col("pg_name").is_not_null())
    lists = stated.group_by("pg_name").agg(pl.col("ranks").unique().sort()).filter(pl.col("ranks").list.len() > 1).collect()
    rows: list[tuple[int, str, str]] = []
    for name, parts in lists.sort("pg_name").iter_rows():
        members = {part: unfold(part) for part in parts}
        if sum(map(len, members.values())) == len({rank for ranks in members.values() for rank in ranks}):
            rows += [(rank, name, part) for part, ranks in members.items() for rank in ranks]
    return pl.LazyFrame(rows, schema=SHARED, orient="row")


def part_key(name: str, part: str) -> str:
    """The key of a group that shares its name."""
    return f"pg:{name} of {part}"


def with_part(key: pl.Expr) -> pl.Expr:
    """The same of rows: ``key`` as it is, but for groups that have a ``part``."""
    return pl.when(pl.col("part").is_not_null()).then(text_of("{} of {}", key, pl.col("part"))).otherwise(key)
