"""Calls with a root that all members of a group entered, some left, and the others stand in: the roots that were given differ."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import has_rows, typed
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.levels import ROOTED
from nccl_forensics.views.wait_edges import OF_GROUP

TWO_ROOTS = typed(OF_GROUP, "seq:i64 op:str ranks:list[i32] beyond:list[i32] next_op:str call_site:str", read_at(), read_at("peer_"))
#: Members of a group, at least: of two, either may have given the other root, and a call left out looks the same.
_LEAST = 3


@view(rows="groups")
def two_roots(
    progress: pl.LazyFrame, groups: pl.LazyFrame, last_calls: pl.LazyFrame, divergences: pl.LazyFrame | None, endings: pl.LazyFrame | None
) -> pl.LazyFrame:
    """Groups whose members have all entered a call with a root, by their recorders, ``ranks`` stand in it and all others (``beyond``) in the
    next one, which is another call (``next_op``): with one and the same root it would have come to its end.

    The stack of every member agrees with its recorder: both were looked at, one after the other, so that this is no moment of a job that
    goes on. Nobody has died, and sizes and types are the same. Cites the entry of the first that stands there, and (``peer_``) of the first
    beyond.
    """
    nothing = pl.LazyFrame(schema=TWO_ROOTS)
    if has_rows(divergences) or has_rows(endings, pl.col("own")):
        return nothing
    latest = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null()).collect()
    standing = last_calls.filter((pl.col("witness") == "stack") & pl.col("place").is_in(WAITING)).select("rank", "op").collect()
    calls: dict[int, str] = dict(standing.drop_nulls().iter_rows())
    found: list[dict[str, object]] = []
    for group in groups.filter(pl.col("domain") == "fr").sort("group_key").collect().iter_rows(named=True):
        members = latest.filter(pl.col("group_key") == group["group_key"]).sort("rank").to_dicts()
        whole = {m["rank"] for m in members} == set(group["members"] or ()) and len(members) >= _LEAST
        waits = all(m["first_pending"] == m["last_seq"] is not None and str(m["last_op"]) in calls.get(m["rank"], "") for m in members)
        at = min((m["last_seq"] for m in members), default=None) if whole and waits else None
        inside, beyond = ([m for m in members if (m["last_seq"] == at) == here] for here in (True, False))
        ops, later = {m["last_op"] for m in inside}, {m["last_op"] for m in beyond}
        if at is None or not ops <= ROOTED or len(ops) != 1 or len(later) != 1 or ops & later:
            continue
        if any(m["last_seq"] != at + 1 for m in beyond):
            continue
        row = {name: group[name] for name in OF_GROUP} | {"seq": at, "op": inside[0]["last_op"], "next_op": beyond[0]["last_op"]}
        row |= {"ranks": [m["rank"] for m in inside], "beyond": [m["rank"] for m in beyond], "call_site": inside[0]["last_call_site"]}
        found.append(row | {f"{to}{name}": m[name] for to, m in (("", inside[0]), ("peer_", beyond[0])) for name in PLACE})
    return pl.DataFrame(found, schema=TWO_ROOTS, infer_schema_length=None).lazy()
