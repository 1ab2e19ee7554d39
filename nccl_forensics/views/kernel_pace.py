"""How fast each rank's device runs the kernels that its peers run too.

A kernel of one name does the same work on every rank of a job that shares its work alike, so its duration needs no clock, no group and no
counterpart: it tells a slow device in a pipeline, in a pair, and of several ranks at once, where who comes last to collectives does not. So
do copies in one direction that move as many bytes.
"""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.collective_kernels import PAIRWISE
from nccl_forensics.frames import typed
from nccl_forensics.views import view

KERNEL_PACE = typed(
    "kind:str rank:i32 ranks:u32 names:u32 launches:u32 pace:f64 least_pace:f64 agreeing_share:f64 excess_ms:f64 span_ms:f64 kernel:str",
    "kernel_ms:f64 usual_ms:f64 gpus:list[str] stages:bool mates:list[i32] source_id:u32 record:str",
)
#: Copies are told apart by what they move from and to, and not by whether the memory of the host is pinned, which may be what makes them
#: slow.
_DIRECTION = r"^(Mem(?:cpy|set) \w+)"
#: Counts of a kernel, or bytes copied, that differ by no more are the same work: windows begin and end a little apart.
_SAME_COUNT = 0.1
#: A kernel is compared where so many ranks, and so large a share of all, run it as often.
_RUN_BY, _RUN_SHARE = 2, 0.5
#: A name agrees with the pace of all where it shows this share of what the rank is slower by.
_AGREES = 0.5


@view(rows="ranks")
def kernel_pace(
    trace_kernels: pl.LazyFrame, trace_ranks: pl.LazyFrame, trace_windows: pl.LazyFrame, trace_collectives: pl.LazyFrame | None
) -> pl.LazyFrame:
    """Per rank with a trace of its device and ``kind``, over the computing kernels (compute), or copies of as many bytes (memcpy), that at
    least half of the ranks run as often: ``pace``, its mean duration as a multiple of the usual one (of the faster half of the ranks), the
    middle one by time; ``least_pace``, the same of the shortest run of each kernel, which a longer batch now and then leaves alone;
    ``agreeing_share``, of the time compared the share in kernels that show at least half of that; ``excess_ms``, what it runs longer than
    usual, and ``span_ms`` of the trace. ``kernel`` is the one that most of that is in, with ``kernel_ms`` and ``usual_ms`` of one run of
    it; ``gpus`` are the kinds of device of that rank. ``stages``: the rank sends to others, as in a pipeline; ``mates`` are the other ranks
    of its groups that are smaller than the job and in which nothing is sent, those at its own place of it. Cites the trace."""
    by = ["kind", "rank"]
    counted = trace_ranks.filter(pl.col("duplicate_of").is_null() & pl.col("rank").is_not_null() & (pl.col("capture") == 0))
    spans = trace_windows.filter(pl.col("window") == "whole").select("source_id", span_ms=pl.col("duration_ns") / 1e6)
    # Windows that hold other numbers of steps are compared by step.
    windows = pl.when((pl.col("steps") > 0).all()).then("steps").otherwise(1)
    traces = counted.select("source_id", "rank", "gpus", windows=windows).join(spans, on="source_id")
    runs = (
        trace_kernels.filter(
            ((pl.col("kind") == "compute") | ((pl.col("kind") == "memcpy") & (pl.col("bytes") > 0)))
            & (pl.col("count") > 0)
            & (pl.col("min_ns") > 0)
        )
        .with_columns(name=pl.when(pl.col("kind") == "memcpy").then(pl.col("name").str.extract(_DIRECTION)).otherwise("name"))
        .filter(pl.col("name").is_not_null())
        .group_by("source_id", "kind", "name")
        .agg(pl.col("count", "total_ns", "bytes").sum(), pl.col("min_ns").min())
        .join(traces, on="source_id")
        .with_columns(mean=pl.col("total_ns") / pl.col("count"), ranks=pl.col("rank").n_unique().over("kind"))
        .filter(_alike("count") & (_alike("bytes") | (pl.col("kind") == "compute")))
        .filter((pl.len().over("name") >= _RUN_BY) & (pl.len().over("name") >= _RUN_SHARE * pl.col("ranks")))
    )
    # The faster half: of as many slow ranks as good ones the middle is neither.
    usual = {c: pl.col(c).filter(pl.col("mean") <= pl.col("mean").median()).median().over("name") for c in ("mean", "min_ns")}
    paced = (
        runs.with_columns(ratio=pl.col("mean") / usual["mean"], least=pl.col("min_ns") / usual["min_ns"], usually=usual["mean"])
        .sort("kind", "rank", "ratio", "name")
        .with_columns(upto=pl.col("total_ns").cum_sum().over(by), whole=pl.col("total_ns").sum().over(by))
        .with_columns(pace=pl.col("ratio").filter(pl.col("upto") >= 0.5 * pl.col("whole")).first().over(by))
    )
    longer = pl.col("total_ns") - pl.col("count") * pl.col("usually")
    most = longer.arg_max()
    agrees = pl.col("ratio") >= 1 + _AGREES * (pl.col("pace") - 1)
    return (
        paced.group_by(by)
        .agg(
            pl.col("ranks").first(),
            pl.len().alias("names"),
            pl.col("count").sum().alias("launches"),
            pl.col("pace").first(),
            # Weighted by time, so that many short kernels do not speak for the long ones.
            ((pl.col("least") * pl.col("total_ns")).sum() / pl.col("total_ns").sum()).alias("least_pace"),
            (pl.col("total_ns").filter(agrees).sum() / pl.col("total_ns").sum()).alias("agreeing_share"),
            (longer.sum() / 1e6).alias("excess_ms"),
            pl.col("span_ms").first(),
            pl.col("name").get(most).alias("kernel"),
            (pl.col("mean").get(most) / 1e6).alias("kernel_ms"),
            (pl.col("usually").get(most) / 1e6).alias("usual_ms"),
            pl.col("gpus").first(),
            pl.col("source_id").first(),
            pl.lit("traceEvents").alias("record"),
        )
        .join(_places(trace_collectives, counted), on="rank", how="left")
        .select(pl.col(c).cast(t) for c, t in KERNEL_PACE.items())
        .sort(by)
    )


