"""Ranks that come to what all others wait in only after work that nobody else has come to: they left out an earlier call of it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.ranklist import as_ranks
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
_OWN = ("source_id", "line_no", "record")


@view(rows="ranks")
def overtakers(stuck: pl.LazyFrame, progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks that enqueued, before the operation ``seq`` of a group in which all others stand, one of another group (``ahead_seq``) that none of the
    others has entered, in that group or in one of its role: the number ``seq`` is that of a later call of theirs.

    A call that is alike in each step (a norm, a loss) meets the next step's of whoever left it out, so that the group itself shows nothing, and a
    ring that holds less than two steps shows no habit either. Groups of one description are of one role. Cites the last operation of a peer
    in the group (``source_id`` …), and the rank's own in the other (``own_…``).
    """
    waited = stuck.filter((pl.col("domain") == "fr") & pl.col("held")).collect().to_dicts()
    if not waited:
        return pl.LazyFrame(schema=OVERTAKERS)
    described = groups.filter(pl.col("domain") == "fr").select("group_key", "group_name", "group_desc").unique("group_key")
    seen = (
        progress.filter(pl.col("domain") == "fr").join(described, on="group_key", how="left").sort("rank", "group_key").collect().to_dicts()
    )
    own_groups: dict[int, list[dict[str, object]]] = {}
    for place in seen:
        own_groups.setdefault(int(place["rank"]), []).append(place)
    rows: list[dict[str, object]] = []
    for row in waited:
        inside = set(as_ranks(row["ranks"]))
        here = {
            int(r["rank"]): r for r in seen if r["group_key"] == row["group_key"] and r["rank"] in inside and r["pending_order"] is not None
        }
        held = {r for r, own in here.items() if own["first_open"] < own["pending_order"]}
        if not held or len(held) * _FEW > len(here):
            continue
        furthest: dict[object, int] = {}
        for place in seen:
            if place["rank"] in inside - held and place["last_seq"] is not None:
                furthest[_role(place)] = max(place["last_seq"], furthest.get(_role(place), 0))
        peer = here[min(here.keys() - held)]
        for rank in sorted(held):
            order = int(str(here[rank]["pending_order"]))
            before = [p for p in own_groups[rank] if p["pending_order"] is not None and int(str(p["pending_order"])) < order]
            ahead = [p for p in before if int(str(p["first_pending"])) > furthest.get(_role(p), int(str(p["first_pending"])))]
            if ahead:
                first = min(ahead, key=lambda p: int(str(p["pending_order"])))
                told = {name: row[name] for name in ("group_name", "group_desc", "comm_id", "seq", "op")} | {
                    name: peer[name] for name in _OWN
                }
                told |= {"rank": rank, "others": sorted(here.keys() - held), "call_site": peer["last_call_site"]}
                told |= {"ahead_name": first["group_name"], "ahead_desc": first["group_desc"], "ahead_seq": first["first_pending"]}
                rows.append(told | {f"own_{name}": first[name] for name in _OWN})
    return (
        pl.DataFrame(rows, schema=OVERTAKERS, infer_schema_length=None)
        .unique("rank", keep="first", maintain_order=True)
        .sort("rank")
        .lazy()
    )


def _role(place: dict[str, object]) -> object:
    return place["group_desc"] or place["group_key"]
