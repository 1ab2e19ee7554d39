"""When the job ran, as far as its own evidence says: so that a host's old events are not taken for causes."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl

from nccl_forensics.views import view

_SCHEMA = {"first_raw_ns": pl.Int64(), "last_raw_ns": pl.Int64(), "stalled_raw_ns": pl.Int64(), "yearless": pl.Boolean()}

#: glog's prefix names no year (torch's own lines, torchrun's): such times lie in 1970.
_YEARLESS_NS = 2 * 366 * 86_400 * 1_000_000_000
_MS = 1_000_000
_DAY_NS = 86_400 * 1_000_000_000


@view(rows="one")
def job_times(
    fr_dumps: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    exceptions: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame | None,
    nccl_comms: pl.LazyFrame | None,
    training_steps: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row, or none where no evidence of the job has a wall time: ``first_raw_ns``, ``last_raw_ns``, ``stalled_raw_ns`` and ``yearless``.

    Times of an unknown zone are taken as if they were UTC, so either end may be off by up to 14 hours; users allow for a day. Where nothing
    of the job states a year, days and clocks are kept as of the year 2000, like those of the system's log (``yearless``); a day around
    local times with a year they are of that year. A timeout tells as well when the first call began that it was waited for in vain:
    ``stalled_raw_ns``, null where nothing timed out.
    """
    dated: list[int] = []
    yearless: list[int] = []
    stalled: dict[bool, list[int]] = {True: [], False: []}
    zoned = False
    if fr_dumps is not None:
        for row in fr_dumps.select(pl.col("first_created_ns").min(), pl.col("last_created_ns").max()).collect().iter_rows():
            dated.extend(t for t in row if t is not None)
        zoned = bool(dated)
    ends = worker_exits.filter(pl.col("kind") == "scheduler") if worker_exits is not None else None
    exits = worker_exits.filter(pl.col("kind") != "scheduler") if worker_exits is not None else None
    for table in (watchdog, exceptions, exits, nccl_errors, nccl_comms, training_steps, ends):
        # What a scheduler says of the end of a job may be of an earlier one: it dates the job only where nothing else does.
        if table is None or (table is ends and (dated or yearless)):
            continue
        written = pl.col("time_raw_ns")
        waited = pl.when(pl.col("kind") == "timeout").then("elapsed_ms") if table is watchdog else pl.lit(None, dtype=pl.Int64())
        rows = table.filter(pl.col("time_kind").is_in(["epoch", "local-unzoned", "local-yearless"])).select(
            first=written,
            last=written,
            stalled=written - waited * _MS,
            full=(written > _YEARLESS_NS) & (pl.col("time_kind") != "local-yearless"),
            epoch=pl.col("time_kind") == "epoch",
        )
        ends_of = rows.group_by("full").agg(pl.col("first").min(), pl.col("last").max(), pl.col("stalled").min(), pl.col("epoch").any())
        for full, first, last, began, epoch in ends_of.collect().iter_rows():
            zoned |= bool(full and epoch)
            (dated if full else yearless).extend(t for t in (first, last, began) if t is not None)
            stalled[bool(full)].extend([began] if began is not None else [])
    if dated and yearless and not zoned:
        # Both are of one clock, which may have been read on either side of New Year's Eve.
        near = {t: beside for t in yearless if abs((beside := _beside(t, dated[0])) - dated[0]) <= _DAY_NS}
        stalled[True] += [near[t] for t in stalled[False] if t in near]
        dated += near.values()
    times, began_at = (dated, stalled[True]) if dated else ([_as_of(t) for t in yearless], [_as_of(t) for t in stalled[False]])
    window = [(min(times), max(times), min(began_at, default=None), not dated)] if times else []
    return pl.DataFrame(window, schema=_SCHEMA, orient="row").lazy()


def _as_of(time_ns: int, year: int = 2000) -> int:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    at = datetime.fromtimestamp(seconds, UTC)
    day = at.day if (at.month, at.day) != (2, 29) or year % 4 == 0 else 28
    return int(at.replace(year=year, day=day).timestamp()) * 1_000_000_000 + rest


def _beside(time_ns: int, dated_ns: int) -> int:
    """The same day and clock of the year that puts it nearest to a time with a year."""
    year = datetime.fromtimestamp(dated_ns // 1_000_000_000, UTC).year
    return min((_as_of(time_ns, y) for y in (year - 1, year, year + 1)), key=lambda t: abs(t - dated_ns))
