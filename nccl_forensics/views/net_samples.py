"""Counters of interfaces and IP stacks, with whose they are: two samples of one host are often two files, whose names alone tell the interface."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import text_of
from nccl_forensics.views import view

#: How people and sos reports name what ``ethtool -S`` printed: ``ethtool_-S_ens6f0np0``, ``ethtool-S.eth0.after.txt``.
_INTERFACE = r"(?i)ethtool[-_. ]+S[-_. ]+([a-z][a-z0-9]*\d[a-z0-9]*)"


@view(rows="counters")
def net_samples(net_counters: pl.LazyFrame, sources: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.LazyFrame:
    """The rows of ``net_counters`` with ``host`` where anything tells it, ``interface`` also where the path does, and ``place``: the host, or
    the one source of which no host is known."""
    paths = sources.select("source_id", path_interface=pl.col("path").str.extract(r"([^/]+)$").str.extract(_INTERFACE))
    rows = net_counters.join(paths, on="source_id", how="left", maintain_order="left")
    stated = [pl.col(c) for c in ("host", "hint_host") if c in net_counters.collect_schema().names()]
    if source_hosts is not None:
        known = source_hosts.select("source_id", source_host="host").unique("source_id")
        rows = rows.join(known, on="source_id", how="left", maintain_order="left")
        stated.append(pl.col("source_host"))
    named = pl.when(pl.col("tool") == "ethtool-S").then(pl.coalesce("interface", "path_interface")).otherwise("interface")
    rows = rows.with_columns(host=pl.coalesce(*stated) if stated else pl.lit(None, dtype=pl.String()), interface=named)
    return rows.with_columns(place=pl.coalesce("host", text_of("source {}", pl.col("source_id"))))
