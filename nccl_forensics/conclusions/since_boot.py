"""Kernel logs that count from the boot of their host: their times as wall times, where the bundle tells when the host came up."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import has_rows, values_in
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.words import first_label

_TABLES = ("xids", "sxids", "oom_kills", "kernel_events")
_SECOND = 1_000_000_000
#: What a host says while it comes up is told apart by its time since boot, which it keeps.
_COMING_UP_NS = 600 * _SECOND


def with_wall_times(store: Store) -> Store:
    """The store, in which what the kernel of a host wrote has the wall time, and the kind of clock, that the host's boot time gives it.

    A log in which the kernel panicked (what firmware kept of it, a console, a dump) is of an earlier boot than the one that a running host
    tells of. Two boot times of one host that differ leave its log as it is: nothing tells under which it was written.
    """
    logs = [t for t in _TABLES if store.has(t) and has_rows(_counted(store.scan(t)))]
    if not logs:
        return store
    views = Resolver(store)
    hosts = views.get("source_hosts")
    if hosts is None:
        return store
    boots = _boots(views)
    crashes = sorted(values_in(views.get("kernel_events"), "source_id", pl.col("kind") == "panic"))
    known = [
        (source, *boots[name])
        for source, host in hosts.select("source_id", "host").collect().iter_rows()
        if (name := first_label(host)) in boots
    ]
    booted = pl.DataFrame(known, schema={"source_id": pl.UInt32(), "_boot": pl.Int64(), "_clock": pl.String()}, orient="row")
    booted = booted.filter(~pl.col("source_id").is_in(crashes)).unique("source_id", keep="none")
    for table in logs if booted.height else ():
        rows = store.scan(table).join(booted.lazy(), on="source_id", how="left", maintain_order="left")
        dated = pl.col("_boot").is_not_null() & (pl.col("time_kind") == "monotonic") & (pl.col("time_raw_ns") > _COMING_UP_NS)
        rows = rows.with_columns(
            time_raw_ns=pl.when(dated).then(pl.col("time_raw_ns") + pl.col("_boot")).otherwise("time_raw_ns"),
            time_kind=pl.when(dated).then("_clock").otherwise("time_kind"),
        )
        store = store.holding(table, rows.drop("_boot", "_clock").collect())
    return store


def _counted(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.filter((pl.col("time_kind") == "monotonic") & (pl.col("time_raw_ns") > _COMING_UP_NS))


def _boots(views: Resolver) -> dict[str | None, tuple[int, str]]:
    """By host when it came up, and by which clock. An exact time in the epoch beats one of an unknown zone."""
    told: dict[str | None, set[tuple[str, int]]] = {}
    facts, hosts, nodes = views.get("host_facts"), views.get("source_hosts"), views.get("scheduler_nodes")
    if facts is not None and hosts is not None:
        up = facts.filter(pl.col("kind") == "boot").join(hosts.select("source_id", of="host"), on="source_id", how="left")
        for host, at, clock in up.select(pl.coalesce("host", "hint_host", "of"), "time_raw_ns", "time_kind").collect().iter_rows():
            told.setdefault(first_label(host), set()).add((clock, at))
    if nodes is not None:
        for node, at in nodes.select("node", "boot_raw_ns").drop_nulls().collect().iter_rows():
            told.setdefault(first_label(node), set()).add(("local-unzoned", at))
    told.pop(None, None)
    chosen = {host: sorted(times) for host, times in told.items()}
    alike = {host: [at for clock, at in times if clock == times[0][0]] for host, times in chosen.items()}
    return {host: (at[0], chosen[host][0][0]) for host, at in alike.items() if at[-1] - at[0] < 60 * _SECOND}
