"""RDMA ports and their counters, whatever tool told them, with the host they belong to."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.facts.ib_counters import COUNTERS, counter_name
from nccl_forensics.facts.link_rates import physical_state, port_state, rate
from nccl_forensics.frames import text_of, typed
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at

_COUNTER = r"(?:^|/)(?P<device>[A-Za-z][A-Za-z0-9_.-]*)/(?:ports/(?P<port>\d+)/)?(?:hw_)?counters/(?P<counter>[A-Za-z0-9_]+)$"
_STATE = r"(?:^|/)(?P<device>[A-Za-z][A-Za-z0-9_.-]*)/ports/(?P<port>\d+)/(?P<item>state|phys_state|rate|link_layer|lid|sm_lid)$"
_ABOUT = r"(?:^|/)(?P<device>[A-Za-z][A-Za-z0-9_.-]*)/(?P<item>hca_type|fw_ver|board_id|node_guid)$"
_ROOT = r"^(.*?)/?[A-Za-z][A-Za-z0-9_.-]*/(?:ports/|hca_type$|fw_ver$|board_id$|node_guid$)"
_FIELDS = (
    "state",
    "phys_state",
    "rate_gbit_s",
    "width",
    "speed",
    "lid",
    "sm_lid",
    "link_layer",
    "mtu_bytes",
    "netdev",
    "firmware",
    "board",
    "hca_type",
)
_KEY = ("place", "host", "device", "port")

PORTS = typed(
    "place:str host:str device:str port:i32 state:str phys_state:str rate_gbit_s:f64 width:i32 speed:str lid:i64 sm_lid:i64 link_layer:str",
    "mtu_bytes:i32 netdev:str firmware:str board:str hca_type:str",
    read_at(),
)


@view(rows="values in sysfs")
def sysfs_entries(sysfs_values: pl.LazyFrame, sources: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.LazyFrame:
    """Values with the path that gives them meaning: ``source_id``, ``line_no``, ``path``, ``value``, ``host``, ``place``.

    Files with the same content are read once, so every source takes the value of its twin. ``place`` is the host, or else the folder
    above the devices: two unknown hosts are never merged.
    """
    owners = sources.select("source_id", pl.col("path").alias("file"), pl.coalesce("duplicate_of", "source_id").alias("read_as"))
    values = sysfs_values.select(pl.col("source_id").alias("read_as"), "line_no", pl.col("path").alias("inside"), "value")
    joined = owners.join(values, on="read_as").with_columns(path=pl.coalesce("inside", "file"))
    if source_hosts is not None:
        joined = joined.join(source_hosts.select("source_id", "host"), on="source_id", how="left")
    else:
        joined = joined.with_columns(host=pl.lit(None, dtype=pl.String))
    root = pl.when(pl.col("inside").is_null()).then(pl.col("path").str.extract(_ROOT)).otherwise("file")
    return joined.with_columns(place=pl.coalesce("host", root.fill_null(""))).select(
        "source_id", "line_no", "path", "value", "host", "place"
    )


@view(rows="ports")
def ib_ports(
    sysfs_entries: pl.LazyFrame | None, ib_states: pl.LazyFrame | None, sources: pl.LazyFrame, source_hosts: pl.LazyFrame | None
) -> pl.LazyFrame:
    """One row per host, device and port with its state; what two tools say alike is one row, cited where the state stands."""
    parts: list[pl.DataFrame] = []
    if sysfs_entries is not None:
        parts.append(_ports_of_sysfs(sysfs_entries))
    if ib_states is not None:
        parts.append(_placed(ib_states, sources, source_hosts).collect())
    frames = [f.select(pl.col(c).cast(t) if c in f.columns else pl.lit(None, dtype=t).alias(c) for c, t in PORTS.items()) for f in parts]
    if not frames:
        return pl.LazyFrame(schema=PORTS)
    cited = [pl.col(c).filter(pl.col("state").is_not_null()).first().fill_null(pl.col(c).first()) for c in PLACE]
    return (
        pl.concat(frames)
        .lazy()
        .sort("source_id", "line_no", nulls_last=True)
        .group_by(_KEY, maintain_order=True)
        .agg(*(pl.col(c).drop_nulls().last() for c in _FIELDS), *cited)
        .sort(_KEY, nulls_last=True)
    )


def _ports_of_sysfs(entries: pl.LazyFrame) -> pl.DataFrame:
    found = _extracted(entries, _STATE).collect()
    about = _extracted(entries, _ABOUT).collect()
    if found.is_empty():
        return pl.DataFrame(schema=PORTS)
    rows: dict[tuple[object, ...], dict[str, object]] = {}
    for r in found.iter_rows(named=True):
        row = rows.setdefault(
            (r["place"], r["device"], r["port"]), {"place": r["place"], "host": r["host"], "device": r["device"], "port": int(r["port"])}
        )
        value = r["value"]
        match r["item"]:
            case "state":
                row.update(state=port_state(value), source_id=r["source_id"], line_no=r["line_no"])
            case "phys_state":
                row["phys_state"] = physical_state(value)
            case "rate":
                row["rate_gbit_s"], row["width"], row["speed"] = rate(value)
            case "link_layer":
                row["link_layer"] = value.lower()
            case item:
                row[item] = int(value, 0) if value[:2] == "0x" or value.isdigit() else None
        row.setdefault("source_id", r["source_id"])
        row.setdefault("line_no", r["line_no"])
    names = {"hca_type": "hca_type", "fw_ver": "firmware", "board_id": "board"}
    of_device: dict[tuple[object, object], list[dict[str, object]]] = {}
    for (place, device, _), row in rows.items():
        of_device.setdefault((place, device), []).append(row)
    for r in about.filter(pl.col("item").is_in(list(names))).iter_rows(named=True):
        for row in of_device.get((r["place"], r["device"]), ()):
            row[names[r["item"]]] = r["value"]
    return pl.DataFrame(list(rows.values()), schema_overrides=PORTS, infer_schema_length=None, strict=False)


def _extracted(entries: pl.LazyFrame, pattern: str) -> pl.LazyFrame:
    """The entries whose path fits, with the pattern's groups as columns."""
    return (
        entries.with_columns(pl.col("path").str.extract_groups(pattern).alias("groups"))
        .unnest("groups")
        .filter(pl.col("device").is_not_null())
    )


