"""Time that each rank spends by itself between its collectives, where arrivals at single collectives do not tell who is late: groups are
too small to compare them, or not all members wait in the operation before which one of them is slow (a root sends and goes on)."""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.collective_kernels import PAIRWISE
from nccl_forensics.frames import has_rows, typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.source_hosts import one_host
from nccl_forensics.words import UNIDENTIFIED

OWN_TIME = typed(
    "rank:i32 collectives:u32 own_ms:f64 span_ms:f64 long_count:u32 longest_ms:f64 gaps_ms:list[f64] source_id:u32 record:str",
    "call_site:str",
)
#: What counts as long between two collectives: the margin by which a rank must be late (view ``lag``).
LONG_MS = 50.0
#: More ranks than a host has: nothing is read of such a job.
_MOST_RANKS = 64


@view(rows="ranks")
def own_time(
    operations: pl.LazyFrame | Calls, groups: pl.LazyFrame, processes: pl.LazyFrame | None, path_hints: pl.LazyFrame
) -> pl.LazyFrame:
    """Per rank, over the recorded collectives of all its groups in order: ``own_ms``, the time from the arrival of the last member at one
    to the rank's own arrival at the next, summed; ``span_ms``, from its first to its last; ``long_count``, how often that was 50 ms and
    more, ``longest_ms``, the longest of these. Cites the collective before which it was longest.

    In a mesh a late rank makes its neighbours late in their other groups; its own time is the only one that nothing waits in. Arrivals are
    compared over groups, so all ranks must share a clock: empty unless all are on one host, or no host is told and their times show that
    they share one, and unless every stated member was recorded.
    """
    nothing = pl.LazyFrame(schema=OWN_TIME)
    calls = calls_of(operations)
    timed = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("created_ns").is_not_null() & (pl.col("rank") < UNIDENTIFIED)
    # The first operation of each sort is among those that tell, and with a time and without one are two sorts.
    seen = set(calls.telling.filter(timed).select(pl.col("rank").unique()).collect()["rank"].to_list())
    if not 2 < len(seen) <= _MOST_RANKS or not _all_recorded(groups, seen):
        return nothing
    met = (
        calls.every.filter(timed).with_columns(met=pl.col("created_ns").max().over("group_key", "seq")).sort("rank", "created_ns", "order")
    )
    since = met.with_columns(since=(pl.col("created_ns") - pl.col("met").shift(1).over("rank")) / 1e6)
    # Whoever goes on before the last member has come does not share its clock, or does not wait: then nothing is known of its own time.
    gaps = since.group_by("rank").agg(usual=pl.col("since").median(), least=pl.col("since").min()).collect()
    if float(str(gaps["usual"].min() or 0.0)) < -LONG_MS:
        return nothing
    if not one_host(seen, processes, path_hints) and (_hosts_told(seen, processes) or not _one_clock(gaps["least"])):
        return nothing
    alone = since.with_columns(own=pl.col("since").clip(0)).collect()
    pause = _pause_of_all(alone)
    longest = pl.col("own").rank("ordinal", descending=True).over("rank") == 1
    shorter = alone.with_columns(own=pl.when(longest).then(pl.col("own") - pause).otherwise("own"))
    return _summed(shorter.lazy(), ((pl.col("created_ns").max() - pl.col("created_ns").min()) / 1e6 - pause).alias("span_ms"))


def _pause_of_all(alone: pl.DataFrame) -> float:
    """How long, in ms, every rank was by itself at once in the longest of its times: while profilers start or all write a checkpoint nobody
    waits, and nobody is late."""
    end = pl.col("created_ns") / 1e6
    longest = alone.sort("own", nulls_last=False).group_by("rank").last().select(begin=end - pl.col("own"), end=end)
    return max(0.0, float(str(longest.select(pl.col("end").min() - pl.col("begin").max()).item() or 0.0)))


def _hosts_told(seen: set[int], processes: pl.LazyFrame | None) -> bool:
    """Whether a host is named for any of the ranks."""
    if processes is None:
        return False
    named = processes.filter(pl.col("rank").is_in(sorted(seen)) & pl.col("host").is_not_null())
    return has_rows(named)


def _one_clock(least: pl.Series) -> bool:
    """Whether the times of the ranks themselves show that they share a clock, from the shortest time in which each went on after the last
    member of a collective had come: all make two in a row, and with another clock somebody would go on before that."""
    return not least.null_count() and bool(least.is_between(-LONG_MS, LONG_MS).all())


