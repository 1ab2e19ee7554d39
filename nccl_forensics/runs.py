"""Runs: sources that cannot belong to the same start of the job are told apart, so that a healthy run is not mixed with a failed one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import polars as pl

from nccl_forensics.store import Store
from nccl_forensics.views import Resolver


@dataclass(frozen=True, slots=True)
class Run:
    """One start of the job: its number and the sources that belong to another run and are left out."""

    number: int
    sources: frozenset[int]
    foreign: frozenset[int]


def find_runs(store: Store) -> list[Run]:
    """Runs in the order of their first source; one run where nothing tells them apart.

    Two sets of sources are different runs if both hold the same rank of a communicator of the same size under different
    communicator ids. Sources without NCCL's communicator lines belong to every run.
    """
    frame = Resolver(store).get("comms")
    if frame is None:
        return [Run(0, frozenset(), frozenset())]
    comms = (
        frame.filter(pl.col("comm_id").is_not_null() & pl.col("rank").is_not_null())
        .select("source_id", "comm_id", "rank", "nranks")
        .collect()
    )
    parent: dict[object, object] = {}

    def root(x: object) -> object:
        while parent.setdefault(x, x) != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for source, comm, _, _ in comms.iter_rows():
        parent[root(("source", source))] = root(("comm", comm))
    seats: dict[object, set[tuple[int, int]]] = defaultdict(set)
    members: dict[object, set[int]] = defaultdict(set)
    biggest: dict[object, int] = defaultdict(int)
    for source, _, rank, nranks in comms.iter_rows():
        key = root(("source", source))
        seats[key].add((nranks, rank))
        members[key].add(source)
        biggest[key] = max(biggest[key], nranks)
    keys = sorted(members, key=lambda k: min(members[k]))
    groups: list[set[object]] = []
    for key in keys:
        world = {s for s in seats[key] if s[0] == biggest[key]}
        place = next((g for g in groups if all(not world & seats[o] for o in g)), None)
        if place is None:
            groups.append({key})
        else:
            place.add(key)
    if len(groups) < 2:
        return [Run(0, frozenset(), frozenset())]
    owned = [frozenset(s for key in g for s in members[key]) for g in groups]
    everyone = frozenset().union(*owned)
    return [Run(i, sources, everyone - sources) for i, sources in enumerate(owned)]
