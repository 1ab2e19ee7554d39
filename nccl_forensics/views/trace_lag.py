"""How late each rank comes to its collectives, from profiler traces, and what it did instead of coming.

A collective ends on all ranks at about the same time, so the rank that is in it for the shortest time came last: durations alone say who
is late, whatever the clocks of the hosts say.
"""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.values.chances import tail
from nccl_forensics.views import view
from nccl_forensics.views.columns import GROUP

#: A last place counts only if the others lost at least so much: less is noise of the measurement.
MATERIAL_NS, MATERIAL_SHARE = 20_000, 0.1

TRACE_LAG = typed(
    GROUP,
    "group_known:bool rank:i32 members:u32 collectives:u32 material:u32 last_count:u32 p_value:f64 median_ms:f64 p99_ms:f64 lost_ms:f64",
    "worst_ms:f64 waited_ms:f64 window_ms:f64 compute_excess_ms:f64 memcpy_excess_ms:f64 loader_excess_ms:f64 gc_excess_ms:f64",
    "lead_excess_ms:f64 host_excess_ms:f64 source_id:u32 record:str",
)
_DOING = ("compute", "memcpy", "loader", "gc", "lead")


@view(rows="operations")
def trace_arrivals(trace_matches: pl.LazyFrame) -> pl.LazyFrame:
    """Matched collectives of all traces of a group with ``lag_ns`` (how long after the first rank it came), ``wait_ns`` (how long it waited
    for the last while nothing computed), ``lost_ns`` (only where it came last: how much later than the rank before it, no more than the
    time since it began the one before, and no more than the others, in the middle, were in it without computing, by CPU traces in the
    longest stretch of that until it came) and ``is_last``. A wait behind which computation runs on loses nothing: of gradients that travel
    during backward the same delay shows in each bucket."""
    key = ["group_key", "capture", "position"]
    full = trace_matches.filter(pl.col("op").n_unique().over(key) == 1).with_columns(
        present=pl.len().over(key), members=pl.col("rank").n_unique().over("group_key", "capture")
    )
    # Only where every traced member is seen: a missing one might be the last.
    seen = full.filter((pl.col("present") == pl.col("members")) & (pl.col("members") > 1))
    shortest = pl.col("duration_ns").min().over(key)
    second = pl.col("duration_ns").sort().get(1).over(key)
    # A rank that begins several collectives in a row, none of them waited for, is late to all of them and has lost that time once.
    gone = pl.col("start_ns") - pl.col("start_ns").shift(1).over("group_key", "capture", "rank", order_by="start_ns")
    timed = seen.with_columns(
        lag_ns=pl.col("duration_ns").max().over(key) - pl.col("duration_ns"),
        wait_ns=pl.col("duration_ns") - shortest,
        margin=second - shortest,
        gone=gone,
    )
    last = (pl.col("duration_ns") == shortest) & (pl.col("margin") >= pl.max_horizontal(pl.lit(MATERIAL_NS), MATERIAL_SHARE * shortest))
    # What comes after the last has come is transfer, and no wait for it.
    ended = pl.min_horizontal(pl.col("stretch_at_ns") + pl.col("stretch_ns"), pl.col("duration_ns") - shortest)
    idled = pl.coalesce((ended - pl.col("stretch_at_ns")).clip(0), "exposed_ns")
    idle = idled.filter(pl.col("duration_ns") > shortest).median().over(key).cast(pl.Int64)
    lost = pl.when(last).then(pl.min_horizontal("margin", "gone", idle)).otherwise(0)
    return timed.with_columns(is_last=last, lost_ns=lost, wait_ns=pl.min_horizontal("wait_ns", "exposed_ns")).drop(
        "margin", "present", "gone"
    )


@view(rows="ranks x groups")
def trace_lag(trace_arrivals: pl.LazyFrame, trace_measures: pl.LazyFrame) -> pl.LazyFrame:
    """Per group and rank, over collectives that every traced member was seen in: ``median_ms`` and ``p99_ms`` after the first arrival,
    ``last_count`` of ``material`` collectives in which somebody came late enough to count, ``lost_ms`` (what the others lost to it),
    ``worst_ms`` (in one collective), ``waited_ms`` (what it lost to others), and ``p_value``: the chance that some rank of the group comes
    last so often if all were alike.

    ``*_excess_ms`` say what a late rank did more of than the median of its peers between its last collective and the one it came late to,
    summed over those: computing, copying, loading data, collecting garbage, sitting between a step's begin and its first operator, or
    (``host``) nothing that the trace shows. Cites the collective to which it came latest.
    """
    key = ["group_key", "capture", "position"]
    others = pl.col("since_ns") - sum((pl.col(f"since_{d}_ns") for d in ("compute", "memcpy", "loader", "gc", "lead")), pl.lit(0))
    arrivals = trace_arrivals.with_columns(since_host_ns=pl.max_horizontal(others, pl.lit(0)))
    # Of two the middle is halfway to the late one itself: the lower one is its peer's.
    excess = {d: pl.col(f"since_{d}_ns") - pl.col(f"since_{d}_ns").quantile(0.5, "lower").over(key) for d in (*_DOING, "host")}
    rows = arrivals.with_columns(**{f"{d}_excess": e for d, e in excess.items()}, anybody=pl.col("is_last").any().over(key))
    spans = trace_measures.filter(pl.col("window") == "whole").group_by("rank").agg(window_ms=pl.col("span_ms").sum())
    counted = (
        rows.group_by("group_key", "rank")
        .agg(
            pl.col("group_name").first(),
            pl.col("group_desc").first(),
            pl.col("group_known").first(),
            pl.col("members").max(),
            pl.len().alias("collectives"),
            pl.col("anybody").sum().alias("material"),
            pl.col("is_last").sum().alias("last_count"),
            (pl.col("lag_ns").median() / 1e6).alias("median_ms"),
            (pl.col("lag_ns").quantile(0.99) / 1e6).alias("p99_ms"),
            (pl.col("lost_ns").sum() / 1e6).alias("lost_ms"),
            (pl.col("lost_ns").max() / 1e6).alias("worst_ms"),
            (pl.col("wait_ns").sum() / 1e6).alias("waited_ms"),
            *((pl.col(f"{d}_excess").filter("is_last").sum() / 1e6).alias(f"{d}_excess_ms") for d in (*_DOING, "host")),
            pl.col("source_id").sort_by("lost_ns", "capture", "position").last(),
            pl.col("record").sort_by("lost_ns", "capture", "position").last(),
        )
        .join(spans, on="rank", how="left")
        .collect()
    )
    chances = [chance(m, n, k) for m, n, k in counted.select("members", "material", "last_count").iter_rows()]
    found = counted.with_columns(p_value=pl.Series(chances, dtype=pl.Float64))
    return found.select(pl.col(c).cast(t) for c, t in TRACE_LAG.items()).sort("group_key", "rank").lazy()


def chance(members: int, trials: int, last: int) -> float:
    """Chance that some one of ``members`` alike ranks is last in at least ``last`` of ``trials`` collectives (a union bound)."""
    if members < 2 or last < 1:
        return 1.0
    return min(1.0, members * tail(trials, last, 1 / members))
