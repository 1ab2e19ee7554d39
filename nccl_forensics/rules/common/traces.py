"""What the rules about traces share: the balance of each rank's time."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import text_of


def balance(trace_measures: pl.LazyFrame, trace_lag: pl.LazyFrame | None, trace_pair_waits: pl.LazyFrame | None = None) -> pl.DataFrame:
    """One row per trace, of its steps together or of the whole where it has none, with shares of the span.

    ``exposed_share``; ``waited_share``: what it waited for the last rank of collectives, and in sends and receives for its partner (null
    where no other rank was traced); ``transfer_share``: exposed without waiting; ``compute_share``; ``gain_share``: what hiding
    communication could win at most; ``stretch_share``: the same of what lies in the longest time of each step in which nothing computes (null
    where no steps are marked). Collectives in a row, between two computations, wait for no computation but the one before; one after each
    layer does.
    """
    steps = pl.col("window") == "steps"
    chosen = trace_measures.filter(pl.col("span_ms") > 0).filter(steps | ~steps.any().over("source_id"))
    none = pl.LazyFrame(schema={"rank": pl.Int32, "waited_ms": pl.Float64})
    told = [frame.select("rank", "waited_ms") for frame in (trace_lag, trace_pair_waits) if frame is not None]
    waited = pl.concat([none, *told]).group_by("rank").agg(pl.col("waited_ms").sum())
    # Waiting is known for all windows of a rank together.
    captures = pl.len().over("rank")
    joined = chosen.join(waited, on="rank", how="left").with_columns(waited_share=pl.col("waited_ms") / captures / pl.col("span_ms"))
    exposed = pl.col("exposed_ms") / pl.col("span_ms")
    transfer = (exposed - pl.col("waited_share").fill_null(0.0)).clip(lower_bound=0.0)
    # |compute| and |communication| overlap by what of the communication is not exposed.
    alone = (pl.col("compute_ms") - (pl.col("communication_ms") - pl.col("exposed_ms"))) / pl.col("span_ms")
    return (
        joined.with_columns(
            exposed_share=exposed,
            transfer_share=transfer,
            compute_share=pl.col("compute_ms") / pl.col("span_ms"),
            gain_share=pl.min_horizontal(transfer, alone),
            stretch_share=pl.when(steps).then(
                pl.min_horizontal((pl.col("stretch_ms") / pl.col("span_ms") - pl.col("waited_share").fill_null(0.0)).clip(0.0), alone)
            ),
        )
        .filter(pl.col("exposed_share").is_not_null())
        .sort("rank", "source_id", nulls_last=True)
        .collect()
    )


#: So many steps tell what is usual.
STEPS = 3


def usual(ranks: pl.DataFrame, steps: object) -> bool:
    """Whether what ``balance`` tells is what GPUs do in most steps: a trace of a processor, or of a step or two, is no measure."""
    return int(float(str(steps))) >= STEPS and bool((ranks["device"] == "gpu").all())


def time_shares() -> pl.Expr:
    """What the time of a row of ``balance`` went into, for who quotes it."""

    def percent(column: str) -> pl.Expr:
        return (100 * pl.col(column)).round(0).cast(pl.Int64)

    who = pl.coalesce(text_of("rank {}: ", pl.col("rank")), pl.lit(""))
    hidden = pl.coalesce(text_of(" and {}% of communication hidden behind computation", percent("overlap_fraction")), pl.lit(""))
    traced = pl.col("span_ms").round(0).cast(pl.Int64)
    told = text_of("of {} ms traced, {}% communication alone, {}% computation", traced, percent("exposed_share"), percent("compute_share"))
    return pl.concat_str(who, told, hidden).alias("why")
