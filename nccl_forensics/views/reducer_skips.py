"""Buckets of gradients that some ranks passed: reductions that DistributedDataParallel itself makes, in backward."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.deaths import told_at
from nccl_forensics.views.divergence import DIVERGENCES
from nccl_forensics.views.ended_before import PEER_GONE
from nccl_forensics.views.gloo_rings import ENGINE, of_reducer


@view(rows="groups")
def reducer_skips(
    divergences: pl.LazyFrame, operations: pl.LazyFrame | Calls, fr_entries: pl.LazyFrame | FoldedTable, ring_receivers: pl.LazyFrame | None
) -> pl.LazyFrame:
    """The ``divergences`` in which ranks left out an all_reduce that the reducer of the others made, and went on to what they called behind
    one of theirs before. To ``ranks`` are added those that aborted as they could not receive it (``ring_receivers``)."""
    # Where the others stand in this bucket, nothing tells that they would have come to what these ranks called: it looks like another call
    # in its place.
    left = (
        pl.col("kind").is_in(["skipped", "different"])
        & (pl.col("expected_op") == "all_reduce")
        & (pl.col("domain") == "fr")
        & pl.col("sure")
    )
    rows = divergences.filter(left & pl.col("record").is_not_null() & pl.col("peer_record").is_not_null()).sort("group_key").collect()
    if not rows.height:
        return rows.lazy()
    theirs = rows.select("seq", source_id="peer_source_id", record="peer_record")
    found = rows.filter(of_reducer(theirs, fr_entries) & of_reducer(_before(rows, operations), fr_entries))
    if ring_receivers is None or not found.height:
        return found.lazy()
    aborted = ring_receivers.filter("by_reducer").group_by("group_name", "seq").agg(pl.col("odd").unique()).collect()
    joined = found.join(aborted, on=["group_name", "seq"], how="left", maintain_order="left")
    both = pl.col("ranks").list.set_union(pl.col("odd").fill_null([])).list.sort()
    return joined.with_columns(ranks=both).select(list(DIVERGENCES)).lazy()


def _before(rows: pl.DataFrame, operations: pl.LazyFrame | Calls) -> pl.DataFrame:
    """For each row the call in front of the last one that the odd rank made like the one it went on to; without a record if there is
    none."""
    key, kind = ["source_id", "group_key"], ["op", "call_site", "shape"]
    made = calls_of(operations).recent().filter(~pl.col("is_p2p") & pl.col("source_id").is_in(rows["source_id"].unique().implode()))
    known = made.select(*key, "seq", *kind, "record").collect()
    asked = rows.select(*key, "record", at="seq").with_row_index("row")
    own = asked.join(known, on=[*key, "record"]).select("row", *key, "at", *kind)
    alike = own.join(known, on=[*key, *kind], nulls_equal=True).filter(pl.col("seq") < pl.col("at"))
    last = alike.group_by("row", *key).agg(seq=pl.col("seq").max() - 1)
    told = last.join(known.select(*key, "seq", "record"), on=[*key, "seq"], how="left")
    return asked.select("row", *key).join(told.select("row", "seq", "record"), on="row", how="left", maintain_order="left").drop("row")


PAST_BACKWARD = typed("rank:i32 in_backward:list[i32] call_site:str backward_at:str", read_at(), read_at("peer_"))
#: So many must wait in backward, at least.
_LEAST = 2
#: What a process says whose wait for others came to nothing.
_IN_VAIN = (*PEER_GONE, "gloo-timeout")


@view(rows="ranks")
def past_backward(last_calls: pl.LazyFrame, endings: pl.LazyFrame) -> pl.LazyFrame:
    """The few ranks that came to a collective of the program while those that ended ``in_backward`` waited in a reduction of its reducer, by
    what the ranks left as they ended: for jobs whose recorders tell of neither.

    One of the few must have aborted as more bytes came than it expected, and so must each whose stack is not known: all reducers reduce the
    same buckets in the same order, so that such a one is in none. In backward are those whose wait in C++ under it came to nothing.
    Empty where any rank stood elsewhere, or where those in backward are less than half of the job. ``call_site`` is where the rank stood, if
    that is known; cites its end (``source_id`` …) and that of one in backward (``peer_…``).
    """
    ended = _by_rank(endings)
    stood = _by_rank(last_calls)
    aborted = {rank for rank, row in ended.items() if row["signature"] == "gloo-size-mismatch"}
    below = {rank for rank, row in stood.items() if any(frame.startswith(ENGINE) for frame in _frames(row))}
    waited = [r for r in sorted(below) if _frames(stood[r])[0].startswith(ENGINE) and r in ended and ended[r]["signature"] in _IN_VAIN]
    called = {rank for rank, row in stood.items() if row["place"] == "collective"} - below
    few = sorted(aborted | called)
    world = max([*ended, *stood], default=-1) + 1
    whole = set(stood) <= {*few, *waited} and len(few) < len(waited) and 2 * len(waited) >= world
    # In gloo's ring each receives from the next one.
    if not aborted or aborted & below or called & {(rank + 1) % world for rank in aborted} or len(waited) < _LEAST or not whole:
        return pl.LazyFrame(schema=PAST_BACKWARD)
    first = waited[0]
    told = {"in_backward": waited, "backward_at": stood[first]["user_frame"]} | {f"peer_{n}": v for n, v in told_at(ended[first]).items()}
    rows = [
        told
        | {"rank": rank, "call_site": stood[rank]["user_frame"] if rank in called else None}
        | (told_at(ended[rank]) if rank in ended else {name: stood[rank][name] for name in PLACE})
        for rank in few
    ]
    return pl.DataFrame(rows, schema=PAST_BACKWARD, infer_schema_length=None).lazy()


def _by_rank(rows: pl.LazyFrame) -> dict[int, dict[str, object]]:
    return {row["rank"]: row for row in rows.filter(pl.col("rank").is_not_null()).collect().iter_rows(named=True)}


def _frames(row: dict[str, object]) -> list[str]:
    """Innermost first."""
    frames = row["frames"]
    return [str(frame) for frame in frames] if isinstance(frames, list) else []
