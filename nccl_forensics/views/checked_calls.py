"""Calls that torch.distributed compared between the ranks before it made them (``TORCH_DISTRIBUTED_DEBUG=DETAIL``)."""

from __future__ import annotations

import polars as pl

from nccl_forensics.folding import SORT, FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.stacks.frames import shortened
from nccl_forensics.stacks.places import place_of
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.words import UNIDENTIFIED

CHECKED_CALLS = typed("rank:i32 group_key:str seq:i64 op:str user_frame:str reason:str source_id:u32 record:str")


@view(rows="ranks")
def checked_calls(operations: pl.LazyFrame | Calls, fr_entries: pl.LazyFrame | FoldedTable) -> pl.LazyFrame:
    """The call that each rank was having checked last, where that is the last thing that its recorder holds and all of them are level in
    it.

    The wrapper of DETAIL gathers what every rank is about to call (ProcessGroupWrapper.cpp); a recorder holds that gathering, with the
    frames of the call that was to be made. Ranks that stand in the same gathering for different calls never made them. No rows where ranks
    are in different places, or where the frames are those of the recorded operation itself.
    """
    rows: list[dict[str, object]] = []
    last = _last(calls_of(operations).telling)
    if last.height < 3 or last["is_p2p"].any() or last.select("group_key", "seq", "op").n_unique() != 1:
        return pl.DataFrame(rows, schema=CHECKED_CALLS).lazy()
    last = with_frames(last, fr_entries)
    if last["frames"].null_count():
        return pl.DataFrame(rows, schema=CHECKED_CALLS).lazy()
    # Ranks of one program stand in few places.
    standing = {frames: place_of([shortened(f) for f in frames.split("\n")], None) for frames in last["frames"].unique(maintain_order=True)}
    if any(place != "collective" or op is None for place, op, _, _ in standing.values()):
        return pl.DataFrame([], schema=CHECKED_CALLS).lazy()
    checks = 0
    for row in last.iter_rows(named=True):
        _, op, user, reason = standing[row["frames"]]
        checks += op != row["op"]
        group = f"pg:{row['group_name']}" if row["group_name"] else None
        rows.append(
            {name: row[name] for name in CHECKED_CALLS if name in row}
            | {"group_key": group, "op": op, "user_frame": user, "reason": reason}
        )
    # The call of some may be of the very kind that the check itself makes.
    return pl.DataFrame(rows if checks * 2 > len(rows) else [], schema=CHECKED_CALLS, infer_schema_length=None).lazy()


def _last(telling: pl.LazyFrame) -> pl.DataFrame:
    """The last operation of each recorder of a known rank; entries without a number come in the order in which they were written."""
    order = pl.col("order").fill_null(-1)
    placed = (pl.col("domain") == "fr") & (pl.col("is_p2p") | pl.col("seq").is_not_null()) & (pl.col("rank") < UNIDENTIFIED)
    known = telling.filter(placed).select("rank", "group_key", "group_name", "seq", "op", "is_p2p", "source_id", "record", order)
    return (
        known.filter(pl.col("order") == pl.col("order").max().over("rank"))
        .unique("rank", keep="last", maintain_order=True)
        .sort("rank")
        .collect()
    )


def with_frames(last: pl.DataFrame, fr_entries: pl.LazyFrame | FoldedTable) -> pl.DataFrame:
    """Operations of recorders with the ``frames`` of each entry, which words hold where the table is folded."""
    folded = fr_entries if isinstance(fr_entries, FoldedTable) else None
    entry = ["source_id", "record"]
    rows = folded.lazy().select(*entry, "collective_seq_id", SORT) if folded is not None else fr_entries.lazy().select(
        *entry, "collective_seq_id", "frames"
    )  # fmt: skip
    found = rows.filter(pl.col("collective_seq_id").is_in(last["seq"].unique().implode())).join(
        last.lazy().select(entry), on=entry, how="semi"
    )
    if folded is not None:
        found = found.join(folded.words.lazy().select("source_id", SORT, "frames"), on=["source_id", SORT], how="left")
    return last.join(found.select(*entry, "frames").unique(entry, keep="last").collect(), on=entry, how="left", maintain_order="left")
