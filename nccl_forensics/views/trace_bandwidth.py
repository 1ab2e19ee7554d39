"""What the collectives of profiler traces carried, and how large they are."""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.bandwidth import bus_factor, ceiling
from nccl_forensics.frames import text_of, typed
from nccl_forensics.views import view
from nccl_forensics.views.columns import GROUP

TRACE_BANDWIDTH = typed(
    "source_id:u32 record:str",
    GROUP,
    "backend:str collective:str dtype:str bytes:i64 ranks:i32 ranks_seen:u32 members:list[i32] count:u32 best_ms:f64 median_ms:f64",
    "queued_ms:f64 alg_bw_gb_s:f64 bus_bw_gb_s:f64 best_bus_bw_gb_s:f64 expected_gb_s:f64 channels:i32",
)
#: nccl-tests' names, by which the factors are known.
_TESTS = {"all_to_all": "alltoall", "send": "sendrecv", "recv": "sendrecv", "send_recv": "sendrecv"}


@view(rows="groups x sizes")
def trace_bandwidth(trace_collectives: pl.LazyFrame, trace_ranks: pl.LazyFrame, trace_matches: pl.LazyFrame) -> pl.LazyFrame:
    """Bandwidth per group, operation and size. Each collective counts with its shortest duration among the ranks whose traces are there
    (``ranks_seen``), so that waiting for a late rank is not billed to the network; of one rank alone waiting is in it, and the figure is a
    lower bound. Median over collectives, and the best one. Cites the shortest. ``channels`` is the largest grid of their kernels,
    ``members`` the ranks whose traces are there; ``queued_ms``: what they took in all while nothing computed, of those before which less
    was computed, since the one before, than they took themselves: they stood in a queue, and waited for no layer."""
    key = ["group_key", "capture", "position"]
    matched = (
        trace_matches.filter(pl.col("bytes") > 0)
        .with_columns(seen=pl.len().over(key))
        .sort("duration_ns", "source_id", "record")
        .group_by(key)
        .first()
        .join(trace_matches.group_by("group_key").agg(members=pl.col("rank").unique().sort()), on="group_key")
    )
    queued = pl.when(pl.col("since_compute_ns") < pl.col("duration_ns")).then(pl.col("exposed_ns")).otherwise(0)
    alone = (
        trace_collectives.filter((pl.col("bytes") > 0) & pl.col("op").is_not_null())
        .join(trace_ranks.filter(pl.col("duplicate_of").is_null()).select("source_id", "rank"), on="source_id")
        .join(trace_matches.select("source_id", "record"), on=["source_id", "record"], how="anti")
        .with_columns(
            group_key=text_of("trace:{}", pl.col("pg_name").fill_null("?")),
            group_name="pg_name",
            group_desc="pg_desc",
            seen=pl.lit(1, dtype=pl.UInt32),
            members=pl.concat_list("rank"),
            queued=queued,
        )
    )
    world = trace_ranks.select(pl.col("world_size").max()).collect().item()
    columns = [
        "group_key",
        "group_name",
        "group_desc",
        "backend",
        "op",
        "dtype",
        "bytes",
        "group_size",
        "seen",
        "members",
        "duration_ns",
        "channels",
        "queued",
        "source_id",
        "record",
    ]
    matched = matched.with_columns(queued=queued)
    every = pl.concat(
        [matched.select(columns), alone.select(pl.col(c).cast(t) for c, t in matched.select(columns).collect_schema().items())]
    )
    sizes = (
        every.filter(pl.col("duration_ns") > 0)
        .sort("duration_ns", "source_id", "record")
        .group_by("group_key", "op", "dtype", "bytes")
        .agg(
            pl.col("group_name", "group_desc", "backend", "source_id", "record").first(),
            pl.col("group_size").max(),
            pl.col("seen").max().alias("ranks_seen"),
            pl.col("members").sort_by("seen").last(),
            pl.len().alias("count"),
            (pl.col("duration_ns").first() / 1e6).alias("best_ms"),
            (pl.col("duration_ns").median() / 1e6).alias("median_ms"),
            (pl.col("queued").sum() / 1e6).alias("queued_ms"),
            pl.col("channels").max(),
        )
        .collect()
    )
    gpus, hosts = platform(trace_ranks)
    rows = [_rated(row, world, gpus, hosts) for row in sizes.iter_rows(named=True)]
    frame = pl.DataFrame(rows, schema=TRACE_BANDWIDTH, infer_schema_length=None)
    return frame.sort("group_key", "collective", "bytes", "dtype").lazy()


