"""Buckets of gradients that some ranks passed: reductions that DistributedDataParallel itself makes, in backward."""

from __future__ import annotations

import polars as pl

from nccl_forensics.folding import FoldedTable
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.divergence import DIVERGENCES
from nccl_forensics.views.gloo_rings import of_reducer


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
