"""All-to-all exchanges in NCCL's operation lines: releases without an all-to-all of their own print one Send and one Recv per peer."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from nccl_forensics.frames import typed


def with_exchanges(operations: pl.LazyFrame, life: tuple[str, ...]) -> pl.LazyFrame:
    """The same operations with the lines of each exchange in one row, ``AlltoAll``: the first of them, with the elements for all peers.

    ``operations`` hold, in order of their lines, ``op``, ``root`` (the peer), ``count``, ``dtype``, ``nranks``, ``is_p2p`` and
    ``group_key``; ``life`` are the columns that tell one rank's communicator. PyTorch calls ncclSend and ncclRecv for each peer in turn
    (2.13 torch/csrc/cuda/nccl.cpp, all2all_single_equal_split), so that an exchange of n ranks is Send 0, Recv 0, Send 1, Recv 1 … Recv
    n-1.

    Communicators are taken as a whole: only where all sends and receives that any rank printed belong to such exchanges and each has one
    size for all peers. Of unequal splits an empty part prints nothing, and what is left cannot be told from sends and receives of pairs.
    The last exchange of a rank may be cut off.
    """
    return in_one_row(operations, exchanging([operations.filter("is_p2p")], life))


def in_one_row(operations: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    """Operations, or sorts of them, with one row for each exchange in the communicators ``keys``."""
    if not keys:
        return operations
    part = pl.col("is_p2p") & pl.col("group_key").is_in(keys)
    return operations.filter(~part | _opens()).with_columns(
        op=pl.when(part).then(pl.lit("AlltoAll")).otherwise("op"),
        count=pl.when(part).then(pl.col("count") * pl.col("nranks")).otherwise("count"),
        root=pl.when(part).then(None).otherwise("root"),
        is_p2p=pl.col("is_p2p") & ~part,
    )


def _sends() -> pl.Expr:
    return pl.col("op").str.to_lowercase() == "send"


def _opens() -> pl.Expr:
    """The first line of an exchange."""
    return _sends() & (pl.col("root") == 0)


def exchanging(parts: Iterable[pl.LazyFrame], life: tuple[str, ...]) -> list[str]:
    """Communicators in which all sends and receives belong to exchanges; a life's lie in one of the parts, which are looked at one by
    one."""
    told = [_told(pairs, life) for pairs in parts]
    found = pl.concat(told).group_by("group_key").agg(pl.col("good").all(), pl.col("whole").any()) if told else pl.DataFrame(schema=_TOLD)
    return found.filter(pl.col("good") & pl.col("whole")).get_column("group_key").drop_nulls().sort().to_list()


_TOLD = typed("group_key:str good:bool whole:bool")


def _told(pairs: pl.LazyFrame, life: tuple[str, ...]) -> pl.DataFrame:
    """By ``group_key``: whether all sends and receives belong to exchanges (``good``), and whether one is ``whole``."""
    block = [*life, "block"]
    place = pl.int_range(pl.len()).over(block)
    fits = (pl.col("root") == pl.col("place") // 2) & (_sends() == (pl.col("place") % 2 == 0))
    blocks = (
        pairs.with_columns(block=_opens().cast(pl.Int64).cum_sum().over(life))
        .with_columns(place=place)
        .group_by([*dict.fromkeys((*block, "group_key"))])
        .agg(
            fits=fits.all() & (pl.col("count").n_unique() == 1) & (pl.col("dtype").n_unique() == 1),
            lines=pl.len(),
            whole=pl.col("nranks").first() * 2,
        )
    )
    last = pl.col("block") == pl.col("block").max().over(life)
    return (
        blocks.with_columns(
            good=pl.col("fits")
            & (pl.col("block") > 0)
            & ((pl.col("lines") == pl.col("whole")) | (last & (pl.col("lines") < pl.col("whole"))))
        )
        .group_by("group_key")
        .agg(pl.col("good").fill_null(False).all(), whole=(pl.col("lines") == pl.col("whole")).any())
        .select(list(_TOLD))
        .collect()
    )
