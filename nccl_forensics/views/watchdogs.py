"""What the watchdogs of the ranks tell when a timeout strikes: of which group, in which operation, and how far they were."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import has_rows, text_of, typed
from nccl_forensics.views import view
from nccl_forensics.views.tasks import OF_LAUNCHERS

CALLS = typed("group_key:str group_desc:str rank:i32 pg_rank:i32 seq:i64 op:str numel_in:i64 numel_out:i64 source_id:u32 line_no:u32")


@view(rows="ranks x groups")
def watchdog_calls(watchdog: pl.LazyFrame) -> pl.LazyFrame:
    """The operation in which each rank's watchdog timed out, one row per group and rank: the first one, with its numbers of elements
    (``NumelIn``, ``NumelOut``; torch 2.0 and later print them)."""
    lines = watchdog_lines(watchdog)
    about = lines.group_by("group_key", "rank").agg(pl.col("pg_rank").drop_nulls().first(), pl.col("pg_desc").drop_nulls().first())
    timed = lines.filter((pl.col("kind") == "timeout") & pl.col("op").is_not_null() & pl.col("seq").is_not_null())
    first = timed.unique(["group_key", "rank"], keep="first", maintain_order=True).drop("pg_rank", "pg_desc")
    return (
        first.join(about, on=["group_key", "rank"], how="left")
        .rename({"pg_desc": "group_desc"})
        .select([pl.col(c).cast(t) for c, t in CALLS.items()])
        .sort("group_key", "rank")
    )


def watchdog_lines(watchdog: pl.LazyFrame) -> pl.LazyFrame:
    """Lines of a timeout or a failure with their ``rank`` and ``group_key``, in the order of source and line.

    The rank is the launcher's or torch's own prefix; the rank inside the group counts only where the group is the default one. Parts of a
    communicator that was split bear one name: where two ranks are the same rank of a group, its lines are left out.
    """
    known = watchdog.filter(pl.col("kind").is_in(["timeout", "failure"]))
    # The line of the timeout names no group; a later line of the same process about the same operation does.
    named = known.filter(pl.col("pg_name").is_not_null()).select("source_id", "hint_rank", "seq", named="pg_name")
    known = known.join(
        named.unique(["source_id", "hint_rank", "seq"], keep="first", maintain_order=True),
        on=["source_id", "hint_rank", "seq"],
        how="left",
        nulls_equal=True,
    ).with_columns(pg_name=pl.coalesce("pg_name", "named"))
    several = has_rows(named, pl.col("named") != "0")
    default = (pl.col("pg_desc") == "default_pg") | (pl.col("pg_name") == "0") | pl.col("pg_name").is_null()
    rank = pl.coalesce(pl.when(pl.col("hint_scope") == "global").then(pl.col("hint_rank")), pl.when(default).then(pl.col("pg_rank")))
    # Lines of old releases name the group by its local number only, or not at all: one group 0 is taken for the default one, unless
    # the rank inside the group is another than the global one.
    key = pl.when(pl.col("pg_name").is_not_null()).then(text_of("pg:{}", pl.col("pg_name"))).otherwise(pl.lit("pg:0"))
    elsewhere = pl.col("pg_name").is_null() & (pl.lit(several) | (pl.col("pg_rank").is_not_null() & (pl.col("pg_rank") != rank)))
    known = known.filter(~elsewhere.fill_null(False))
    known = known.with_columns(rank=rank, group_key=key).filter(pl.col("rank").is_not_null())
    claimed = known.filter(pl.col("pg_rank").is_not_null()).group_by("group_key", "pg_rank").agg(pl.col("rank").n_unique())
    shared = claimed.filter(pl.col("rank") > 1).select("group_key").unique()
    return known.join(shared, on="group_key", how="anti").sort("source_id", "line_no")


#: Numbers of a group in which its ranks can wait at one time: what one completed, all have entered, so they differ by what some left out.
_APART = 64


def _counters(watchdog: pl.LazyFrame, lines: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks of the default group that are told to dump because a peer's watchdog timed out, with the counters that they print of it: one
    that has enqueued less than what the others wait in timed out in nothing itself."""
    timed = lines.filter((pl.col("kind") == "timeout") & (pl.col("group_key") == "pg:0") & pl.col("seq").is_not_null())
    waited = timed.select(least=pl.col("seq").min(), most=pl.col("seq").max())
    default = (pl.col("pg_name") == "0") & (pl.col("pg_desc").is_null() | (pl.col("pg_desc") == "default_pg"))
    told = watchdog.filter((pl.col("kind") == "dump-signal") & default & pl.col("last_enqueued").is_not_null()).join(waited, how="cross")
    near = told.filter(pl.col("last_enqueued").is_between(pl.col("least") - _APART, pl.col("most") + _APART))
    rank = pl.coalesce(pl.when(pl.col("hint_scope") == "global").then(pl.col("hint_rank")), "pg_rank")
    open_one = pl.when(pl.col("last_completed") < pl.col("last_enqueued")).then(pl.col("last_completed") + 1)
    known = near.with_columns(rank=rank, group_key=pl.lit("pg:0"), seq=open_one).filter(pl.col("rank").is_not_null())
    return known.drop("least", "most").join(lines.select("group_key", "rank").unique(), on=["group_key", "rank"], how="anti")


