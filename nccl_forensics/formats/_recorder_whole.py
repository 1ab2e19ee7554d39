"""Flight Recorder dumps that were loaded entry by entry, as folded tables: many short ones at once, as a table costs the start of some tens
of queries whatever it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import polars as pl

from nccl_forensics import folding
from nccl_forensics.folding import SORT, Folded
from nccl_forensics.formats._recorder_columns import Budget, entries_frame
from nccl_forensics.formats._recorder_head import SPANS, content_keys, dump_row, group_rows, operations, placed, repeated, status_rows
from nccl_forensics.formats.base import PLACE, Reading, Several
from nccl_forensics.tables import TABLES

_TABLE, _THREAD = "fr_entries", "thread_id"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A dump: its ``place`` among others, how it is written, its document, and those of its ``entries`` that are objects, with their
    places."""

    place: int
    encoding: str
    document: Mapping[object, object]
    entries: Sequence[tuple[int, Mapping[str, object]]]


def read_one(dump: Loaded, budget: Budget) -> Reading:
    """The tables of a dump."""
    entries, frames = _tables([dump], budget)
    return Reading(frames={_TABLE: entries} | {name: frame.drop(PLACE) for name, frame in frames.items()}, records=1 + entries.height)


def read_loaded(dumps: Sequence[Loaded], budget: Budget) -> Several:
    """The tables of several dumps, each row with its place, in the order given."""
    entries, frames = _tables(dumps, budget)
    records = {dump.place: 1 + len(dump.entries) for dump in dumps}
    if not entries.height:
        return Several(frames, {}, records)
    places = repeated([dump.place for dump in dumps], [len(dump.entries) for dump in dumps])
    folded = folding.fold(entries.insert_column(0, places), TABLES[_TABLE].own, both=[PLACE])
    words = folded.words.with_columns(pl.col(SORT) - pl.col(SORT).min().over(PLACE))  # each dump counts its sorts from 0
    rows = folded.rows.with_columns(words.get_column(SORT).gather(folded.rows.get_column(SORT)))
    return Several(frames, {_TABLE: Folded(rows, words)}, records)


def _tables(dumps: Sequence[Loaded], budget: Budget) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """The entries of all dumps, one dump after the other, and the other tables, with places."""
    places, heights = [dump.place for dump in dumps], [len(dump.entries) for dump in dumps]
    entries = entries_frame(list(chain.from_iterable(dump.entries for dump in dumps)), budget)
    status = [status_rows(dump.document.get("pg_status")) for dump in dumps]
    counters = placed("fr_status", places, status)
    keys = content_keys(operations(entries), entries, heights, counters.drop(PLACE), list(map(len, status)))
    rows = []
    for dump, key, first in zip(dumps, keys, accumulate(heights, initial=0), strict=False):
        own = entries.select(*SPANS, _THREAD).slice(first, len(dump.entries))
        spans = [bound for c in SPANS for bound in (own[c].min(), own[c].max())]
        rows.append([dump_row(dump.document, dump.encoding, own.height, spans, own[_THREAD].to_list(), key)])
    groups = placed("fr_groups", places, [group_rows(dump.document.get("pg_config")) for dump in dumps])
    return entries, {"fr_dumps": placed("fr_dumps", places, rows), "fr_groups": groups, "fr_status": counters}
