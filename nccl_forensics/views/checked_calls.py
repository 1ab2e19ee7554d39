"""Calls that torch.distributed compared between the ranks before it made them (``TORCH_DISTRIBUTED_DEBUG=DETAIL``)."""

from __future__ import annotations

import polars as pl

from nccl_forensics.folding import SORT, FoldedTable
from nccl_forensics.stack_frames import shortened
from nccl_forensics.stack_places import place_of
from nccl_forensics.views import view
from nccl_forensics.views.calls import op_word

CHECKED_CALLS = {
    "rank": pl.Int32(),
    "group_key": pl.String(),
    "seq": pl.Int64(),
    "op": pl.String(),
    "user_frame": pl.String(),
    "reason": pl.String(),
    "source_id": pl.UInt32(),
    "record": pl.String(),
}


@view(rows="ranks")
def checked_calls(fr_entries: pl.LazyFrame | FoldedTable, dumps: pl.LazyFrame) -> pl.LazyFrame:
    """The call that each rank was having checked last, where that is the last thing that its recorder holds and all of them are level in it.

    The wrapper of DETAIL gathers what every rank is about to call (ProcessGroupWrapper.cpp); a recorder holds that gathering, with the frames
    of the call that was to be made. Ranks that stand in the same gathering for different calls never made them. No rows where ranks are in
    different places, or where the frames are those of the recorded operation itself.
    """
    rows: list[dict[str, object]] = []
    chosen = dumps.filter((pl.col("use") == "chosen") & pl.col("rank").is_not_null()).select("source_id", "rank")
    last = _last(fr_entries, chosen).with_columns(word=op_word(pl.col("op"))).sort("rank").collect()
    if last.height < 3 or last.select("pg_name", "collective_seq_id", "word").n_unique() != 1 or last["frames"].null_count():
        return pl.DataFrame(rows, schema=CHECKED_CALLS).lazy()
    checks = 0
    for row in last.iter_rows(named=True):
        place, op, user, reason = place_of([shortened(f) for f in str(row["frames"]).split("\n")], None)
        if place != "collective" or op is None:
            return pl.DataFrame([], schema=CHECKED_CALLS).lazy()
        checks += op != row["word"]
        group = f"pg:{row['pg_name']}" if row["pg_name"] else None
        rows.append(
            {name: row[name] for name in CHECKED_CALLS if name in row}
            | {"group_key": group, "seq": row["collective_seq_id"], "op": op, "user_frame": user, "reason": reason}
        )
    # The call of some may be of the very kind that the check itself makes.
    return pl.DataFrame(rows if checks * 2 > len(rows) else [], schema=CHECKED_CALLS, infer_schema_length=None).lazy()


def _last(fr_entries: pl.LazyFrame | FoldedTable, chosen: pl.LazyFrame) -> pl.LazyFrame:
    """The last collective of each of these dumps, with its ``rank``: found by numbers alone, where the table is folded."""
    folded = fr_entries if isinstance(fr_entries, FoldedTable) else None
    rows = folded.lazy().select(*_OWN, SORT) if folded is not None else fr_entries.lazy().select(*_OWN, *_SHARED)
    # The last of those with the greatest number; entries without one come in the order in which they were written.
    last = pl.len() - 1 - pl.col("record_id").fill_null(-1).reverse().arg_max()
    found = (
        rows.filter(pl.col("collective_seq_id").is_not_null()).group_by("source_id").agg(pl.all().get(last)).join(chosen, on="source_id")
    )
    if folded is None:
        return found
    return found.join(folded.words.lazy().select("source_id", SORT, *_SHARED), on=["source_id", SORT], how="left")


_OWN, _SHARED = ("source_id", "record", "record_id", "collective_seq_id"), ("pg_name", "op", "frames")