def watchdog_progress(watchdog: pl.LazyFrame) -> pl.LazyFrame:
    """What each rank's watchdog says of its group when a timeout strikes: the number it waits in, and its counters.

    Of a group with sends and receives, single or in batches, nothing is told: each pair of its ranks counts its own. Nor of lines that name
    no group and whose numbers lie further apart than ranks of one group can be.
    """
    lines = watchdog_lines(watchdog)
    pairs = lines.filter(pl.col("op").is_in(["SEND", "RECV", "COALESCED"])).select("group_key").unique()
    waited = lines.group_by("group_key", "rank").agg(pl.col("seq").min(), named=pl.col("pg_name").is_not_null().any())
    apart = waited.group_by("group_key").agg(pl.col("seq").max() - pl.col("seq").min(), pl.col("named").any())
    several = apart.filter(~pl.col("named") & (pl.col("seq") > _APART)).select("group_key")
    return (
        pl.concat([lines, _counters(watchdog, lines)], how="diagonal")
        .join(pairs, on="group_key", how="anti")
        .join(several, on="group_key", how="anti")
        .sort("source_id", "line_no")
        .group_by("group_key", "rank")
        .agg(
            pl.lit("watchdog").first().alias("domain"),
            pl.col("seq").min().alias("first_pending"),
            pl.max_horizontal(pl.col("last_enqueued").max(), pl.col("seq").max()).alias("last_seq"),
            pl.col("last_completed").max().alias("last_done"),
            pl.len().alias("count"),
            pl.col("op").drop_nulls().first().alias("last_op"),
            pl.col("source_id").first(),
            pl.col("line_no").first(),
            pl.col("timeout_ms").max(),
            pl.col("line_no").max().cast(pl.Int64).alias("last_order"),
        )
    )


def outlived_a_timeout(watchdog: pl.LazyFrame | None, exits: pl.DataFrame | None, ranks_of_source: dict[int, int]) -> set[int]:
    """Ranks whose own process writes that it dumps what it knows since an operation timed out, its own or another rank's: they lived then
    (ProcessGroupNCCL, "Received a dump signal due to a collective timeout"). Of a launcher that may have started them again since, nothing
    is told: it says itself whom it ended after that."""
    if watchdog is None or (exits is not None and exits["kind"].is_in(list(OF_LAUNCHERS)).any()):
        return set()
    lines = watchdog.filter(pl.col("kind") == "dump-signal").select("source_id", "hint_rank", "hint_scope").unique().collect()
    ranks = {hint if scope == "global" else ranks_of_source.get(source) for source, hint, scope in lines.iter_rows()}
    return {int(rank) for rank in ranks if rank is not None}
