"""Ranks that make, in the last step of their NCCL log, the usual calls of two communicators in an unusual order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import polars as pl

from nccl_forensics.views.calls import ENDS, Calls

#: What a line of calls is made of: the communicator, by its turn among those of the rank, and the call.
_CALL = ("turn", "op", "shape", "dtype", "nranks")
_PLACE = ("group_key", "seq", "op", "source_id", "line_no")
_Place = dict[str, object]


def reordered(calls: Calls) -> Iterator[tuple[int, list[int], _Place, _Place]]:
    """A rank; the ranks that share both communicators and keep the order; the call that it makes too early, and what the first of those
    calls there.

    Lines of NCCL tell what was enqueued, not what ended. So the calls from there on must be the last ones of every log, must stand in a
    step before as the other ranks make them, and on this rank too but for the order, in which no communicator has its own calls in another
    one; and none of them may have been taken down in order.
    """
    own = (pl.col("domain") == "nccl") & ~pl.col("is_p2p") & pl.col("rank").is_not_null() & pl.col("seq").is_not_null()
    recent = (
        calls.recent()
        .filter(own)
        .sort("rank", "source_id", "order")
        .select("rank", *_PLACE, "shape", "dtype", "nranks", "done")
        .group_by("rank", maintain_order=True)
        .tail(ENDS)
    )
    held = recent.filter((pl.col("group_key").n_unique() > 1).over("rank") & ~pl.col("done").fill_null(False).any().over("rank"))
    # Communicators by the order of their first calls: of ranks in different groups of one kind these are alike, their keys are not.
    first = pl.col("at").min().over("rank", "group_key")
    turns = held.with_columns(at=pl.int_range(pl.len()).over("rank")).with_columns(first=first)
    told = turns.with_columns(turn=pl.col("first").rank("dense").over("rank")).with_columns(call=pl.struct(_CALL).rank("dense")).collect()
    if told.is_empty():
        return
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, line in told.group_by("rank", maintain_order=True).agg("call").iter_rows():
        alike[tuple(line)].append(rank)
    kinds = dict(told.select("call", "turn").unique().iter_rows())
    for odd, ranks in alike.items():
        for usual, others in alike.items():
            at = _swapped(odd, usual, kinds) if len(ranks) < len(others) else None
            if at is None:
                continue
            groups = dict(told.filter(pl.col("rank").is_in(others)).group_by("rank").agg(pl.col("group_key").unique()).iter_rows())
            for rank in ranks:
                line = _places(told, rank)
                early, due = line[at], line[odd.index(usual[at], at)]
                both = sorted(r for r in others if {early["group_key"], due["group_key"]} <= set(groups[r]))
                if both:
                    yield rank, both, early, _places(told, both[0])[at]


def _places(told: pl.DataFrame, rank: int) -> list[_Place]:
    return told.filter(pl.col("rank") == rank).select(_PLACE).to_dicts()


def _swapped(odd: Sequence[int], usual: Sequence[int], kinds: dict[int, int]) -> int | None:
    """Where the one line leaves the other in its last step, if all that it has otherwise is the order of calls of different
    communicators."""
    if len(odd) != len(usual):
        return None
    at = next((n for n, (a, b) in enumerate(zip(odd, usual, strict=True)) if a != b), None)
    if at is None or Counter(odd[at:]) != Counter(usual[at:]) or not _again(usual, at):
        return None
    for kind in {kinds[call] for call in usual[at:]}:
        if [c for c in odd[at:] if kinds[c] == kind] != [c for c in usual[at:] if kinds[c] == kind]:
            return None
    return at


def _again(line: Sequence[int], at: int) -> bool:
    """Whether the calls from there to the end of a line are no more than one step, or the first part of one: they stand once more before
    them, and not so close that they hold themselves."""
    end = line[at:]
    before = next((n for n in range(at - 1, -1, -1) if line[n : n + len(end)] == end), None)
    return before is not None and before + len(end) <= at
