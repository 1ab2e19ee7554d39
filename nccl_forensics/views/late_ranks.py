"""Who makes the others wait in profiler traces, and what it did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import polars as pl

from nccl_forensics.frames import ranks_in, typed
from nccl_forensics.values.chances import tail
from nccl_forensics.views import view
from nccl_forensics.views.columns import GROUP

LATE_RANKS = typed(
    GROUP,
    "group_known:bool rank:i32 members:u32 collectives:u32 material:u32 last_count:u32 p_value:f64 slow_steps:u32 last_steps:u32",
    "step_chance:f64 group_step_chance:f64 on_gpu:bool only_group:bool lost_ms:f64 worst_ms:f64 lost_share:f64 window_share:f64 habit_share:f64",
    "own_share:f64 reason:str reason_ms:f64 reason_share:f64 span_source_id:u32 span_record:str span_name:str source_id:u32 record:str",
)
#: What a late rank does too much of, and the kind of range that shows it.
REASONS = {"compute": None, "memcpy": None, "loader": "data-loader", "gc": "gc", "lead": "lead", "host": "host-gap"}


_LOSSES = typed("group_key:str capture:u32 step:i64 rank:i32 lost_ns:i64")
#: A step counts as slow where as much is lost as this share of what the rank usually costs.
_AS_MUCH = 0.5


#: What a rank did more of than its peers is why it comes late where it makes up more than this share of the loss.
_KNOWN = 0.25


@view(rows="groups")
def late_ranks(
    trace_lag: pl.LazyFrame,
    trace_ranks: pl.LazyFrame,
    trace_spans: pl.LazyFrame | None,
    trace_arrivals: pl.LazyFrame | None,
    trace_measures: pl.LazyFrame | None = None,
    trace_pair_waits: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Per group, the rank that the others lost most time to, and what it did more of than its peers before it came late.

    ``lost_share`` is its share of all time lost in the group, ``worst_ms`` what was lost in one collective alone, ``window_share`` that
    loss as a share of its trace and ``habit_share`` what is left of that without the step that lost most (one long start is no habit; null
    where steps are not marked), ``p_value`` the chance of so many last places if all were alike. ``own_share``, where ranks are in several
    groups or send to each other: by how much less of the time its communication runs alone than that of its peers in the group, as a share
    of the loss. Who itself takes longer waits less in all of its groups; who was kept by another group waits there instead. Collectives of
    one step are no trials of their own where one long batch makes a rank late to all of them: ``step_chance`` is the chance that one rank
    of the job costs most in so many (``last_steps``) of the ``slow_steps``, those in which half as much is lost as it usually costs (null
    where steps are not marked); ``group_step_chance`` is that within its group alone, where another one of the job may cost more.
    ``reason`` is compute, memcpy, loader, gc, lead or host, with ``reason_ms`` and its share of the loss (null where nothing stands out;
    what lies before a step's first operator is host where the trace shows the data loader in ranges of its own); ``span_record`` points at
    its longest range of that kind. Groups that the traces do not name are left out where the job has several: their collectives may have
    been matched over groups. ``on_gpu``: its trace is of a GPU, which its host runs ahead of. ``only_group``: the traces tell of this one group
    of the job and of no other. Whether a row is a finding, rules say."""
    told = trace_ranks.select(pl.col("groups").max(), pl.col("groups").null_count().alias("untold")).collect()
    several = int(told["groups"][0] or 1) > 1
    rows = trace_lag.with_columns(
        all_lost=pl.col("lost_ms").sum().over("group_key"), all_window=pl.col("window_ms").median().over("group_key")
    )
    worst = (
        rows.filter((pl.col("lost_ms") > 0) & (pl.col("group_known") | (not several)))
        .sort("lost_ms", "rank", descending=[True, False])
        .group_by("group_key", maintain_order=True)
        .first()
        .sort("group_key")
        .collect()
    )
    members: dict[str, list[int]] = dict(rows.group_by("group_key").agg("rank").collect().iter_rows())
    spans = trace_spans.collect() if trace_spans is not None else None
    summed = _step_losses(trace_arrivals)
    steps, traced = _dearest(summed), summed["rank"].n_unique()
    alone, computing = _shares(trace_measures, "exposed_ms"), _shares(trace_measures, "compute_ms")
    places = dict(rows.group_by("rank").len().collect().iter_rows())
    paired = ranks_in(trace_pair_waits)
    devices = dict(trace_ranks.select("rank", "device").unique("rank", keep="any").collect().iter_rows())
    out: list[dict[str, object]] = []
    for row in worst.iter_rows(named=True):
        group = members[row["group_key"]]
        excess = {r: float(row[f"{r}_excess_ms"] or 0.0) for r in REASONS}
        # Peers that wait while their computation runs on show none between two collectives: in all they compute as long.
        longer = _beyond_peers(computing, group, row)
        excess["compute"] = excess["compute"] if longer is None else min(excess["compute"], longer)
        # What is known of the time between a step's begin and its first operator tells more than that it lies there.
        excess["lead"] = max(0.0, excess["lead"] - max(0.0, excess["gc"]) - max(0.0, excess["loader"]))
        if _takes_batches_elsewhere(spans, row["source_id"]):
            excess |= {"host": excess["host"] + excess["lead"], "lead": 0.0}
        reason = max(excess, key=lambda r: excess[r])
        known = excess[reason] > _KNOWN * row["lost_ms"]
        where = _longest(spans, row["source_id"], REASONS[reason]) if known else {}
        out.append(
            {
                **{c: row.get(c) for c in LATE_RANKS},
                **where,
                **_by_steps(steps, traced, row["rank"]),
                "group_step_chance": _by_steps(
                    _dearest(summed.filter(pl.col("group_key") == row["group_key"])), row["members"], row["rank"]
                ).get("step_chance"),
                "only_group": told["untold"][0] == 0 and not several,
                "on_gpu": devices.get(row["rank"]) == "gpu",
                "lost_share": row["lost_ms"] / row["all_lost"],
                "window_share": row["lost_ms"] / row["all_window"] if row["all_window"] else None,
                "habit_share": _habit(summed, row),
                "own_share": _own(alone, group, row) if places[row["rank"]] > 1 or row["rank"] in paired else None,
                "reason": reason if known else None,
                "reason_ms": excess[reason] if known else None,
                "reason_share": min(1.0, excess[reason] / row["lost_ms"]) if known else None,
            }
        )
    _shared_reasons(out)
    return pl.DataFrame(out, schema=LATE_RANKS, infer_schema_length=None).lazy()


