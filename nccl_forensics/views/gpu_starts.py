"""Ranks whose GPU has not come to an operation that it has enqueued, while those of its peers have begun it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.views.calls import Calls

_TOLD = ("domain", "group_key", "group_name", "group_desc", "comm_id", "seq", "op", "call_site", "source_id", "line_no", "record")


def not_begun(calls: Calls) -> dict[int, dict[str, object]]:
    """By rank: the collective that is the first open one of its recorder, that its GPU has not begun, and that more peers have; with
    ``waiters``.

    Only where recorders mark the begin of operations (``TORCH_NCCL_ENABLE_TIMING``) does ``scheduled`` mean that the GPU is not there yet.
    A rank that waits for others has begun what it waits in: one of which nothing that is open has begun is held up by its own work before
    it. A full ring may have lost what it waits in: one that begins amid open operations, where others hold finished ones too, tells
    nothing.
    """
    opened = (
        calls.telling.filter((pl.col("domain") == "fr") & pl.col("pending") & pl.col("rank").is_not_null() & pl.col("seq").is_not_null())
        .select("rank", "is_p2p", "state", "order", *_TOLD)
        .sort("rank", "order")
        .collect()
    )
    started = opened.filter(pl.col("state") == "started")
    begun = set(started["rank"].to_list())
    if not begun:
        return {}
    held = calls.telling.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null()).group_by("rank")
    oldest = held.agg(first=pl.col("order").min(), ended=pl.col("done").fill_null(value=False).any()).collect()
    if oldest["ended"].any():  # else these are dumps of open operations alone
        heads_of = opened.filter(pl.col("seq") > 1).join(oldest.filter(~pl.col("ended")), on="rank")
        cut = heads_of.filter(pl.col("order") == pl.col("first"))["rank"].to_list()
        opened = opened.filter(~pl.col("rank").is_in(cut) | (pl.col("state") == "started"))
    # A send before it has not begun either, whomever it is for: nothing of the rank has.
    heads = opened.filter(~pl.col("rank").is_in(sorted(begun)) & ~pl.col("is_p2p")).unique("rank", keep="first", maintain_order=True)
    there: dict[tuple[object, object], list[dict[str, object]]] = {}
    for row in started.filter(~pl.col("is_p2p")).iter_rows(named=True):
        there.setdefault((row["group_key"], row["seq"]), []).append(row)
    late: dict[tuple[object, object], list[dict[str, object]]] = {}
    for row in heads.iter_rows(named=True):
        late.setdefault((row["group_key"], row["seq"]), []).append(row)
    found: dict[int, dict[str, object]] = {}
    for place, rows in late.items():
        peers = there.get(place, [])
        if len(rows) >= len(peers) and not len(rows) == len(peers) == 1:
            continue  # where most have not begun it, whatever they wait for is no rank among them
        waiters = sorted(int(str(peer["rank"])) for peer in peers)
        for row in rows:
            own = {f"own_{name}": row[name] for name in PLACE}
            told = {name: peers[0][name] for name in _TOLD}
            found[int(str(row["rank"]))] = told | own | {"kind": "not-begun", "waiters": waiters, "in_group": waiters}
    return found
