"""Where the time of each rank goes, from its traces, as reports list it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view

#: What each figure is; printed beside it.
DEFINITIONS: dict[str, str] = {
    "window": "whole: first to last activity of the device (of CPU traces: first to last event). steps: all ProfilerStep windows added up; "
    "on a device a step runs from the first activity that it launched to the first one of the next step.",
    "span_ms": "length of the window.",
    "compute_ms": "union of the device's kernels that do not communicate; of CPU traces: union of operators that call no collective.",
    "communication_ms": "union of the kernels of NCCL, RCCL and other communication libraries, waiting for peers included; of CPU traces: "
    "union of gloo's ranges on its worker threads.",
    "exposed_ms": "communication while nothing computes: |compute or communication| - |compute|.",
    "stretch_ms": "of exposed_ms, what lies in the longest time in which nothing computes; of steps, that of each added up.",
    "memcpy_ms": "union of the device's copies and fills.",
    "exposed_memcpy_ms": "copies and fills while neither computation nor communication runs.",
    "idle_ms": "span - |compute or communication or copies|.",
    "overlap_fraction": "share of communication that runs while something computes: |compute and communication| / |communication|.",
    "overlap_hta": "the same ratio with HolisticTraceAnalysis' classes of kernels (comm_comp_overlap): communication begins with nccl, hip or "
    "hccl or contains ncclKernel; copies and fills count for neither.",
    "overlap_tracelens": "1 - exposed communication / communication with TraceLens' classes: communication contains nccl or rccl or "
    "cross_device_reduce; fills count as computation.",
    "compute_fraction": "compute / (compute + communication), both as unions: the plain ratio, blind to overlap.",
    "host_wait_ms": "idle before a kernel whose launch call began only after the device had run dry: the host was late.",
    "lead_ms": "from a step's begin to its first operator: where a training loop takes its next batch.",
    "lag": "of collectives matched over ranks, clock-free: the longest duration among the ranks minus the own one, because all of them end "
    "together and who comes last waits least. lost_ms: how much later the last rank came than the one before it, no more than the others "
    "were in the collective without computing, summed over the collectives to which it came last.",
    "bandwidth": "size / shortest duration among the ranks, so that waiting for a late rank is not billed to the network; bus bandwidth by "
    "the factors of nccl-tests.",
}

MEASURES = typed(
    "source_id:u32 rank:i32 capture:u32 device:str window:str step:i64 steps:u32 record:str span_ms:f64 compute_ms:f64",
    "communication_ms:f64 exposed_ms:f64 stretch_ms:f64 memcpy_ms:f64 exposed_memcpy_ms:f64 idle_ms:f64 overlap_fraction:f64",
    "overlap_hta:f64 overlap_tracelens:f64 compute_fraction:f64 host_wait_ms:f64 loader_ms:f64 gc_ms:f64 lead_ms:f64 collectives:u32",
    "launch_median_us:f64 launch_p99_us:f64",
)
_SUMS = (
    "duration",
    "compute",
    "communication",
    "exposed",
    "stretch",
    "overlap",
    "memcpy",
    "exposed_memcpy",
    "idle",
    "host_wait",
    "hta_communication",
    "hta_overlap",
    "tracelens_communication",
    "tracelens_exposed",
    "loader",
    "gc",
    "lead",
)


@view(rows="traces x steps")
def trace_steps(trace_windows: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """The measures of every ProfilerStep of every trace that counts, by rank and step."""
    own = _of_ranks(trace_windows.filter(pl.col("window") == "step"), trace_ranks)
    return _figures(own.with_columns(steps=pl.lit(1))).sort("rank", "source_id", "step", nulls_last=True)


@view(rows="traces x 2")
def trace_measures(trace_windows: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Per trace that counts, one row for the whole and one for its steps together (``steps`` counts them), by rank."""
    own = _of_ranks(trace_windows, trace_ranks)
    whole = own.filter(pl.col("window") == "whole").with_columns(steps=pl.lit(0))
    steps = (
        own.filter(pl.col("window") == "step")
        .group_by("source_id", "rank", "capture", "device")
        .agg(
            *(pl.when(pl.col(f"{c}_ns").is_not_null().any()).then(pl.col(f"{c}_ns").sum()).alias(f"{c}_ns") for c in _SUMS),
            pl.col("collectives").sum(),
            pl.col("launch_median_us").median(),
            pl.col("launch_p99_us").max(),
            pl.len().alias("steps"),
            pl.col("record").first(),
        )
        .with_columns(window=pl.lit("steps"), step=pl.lit(None, dtype=pl.Int64))
    )
    both = pl.concat([_figures(whole), _figures(steps)])
    return both.sort("rank", "source_id", "window", descending=[False, False, True], nulls_last=True)


def _of_ranks(windows: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    counted = trace_ranks.filter(pl.col("duplicate_of").is_null()).select("source_id", "rank", "capture", "device")
    return windows.join(counted, on="source_id")


def _figures(windows: pl.LazyFrame) -> pl.LazyFrame:
    """The columns of ``MEASURES`` from sums in ns."""
    ms = {f"{c}_ms": pl.col(f"{c}_ns") / 1e6 for c in _SUMS if f"{c}_ms" in MEASURES}
    communication = pl.col("communication_ns")
    shown = windows.with_columns(
        **ms,
        span_ms=pl.col("duration_ns") / 1e6,
        overlap_fraction=pl.when(communication > 0).then(pl.col("overlap_ns") / communication),
        overlap_hta=pl.when(pl.col("hta_communication_ns") > 0).then(pl.col("hta_overlap_ns") / pl.col("hta_communication_ns")),
        overlap_tracelens=pl.when(pl.col("tracelens_communication_ns") > 0).then(
            1 - pl.col("tracelens_exposed_ns") / pl.col("tracelens_communication_ns")
        ),
        compute_fraction=pl.when(pl.col("compute_ns") + communication > 0).then(
            pl.col("compute_ns") / (pl.col("compute_ns") + communication)
        ),
    )
    return shown.select(pl.col(c).cast(t) for c, t in MEASURES.items())
