"""What bandwidth tests measured, as reports list it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.bandwidth import LARGE_BYTES, ceiling
from nccl_forensics.frames import typed
from nccl_forensics.views import view

MEASURES = typed(
    "source_id:u32 test:u32 collective:str dtype:str bytes:i64 ranks:i32 alg_bw_gb_s:f64 bus_bw_gb_s:f64 expected_gb_s:f64 line_no:u32",
    "record:str",
)


@view(rows="tests x sizes")
def bandwidth_measures(bandwidth_tests: pl.LazyFrame, bandwidth_rows: pl.LazyFrame) -> pl.LazyFrame:
    """The better placement of every size of every nccl-tests run, furthest below its expectation first, then slowest first.

    ``expected_gb_s`` only where a source tells it for this platform, and only for AllReduces that are large enough to be compared.
    """
    about = bandwidth_tests.select("source_id", "test", "collective", "ranks", "gpus", "hosts").collect()
    goals = [
        known.bus_bw_gb_s
        if r["collective"] == "all_reduce" and (known := ceiling(r["gpus"] or [], r["ranks"], len(r["hosts"] or ()) or None))
        else None
        for r in about.iter_rows(named=True)
    ]
    told = about.drop("gpus", "hosts").with_columns(goal=pl.Series(goals, dtype=pl.Float64)).lazy()
    best = (
        bandwidth_rows.filter(pl.col("bus_bw_gb_s").is_not_null())
        .sort("bus_bw_gb_s", descending=True, maintain_order=True)
        .group_by("source_id", "test", "bytes", "dtype", maintain_order=True)
        .first()
    )
    joined = best.join(told, on=["source_id", "test"], how="left")
    measured = joined.with_columns(expected_gb_s=pl.when(pl.col("bytes") >= LARGE_BYTES).then("goal"))
    ratio = pl.col("bus_bw_gb_s") / pl.col("expected_gb_s")
    return measured.sort(ratio, "bus_bw_gb_s", "source_id", "test", "bytes", nulls_last=True).select(
        pl.col(c).cast(t) for c, t in MEASURES.items()
    )
