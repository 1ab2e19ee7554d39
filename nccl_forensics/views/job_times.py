"""When the job ran, as far as its own evidence says: so that a host's old events are not taken for causes."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views import view

_SCHEMA = {"first_raw_ns": pl.Int64(), "last_raw_ns": pl.Int64()}


#: glog's prefix names no year (torch's own lines, torchrun's): such times lie in 1970 and say nothing of when the job ran.
_YEARLESS_NS = 2 * 366 * 86_400 * 1_000_000_000


@view(rows="one")
def job_times(
    fr_dumps: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    exceptions: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame | None,
    nccl_comms: pl.LazyFrame | None,
) -> pl.LazyFrame:
    """One row, or none where no evidence of the job has a wall time: ``first_raw_ns`` and ``last_raw_ns``.

    Times of an unknown zone are taken as if they were UTC, so either end may be off by up to 14 hours; users allow for a day.
    """
    times: list[int] = []
    if fr_dumps is not None:
        for row in fr_dumps.select(pl.col("first_created_ns").min(), pl.col("last_created_ns").max()).collect().iter_rows():
            times.extend(t for t in row if t is not None)
    ends = worker_exits.filter(pl.col("kind") == "scheduler") if worker_exits is not None else None
    exits = worker_exits.filter(pl.col("kind") != "scheduler") if worker_exits is not None else None
    for table in (watchdog, exceptions, exits, nccl_errors, nccl_comms, ends):
        # What a scheduler says of the end of a job may be of an earlier one: it dates the job only where nothing else does.
        if table is None or (table is ends and times):
            continue
        wall = table.filter(pl.col("time_kind").is_in(["epoch", "local-unzoned"]) & (pl.col("time_raw_ns") > _YEARLESS_NS))
        for row in wall.select(first=pl.col("time_raw_ns").min(), last=pl.col("time_raw_ns").max()).collect().iter_rows():
            times.extend(t for t in row if t is not None)
    rows = [{"first_raw_ns": min(times), "last_raw_ns": max(times)}] if times else []
    return pl.DataFrame(rows, schema=_SCHEMA).lazy()
