"""When recorders were looked at, and what one tells by holding nothing."""

from __future__ import annotations

from collections import Counter

import polars as pl

from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.matching import of_nccl
from nccl_forensics.views.wait_edges import JOINED


@view(rows="ranks")
def looked_at_earlier(operations: pl.LazyFrame | Calls | None, progress: pl.LazyFrame) -> pl.LazyFrame:
    """``rank``: ranks that by their recorder never entered what a peer has finished, of operations that end on no rank before all are in
    them: that recorder was written before the peer's, and tells nothing of what came after. Where counters alone tell what the peer has
    finished, it is such an operation in groups in which nobody recorded another one."""
    recorded = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null() & pl.col("last_seq").is_not_null())
    reached = recorded.group_by("group_key").agg(pl.col("last_done").max().alias("seq"))
    behind = recorded.join(reached, on="group_key").filter(pl.col("last_seq") < pl.col("seq")).select("group_key", "seq", "rank").collect()
    if operations is None or not behind.height:
        return pl.LazyFrame(schema={"rank": pl.Int32()})
    calls, joins = calls_of(operations), pl.col("op").str.contains(JOINED)
    ends = calls.telling.filter((pl.col("domain") == "fr") & pl.col("done") & ~pl.col("is_p2p") & joins)
    joined = ends.select("group_key", "seq").unique().collect()
    of_one_kind = calls.counts.filter(pl.col("domain") == "fr").group_by("group_key").agg(joins.all()).filter("op").collect()
    shown = [behind.join(joined, on=["group_key", "seq"]), behind.join(of_one_kind, on="group_key", how="semi")]
    return pl.concat(one.select("rank") for one in shown).unique().sort("rank").lazy()


@view(rows="ranks")
def moved_between(operations: pl.LazyFrame | Calls | None, progress: pl.LazyFrame) -> pl.LazyFrame:
    """``rank``: ranks by whose recorders an operation is open while a peer has finished a later one of the same group, which ends on no rank
    before all are in it. Of a job that stands nobody can: that recorder was written before the peer's, and the job moved between."""
    if operations is None:
        return pl.LazyFrame(schema={"rank": pl.Int32()})
    joins = pl.col("op").str.contains(JOINED)
    ends = calls_of(operations).telling.filter((pl.col("domain") == "fr") & pl.col("done") & ~pl.col("is_p2p") & joins)
    reached = ends.group_by("group_key").agg(pl.col("seq").max().alias("reached"))
    opened = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null() & pl.col("first_pending").is_not_null())
    late = opened.join(reached, on="group_key").filter(pl.col("first_pending") < pl.col("reached"))
    return late.select("rank").unique().sort("rank")


@view(rows="ranks x groups")
def never_entered(
    progress: pl.LazyFrame, groups: pl.LazyFrame, dumps: pl.LazyFrame | None, looked_at_earlier: pl.LazyFrame | None
) -> pl.LazyFrame:
    """Rows as those of ``progress`` for ranks with a recorder that holds nothing of a group of theirs in which all others, who are more,
    wait in one operation that ends on nobody before all are in it: it would be open on them as well, so that they stand before it.

    Of a rank that has nothing else open its entry may be lost or the dump old, unless this is the very first operation of the group or the
    dump holds no operation whatever. Few in whom it is open are those whose GPUs stand, where dumps hold only what is open.
    """
    recorded = progress.filter((pl.col("domain") == "fr") & pl.col("last_seq").is_not_null()).collect()
    if looked_at_earlier is not None:
        recorded = recorded.join(looked_at_earlier.collect(), on="rank", how="anti", maintain_order="left")
    at = pl.col("first_pending")
    waiting = recorded.group_by("group_key").agg(
        pl.col("rank"),
        (at.is_not_null().all() & (at.n_unique() == 1)).alias("together"),
        at.min().alias("seq"),
        pl.len().alias("inside"),
        pl.col("pending_op").drop_nulls().first().alias("op"),
    )
    waiting = waiting.filter(pl.col("together") & pl.col("op").str.contains(JOINED))
    members = groups.filter(pl.col("domain") == "fr").select("group_key", "members").collect()
    known = waiting.join(members, on="group_key", maintain_order="left")
    others = pl.col("members").cast(pl.List(pl.Int32())).list.set_difference("rank").list.sort()
    absent = known.select("group_key", "inside", last_seq=pl.col("seq") - 1, rank=others).explode("rank")
    latest = recorded.sort("last_created_ns", "last_order", nulls_last=False).unique("rank", keep="last", maintain_order=True)
    own = latest.select("rank", "source_id", "record", "first_open", empty=pl.lit(False))
    own = pl.concat([own, _empty(dumps, own)]) if dumps is not None else own
    found = absent.join(own, on="rank", how="inner", maintain_order="left")
    stands = (pl.col("last_seq") == 0) | pl.col("first_open").is_not_null() | pl.col("empty")
    rows = found.filter(stands & (pl.len().over("group_key") < pl.col("inside"))).with_columns(pl.lit("fr").alias("domain"))
    return _as_progress(rows, recorded.schema)


