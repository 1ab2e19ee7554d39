"""What the figures of traces need: the lag of the ranks that tell most, and one step of the slowest, the median and the fastest rank."""

from __future__ import annotations

import polars as pl

from nccl_forensics.extras import LagMap, StepLane, StepLanes
from nccl_forensics.views import Resolver

#: Rows and columns of the lag map, which a page carries and an eye takes in.
_RANKS, _COLLECTIVES = 64, 120
_SEGMENTS = 1500


def lag_map(resolver: Resolver) -> LagMap | None:
    """Lag of each rank at each collective of the group that lost most time; of thousands of ranks those that lost or waited most."""
    lag, arrivals = resolver.get("trace_lag"), resolver.get("trace_arrivals")
    if lag is None or arrivals is None:
        return None
    groups = (
        lag.group_by("group_key")
        .agg(pl.col("lost_ms").sum(), pl.col("members").max())
        .sort("lost_ms", "group_key", descending=[True, False])
        .collect()
    )
    if not groups.height:
        return None
    key = groups["group_key"][0]
    own = lag.filter(pl.col("group_key") == key).sort("lost_ms", "waited_ms", "rank", descending=[True, True, False]).collect()
    ranks = sorted(own["rank"].head(_RANKS).to_list())
    cells = arrivals.filter(pl.col("group_key") == key).select("capture", "position", "op", "bytes", "step", "rank", "lag_ns", "lost_ns")
    place = ["capture", "position"]
    told = (
        cells.group_by(place)
        .agg(pl.col("lag_ns").max().alias("most"), pl.col("op", "bytes").first(), pl.col("step").min())
        .sort("most", *place, descending=[True, False, False])
        .head(_COLLECTIVES)
        .sort(place)
        .collect()
    )
    shown = cells.filter(pl.col("rank").is_in(ranks)).join(told.lazy().select(place), on=place).select(*place, "rank", "lag_ns").collect()
    values = {(c, p, r): n / 1e6 for c, p, r, n in shown.iter_rows()}
    columns = told.select(place).rows()
    total = cells.select(pl.struct(place).n_unique()).collect().item()
    first = own.row(0, named=True)
    return LagMap(
        group=str(first["group_desc"] or first["group_name"] or "all ranks"),
        ranks=tuple(ranks),
        columns=tuple(_label(n, row) for n, row in enumerate(told.iter_rows(named=True))),
        lag_ms=tuple(tuple(values.get((c, p, rank)) for c, p in columns) for rank in ranks),
        more_ranks=own.height - len(ranks),
        more_collectives=int(total) - len(columns),
    )


def _label(number: int, row: dict[str, object]) -> str:
    step = f"step {row['step']}, " if row["step"] is not None else ""
    size = f", {int(str(row['bytes'])):,} bytes" if row["bytes"] is not None else ""
    return f"{number + 1}: {step}{row['op']}{size}"


def step_lanes(resolver: Resolver) -> tuple[StepLanes, ...]:
    """One step of the slowest, the median and the fastest rank by the work that they do themselves: in a synchronous job all steps take the
    same time, and who waits least is the slow one."""
    segments, ranks = resolver.get("trace_segments"), resolver.get("trace_ranks")
    if segments is None or ranks is None:
        return ()
    counted = ranks.filter(pl.col("duplicate_of").is_null() & pl.col("rank").is_not_null()).select("source_id", "rank")
    drawn = segments.join(counted, on="source_id")
    # The step that most ranks drew; else every rank's own.
    steps = drawn.group_by("step").agg(pl.col("rank").n_unique().alias("n")).sort("n", "step", descending=[True, False]).collect()
    if not steps.height:
        return ()
    own = drawn.filter(pl.col("step") == steps["step"][0])
    waiting = own.group_by("source_id", "rank").agg(
        busy=(pl.col("step_ns").first() - pl.col("duration_ns").filter(pl.col("lane") == "communication").sum()),
    )
    order = waiting.sort("busy", "rank", descending=[True, False]).collect()
    chosen = (
        {0: "slowest", order.height // 2: "median", order.height - 1: "fastest"}
        if order.height > 2
        else dict.fromkeys(range(order.height), "")
    )
    out = []
    for place, role in sorted(chosen.items()):
        source, rank, _ = order.row(place)
        rows = own.filter(pl.col("source_id") == source).sort("lane", "start_ns", "duration_ns").head(_SEGMENTS).collect()
        lanes = tuple(
            StepLane(lane, tuple((a / 1e6, d / 1e6) for a, d in part.select("start_ns", "duration_ns").iter_rows()))
            for (lane,), part in rows.group_by("lane", maintain_order=True)
        )
        out.append(StepLanes(rank, role, int(rows["step"][0]), float(rows["step_ns"][0]) / 1e6, lanes))
    return tuple(out)
