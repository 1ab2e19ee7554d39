"""By which path through the program a rank came to a call, beside the paths by which it came there before."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.folding import FoldedTable
from nccl_forensics.views.calls import Calls
from nccl_forensics.views.checked_calls import with_frames

#: Operations of a group that are looked at, the last one among them.
_BACK = 32
_KEY = ("rank", "group_key")


def by_another_path(calls: Calls, fr_entries: pl.LazyFrame | FoldedTable, groups: Mapping[int, str]) -> set[int]:
    """Those of the ranks in ``groups`` whose recorder tells that they came to their last operation of that group by other frames than to any alike
    before it (the same operation at the same line): whoever makes calls in another order than usual stands in another branch."""
    wanted = pl.LazyFrame(list(groups.items()), schema={"rank": pl.Int32(), "group_key": pl.String()}, orient="row")
    own = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("seq").is_not_null() & pl.col("call_site").is_not_null()
    made = calls.telling.filter(own).join(wanted, on=_KEY).select(*_KEY, "seq", "op", "call_site", "source_id", "record")
    last = made.sort(*_KEY, "seq").group_by(_KEY, maintain_order=True).tail(_BACK).collect()
    out: set[int] = set()
    for rows in with_frames(last, fr_entries).partition_by("rank", maintain_order=True) if last.height else ():
        now = rows.row(-1, named=True)
        alike = rows.head(-1).filter((pl.col("op") == now["op"]) & (pl.col("call_site") == now["call_site"]))
        before = set(alike["frames"].drop_nulls().to_list())
        if before and now["frames"] is not None and now["frames"] not in before:
            out.add(now["rank"])
    return out
