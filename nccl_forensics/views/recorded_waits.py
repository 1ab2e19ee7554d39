"""Who waited for whom in collectives, by how long recorders with timing say that these ran on each rank's GPU."""

from __future__ import annotations

import polars as pl

from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import GROUP

RECORDED_WAITS = typed(
    GROUP,
    "rank:i32 members:u32 collectives:u32 material:u32 last_count:u32 lost_ms:f64 worst_ms:f64 waited_ms:f64 waited_in_all_ms:f64",
    "span_ms:f64 piped:bool source_id:u32 record:str",
)
#: Operations in which nobody goes on before the last has come; a root does.
_OF_ALL = ("all_reduce", "all_gather", "all_gather_base", "reduce_scatter", "reduce_scatter_base", "all_to_all", "barrier")
#: A last place counts where the others waited so long, and this share of the time that the operation itself takes.
_MATERIAL_MS, _MATERIAL_SHARE = 0.5, 0.5


@view(rows="ranks x groups")
def recorded_waits(operations: pl.LazyFrame | Calls, fr_entries: pl.LazyFrame | FoldedTable) -> pl.LazyFrame:
    """Per group and rank, over the finished collectives that every member seen has a duration of: ``last_count`` (how often it came last, of
    the ``material`` ones in which somebody was waited for), ``lost_ms`` (how much later it came than the one before it, summed over those),
    ``worst_ms`` (in one of them), ``waited_ms`` (how long it waited for the last), ``waited_in_all_ms`` (in all of its groups, and in sends
    and receives longer than the middle of this group), ``span_ms`` (from the group's first collective to its last). ``piped``: members send
    to each other. Cites the collective to which it came latest.

    A collective ends on all ranks together, so whoever is in it for the shortest time came last, whatever the clocks say; recorders have
    durations where PyTorch times all operations (TORCH_NCCL_ENABLE_TIMING).
    """
    timed = fr_entries.lazy().filter(pl.col("duration_ms").is_not_null()).select("source_id", "record", "duration_ms")
    if timed.head(1).collect().is_empty():
        return pl.LazyFrame(schema=RECORDED_WAITS)
    own = (pl.col("domain") == "fr") & pl.col("seq").is_not_null() & pl.col("rank").is_not_null()
    columns = ("group_key", "group_name", "group_desc", "rank", "seq", "op", "is_p2p", "created_ns", "source_id", "record")
    made = calls_of(operations).every.filter(own).select(columns).join(timed, on=["source_id", "record"], how="left").collect()
    senders = made.filter("is_p2p").select("rank", pair="group_key").unique()
    key = ["group_key", "seq"]
    met = (
        made.filter(~pl.col("is_p2p") & pl.col("op").is_in(_OF_ALL))
        .unique(["group_key", "rank", "seq"], keep="none")
        .with_columns(members=pl.col("rank").n_unique().over("group_key"))
        .filter(pl.col("duration_ms").is_not_null())
        .filter((pl.len().over(key) == pl.col("members")) & (pl.col("op").n_unique().over(key) == 1) & (pl.col("members") > 1))
    )
    shortest, second = pl.col("duration_ms").min().over(key), pl.col("duration_ms").sort().get(1).over(key)
    margin = second - shortest
    material = margin >= pl.max_horizontal(pl.lit(_MATERIAL_MS), _MATERIAL_SHARE * shortest)
    waits = met.with_columns(wait=pl.col("duration_ms") - shortest, last=(pl.col("duration_ms") == shortest) & material, margin=margin)
    lost = pl.when("last").then("margin").otherwise(0.0)
    rows = waits.group_by("group_key", "rank").agg(
        pl.col("group_name", "group_desc", "members").first(),
        pl.len().alias("collectives"),
        pl.col("last").sum().alias("last_count"),
        lost.sum().alias("lost_ms"),
        lost.max().alias("worst_ms"),
        pl.col("wait").sum().alias("waited_ms"),
        ((pl.col("created_ns").max() - pl.col("created_ns").min()) / 1e6).alias("span_ms"),
        pl.col("source_id", "record").sort_by(lost, "seq").last(),
    )
    paired = made.filter(pl.col("is_p2p")).group_by("rank").agg(paired_ms=pl.col("duration_ms").sum())
    beside = rows.join(paired, on="rank", how="left").with_columns(pl.col("paired_ms").fill_null(0.0))
    longer = (pl.col("paired_ms") - pl.col("paired_ms").median().over("group_key")).clip(0)
    inside = rows.select("group_key", "rank").join(senders, on="rank").group_by("group_key", "pair").len().filter(pl.col("len") > 1)
    told = beside.with_columns(
        material=pl.col("last_count").sum().over("group_key"),
        waited_in_all_ms=pl.col("waited_ms").sum().over("rank") + longer,
        piped=pl.col("group_key").is_in(inside["group_key"].unique().implode()),
    )
    return told.select(pl.col(c).cast(t) for c, t in RECORDED_WAITS.items()).sort("group_key", "rank").lazy()