def _placed(table: pl.LazyFrame, sources: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.LazyFrame:
    """Rows with ``host`` (own, of the line's prefix, or of the source) and ``place``."""
    out = table.join(sources.select("source_id", "path"), on="source_id", how="left")
    known = [pl.col("host"), pl.col("hint_host")]
    if source_hosts is not None:
        out = out.join(source_hosts.select("source_id", pl.col("host").alias("of_source")), on="source_id", how="left")
        known.append(pl.col("of_source"))
    return out.with_columns(host=pl.coalesce(known)).with_columns(place=pl.coalesce("host", "path", pl.lit("")))


@view(rows="ports x counters")
def ib_port_counters(
    sysfs_entries: pl.LazyFrame | None, ib_counters: pl.LazyFrame | None, sources: pl.LazyFrame, source_hosts: pl.LazyFrame | None
) -> pl.LazyFrame:
    """One row per port and counter: ``first`` (smallest), ``last`` (largest), ``samples`` (different values), ``growth``, ``saturated``.

    Counters only grow, so the largest of several samples is the latest. Cited where the largest stands. ``node`` names what is no host,
    with its GUID where one listing has several of the name: switches bear what their maker calls them until somebody names them.
    """
    columns = typed("tool:str place:str host:str node:str device:str port:i32 counter:str value:i64", read_at())
    parts = [pl.LazyFrame(schema=columns)]
    if sysfs_entries is not None:
        known = _extracted(sysfs_entries, _COUNTER)
        parts.append(
            known.with_columns(
                pl.col("port").cast(pl.Int32).fill_null(1),
                pl.col("value").cast(pl.Int64, strict=False),
                tool=pl.lit("sysfs"),
                node=pl.lit(None, dtype=pl.String),
                record=pl.lit(None, dtype=pl.String),
            ).select(pl.col(c).cast(t) for c, t in columns.items())
        )
    if ib_counters is not None:
        placed = _placed(ib_counters, sources, source_hosts).with_columns(
            node=pl.coalesce(
                pl.when(pl.col("guid").drop_nulls().n_unique().over("source_id", "node") > 1).then(text_of("{} {}", "node", "guid")),
                "node",
                pl.when(pl.col("device").is_null()).then(pl.coalesce("guid", text_of("lid {}", "lid"))),
            )
        )
        parts.append(placed.select(pl.col(c).cast(t) for c, t in columns.items()))
    frame = pl.concat(parts).filter(pl.col("value").is_not_null()).collect()
    spellings = {s: counter_name(s) for s in frame["counter"].unique().to_list()}
    limits = {c.name: c.maximum for c in COUNTERS.values() if c.maximum is not None}
    return (
        frame.lazy()
        .with_columns(pl.col("counter").replace_strict(spellings, return_dtype=pl.String))
        .sort("value", "source_id", "line_no")
        .group_by("place", "host", "node", "device", "port", "counter", maintain_order=True)
        .agg(
            first=pl.col("value").first(),
            last=pl.col("value").last(),
            samples=pl.col("value").len(),
            tool=pl.col("tool").last(),
            source_id=pl.col("source_id").last(),
            line_no=pl.col("line_no").last(),
            record=pl.col("record").last(),
        )
        .with_columns(
            growth=pl.when(pl.col("samples") > 1).then(pl.col("last") - pl.col("first")),
            saturated=pl.col("last") == pl.col("counter").replace_strict(limits, default=None, return_dtype=pl.Int64),
        )
        .sort("place", "node", "device", "port", "counter", nulls_last=True)
    )
