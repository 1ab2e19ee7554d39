"""What the pictures of a report need, gathered from the views of the run that the verdict is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nccl_forensics.conclusions.assemble import RunResult
from nccl_forensics.extras import Extras
from nccl_forensics.pictures import events, links, people, quotes, settings, stacks, timelines
from nccl_forensics.pictures.traces import lag_map, step_lanes
from nccl_forensics.store import Store


def gather(report: Mapping[str, object], chosen: RunResult, store: Store, quote: quotes.Quote) -> Extras:
    """All parts; each is empty where the run has no such evidence."""
    resolver = chosen.resolver
    paths: dict[int, str] = dict(store.sources.select("source_id", "path").iter_rows())
    groups = timelines.timelines(resolver, paths, verdict if isinstance(verdict := report["verdict"], dict) else None)
    known = people.states(report, resolver, groups)
    homes = people.homes(report, resolver)
    hosts = people.cluster(resolver, known, homes)
    named = tuple(replace(g, rows=tuple(replace(r, host=_home(r.ranks, homes)) for r in g.rows)) for g in groups)
    return Extras(
        timeline=named,
        cluster=hosts,
        waits=timelines.waits(resolver),
        motions=timelines.motions(resolver, paths),
        stacks=stacks.stacks(resolver, paths),
        transports=links.transports(resolver),
        channels=links.channels(resolver),
        matrices=links.matrices(resolver, paths),
        rings=links.rings(resolver, paths),
        trees=links.trees(resolver, paths),
        nics=links.nics(resolver, paths),
        settings=settings.settings(resolver),
        events=events.events(resolver, paths, groups),
        processes=people.processes(resolver, known, homes),
        lag_map=lag_map(resolver),
        step_lanes=step_lanes(resolver),
        contexts=quotes.contexts(report, resolver, {p: i for i, p in paths.items()}, quote),
    )


def _home(ranks: tuple[int, ...], homes: Mapping[int, str]) -> str | None:
    """The one host of these ranks, or how many hosts they are on: at least, where some of them have a host that nothing names."""
    names = {homes[r] for r in ranks if r in homes}
    more = " or more" if any(r not in homes for r in ranks) else ""
    if len(names) == 1:
        return f"1 host{more}" if more else next(iter(names))
    return f"{len(names):,} hosts{more}" if names else None


__all__ = ["gather"]