def platform(trace_ranks: pl.LazyFrame) -> tuple[list[str], int | None]:
    """(names of GPUs, hosts) as far as every trace tells them. Ranks of which each has a device number of its own are on one host: a second
    host would count its devices from the same number on."""
    rows = trace_ranks.filter(pl.col("duplicate_of").is_null() & (pl.col("capture") == 0)).select("gpus", "host", "device_number").collect()
    gpus = sorted({g for listed in rows["gpus"].to_list() for g in listed or []})
    hosts = rows["host"].to_list()
    if hosts and all(hosts):
        return gpus, len(set(hosts))
    numbers = rows["device_number"]
    return gpus, 1 if rows.height > 1 and not numbers.null_count() and numbers.n_unique() == rows.height else None


def _rated(row: dict[str, object], world: int | None, gpus: list[str], hosts: int | None) -> dict[str, object]:
    op, size = str(row["op"]), int(str(row["bytes"]))
    ranks = (
        int(str(row["group_size"])) if row["group_size"] is not None else world if str(row["group_key"]).startswith("trace:all:") else None
    )
    factor = bus_factor(_TESTS.get(op, op), ranks)
    median, best = float(str(row["median_ms"])), float(str(row["best_ms"]))
    known = ceiling(gpus, ranks, hosts) if op == "all_reduce" else None
    return row | {
        "collective": op,
        "ranks": ranks,
        "alg_bw_gb_s": size / median / 1e6,
        "bus_bw_gb_s": size / median / 1e6 * factor if factor is not None else None,
        "best_bus_bw_gb_s": size / best / 1e6 * factor if factor is not None else None,
        "expected_gb_s": known.bus_bw_gb_s if known is not None else None,
    }


@view(rows="operations by size")
def trace_messages(trace_collectives: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Histogram of message sizes over all traces that count: ``op``, ``from_bytes`` (a power of two; null where the size is not known),
    ``count``, ``per_step`` (of one rank), ``total_bytes``, ``total_ms`` and ``largest``, the sizes that occur most (buckets)."""
    counted = trace_ranks.filter(pl.col("duplicate_of").is_null())
    traces, steps = counted.select(pl.len(), pl.col("steps").sum()).collect().row(0)
    own = trace_collectives.join(counted.select("source_id"), on="source_id").with_columns(
        from_bytes=pl.when(pl.col("bytes") > 0).then((2 ** pl.col("bytes").log(2).floor()).cast(pl.Int64))
    )
    return (
        own.group_by("op", "from_bytes")
        .agg(
            pl.len().alias("count"),
            pl.col("bytes").sum().alias("total_bytes"),
            (pl.col("duration_ns").sum() / 1e6).alias("total_ms"),
            (pl.col("duration_ns").median() / 1e6).alias("median_ms"),
        )
        .with_columns(per_step=pl.col("count") / steps if steps else pl.lit(None, dtype=pl.Float64), traces=pl.lit(traces))
        .sort("op", "from_bytes", nulls_last=True)
    )


@view(rows="operations by size")
def trace_buckets(trace_collectives: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Sizes in which gradients and parameters travel (all_reduce, reduce_scatter, all_gather), per operation and size: ``count``,
    ``per_step`` of one rank, ``median_ms``, ``total_ms``; at most 256 sizes, those with the most time first."""
    counted = trace_ranks.filter(pl.col("duplicate_of").is_null())
    steps = counted.select(pl.col("steps").sum()).collect().item()
    return (
        trace_collectives.join(counted.select("source_id"), on="source_id")
        .filter(pl.col("op").is_in(["all_reduce", "reduce_scatter", "all_gather"]) & (pl.col("bytes") > 0))
        .group_by("op", "bytes")
        .agg(
            pl.len().alias("count"),
            (pl.col("duration_ns").median() / 1e6).alias("median_ms"),
            (pl.col("duration_ns").sum() / 1e6).alias("total_ms"),
        )
        .with_columns(per_step=pl.col("count") / steps if steps else pl.lit(None, dtype=pl.Float64))
        .sort("total_ms", "op", "bytes", descending=[True, False, False])
        .head(256)
    )
