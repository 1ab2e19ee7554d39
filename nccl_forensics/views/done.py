"""Who says that the job ended well: its launchers, or the scheduler."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views import view

_SCHEMA = {"source_id": pl.UInt32(), "line_no": pl.UInt32()}
#: What a launcher says of workers that did not end well.
_FAILED = (
    "failed",
    "root-cause",
    "failure",
    "task",
    "shell",
    "closing-signal",
    "launcher-signal",
    "restart",
    "scheduler",
    "scheduler-oom",
    "lost",
)


@view(rows="sources")
def done(worker_exits: pl.LazyFrame | None, scheduler_jobs: pl.LazyFrame | None) -> pl.LazyFrame:
    """``source_id``, ``line_no`` of the words that the job ended well, or none.

    Every launcher that speaks must have the end of its workers for its last word (torchrun: ``worker group successfully finished``, which
    an earlier attempt that failed may stand before), and every job that the scheduler lists must be completed with code 0. A job may still
    have been slow, or computed nonsense.
    """
    told: list[pl.DataFrame] = []
    if worker_exits is not None:
        words = worker_exits.filter(pl.col("kind").is_in(["finished", *_FAILED])).sort("source_id", "line_no").collect()
        last = words.unique("source_id", keep="last", maintain_order=True)
        if not (last["kind"] == "finished").all():
            return pl.DataFrame(schema=_SCHEMA).lazy()
        told.append(last.select(*_SCHEMA))
    if scheduler_jobs is not None:
        jobs = scheduler_jobs.filter(pl.col("step").is_null() & pl.col("state").is_not_null()).collect()
        if not ((jobs["state"] == "COMPLETED") & (jobs["exit_code"].fill_null(0) == 0)).all():
            return pl.DataFrame(schema=_SCHEMA).lazy()
        told.append(jobs.select(*_SCHEMA))
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *told]).lazy()