def _alike(number: str) -> pl.Expr:
    """Whether it is about what most ranks have of that name, in all or in each marked step (a window may begin within one)."""
    told = [
        (own - own.median().over("name")).abs() <= _SAME_COUNT * own.median().over("name")
        for own in (pl.col(number), pl.col(number) / pl.col("windows"))
    ]
    return told[0] | told[1]


def _places(trace_collectives: pl.LazyFrame | None, counted: pl.LazyFrame) -> pl.LazyFrame:
    """``stages`` and ``mates`` by rank."""
    if trace_collectives is None:
        return pl.LazyFrame(schema={"rank": pl.Int32(), "stages": pl.Boolean(), "mates": pl.List(pl.Int32())})
    calls = trace_collectives.join(counted.select("source_id", "rank", "world_size"), on="source_id")
    # Who sends to whom is a stage of a pipeline: stages need not do the same work.
    sends = pl.col("op").is_in(PAIRWISE)
    groups = calls.group_by("rank", "pg_name", "pg_ranks").agg(sends=sends.any(), world=pl.col("world_size").first())
    within = ~pl.col("sends") & (pl.col("pg_ranks").list.len() < pl.col("world"))
    members = groups.filter(within).explode("pg_ranks").filter(pl.col("pg_ranks") != pl.col("rank"))
    mates = members.group_by("rank").agg(mates=pl.col("pg_ranks").unique().sort())
    return groups.group_by("rank").agg(stages=pl.col("sends").any()).join(mates, on="rank", how="left")
