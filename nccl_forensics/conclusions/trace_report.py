"""What the report says was measured: traces, bandwidth, lag, messages, and how each figure is defined."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.views.trace_measures import DEFINITIONS

ROWS = 4096
_BANDWIDTH = ("collective", "dtype", "bytes", "ranks", "alg_bw_gb_s", "bus_bw_gb_s", "expected_gb_s")
_LAG = ("rank", "collectives", "median_ms", "p99_ms", "lost_ms")
_TIMES = ("span_ms", "compute_ms", "communication_ms", "exposed_ms", "memcpy_ms", "exposed_memcpy_ms", "idle_ms", "host_wait_ms")
_RATIOS = ("overlap_fraction", "overlap_hta", "overlap_tracelens", "compute_fraction")


def measures(resolver: Resolver, store: Store) -> dict[str, object]:
    """The ``measures`` of the report: each list at most 4,096 rows, worst first, with its total beside it."""
    paths: dict[int, str] = dict(store.sources.select("source_id", "path").iter_rows())
    out: dict[str, object] = {"traces": [], "bandwidth": [], "lag": []}
    out |= _listed("traces", _traces(resolver, paths))
    out |= _listed("bandwidth", _bandwidth(resolver, paths))
    out |= _listed("lag", _lag(resolver))
    if resolver.get("traces") is None:
        return out
    out |= _listed("steps", _steps(resolver))
    out |= _listed("host", _host(resolver))
    out |= _listed("messages", _rows(resolver, "trace_messages"))
    out |= _listed("buckets", _rows(resolver, "trace_buckets"))
    return out | {"definitions": dict(DEFINITIONS)}


def _listed(name: str, rows: list[dict[str, object]]) -> dict[str, object]:
    return {name: [{k: _round(v) for k, v in row.items()} for row in rows[:ROWS]], f"{name}_total": len(rows)}


def _round(value: object) -> object:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _rows(resolver: Resolver, view: str) -> list[dict[str, object]]:
    frame = resolver.get(view)
    return [] if frame is None else list(frame.collect().iter_rows(named=True))


def _traces(resolver: Resolver, paths: Mapping[int, str]) -> list[dict[str, object]]:
    """A row for each trace and window, the largest share of exposed communication first."""
    frame = resolver.get("trace_measures")
    if frame is None:
        return []
    share = pl.col("exposed_ms") / pl.col("span_ms")
    # Both windows of a trace stay together, ordered by the whole.
    order = share.filter(pl.col("window") == "whole").first().over("source_id")
    rows = frame.with_columns(order=order).sort(
        "order", "rank", "source_id", "window", descending=[True, False, False, True], nulls_last=True
    )
    return [
        {"rank": r["rank"], "window": r["window"]}
        | {c: r[c] for c in (*_TIMES, *_RATIOS)}
        | {"steps": r["steps"], "collectives": r["collectives"], "device": r["device"], "source": paths.get(r["source_id"])}
        for r in rows.collect().iter_rows(named=True)
    ]


def _steps(resolver: Resolver) -> list[dict[str, object]]:
    """Every ProfilerStep of every trace, the longest first."""
    frame = resolver.get("trace_steps")
    if frame is None:
        return []
    rows = frame.sort("span_ms", "rank", "step", descending=[True, False, False], nulls_last=True).collect()
    return [{c: r[c] for c in ("rank", "step", *_TIMES, *_RATIOS)} for r in rows.iter_rows(named=True)]


def _host(resolver: Resolver) -> list[dict[str, object]]:
    """What the host of each trace did, by its steps (or the whole where it has none): the longest idle for the host's sake first."""
    frame = resolver.get("trace_measures")
    if frame is None:
        return []
    steps = pl.col("window") == "steps"
    chosen = frame.filter(steps | ~steps.any().over("source_id"))
    pauses = resolver.get("trace_spans")
    longest = (
        pauses.filter(pl.col("kind") == "host-gap").group_by("source_id").agg(longest_gap_ms=pl.col("duration_ns").max() / 1e6)
        if pauses is not None
        else pl.LazyFrame(schema={"source_id": pl.UInt32, "longest_gap_ms": pl.Float64})
    )
    columns = ("rank", "host_wait_ms", "loader_ms", "lead_ms", "gc_ms", "longest_gap_ms", "launch_median_us", "launch_p99_us", "span_ms")
    waited = pl.sum_horizontal(pl.col("host_wait_ms", "loader_ms", "lead_ms", "gc_ms").fill_null(0)) / pl.col("span_ms")
    rows = chosen.join(longest, on="source_id", how="left").sort(waited, "rank", descending=[True, False], nulls_last=True)
    return [{c: r[c] for c in columns} for r in rows.collect().iter_rows(named=True)]


def _bandwidth(resolver: Resolver, paths: Mapping[int, str]) -> list[dict[str, object]]:
    """What bandwidth tests measured and what the collectives of traces reached, furthest below what is expected first."""
    rows = []
    for name in ("bandwidth_measures", "trace_bandwidth"):
        frame = resolver.get(name)
        if frame is None:
            continue
        for r in frame.collect().iter_rows(named=True):
            row = {"source": paths.get(r["source_id"]), **{c: r[c] for c in _BANDWIDTH}, "line": r.get("line_no"), "record": r["record"]}
            if name == "trace_bandwidth":
                row |= {
                    "count": r["count"],
                    "ranks_seen": r["ranks_seen"],
                    "best_bus_bw_gb_s": r["best_bus_bw_gb_s"],
                    "group": r["group_name"],
                }
            rows.append(row)
    return sorted(rows, key=_below)


def _below(row: Mapping[str, object]) -> tuple[bool, float]:
    got, expected = row["bus_bw_gb_s"], row["expected_gb_s"]
    if isinstance(got, float) and isinstance(expected, float) and expected:
        return False, got / expected
    return True, 0.0


def _lag(resolver: Resolver) -> list[dict[str, object]]:
    """Arrival lag per rank and source of it (dumps: enqueue times, traces: durations), worst first."""
    rows: list[dict[str, object]] = []
    for name, source in (("lag", "dumps"), ("trace_lag", "traces")):
        frame = resolver.get(name)
        if frame is None:
            continue
        more = [pl.col("waited_ms").sum(), pl.col("p_value").min()] if name == "trace_lag" else []
        grouped = frame.group_by("rank").agg(
            pl.col("collectives").sum(), pl.col("median_ms").max(), pl.col("p99_ms").max(), pl.col("lost_ms").sum(), *more
        )
        rows += [{**r, "source": source} for r in grouped.sort("rank").collect().iter_rows(named=True)]
    ordered = sorted(rows, key=lambda r: (-float(str(r["lost_ms"] or 0.0)), str(r["source"]), int(str(r["rank"]))))
    return [{**{c: r[c] for c in _LAG}, **{c: r[c] for c in ("waited_ms", "p_value", "source") if c in r}} for r in ordered]
