"""Ranks that come to what all others wait in only after work that nobody else has come to: they left out an earlier call of it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.views import view

OVERTAKERS = {
    "rank": pl.Int32(),
    "others": pl.List(pl.Int32()),
    "group_name": pl.String(),
    "group_desc": pl.String(),
    "comm_id": pl.String(),
    "seq": pl.Int64(),
    "op": pl.String(),
    "call_site": pl.String(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "record": pl.String(),
    "ahead_name": pl.String(),
    "ahead_desc": pl.String(),
    "ahead_seq": pl.Int64(),
    "own_source_id": pl.UInt32(),
    "own_line_no": pl.UInt32(),
    "own_record": pl.String(),
}
#: One rank in so many that is ahead of the rest: then they are the exception.
_FEW = 4
#: What is open in the group was enqueued behind something else that is open.
_HELD = pl.col("first_open") < pl.col("pending_order")


@view(rows="ranks")
def overtakers(stuck: pl.LazyFrame, progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks that enqueued, before the operation ``seq`` of a group in which all others stand, one of another group (``ahead_seq``) that none of the
    others has entered, in that group or in one of its role: the number ``seq`` is that of a later call of theirs.

    A call that is alike in each step (a norm, a loss) meets the next step's of whoever left it out, so that the group itself shows nothing, and a
    ring that holds less than two steps shows no habit either. Groups of one description are of one role. Cites the last operation of a peer
    in the group (``source_id`` …), and the rank's own in the other (``own_…``).
    """
    waited = stuck.filter((pl.col("domain") == "fr") & pl.col("held")).collect()
    state = progress.filter(pl.col("domain") == "fr")
    odd = _with_few_held(waited, state)
    if odd.is_empty():
        return pl.LazyFrame(schema=OVERTAKERS)
    described = groups.filter(pl.col("domain") == "fr").select("group_key", "group_name", "group_desc").unique("group_key")
    role = pl.coalesce(pl.col("group_desc").replace("", None), "group_key")
    places = state.join(described, on="group_key", how="left").with_columns(role=role).sort("rank", "group_key").collect()
    rows: list[dict[str, object]] = []
    for row in odd.iter_rows(named=True):
        here = places.filter(
            (pl.col("group_key") == row["group_key"]) & pl.col("rank").is_in(row["ranks"]) & pl.col("pending_order").is_not_null()
        )
        orders = dict(here.filter(_HELD).select("rank", "pending_order").iter_rows())
        level = here.filter(~_HELD)
        beside = pl.col("rank").is_in(list(set(row["ranks"]) - orders.keys()))
        furthest = dict(places.filter(beside).group_by("role").agg(pl.col("last_seq").max()).drop_nulls().iter_rows())
        peer = level.row(0, named=True)
        told = {name: row[name] for name in ("group_name", "group_desc", "comm_id", "seq", "op")} | {name: peer[name] for name in PLACE}
        told |= {"others": level["rank"].to_list(), "call_site": peer["last_call_site"]}
        own = places.filter(pl.col("rank").is_in(list(orders)) & pl.col("pending_order").is_not_null())
        for rank, order in sorted(orders.items()):
            before = own.filter((pl.col("rank") == rank) & (pl.col("pending_order") < order)).sort("pending_order", maintain_order=True)
            first = next(
                (p for p in before.iter_rows(named=True) if p["first_pending"] > furthest.get(p["role"], p["first_pending"])), None
            )
            if first is not None:
                ahead = {"ahead_name": first["group_name"], "ahead_desc": first["group_desc"], "ahead_seq": first["first_pending"]}
                rows.append(told | {"rank": rank} | ahead | {f"own_{name}": first[name] for name in PLACE})
    return (
        pl.DataFrame(rows, schema=OVERTAKERS, infer_schema_length=None)
        .unique("rank", keep="first", maintain_order=True)
        .sort("rank")
        .lazy()
    )


def _with_few_held(waited: pl.DataFrame, state: pl.LazyFrame) -> pl.DataFrame:
    """Those of the groups in which some of the ranks that stand there have earlier work of another group open, and few of them."""
    inside = waited.lazy().with_row_index("at").select("at", "group_key", rank="ranks").explode("rank")
    here = state.filter(pl.col("pending_order").is_not_null()).join(inside, on=["group_key", "rank"])
    found = here.group_by("at").agg(few=_HELD.any() & (_HELD.sum() * _FEW <= pl.len())).filter("few").sort("at").collect()
    return waited[found.get_column("at").to_list()]
