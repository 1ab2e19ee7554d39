"""What NCCL's text says about settings, network and versions, per rank and host."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from nccl_forensics.facts.settings import MUST_AGREE
from nccl_forensics.views import view

SETTINGS = {
    "name": pl.String(),
    "value": pl.String(),
    "ranks": pl.List(pl.Int32()),
    "hosts": pl.List(pl.String()),
    "processes": pl.UInt32(),
    "of": pl.UInt32(),
    "differs": pl.Boolean(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
}


@view(rows="settings x values")
def settings(nccl_env: pl.LazyFrame, processes: pl.LazyFrame | None, nccl_versions: pl.LazyFrame | None) -> pl.LazyFrame:
    """Each setting and value with the ranks and hosts that show it. ``differs``: the processes do not all show the same value; a process
    without the line counts only for settings that every rank reads early (it may not have read others yet)."""
    rank_of: dict[tuple[object, object], int] = {}
    known: set[tuple[object, object]] = set()
    if processes is not None:
        for host, pid, rank, line in processes.select("host", "pid", "rank", "line_no").collect().iter_rows():
            if rank is not None:
                rank_of[(host, pid)] = rank
            if line is not None and pid is not None:
                known.add((host, pid))
    frame = nccl_env.filter(pl.col("name").is_not_null() & ~pl.col("invalid").fill_null(False)).sort("source_id", "line_no").collect()
    last: dict[str, dict[tuple[object, object], tuple[str, int, int]]] = defaultdict(dict)
    for row in frame.iter_rows(named=True):
        value = str(row["value"] if row["value"] is not None else "").removesuffix(".")
        last[row["name"]].setdefault((row["host"], row["pid"]), (value, row["source_id"], row["line_no"]))
    out: list[dict[str, object]] = []
    for name in sorted(last):
        values: dict[str, list[tuple[object, object]]] = defaultdict(list)
        for who, (value, _, _) in last[name].items():
            values[value].append(who)
        everyone = known | set(last[name])
        absent = name in MUST_AGREE and len(last[name]) < len(everyone)
        for value in sorted(values):
            owners = values[value]
            first = min((last[name][w][1], last[name][w][2]) for w in owners)
            out.append(
                {
                    "name": name,
                    "value": value,
                    "ranks": sorted(rank_of[w] for w in owners if w in rank_of),
                    "hosts": sorted({str(h) for h, _ in owners if h}),
                    "processes": len(owners),
                    "of": len(everyone),
                    "differs": len(values) > 1 or absent,
                    "source_id": first[0],
                    "line_no": first[1],
                }
            )
    return pl.DataFrame(out, schema=SETTINGS, infer_schema_length=None).lazy()


HOST_NICS = {
    "host": pl.String(),
    "device": pl.String(),
    "port": pl.Int32(),
    "link": pl.String(),
    "speed_mbps": pl.Int64(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
}


@view(rows="hosts x NICs")
def host_nics(nccl_network: pl.LazyFrame) -> pl.LazyFrame:
    """RDMA devices that NCCL uses on each host, with their speed in Mbit/s where a line states it (2.24 and later, subsystem NET)."""
    devices = nccl_network.filter(
        pl.col("item").is_in(["ib-device", "ib-virtual"]) & pl.col("name").is_not_null() & pl.col("host").is_not_null()
    )
    # A merged virtual device names several physical ones joined by +; only those that NCCL lists singly are counted.
    single = devices.filter(~pl.col("name").str.contains("+", literal=True))
    return (
        single.sort("source_id", "line_no")
        .group_by("host", pl.col("name").alias("device"))
        .agg(
            pl.col("port").first(),
            pl.col("link").drop_nulls().first(),
            pl.col("speed_mbps").drop_nulls().first(),
            pl.col("source_id").first(),
            pl.col("line_no").first(),
        )
        .select(list(HOST_NICS))
        .sort("host", "device")
    )


@view(rows="hosts")
def host_ranks(processes: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks per host: ``host``, ``ranks``, ``n``."""
    return (
        processes.filter(pl.col("host").is_not_null())
        .group_by("host")
        .agg(pl.col("rank").drop_nulls().sort().alias("ranks"), pl.len().alias("n"))
        .sort("host")
    )


NETWORKS = {"host": pl.String(), "network": pl.String(), "ranks": pl.List(pl.Int32()), "source_id": pl.UInt32(), "line_no": pl.UInt32()}


@view(rows="hosts x networks")
def networks(nccl_network: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Which network ('Using network …') the processes of each host chose."""
    people = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    chosen = nccl_network.filter((pl.col("item") == "using") & pl.col("host").is_not_null()).sort("source_id", "line_no")
    return (
        chosen.join(people, on=["host", "pid"], how="left")
        .group_by("host", pl.col("name").alias("network"))
        .agg(pl.col("rank").drop_nulls().unique().sort().alias("ranks"), pl.col("source_id").first(), pl.col("line_no").first())
        .select(list(NETWORKS))
        .sort("host", "network")
    )