def _summed(calls: pl.LazyFrame, span_ms: pl.Expr) -> pl.LazyFrame:
    """``OWN_TIME`` from the collectives of all ranks with ``own``, the time in ms that the rank took by itself before each."""
    return (
        calls.group_by("rank")
        .agg(
            pl.len().alias("collectives"),
            pl.col("own").sum().alias("own_ms"),
            span_ms,
            (pl.col("own") >= LONG_MS).sum().alias("long_count"),
            pl.col("own").max().alias("longest_ms"),
            *(pl.col(c).sort_by("own", nulls_last=False).last() for c in ("source_id", "record", "call_site")),
        )
        .with_columns(gaps_ms=None)
        .select([pl.col(c).cast(t) for c, t in OWN_TIME.items()])
        .sort("rank")
    )


def _all_recorded(groups: pl.LazyFrame, seen: set[int]) -> bool:
    """Whether every member of every group has a recorder here: who waits for a rank that has none would seem to work."""
    told = groups.filter(pl.col("domain") == "fr").select("members", "size").collect()
    return bool(told.height) and all(
        set(members or ()) <= seen and (size is None or size == len(members or ())) for members, size in told.iter_rows()
    )


@view(rows="ranks")
def trace_own_time(trace_collectives: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """The same of profiler traces, by durations alone and so without any clock: ``own_ms`` is the time in which no collective of the rank
    is under way, or (CPU traces) it computes meanwhile, ``span_ms`` runs from its first collective to its last; where steps are marked, which all ranks begin together, from
    there. Cites the collective before which it was longest. ``gaps_ms``: the longest of each step, where all ranks marked the same ones.

    Two are compared here, as no clock is needed. Empty unless every rank of the job left a trace with as many collectives of each kind,
    sends and receives aside: who has fewer of them is by itself for longer in a good job too.
    """
    traces = trace_ranks.filter(pl.col("duplicate_of").is_null() & pl.col("rank").is_not_null() & (pl.col("capture") == 0)).collect()
    if not 1 < traces.height <= _MOST_RANKS or traces["world_size"].max() != traces.height:
        return pl.LazyFrame(schema=OWN_TIME)
    calls = trace_collectives.join(traces.lazy().select("source_id", "rank"), on="source_id")
    # Of these a first or a last stage has fewer by right; who waits in one is in it as in any other.
    kinds = calls.filter(~pl.col("op").is_in(PAIRWISE)).group_by("rank", "op").len().sort("rank", "op").collect()
    alike = kinds.group_by("rank").agg(pl.struct("op", "len")).select(pl.col("op").n_unique()).item() == 1
    if kinds["rank"].n_unique() != traces.height or not alike:
        return pl.LazyFrame(schema=OWN_TIME)
    first = pl.col("ordinal") == pl.col("ordinal").min().over("rank")
    since = pl.when(first & pl.col("step").is_null()).then(0).otherwise(pl.col("since_ns"))
    # Who computes while one is under way waits in it for no longer than in the longest stretch that shows nothing.
    end = pl.col("start_ns") + pl.col("duration_ns")
    beyond = (end - pl.max_horizontal("start_ns", end.cum_max().shift(1).over("rank", order_by="ordinal"))).clip(0)
    working = beyond * (1 - pl.col("stretch_ns") / pl.col("duration_ns").clip(1))
    timed = calls.with_columns(
        own=(since + working.fill_null(0)) / 1e6,
        begin=pl.col("start_ns") - since,
        end=pl.col("start_ns") + pl.col("duration_ns"),
        call_site=pl.lit(None),
    )
    summed = _summed(timed, ((pl.col("end").max() - pl.col("begin").min()) / 1e6).alias("span_ms"))
    longest = timed.group_by("rank", "step").agg(pl.col("own").max()).sort("rank", "step").collect()
    of_rank = longest.group_by("rank", maintain_order=True).agg("step", gaps_ms="own")
    if longest["step"].null_count() or of_rank.select(pl.col("step").n_unique()).item() > 1:
        return summed
    return summed.drop("gaps_ms").join(of_rank.lazy().select("rank", "gaps_ms"), on="rank").select(list(OWN_TIME)).sort("rank")
