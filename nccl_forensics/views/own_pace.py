"""Groups whose operations are enqueued by threads of their own: which of the two comes first on a rank tells nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TypeVar

import polars as pl

from nccl_forensics.folding import FoldedTable

_Fact = TypeVar("_Fact")

#: Latest operations of a rank that are looked at, and peers that it is compared with.
_BACK, _PEERS = 512, 7


def in_one_order(
    jumped: Mapping[int, tuple[dict[str, object], _Fact]],
    operations: pl.LazyFrame,
    fr_entries: pl.LazyFrame | FoldedTable | None = None,
) -> dict[int, tuple[dict[str, object], _Fact]]:
    """Of ranks that went on from one group to another (``group_key`` of the first, key of the second), those of which the recorders do not
    show that the two keep their own pace.

    Where one thread calls both, ranks come to an operation of the one after as many of the other, until one leaves something out: from then
    on it has fewer, for good. A checkpoint's thread beside the training loop is now earlier, now later than on other ranks, if there is
    time to see it; recorders that note the thread of each call (PyTorch 2.9 on) tell it at once.
    """
    paced = {
        pair: _by_two_threads(pair, rank, operations, fr_entries) or _own_pace(pair, rank, operations)
        for rank, (behind, ahead) in jumped.items()
        if behind.get("domain") == "fr" and (pair := (str(behind["group_key"]), str(ahead)))
    }
    return {r: fact for r, fact in jumped.items() if not paced.get((str(fact[0].get("group_key")), str(fact[1])))}


def _own_pace(pair: tuple[str, str], rank: int, operations: pl.LazyFrame) -> bool:
    """Whether ranks parted in how far the one group was when they came to operations of the other, and were together again later."""
    one, other = pair
    both = operations.filter(
        (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("group_key").is_in([one, other]) & pl.col("rank").is_not_null()
    )
    members = both.group_by("rank").agg(pl.col("group_key").n_unique()).filter(pl.col("group_key") == 2).select("rank").collect()
    peers = [r for r in members["rank"].sort().to_list() if r != rank][:_PEERS]
    rows = (
        both.filter(pl.col("rank").is_in([rank, *peers]))
        .select("rank", "source_id", "order", "group_key", "seq")
        .sort("rank", "source_id", "order")
        .group_by("rank", "source_id", maintain_order=True)
        .tail(_BACK)
        .collect()
    )
    behind: dict[int, dict[int, int]] = {}  # by rank and number in the other group: how far the one was
    for (own, _), part in rows.group_by(["rank", "source_id"], maintain_order=True):
        came = behind.setdefault(int(str(own)), {})
        at: int | None = None
        for key, seq in part.select("group_key", "seq").iter_rows():
            if key == one:
                at = seq
            elif at is not None:
                came.setdefault(seq, at)
    for a, b in combinations(behind.values(), 2):
        apart = [a[seq] != b[seq] for seq in sorted(a.keys() & b.keys())]
        if True in apart and not all(apart[apart.index(True) :]):
            return True
    return False


#: A thread that calls for another one, which waits for it: that of the engine of autograd.
_ENGINE = "autograd"


def _by_two_threads(pair: tuple[str, str], rank: int, operations: pl.LazyFrame, fr_entries: pl.LazyFrame | FoldedTable | None) -> bool:
    """Whether, by the recorder of this rank, no thread called operations of both groups, and none of those that did was the engine's."""
    if fr_entries is None:
        return False
    words = fr_entries.words.lazy() if isinstance(fr_entries, FoldedTable) else fr_entries
    made = operations.filter(
        (pl.col("domain") == "fr") & (pl.col("rank") == rank) & pl.col("group_key").is_in(pair) & pl.col("group_name").is_not_null()
    )
    known = made.select("source_id", "group_key", pg_name="group_name").unique()
    threads = known.join(words.select("source_id", "pg_name", "thread_id", "thread_name").unique(), on=["source_id", "pg_name"]).collect()
    if not threads.height or threads["thread_id"].has_nulls() or threads["thread_name"].has_nulls():
        return False
    of_group = [set(threads.filter(pl.col("group_key") == key)["thread_id"]) for key in pair]
    return all(of_group) and of_group[0].isdisjoint(of_group[1]) and not threads["thread_name"].str.contains(_ENGINE, literal=True).any()
