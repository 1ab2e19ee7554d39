"""Sends and receives that recorders hold open on both sides of a pair, of which one is of a size that nobody else has."""

from __future__ import annotations

from collections import Counter

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.pair_waits import unfinished
from nccl_forensics.views.wait_edges import OTHER_HALF

UNLIKE_HALVES = typed(
    "group_name:str group_desc:str kind:str rank:i32 peer:i32 op:str own:str theirs:str call_site:str",
    read_at(),
    read_at("peer_"),
)
#: Sends and receives of the usual size, for each one of the odd size.
_USUAL = 4


@view(rows="pairs of ranks")
def unlike_halves(operations: pl.LazyFrame | Calls, groups: pl.LazyFrame) -> pl.LazyFrame:
    """``rank`` has a send or receive (``op``) open that is of another size or type (``own``) than all those of its ``peer`` that are open
    the other way (``theirs``), which are as many. Nobody else has one of that size, and all others are of one: where sizes change from call
    to call, a half that was left out looks the same. Cites both sides' first."""
    calls = calls_of(operations)
    left = unfinished(calls)
    if left is None:
        return pl.LazyFrame(schema=UNLIKE_HALVES)
    half = pl.col("op").is_in(list(OTHER_HALF)) & pl.col("is_p2p") & pl.col("peer").is_not_null() & pl.col("shape").is_not_null()
    opened = left.filter(half).with_columns(size=pl.concat_str("shape", "dtype", separator=" ", ignore_nulls=True)).sort("rank", "order")
    if opened.select(pl.col("size").n_unique()).collect().item() < 2:
        return pl.LazyFrame(schema=UNLIKE_HALVES)
    members = dict(groups.filter(pl.col("domain") == "fr").select("group_key", "members").collect().iter_rows())
    ends: dict[tuple[str, int, str, int], list[dict[str, object]]] = {}
    for row in opened.collect().iter_rows(named=True):
        ranks = members.get(row["group_key"]) or []
        if 0 <= row["peer"] < len(ranks):
            ends.setdefault((row["group_key"], row["rank"], row["op"], ranks[row["peer"]]), []).append(row)
    usual = _usual(calls, half)
    rows: list[dict[str, object]] = []
    for (key, rank, op, peer), own in sorted(ends.items(), key=lambda end: end[0][:2]):
        theirs = ends.get((key, peer, OTHER_HALF[op], rank), [])
        odd = Counter(str(r["size"]) for r in own) - Counter(str(r["size"]) for r in theirs)
        if len(own) != len(theirs) or len(odd) != 1 or usual is None:
            continue
        (size, times) = next(iter(odd.items()))
        if usual[0] == size or usual[1].get(size) != times or usual[2] < _USUAL * times:
            continue
        mine, other = next(r for r in own if r["size"] == size), theirs[0]
        rows.append(
            {name: mine[name] for name in ("group_name", "group_desc", "call_site", *PLACE)}
            | {f"peer_{name}": other[name] for name in PLACE}
            | {"rank": rank, "peer": peer, "op": op, "own": size, "theirs": other["size"]}
            | {"kind": "shape" if mine["dtype"] == other["dtype"] else "dtype"}
        )
    return pl.DataFrame(rows, schema=UNLIKE_HALVES, infer_schema_length=None).lazy()


def _usual(calls: Calls, half: pl.Expr) -> tuple[str, dict[str, int], int] | None:
    """The usual size, how often each other one was called, and how often the usual one; None where there are several others."""
    every = calls.every.with_columns(calls=pl.lit(1)) if calls.recorded is None else calls.recorded.words.lazy()
    size = pl.concat_str("shape", "dtype", separator=" ", ignore_nulls=True)
    counted = every.filter(half & (pl.col("domain") == "fr")).group_by(size=size).agg(pl.col("calls").sum()).sort("calls", "size").collect()
    if counted.height != 2:
        return None
    (odd, n), (usual, most) = counted.iter_rows()
    return usual, {odd: n}, most
