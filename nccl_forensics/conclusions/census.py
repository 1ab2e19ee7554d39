"""Who is in the evidence."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nccl_forensics.frames import has_rows, ranks_in
from nccl_forensics.values.ranklist import MOST_RANKS
from nccl_forensics.views import Resolver
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.words import UNIDENTIFIED


@dataclass(frozen=True, slots=True)
class Census:
    """Size of the job, ranks with evidence, and how many process groups and communicators there are."""

    world: int | None
    seen: frozenset[int]
    groups: int
    comms: int

    @property
    def missing(self) -> list[int]:
        """Ranks of the job from which nothing is in the evidence."""
        return sorted(set(range(self.world)) - self.seen) if self.world is not None and self.world <= MOST_RANKS else []


def people_of(resolver: Resolver) -> dict[int, dict[str, object]]:
    """Processes by global rank; among them those whose stack is that of a rank that others wait for, whatever told so."""
    frame = resolver.get("processes")
    if frame is None:
        return {}
    rows = frame.filter(pl.col("rank").is_not_null()).sort("rank", "proc").collect()
    return _by_their_stacks(resolver) | {row["rank"]: row for row in rows.iter_rows(named=True)}


def _by_their_stacks(resolver: Resolver) -> dict[int, dict[str, object]]:
    states = resolver.get("thread_states")
    nameless = states.filter(pl.col("rank").is_null()).select("source_id", "line_no", "pid", "host") if states is not None else None
    stalls, hosts = (resolver.get(name) if has_rows(nameless) else None for name in ("stalls", "source_hosts"))
    if nameless is None or stalls is None or hosts is None:
        return {}
    told = (
        stalls.select("rank", source_id="stack_source_id", line_no="stack_line_no").drop_nulls().join(nameless, on=["source_id", "line_no"])
    )
    placed = told.join(hosts.select("source_id", of="host").unique("source_id"), on="source_id", how="left").collect()
    return {
        row["rank"]: dict.fromkeys(PROCESSES_SCHEMA)
        | {"rank": row["rank"], "pid": row["pid"], "host": row["host"] or row["of"], "source_id": row["source_id"]}
        for row in placed.iter_rows(named=True)
    }


def strangers(resolver: Resolver) -> int:
    """How many processes there are whose rank is not known."""
    processes = resolver.get("processes")
    if processes is None:
        return 0
    return int(processes.filter(pl.col("rank").is_null() & pl.col("pid").is_not_null()).select(pl.len()).collect().item())


def _unnumbered(resolver: Resolver) -> int:
    """How many processes got as far as NCCL's bootstrap and are of no known rank: releases before 2.23 print ranks after it only."""
    network, processes = resolver.get("nccl_network"), resolver.get("processes")
    if network is None or processes is None:
        return 0
    begun = network.filter((pl.col("item") == "bootstrap") & pl.col("pid").is_not_null()).select("host", "pid").unique()
    numbered = processes.filter(pl.col("rank").is_not_null()).select("host", "pid")
    return int(begun.join(numbered, on=["host", "pid"], how="anti").select(pl.len()).collect().item())


def nameless_dumps(resolver: Resolver) -> list[int]:
    """Sources that are recorder dumps of ranks that are not known."""
    dumps = resolver.get("dumps")
    if dumps is None:
        return []
    return dumps.filter((pl.col("use") == "chosen") & pl.col("rank").is_null()).select("source_id").collect()["source_id"].sort().to_list()


def recorded_ranks(resolver: Resolver) -> set[int]:
    """Ranks that left a dump of their recorder."""
    return ranks_in(resolver.get("dumps"))


def census(resolver: Resolver) -> Census:
    """Counted from everything that names ranks: to be asked for once."""
    people = people_of(resolver)
    ranks: set[int] = set(people)
    world = 0
    n_groups = n_comms = 0
    groups = resolver.get("groups")
    if groups is not None:
        frame = groups.collect()
        n_groups = frame.filter(pl.col("domain") == "fr").height
        n_comms = frame.filter(pl.col("domain") == "nccl").height
        for members in frame["members"].to_list():
            ranks |= {r for r in members or [] if r < UNIDENTIFIED}
        world = int(str(frame["size"].max() or 0))
    for name in ("comms", "nccl_inspector"):
        told = resolver.get(name)
        if told is not None:
            world = max(world, int(str(told.select(pl.col("nranks").max()).collect().item() or 0)))
    seen = set(people)
    traced = resolver.get("trace_ranks")
    if traced is not None:
        world = max(world, int(str(traced.select(pl.col("world_size").max()).collect().item() or 0)))
    for name in ("dumps", "source_ranks", "endings", "trace_ranks"):
        known = resolver.get(name)
        if known is not None and name == "source_ranks":
            # A file whose name holds a rank and whose text is of no kind says nothing about it.
            sources = resolver.get("sources")
            assert sources is not None
            known = known.join(sources.filter(pl.col("formats").list.len() > 0), on="source_id", how="semi")
        seen |= ranks_in(known)
    ranks |= seen
    # Ranks that are known tell how many there are only while no more processes than the gaps between them are without one.
    if ranks and (world or _unnumbered(resolver) <= max(ranks) + 1 - len(ranks)):
        world = max(world, max(ranks) + 1)
    return Census(world or None, frozenset(seen), n_groups, n_comms)