def _as_progress(rows: pl.DataFrame, schema: pl.Schema) -> pl.LazyFrame:
    return rows.select(*((pl.col(c) if c in rows.columns else pl.lit(None)).cast(t).alias(c) for c, t in schema.items())).lazy()


@view(rows="ranks x groups")
def never_called(progress: pl.LazyFrame, groups: pl.LazyFrame, comms: pl.LazyFrame) -> pl.LazyFrame:
    """The same by NCCL's logs, which do not tell what is open: ranks that log their calls and made none in a communicator that came up, where
    the others, who are more, have all made as many. Whether they are on their way to it, behind something else, that does not tell."""
    up = comms.group_by(group_key="comm_key").agg(up=pl.col("completed").all() & pl.col("ended").is_null().all()).filter("up")
    logged = progress.filter((pl.col("domain") == "nccl") & pl.col("last_seq").is_not_null()).collect()
    inside = logged.group_by("group_key").agg(
        "rank", last_seq=pl.col("first_seq").min() - 1, level=pl.col("last_seq").n_unique() == 1, op=pl.col("last_op").first()
    )
    inside = inside.filter("level", pl.col("op").str.contains(JOINED)).join(up.collect(), on="group_key", how="semi", maintain_order="left")
    members = groups.filter(pl.col("domain") == "nccl").select("group_key", "members").collect()
    known = inside.join(members, on="group_key", maintain_order="left").sort("group_key")
    absent = known.with_columns(others=pl.col("members").cast(pl.List(pl.Int32())).list.set_difference("rank").list.sort())
    few = absent.filter((pl.col("others").list.len() > 0) & (pl.col("others").list.len() < pl.col("rank").list.len()))
    latest = logged.sort("last_order", nulls_last=False).unique("rank", keep="last", maintain_order=True)
    own = latest.select("rank", "source_id", "line_no", "record", "last_order")
    rows = few.select("group_key", "last_seq", rank="others").explode("rank").join(own, on="rank", how="inner", maintain_order="left")
    return _as_progress(rows.with_columns(domain=pl.lit("nccl")), logged.schema)


def _empty(dumps: pl.LazyFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The same columns for ranks of which nothing is ``known``, as their dumps hold no operation at all."""
    empty = dumps.filter((pl.col("use") == "chosen") & of_nccl() & (pl.col("entries") == 0) & pl.col("rank").is_not_null()).collect()
    told = empty.select(
        pl.col("rank").cast(pl.Int32()),
        "source_id",
        record=pl.lit("entries"),
        first_open=pl.lit(None, dtype=pl.Int64()),
        empty=pl.lit(True),
    )
    return told.join(known, on="rank", how="anti")


#: Ranks from which on their finished operations tell a job that moves from one that stands.
_LEAST_MOVING = 4


def looked_at_while_moving(done: dict[int, int]) -> bool:
    """Whether what the ranks of a group have finished differs in three ways and more, none of them that of two thirds: a group that stands
    has finished the same on all ranks but those whose GPU or watchdog stands too, while dumps asked for one after the other show a job that
    goes on."""
    counted = Counter(done.values())
    return len(done) >= _LEAST_MOVING and len(counted) >= 3 and counted.most_common(1)[0][1] * 3 <= 2 * len(done)


#: Ranks of a group, and ways in which they differ, from which on what they have finished tells that the whole job moves.
_MANY, _WAYS = 8, 4


def job_moves(done: dict[int, int]) -> bool:
    """Whether what the ranks of a group have finished differs in so many ways, none of them that of half of them, that the job itself moved
    while one recorder was looked at after the other: then who is behind in a smaller group tells no more than when it was looked at."""
    counted = Counter(done.values())
    return len(done) >= _MANY and len(counted) >= _WAYS and counted.most_common(1)[0][1] * 2 < len(done)
