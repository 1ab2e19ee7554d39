"""Sends and receives that one stage of a pipeline left out, by the stages that do the same in the other pipelines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import polars as pl

from nccl_forensics.views.wait_edges import members_of

#: The halves that a rank posted under one number, each with the place of its peer in the group.
Batch = tuple[tuple[str, int], ...]
#: Siblings that must have posted the same, batches that must agree before the one that is missing, and after it.
_SIBLINGS = 2
_BEFORE = 2
#: Siblings that are asked, of however many: a handful that agree tell what a stage posts.
_ASKED = 8


def batches(halves: pl.DataFrame) -> dict[tuple[str, int], dict[int, Batch]]:
    """By group and rank what was posted under each number; ``halves`` hold ``group_key``, ``rank``, ``seq``, ``op`` and ``peer``. Numbers
    that a ring may have cut, the first of each rank, are left out."""
    posted: dict[tuple[str, int], dict[int, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for key, rank, seq, op, peer in halves.select("group_key", "rank", "seq", "op", "peer").iter_rows():
        if seq is not None:
            posted[key, rank][seq].append((op, peer))
    return {who: {n: tuple(sorted(told)) for n, told in sorted(numbers.items())[1:]} for who, numbers in posted.items()}


def siblings(key: str, rank: int, info: Mapping[str, dict[str, object]]) -> list[tuple[str, int]]:
    """Group and rank of some of those at the same place of the other groups of this description and size."""
    return list(islice(_at_its_place(key, rank, info), _ASKED))


def _at_its_place(key: str, rank: int, info: Mapping[str, dict[str, object]]) -> Iterator[tuple[str, int]]:
    group = info[key]
    members = members_of(group)
    if not group["group_desc"] or rank not in members:
        return
    at = members.index(rank)
    for k, g in info.items():
        others = members_of(g)
        if g["group_desc"] == group["group_desc"] and k != key and len(others) == len(members) and others[at] != rank:
            yield k, others[at]


def posted_as_many(posted: Mapping[tuple[str, int], int], key: str, rank: int, info: Mapping[str, dict[str, object]]) -> bool | None:
    """Whether the number of the last send or receive that a rank ``posted`` in a group (by group and rank) is that of all at the same place
    of other pipelines; None where these are too few, or do not agree."""
    others = [posted[who] for who in _at_its_place(key, rank, info) if who in posted]
    told = len(others) >= _SIBLINGS and len(set(others)) == 1 and (key, rank) in posted
    return posted[key, rank] == others[0] if told else None


def posted_alike(
    posted: Mapping[tuple[str, int], Mapping[int, Batch]], key: str, rank: int, info: Mapping[str, dict[str, object]]
) -> bool | None:
    """Whether a rank sent and received under each number what those at the same place of other pipelines did, with the same stages; None
    where these are too few, or do not agree."""
    others = [posted[who] for who in siblings(key, rank, info) if who in posted]
    usual = _unanimous(others)
    if len(others) < _SIBLINGS or usual is None or (key, rank) not in posted:
        return None
    return all(usual.get(number, batch) == batch for number, batch in posted[key, rank].items())


def _unanimous(others: Iterable[Mapping[int, Batch]]) -> dict[int, Batch] | None:
    """What all that posted something under a number posted, by those numbers of which several tell; None where they do not agree."""
    said: dict[int, Counter[Batch]] = defaultdict(Counter)
    for other in others:
        for number, batch in other.items():
            said[number][batch] += 1
    if any(len(told) > 1 for told in said.values()):
        return None
    return {n: next(iter(told)) for n, told in said.items() if told.total() >= _SIBLINGS}


def last_posted(operations: pl.LazyFrame) -> dict[tuple[str, int], int]:
    """By group and rank the number of the last send or receive that recorders hold."""
    sent = operations.filter((pl.col("domain") == "fr") & pl.col("is_p2p") & pl.col("rank").is_not_null() & pl.col("seq").is_not_null())
    rows = sent.group_by("group_key", "rank").agg(pl.col("seq").max()).collect().iter_rows()
    return {(key, rank): seq for key, rank, seq in rows}


def left_out(own: Mapping[int, Batch], others: Iterable[Mapping[int, Batch]]) -> tuple[int, Batch] | None:
    """The number under which ``own`` lacks what all of ``others`` posted, and what it lacks; None where that is not told.

    Either the batch is not there, and every later one of its own stands one number before that of the others; or halves of it are not
    there, and all other batches are those of the others. Stages of one place in their pipelines post the same, so that no other difference
    is looked for.
    """
    usual = _unanimous(others)
    if usual is None:
        return None
    known = [n for n in own if n in usual]
    first = next((n for n in known if own[n] != usual[n]), None)
    if first is None or sum(n < first for n in known) < _BEFORE:
        return None
    lacking = tuple(half for half in usual[first] if half not in own[first])
    after = [n for n in own if n > first and n in usual]
    if lacking and set(own[first]) < set(usual[first]) and all(own[n] == usual[n] for n in after):
        return first, lacking
    moved = [n for n in own if n >= first and n + 1 in usual]
    if moved and all(own[n] == usual[n + 1] for n in moved):
        return first, usual[first]
    return None