def _shared_reasons(rows: Sequence[dict[str, object]]) -> None:
    """What keeps a rank shows before the first collective that it comes late to, of whatever group; to those of its other groups it is late
    for the same reason."""
    for row in rows:
        told = [r for r in rows if r["rank"] == row["rank"] and r["reason"] is not None]
        if row["reason"] is None and told:
            best = max(told, key=lambda r: float(str(r["reason_ms"])))
            share = float(str(best["reason_ms"])) / float(str(row["lost_ms"]))
            if share > _KNOWN:
                row |= {c: best[c] for c in ("reason", "reason_ms", "span_source_id", "span_record", "span_name")}
                row["reason_share"] = min(1.0, share)


def _step_losses(trace_arrivals: pl.LazyFrame | None) -> pl.DataFrame:
    """What each group lost to each of its ranks in each step; empty where steps are not marked."""
    if trace_arrivals is None:
        return pl.DataFrame(schema=_LOSSES)
    summed = trace_arrivals.group_by("group_key", "capture", "step", "rank").agg(pl.col("lost_ns").sum()).collect()
    marked = summed.drop_nulls("step")
    unmarked = summed.filter(pl.col("step").is_null()).select("capture", "rank").unique().height
    return marked if marked.height and unmarked <= summed["rank"].n_unique() else pl.DataFrame(schema=_LOSSES)


def _habit(summed: pl.DataFrame, row: Mapping[str, object]) -> float | None:
    """The share of its window that a rank costs in each step but the one that lost most to it."""
    group = summed.filter(pl.col("group_key") == row["group_key"])
    own, steps = group.filter(pl.col("rank") == row["rank"])["lost_ns"], group.select("capture", "step").unique().height
    every = float(str(own.sum()))
    if steps < 2 or not every or not row["all_window"]:
        return None
    rest = (every - float(str(own.max()))) / every * steps / (steps - 1)
    return min(1.0, rest) * float(str(row["lost_ms"])) / float(str(row["all_window"]))


