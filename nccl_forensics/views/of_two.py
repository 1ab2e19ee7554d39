"""Of two alone in a group that have not made the same calls: which of them departs from what all others make in groups like theirs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TypeVar

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.values.ranklist import as_ranks

_Fact = TypeVar("_Fact", bound=tuple[dict[str, object], str])
_PAIR = 2
#: So many others must have made the same calls, and all but a quarter of them.
_ALIKE, _MOST = 2, 0.75


def odd_of_two(jumped: Mapping[int, _Fact], counts: pl.LazyFrame) -> dict[int, tuple[dict[str, object], str]]:
    """Ranks that seem to have passed over a call, with what they missed and the group they went on to; of two alone in a group of NCCL's
    logs, which hold all calls from the first on, the one whose calls there are not those that others made in groups of two: the one behind,
    or the waiter, with ``once_more``. Where nothing tells which of them it is, ``either`` is the waiter.
    """
    out: dict[int, tuple[dict[str, object], str]] = {}
    known: dict[tuple[str, int], frozenset[tuple[object, ...]]] | None = None
    for rank, (fact, ahead) in jumped.items():
        key, waiters = str(fact["group_key"]), as_ranks(fact["waiters"])
        if known is None and fact["domain"] == "nccl":
            known = _called(counts)
        if fact["domain"] != "nccl" or not known or len(waiters) != 1 or sum(group == key for group, _ in known) != _PAIR:
            out[rank] = fact, ahead
            continue
        usual = _usual(known, key)
        mine, theirs = known.get((key, rank)), known.get((key, waiters[0]))
        if usual is not None and mine == usual != theirs:
            # What the one lacks is the last call of the other, by its number in the group.
            places = {f"own_{name}": fact[name] for name in PLACE} | {name: fact[f"own_{name}"] for name in PLACE}
            out[waiters[0]] = {**fact, **places, "waiters": [rank], "once_more": True}, ahead
        else:
            out[rank] = fact if usual is not None and theirs == usual != mine else {**fact, "either": waiters[0]}, ahead
    return out


def _called(counts: pl.LazyFrame) -> dict[tuple[str, int], frozenset[tuple[object, ...]]]:
    """By group and rank, how often it made each call there."""
    called: defaultdict[tuple[str, int], set[tuple[object, ...]]] = defaultdict(set)
    rows = counts.filter(pl.col("domain") == "nccl").select("group_key", "rank", "op", "shape", "calls").collect()
    for key, rank, op, shape, calls in rows.iter_rows():
        called[key, rank].add((op, shape, calls))
    return {who: frozenset(made) for who, made in called.items()}


def _usual(known: Mapping[tuple[str, int], frozenset[tuple[object, ...]]], key: str) -> frozenset[tuple[object, ...]] | None:
    """What nearly all ranks of the other groups of two called there."""
    sizes = Counter(group for group, _ in known)
    made = Counter(calls for (group, _), calls in known.items() if group != key and sizes[group] == _PAIR)
    usual, ranks = made.most_common(1)[0] if made else (None, 0)
    return usual if ranks >= max(_ALIKE, _MOST * made.total()) else None
