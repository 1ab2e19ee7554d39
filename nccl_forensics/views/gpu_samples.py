"""Which GPUs each listing of a host holds: listings of one source in their order, so that one can be set beside another."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view

#: An address that begins so is an instance of a divided GPU, not a GPU.
_INSTANCE = "MIG-"
_KEPT = ("name", "utilization_percent", "power_w", "power_limit_w", "memory_used_mib", "memory_total_mib")

GPU_SAMPLES = typed(
    "host:str source_id:u32 tool:str sample:u32 gpu:str gpu_index:i32 bus_id:str name:str utilization_percent:f64 power_w:f64",
    "power_limit_w:f64 memory_used_mib:f64 memory_total_mib:f64 line_no:u32 record:str",
)


@view(rows="GPUs x listings")
def gpu_samples(gpus: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.LazyFrame:
    """One row per GPU in one listing: ``host``, ``tool``, ``sample`` (from 0 in each source, tool and host), ``gpu`` (its address, or
    ``index n``).

    Tools list GPUs in the order of index or address: where that order starts again, another listing begins. Rows with neither are left out,
    for their order says nothing. ``host`` is null where nothing states it.
    """
    rows = gpus.filter(~pl.col("uuid").fill_null("").str.starts_with(_INSTANCE))
    stated = [pl.col("host"), pl.col("hint_host")]
    if source_hosts is not None:
        known = source_hosts.select("source_id", source_host="host").unique("source_id")
        rows = rows.join(known, on="source_id", how="left", maintain_order="left")
        stated.append(pl.col("source_host"))
    index = pl.col("gpu_index").cast(pl.String)
    listed = (
        rows.with_columns(host=pl.coalesce(stated), gpu=pl.coalesce("bus_id", pl.lit("index ") + index), place=index.str.zfill(4))
        .with_columns(place=pl.coalesce("place", "bus_id"))
        .filter(pl.col("place").is_not_null())
        .sort("source_id", "line_no", maintain_order=True, nulls_last=True)
    )
    group = ["source_id", "tool", "host"]
    again = (pl.col("place") <= pl.col("place").shift(1)).fill_null(value=False)
    numbered = listed.with_columns(sample=again.cum_sum().over(group))
    return numbered.select(pl.col(c).cast(t) for c, t in GPU_SAMPLES.items())