def _shares(trace_measures: pl.LazyFrame | None, measure: str) -> dict[int, float]:
    """A measure of each rank as a share of its traced time."""
    if trace_measures is None:
        return {}
    whole = trace_measures.filter((pl.col("window") == "whole") & (pl.col("span_ms") > 0)).group_by("rank")
    return dict(whole.agg(pl.col(measure).sum() / pl.col("span_ms").sum()).drop_nulls().collect().iter_rows())


def _beyond_peers(shares: Mapping[int, float], members: Sequence[int], row: Mapping[str, object]) -> float | None:
    """By how much longer, in ms of its window, the rank has it than the middle of the other members."""
    others = [shares[r] for r in members if r != row["rank"] and r in shares]
    own = shares.get(int(str(row["rank"])))
    return None if own is None or not others or not row["window_ms"] else (own - median(others)) * float(str(row["window_ms"]))


def _own(alone: Mapping[int, float], members: Sequence[int], row: Mapping[str, object]) -> float | None:
    """``own_share`` of a rank among the members of its group."""
    longer = _beyond_peers(alone, members, row)
    return None if longer is None else -longer / float(str(row["lost_ms"]))


def _dearest(losses: pl.DataFrame) -> pl.DataFrame:
    """What each step lost to the rank that cost most in it, over these groups."""
    summed = losses.group_by("capture", "step", "rank").agg(pl.col("lost_ns").sum())
    dearest = summed.sort("lost_ns", "rank", descending=[True, False]).unique(["capture", "step"], keep="first")
    return dearest.select("rank", "lost_ns")


def _by_steps(steps: pl.DataFrame, traced: int, rank: int) -> Mapping[str, object]:
    """``slow_steps``, ``last_steps`` and ``step_chance`` of a rank."""
    if not steps.height or traced < 2:
        return {}
    own = sorted(steps.filter(pl.col("rank") == rank)["lost_ns"].to_list(), reverse=True)
    # One step that cost far more than the others, its first perhaps, must not hide them.
    found = [_in_steps(steps, traced, rank, costs) for costs in (own, own[1:]) if costs]
    return min(found, key=lambda f: f["step_chance"], default={"slow_steps": steps.height, "last_steps": 0, "step_chance": 1.0})


def _in_steps(steps: pl.DataFrame, traced: int, rank: int, costs: list[int]) -> dict[str, float]:
    """The same, where what the rank usually costs is told by these of its steps, dearest first."""
    # Half of all that it cost is in steps that cost so much or more: noise does not move that.
    half, usual = sum(costs) / 2, 0
    for lost in costs:
        usual = lost
        half -= lost
        if half <= 0:
            break
    slow = steps.filter((pl.col("lost_ns") > 0) & (pl.col("lost_ns") >= _AS_MUCH * usual))
    last = slow.filter(pl.col("rank") == rank).height
    chance = min(1.0, traced * tail(slow.height, last, 1 / traced)) if last else 1.0
    return {"slow_steps": slow.height, "last_steps": last, "step_chance": chance}


def _takes_batches_elsewhere(spans: pl.DataFrame | None, source: int) -> bool:
    """Whether the trace shows its data loader in most steps: then what lies before a step's first operator is something else."""
    if spans is None:
        return False
    own = spans.filter(pl.col("source_id") == source)
    loads = own.filter(pl.col("kind") == "data-loader")["step"].n_unique()
    return 2 * loads > own.filter(pl.col("kind") == "lead").height > 0


def _longest(spans: pl.DataFrame | None, source: int, kind: str | None) -> dict[str, object]:
    if spans is None or kind is None:
        return {}
    own = spans.filter((pl.col("source_id") == source) & (pl.col("kind") == kind)).sort("duration_ns", descending=True)
    if not own.height:
        return {}
    return {"span_source_id": source, "span_record": own["record"][0], "span_name": own["name"][0]}
