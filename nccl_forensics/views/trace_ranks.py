"""Whose trace each one is, and which one counts where a rank left several."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.values.claims import NUMBER, WORD
from nccl_forensics.views import view

TRACE_RANKS = typed(
    "source_id:u32 rank:i32 named_by:str capture:u32 duplicate_of:u32 record:str device:str device_number:i32 host:str pid:i64",
    "gpus:list[str] backend:str nccl_version:str world_size:i32 start_ns:i64 absolute:bool span_ns:i64 first_step:i64 steps:u32",
    "complete:bool groups:u32",
)


@view(rows="traces")
def trace_ranks(traces: pl.LazyFrame, path_hints: pl.LazyFrame) -> pl.LazyFrame:
    """One row per trace: ``rank`` and what tells it (``distributedInfo``, a word in the file's name, a number in it).

    Several traces of a rank that follow each other are captures 0, 1, ...; one that covers the same time or steps as another is its
    duplicate and counts for nothing. ``start_ns`` is the time of the first event, since 1970 where ``absolute``.
    """
    rows = traces.join(path_hints.select("source_id", "path_rank", "path_strength"), on="source_id", how="left").sort("source_id").collect()
    bare = [r for r in rows.iter_rows(named=True) if r["rank"] is None and r["path_rank"] is not None]
    told = {r for r in rows["rank"].to_list() if r is not None}
    numbers = [r["path_rank"] for r in bare]
    # A bare number in a name is a rank only where it tells several files apart and no trace says otherwise.
    unique = len(numbers) > 1 and len(set(numbers)) == len(numbers) and not told & set(numbers)
    out: list[dict[str, object]] = []
    for row in rows.iter_rows(named=True):
        rank, named_by = row["rank"], "distributedInfo" if row["rank"] is not None else None
        if rank is None and row["path_rank"] is not None and (row["path_strength"] == WORD or (row["path_strength"] == NUMBER and unique)):
            rank, named_by = row["path_rank"], "file name"
        out.append(
            {
                **{c: row.get(c) for c in TRACE_RANKS},
                "rank": rank,
                "named_by": named_by,
                "start_ns": row["time_raw_ns"],
                "absolute": row["time_kind"] == "epoch",
                "capture": 0,
                "duplicate_of": None,
            }
        )
    _captures(out)
    return pl.DataFrame(out, schema=TRACE_RANKS, infer_schema_length=None).lazy()


def _captures(rows: list[dict[str, object]]) -> None:
    by_rank: dict[object, list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        if row["rank"] is not None:
            by_rank[row["rank"]].append(row)
    for same in by_rank.values():
        same.sort(key=lambda r: (_int(r["start_ns"]), _int(r["source_id"])))
        kept: list[dict[str, object]] = []
        for row in same:
            twin = next((k for k in kept if _covers_alike(k, row)), None)
            if twin is not None:
                row["duplicate_of"] = twin["source_id"]
            else:
                row["capture"] = len(kept)
                kept.append(row)


def _covers_alike(a: dict[str, object], b: dict[str, object]) -> bool:
    """Whether two traces of a rank cover the same time, or begin with the same step where their times cannot be compared."""
    if a["start_ns"] is None or b["start_ns"] is None:
        return True
    if a["absolute"] == b["absolute"]:
        return _int(b["start_ns"]) < _int(a["start_ns"]) + _int(a["span_ns"]) and _int(a["start_ns"]) < _int(b["start_ns"]) + _int(
            b["span_ns"]
        )
    return a["first_step"] == b["first_step"]


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
