"""What the pictures of a report need, gathered from the views of the run that the verdict is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nccl_forensics.assemble import RunResult
from nccl_forensics.extras import Extras
from nccl_forensics.pictures.events import events
from nccl_forensics.pictures.links import channels, matrices, nics, rings, transports, trees
from nccl_forensics.pictures.people import cluster, processes, states
from nccl_forensics.pictures.quotes import Quote, contexts
from nccl_forensics.pictures.settings import settings
from nccl_forensics.pictures.stacks import stacks
from nccl_forensics.pictures.timelines import timelines, waits
from nccl_forensics.pictures.traces import lag_map, step_lanes
from nccl_forensics.store import Store


def gather(report: Mapping[str, object], chosen: RunResult, store: Store, quote: Quote) -> Extras:
    """All parts; each is empty where the run has no such evidence."""
    resolver = chosen.resolver
    paths: dict[int, str] = dict(store.sources.select("source_id", "path").iter_rows())
    groups = timelines(resolver, paths)
    known = states(report, resolver, groups)
    hosts = cluster(resolver, known)
    homes = {seat.rank: host.name for host in hosts for seat in host.seats}
    named = tuple(replace(g, rows=tuple(replace(r, host=_home(r.ranks, homes)) for r in g.rows)) for g in groups)
    return Extras(
        timeline=named,
        cluster=hosts,
        waits=waits(resolver),
        stacks=stacks(resolver, paths),
        transports=transports(resolver),
        channels=channels(resolver),
        matrices=matrices(resolver, paths),
        rings=rings(resolver, paths),
        trees=trees(resolver, paths),
        nics=nics(resolver, paths),
        settings=settings(resolver),
        events=events(resolver, paths, groups),
        processes=processes(resolver, known),
        lag_map=lag_map(resolver),
        step_lanes=step_lanes(resolver),
        contexts=contexts(report, resolver, {p: i for i, p in paths.items()}, quote),
    )


def _home(ranks: tuple[int, ...], homes: Mapping[int, str]) -> str | None:
    """The one host of these ranks, or how many hosts they are on."""
    names = {homes[r] for r in ranks if r in homes}
    return next(iter(names)) if len(names) == 1 else f"{len(names):,} hosts" if names else None


__all__ = ["gather"]
