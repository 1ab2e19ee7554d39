"""Arrival: how late each rank enters collectives compared with its peers of the same group."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views import view
from nccl_forensics.words import UNIDENTIFIED

LAG = {
    "group_key": pl.String(),
    "group_name": pl.String(),
    "group_desc": pl.String(),
    "comm_id": pl.String(),
    "rank": pl.Int32(),
    "collectives": pl.UInt32(),
    "last_count": pl.UInt32(),
    "median_ms": pl.Float64(),
    "p99_ms": pl.Float64(),
    "lost_ms": pl.Float64(),
    "late_count": pl.UInt32(),
    "span_ms": pl.Float64(),
    "members": pl.UInt32(),
    "source_id": pl.UInt32(),
    "record": pl.String(),
    "call_site": pl.String(),
}

LATE_MS = 50.0


@view(rows="ranks x groups")
def lag(operations: pl.LazyFrame, processes: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """Per group and rank, over collectives that all its seen ranks entered: ``median_ms`` and ``p99_ms`` behind the first arrival,
    ``last_count`` (how often it came last), ``lost_ms`` (how much later it came than the second last, summed where it came last),
    ``late_count`` (how often that was at least 50 ms: somebody is last to every collective), ``span_ms`` (from the group's first collective in the window to its last).

    Times are the hosts' own clocks: a constant offset of a clock is taken off as the rank's smallest distance to the median arrival, so
    that only what varies counts as late. Ranks of one host share its clock: of them the median offset is taken off. Where the ends of
    operations were noticed too, they tell the offset of a clock from a constant lateness, within what their spread allows: an operation
    ends on all ranks at once, whoever came late to it. Cites the collective in which the rank was latest.
    """
    # Numbered behind the filter, so that what else there are operations of need not be looked at.
    ops = operations.filter(
        (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("created_ns").is_not_null() & (pl.col("rank") < UNIDENTIFIED)
    ).with_row_index("row")
    full = at_places(ops.select("row", "group_key", "rank", "seq", "created_ns", "completed_ns")).filter(
        (pl.len().over("at") == pl.col("everyone")) & (pl.col("everyone") > 1)
    )
    # Only what a rank is late by beyond its own usual distance: a clock offset is the same in every collective.
    middle = full.with_columns(
        distance=pl.col("created_ns") - pl.col("created_ns").median().over("at"),
        end=pl.col("completed_ns") - pl.col("completed_ns").median().over("at"),
    )
    hosts = pl.LazyFrame(schema={"rank": pl.Int32(), "host": pl.String()})
    if processes is not None:
        known = processes.filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null())
        hosts = known.select("rank", "host").unique("rank", keep="first", maintain_order=True)
    kept = middle.collect()  # it is asked twice: for the clock of each rank, and with it
    usual = kept.lazy().group_by("own").agg(
        pl.col("group", "rank").first(),
        pl.col("distance").quantile(0.1).alias("usual"),
        pl.col("end").count().alias("ends"),
        pl.col("end").median().alias("offset"),
        pl.col("end").std().alias("spread"),
    )  # fmt: skip
    clocks = usual.join(hosts, on="rank", how="left").select(
        "own",
        clock=pl.when(pl.col("host").is_not_null() & (pl.len().over("group", "host") > 2))
        .then(pl.col("usual").median().over("group", "host"))
        .otherwise(_between_ends(pl.col("usual"))),
    )
    ranked = (
        kept.lazy()
        .join(clocks, on="own", how="left", maintain_order="left")
        .with_columns(pl.col("at").set_sorted(), arrival=pl.col("distance") - pl.col("clock"))
        .with_columns(
            first=pl.col("arrival").min().over("at"),
            latest=pl.col("arrival").max().over("at"),
            second=pl.col("arrival").top_k(2).min().over("at"),
        )
        .with_columns(behind_ms=(pl.col("arrival") - pl.col("first")) / 1e6, is_last=pl.col("arrival") == pl.col("latest"))
    )
    told = ranked.group_by("own").agg(
        pl.col("rank").first(),
        pl.len().alias("collectives"),
        pl.col("is_last").sum().alias("last_count"),
        pl.col("behind_ms").median().alias("median_ms"),
        pl.col("behind_ms").quantile(0.99).alias("p99_ms"),
        ((pl.col("latest") - pl.col("second")).filter(pl.col("is_last")).sum() / 1e6).alias("lost_ms"),
        (pl.col("is_last") & (pl.col("latest") - pl.col("second") >= LATE_MS * 1e6)).sum().alias("late_count"),
        (pl.col("created_ns").max() - pl.col("created_ns").min()).alias("span_ms") / 1e6,
        pl.col("everyone").first().alias("members"),
        pl.col("row").sort_by("behind_ms", "row").last(),
        pl.col("row").min().alias("first_row"),
    )  # fmt: skip
    late = told.collect()
    places = pl.concat([late.get_column("row"), late.get_column("first_row")]).implode()
    group, place = ("group_key", "group_name", "group_desc", "comm_id"), ("source_id", "record", "call_site")
    cited = ops.select("row", *group, *place).filter(pl.col("row").is_in(places)).collect()
    worst, named = cited.select("row", *place), cited.select(*group, first_row="row")
    rows = late.join(worst, on="row", how="left").join(named, on="first_row", how="left")
    return rows.select([pl.col(c).cast(t) for c, t in LAG.items()]).sort("group_key", "rank").lazy()


#: No recorder counts as far.
_BEYOND = 1 << 40


def at_places(operations: pl.LazyFrame) -> pl.LazyFrame:
    """Operations in the order of the collectives that they belong to: ``at`` (sorted) numbers these, ``group`` their groups, ``own`` ranks in
    groups, and ``everyone`` says how many ranks of the group are seen. Numbers are grouped many times as fast as texts; what has no position
    is left out."""
    numbered = operations.with_columns(group=pl.col("group_key").cast(pl.Categorical).to_physical().cast(pl.Int64))
    placed = numbered.filter(pl.col("seq").is_between(0, _BEYOND - 1)).with_columns(
        at=pl.col("group") * _BEYOND + pl.col("seq"), own=pl.col("group") * _BEYOND + pl.col("rank")
    )
    counted = placed.with_columns(everyone=pl.col("rank").n_unique().over("group"))
    return counted.drop("group_key", "seq").sort("at", maintain_order=True)


#: Ends that must have been noticed on a rank before they tell its clock.
_ENDS = 16
#: The watchdog looks for ends this often (torch 2.9 c10d/ProcessGroupNCCL.cpp ``kWatchdogThreadSleepMillis``).
_LOOKS_MS = 100


def _between_ends(usual: pl.Expr) -> pl.Expr:
    """The usual distance of a rank, held within the offset that the ends of its operations show.

    An end is noticed when the watchdog looks, so a rank's ends scatter over half its interval on both sides of the truth; where they do
    not scatter, its looks keep step with the job, and the ends are off by up to that half.
    """
    unsure = 4 * pl.col("spread") / pl.col("ends").sqrt() + pl.when(pl.col("spread") < _LOOKS_MS / 8 * 1e6).then(
        _LOOKS_MS / 2 * 1e6
    ).otherwise(0.0)
    within = usual.clip(pl.col("offset") - unsure, pl.col("offset") + unsure)
    return pl.when(pl.col("ends") >= _ENDS).then(within).otherwise(usual)
