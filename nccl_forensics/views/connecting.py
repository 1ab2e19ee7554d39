"""Processes that began to connect the channels of a communicator and never said that all are connected."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view

CONNECTING = typed("host:str pid:i64 source_id:u32 line_no:u32")
#: A call of a collective, or an end, shows that the process went on, whatever became of the line that says so.
_WENT_ON = r"^\w+: opCount | - (?:Destroy|Abort) COMPLETE|^Connected "


#: The release from which channels are connected when they are needed.
_WHEN_NEEDED = (2, 22)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


@view(rows="processes")
def connecting(
    nccl_connections: pl.LazyFrame,
    nccl_notes: pl.LazyFrame,
    nccl_network: pl.LazyFrame | None,
    comms: pl.LazyFrame,
    nccl_tails: pl.LazyFrame,
    nccl_versions: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per process whose last connection of a ring or tree (index 0; sends and receives have 1) has no "Connected all ..." behind
    it, with that line, and whose log ends so.

    From NCCL 2.22 on channels are connected when a collective needs them, after "Init COMPLETE" (src/transport/generic.cc), so that a
    communicator that came up does not show it.
    """
    place = ["source_id", "host", "pid"]
    if nccl_versions is not None and any(_release(v) < _WHEN_NEEDED for v in nccl_versions.collect()["version"].drop_nulls().to_list()):
        return pl.LazyFrame(schema=CONNECTING)
    up = comms.filter(pl.col("completed") & pl.col("pid").is_not_null()).select("host", "pid").unique()
    begun = (
        nccl_connections.filter(pl.col("conn") == 0)
        .group_by(place)
        .agg(pl.col("line_no").max())
        .join(up, on=["host", "pid"], how="semi", nulls_equal=True)
    )
    marks = [nccl_notes.filter(pl.col("kind") == "connected")]
    if nccl_network is not None:
        marks.append(nccl_network.filter(pl.col("item") == "ring-gdr"))
    done = pl.concat([m.select(*place, "line_no") for m in marks]).group_by(place).agg(marked=pl.col("line_no").max())
    ends = nccl_tails.sort("source_id", "line_no").group_by(place).agg(pl.col("message").last())
    return (
        begun.join(done, on=place, how="left", nulls_equal=True)
        .filter(pl.col("marked").is_null() | (pl.col("marked") < pl.col("line_no")))
        .join(ends, on=place, nulls_equal=True)
        .filter(~pl.col("message").fill_null("").str.contains(_WENT_ON))
        .select(list(CONNECTING))
        .sort("source_id", "line_no")
    )
