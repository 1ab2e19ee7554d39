"""Ranks that alone of a group work with others outside of it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view

BRIDGES = typed("group_key:str rank:i32")
#: Of two either is like no other.
_COMPARED = 3


@view(rows="ranks x groups")
def bridges(groups: pl.LazyFrame) -> pl.LazyFrame:
    """Members of a recorder's group that have another group in which nobody else of this one is, where less than half of its members have
    such a group: a trainer among the ranks that generate, say. What it does with those others nobody else of the group has to do, so that
    it is no measure of how late it comes. In a mesh, where each row meets each column in one rank, all members have such a group.
    """
    known = groups.filter((pl.col("domain") == "fr") & (pl.col("members").list.len() > 1)).select("group_key", "members").collect()
    members = {key: frozenset(ranks) for key, ranks in known.iter_rows()}
    own: dict[int, list[frozenset[int]]] = {}
    for group in members.values():
        for rank in group:
            own.setdefault(rank, []).append(group)
    rows = []
    for key, group in sorted(members.items()):
        if len(group) < _COMPARED:
            continue
        apart = [rank for rank in sorted(group) if any(len(group & other) == 1 for other in own[rank])]
        if 2 * len(apart) < len(group):
            rows += [(key, rank) for rank in apart]
    return pl.DataFrame(rows, schema=BRIDGES, orient="row").lazy()
