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
    ops = operations.filter(
        (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("created_ns").is_not_null() & (pl.col("rank") < UNIDENTIFIED)
    )
    key = ["group_key", "seq"]
    full = ops.with_columns(present=pl.len().over(key), everyone=pl.col("rank").n_unique().over("group_key")).filter(
        (pl.col("present") == pl.col("everyone")) & (pl.col("everyone") > 1)
    )
    # Only what a rank is late by beyond its own usual distance: a clock offset is the same in every collective.
    middle = full.with_columns(distance=pl.col("created_ns") - pl.col("created_ns").median().over(key))
    usual = middle.with_columns(
        usual=pl.col("distance").quantile(0.1).over("group_key", "rank"),
        end=pl.col("completed_ns") - pl.col("completed_ns").median().over(key),
    )
    hosts = pl.LazyFrame(schema={"rank": pl.Int32(), "host": pl.String()})
    if processes is not None:
        known = processes.filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null())
        hosts = known.select("rank", "host").unique("rank", keep="first", maintain_order=True)
    clocks = usual.join(hosts, on="rank", how="left").with_columns(
        clock=pl.when(pl.col("host").is_not_null() & (pl.col("rank").n_unique().over("group_key", "host") > 2))
        .then(pl.col("usual").median().over("group_key", "host"))
        .otherwise(_between_ends(pl.col("usual")))
    )
    offset = clocks.with_columns(arrival=pl.col("distance") - pl.col("clock"))
    ranked = offset.with_columns(
        first=pl.col("arrival").min().over(key),
        latest=pl.col("arrival").max().over(key),
        second=pl.col("arrival").sort(descending=True).get(1).over(key),
    ).with_columns(behind_ms=(pl.col("arrival") - pl.col("first")) / 1e6, is_last=pl.col("arrival") == pl.col("latest"))
    return (
        ranked.group_by("group_key", "rank")
        .agg(
            pl.col("group_name").first(),
            pl.col("group_desc").first(),
            pl.col("comm_id").first(),
            pl.len().alias("collectives"),
            pl.col("is_last").sum().alias("last_count"),
            pl.col("behind_ms").median().alias("median_ms"),
            pl.col("behind_ms").quantile(0.99).alias("p99_ms"),
            ((pl.col("latest") - pl.col("second")).filter(pl.col("is_last")).sum() / 1e6).alias("lost_ms"),
            (pl.col("is_last") & (pl.col("latest") - pl.col("second") >= LATE_MS * 1e6)).sum().alias("late_count"),
            (pl.col("created_ns").max() - pl.col("created_ns").min()).alias("span_ms") / 1e6,
            pl.col("everyone").first().alias("members"),
            pl.col("source_id").sort_by("behind_ms").last(),
            pl.col("record").sort_by("behind_ms").last(),
            pl.col("call_site").sort_by("behind_ms").last(),
        )
        .select([pl.col(c).cast(t) for c, t in LAG.items()])
        .sort("group_key", "rank")
    )


#: Ends that must have been noticed on a rank before they tell its clock.
_ENDS = 16
#: The watchdog looks for ends this often (torch 2.9 c10d/ProcessGroupNCCL.cpp ``kWatchdogThreadSleepMillis``).
_LOOKS_MS = 100


def _between_ends(usual: pl.Expr) -> pl.Expr:
    """The usual distance of a rank, held within the offset that the ends of its operations show.

    An end is noticed when the watchdog looks, so a rank's ends scatter over half its interval on both sides of the truth; where they do
    not scatter, its looks keep step with the job, and the ends are off by up to that half.
    """
    own = ("group_key", "rank")
    count, offset, spread = (e.over(*own) for e in (pl.col("end").count(), pl.col("end").median(), pl.col("end").std()))
    unsure = 4 * spread / count.sqrt() + pl.when(spread < _LOOKS_MS / 8 * 1e6).then(_LOOKS_MS / 2 * 1e6).otherwise(0.0)
    return pl.when(count >= _ENDS).then(usual.clip(offset - unsure, offset + unsure)).otherwise(usual)
