"""NCCL logs of which several processes have written over each other's lines."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view

OVERWRITTEN = typed("source_id:u32 line_no:u32 processes:list[i64] holed:list[i64]")
#: The first release that prints "Init START" of every rank.
_STARTS = (2, 22)
_PROCESS = ["source_id", "host", "pid"]


@view(rows="sources")
def overwritten(nccl_comms: pl.LazyFrame, nccl_tails: pl.LazyFrame, nccl_versions: pl.LazyFrame) -> pl.LazyFrame:
    """Sources with lines of several ``processes``, of most of which (``holed``) lines are lost that were there: those of how they made
    their first communicator, though one of them tells that it came up. ``line_no``: the first line of such a process.

    NCCL opens its debug file to write from the beginning (src/debug.cc: fopen "w"), so that processes with one file, as of
    NCCL_DEBUG_FILE=nccl.%h.log, write over each other: what is left is what was written last at each place. A launcher that puts lines of
    processes together tears lines of few.
    """
    release = [pl.col("version").str.extract(r"^(\d+)\.(\d+)", n).cast(pl.Int32, strict=False) for n in (1, 2)]
    starts = nccl_versions.select(v=pl.struct(major=release[0], minor=release[1])).unique().collect()["v"].to_list()
    if not any(None not in v.values() and (v["major"], v["minor"]) >= _STARTS for v in starts):
        return pl.LazyFrame(schema=OVERWRITTEN)
    made = (
        nccl_comms.filter(pl.col("pid").is_not_null())
        .group_by(_PROCESS)
        .agg(start=(pl.col("event") == "init-start").any(), complete=(pl.col("event") == "init-complete").any())
    )
    # A number that was cut off with its line is no process: it hardly comes twice.
    lines = (
        nccl_tails.filter((pl.col("lines") > 1) & pl.col("pid").is_not_null() & pl.col("dev").is_not_null())
        .group_by(_PROCESS)
        .agg(pl.col("line_no").min())
    )
    began = pl.col("start").fill_null(False)
    sources = (
        lines.join(made, on=_PROCESS, how="left", nulls_equal=True)
        .sort(*_PROCESS)
        .group_by("source_id", maintain_order=True)
        .agg(
            pl.col("line_no").filter(~began).min(),
            pl.col("pid").alias("processes"),
            pl.col("pid").filter(~began).alias("holed"),
            (pl.col("complete").fill_null(False) & ~began).any().alias("lost"),
        )
    )
    most = (pl.col("processes").list.len() > 1) & (pl.col("holed").list.len() * 2 > pl.col("processes").list.len())
    return sources.filter(most & pl.col("lost")).select(list(OVERWRITTEN))
