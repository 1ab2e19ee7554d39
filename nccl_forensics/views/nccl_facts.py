"""What NCCL's text says about network, bootstrap and links, per rank and host."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import text_of, typed
from nccl_forensics.views import view

HOST_NICS = typed("host:str device:str port:i32 link:str speed_mbps:i64 source_id:u32 line_no:u32")


@view(rows="hosts x NICs")
def host_nics(nccl_network: pl.LazyFrame, nccl_notes: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """RDMA devices that NCCL uses on each host, with their speed in Mbit/s where a line states it (2.24 and later, subsystem NET), else by
    NCCL's topology dump (subsystem GRAPH).

    The list of devices says ``mlx5_0:1`` and the lines with speeds say ``mlx5_0``: that is one NIC, and bears the device's name. Only a
    device of which several ports are listed is told by its ports. ``port`` is the number that NCCL gives the NIC.
    """
    devices = nccl_network.filter(
        pl.col("item").is_in(["ib-device", "ib-virtual"]) & pl.col("name").is_not_null() & pl.col("host").is_not_null()
    )
    # A merged virtual device names several physical ones joined by +; only those that NCCL lists singly are counted.
    single = devices.filter(~pl.col("name").str.contains("+", literal=True))
    stem, written_port = pl.col("name").str.replace(r":[0-9]+$", ""), pl.col("name").str.extract(r":([0-9]+)$")
    several = written_port.drop_nulls().n_unique().over("host", "stem") > 1
    nics = (
        single.sort("source_id", "line_no")
        .with_columns(stem=stem)
        .with_columns(place=pl.when(several).then("port"))
        .group_by("host", "stem", "place")
        .agg(
            pl.col("name").sort_by(pl.col("name").str.len_chars()).last(),
            pl.col("port").first(),
            pl.col("link").drop_nulls().first(),
            pl.col("speed_mbps").drop_nulls().first(),
            pl.col("source_id").first(),
            pl.col("line_no").first(),
        )
        .with_columns(device=pl.when(pl.col("place").is_null()).then("stem").otherwise("name"))
        .select(list(HOST_NICS))
    )
    if nccl_notes is not None:
        told = _dumped_speeds(nccl_notes).rename({name: f"dumped_{name}" for name in ("speed_mbps", "source_id", "line_no")})
        unknown = pl.col("speed_mbps").is_null() & pl.col("dumped_speed_mbps").is_not_null()
        nics = nics.join(told, on=["host", "port"], how="left").with_columns(
            pl.when(unknown).then(f"dumped_{name}").otherwise(name).alias(name) for name in ("speed_mbps", "source_id", "line_no")
        )
    return nics.select(list(HOST_NICS)).sort("host", "device")


def _dumped_speeds(nccl_notes: pl.LazyFrame) -> pl.LazyFrame:
    """``host``, ``port``, ``speed_mbps`` and a line that says it, where the topology dumps of a host agree. A dump of several systems
    (MNNVL) does not say which of them is the host's."""
    # In hexadecimal; up to 2.22 one number holds both, the device in its last 56 bits: NET/100000000000000 is the first one of system 1.
    system = pl.col("a").str.extract(r"^([0-9a-fA-F]+)(?:-|[0-9a-fA-F]{14}$)")
    number = pl.col("a").str.extract(r"([0-9a-fA-F]{1,14})$").str.to_integer(base=16, strict=False).cast(pl.Int32, strict=False)
    return (
        nccl_notes.filter((pl.col("kind") == "net-link") & pl.col("host").is_not_null() & (pl.col("value") > 0))
        .filter(system.drop_nulls().n_unique().over("source_id", "host", "pid") <= 1)
        .sort("source_id", "line_no")
        .group_by("host", port=number)
        .agg(pl.col("value").unique(), pl.col("source_id", "line_no").first())
        .filter(pl.col("value").list.len() == 1)
        .select("host", "port", "source_id", "line_no", speed_mbps=(pl.col("value").list.first() * 8000).round().cast(pl.Int64))
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


NETWORKS = typed("host:str network:str ranks:list[i32] source_id:u32 line_no:u32")


@view(rows="hosts x networks")
def networks(nccl_network: pl.LazyFrame, processes: pl.LazyFrame, comms: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """Which network ('Using network …') the processes of each host chose. One that is alone in its communicators uses none, and chose for
    nobody."""
    people = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    chosen = nccl_network.filter((pl.col("item") == "using") & pl.col("host").is_not_null()).sort("source_id", "line_no")
    if comms is not None:
        alone = comms.group_by("host", "pid").agg(pl.col("nranks").max()).filter(pl.col("nranks") == 1)
        others = comms.filter(pl.col("nranks") > 1).select("nranks").head(1).collect()
        chosen = chosen.join(alone, on=["host", "pid"], how="anti") if others.height else chosen
    return (
        chosen.join(people, on=["host", "pid"], how="left")
        .sort("source_id", "line_no")
        .group_by("host", pl.col("name").alias("network"))
        .agg(pl.col("rank").drop_nulls().unique().sort().alias("ranks"), pl.col("source_id").first(), pl.col("line_no").first())
        .select(list(NETWORKS))
        .sort("host", "network")
    )


BOOTSTRAPPED = typed("comm_key:str source_id:u32 line_no:u32")

#: Notes that a process prints only after the bootstrap ring of the communicator is closed: all ranks checked in before
#: (NCCL 2.27 src/init.cc initTransportsRank: bootstrapAllGather of the peer information comes first).
_AFTER_BOOTSTRAP = ("bootstrap-timings", "affinity", "pattern", "system")


@view(rows="communicators")
def bootstrapped(
    comms: pl.LazyFrame,
    nccl_notes: pl.LazyFrame | None,
    nccl_placement: pl.LazyFrame | None,
    nccl_rings: pl.LazyFrame | None,
    nccl_trees: pl.LazyFrame | None,
    nccl_connections: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Communicators of which a line says that every rank checked in, with the first such line: ``comm_key``, ``source_id``, ``line_no``. A
    bootstrap that fails tells its times as well (NCCL 2.24 src/bootstrap.cc)."""
    where = ["source_id", "host", "pid", "line_no"]
    notes = None if nccl_notes is None else nccl_notes.filter(pl.col("kind").is_in(_AFTER_BOOTSTRAP))
    if notes is not None and nccl_errors is not None:
        failed = nccl_errors.filter(pl.col("file").str.ends_with("bootstrap.cc")).group_by(where[:-1]).agg(failed=pl.col("line_no").min())
        notes = notes.join(failed, on=where[:-1], how="left", nulls_equal=True)
        notes = notes.filter((pl.col("kind") != "bootstrap-timings") | (pl.col("line_no") < pl.col("failed")).fill_null(True))
    marks = [t.select(where) for t in (notes, nccl_placement, nccl_rings, nccl_trees, nccl_connections) if t is not None]
    if not marks:
        return pl.LazyFrame(schema=BOOTSTRAPPED)
    inits = comms.filter(pl.col("comm_key").is_not_null()).select(*where, "comm_key")
    return (
        pl.concat(marks)
        .sort("line_no")
        .join_asof(inits.sort("line_no"), on="line_no", by=["source_id", "host", "pid"], strategy="backward", check_sortedness=False)
        .filter(pl.col("comm_key").is_not_null())
        .sort("source_id", "line_no")
        .group_by("comm_key")
        .agg(pl.col("source_id", "line_no").first())
        .select(list(BOOTSTRAPPED))
        .sort("comm_key")
    )


GPU_LINKS = typed("host:str gpu:str rank:i32 nvlink_gb_s:f64 pcie_gb_s:f64 source_id:u32 line_no:u32")


@view(rows="hosts x GPUs")
def gpu_links(nccl_notes: pl.LazyFrame, processes: pl.LazyFrame) -> pl.LazyFrame:
    """Each GPU of NCCL's topology dump (subsystem GRAPH) with the summed bandwidth of its NVLinks and of its PCIe link in GB/s.

    The dump is an indented tree, one log line each: an NVL line belongs to the GPU line before it in the same process. Behind each GPU it
    bears the rank in its communicator (NCCL ``src/graph/topo.cc``): that names GPUs of which no process is known, where it
    agrees with the ranks of all others of the host.
    """
    nodes = nccl_notes.filter(pl.col("kind").is_in(["gpu-link", "nvlink"])).sort("source_id", "pid", "line_no").collect()
    first_rank = dict(
        processes.filter(pl.col("rank").is_not_null())
        .group_by("host", "bus_id")
        .agg(pl.col("rank").min())
        .select(text_of("{}/{}", "host", "bus_id"), "rank")
        .collect()
        .iter_rows()
    )
    found: dict[tuple[str, str], dict[str, object]] = {}
    current: dict[str, object] | None = None
    writer: tuple[object, object] | None = None
    for row in nodes.iter_rows(named=True):
        if row["kind"] == "gpu-link":
            writer = (row["host"], row["pid"])
            bus = str(row["a"]).rsplit("-", 1)[-1].lower()
            key = (str(row["host"]), bus)
            fresh = key not in found or found[key]["writer"] != writer
            if key in found and fresh:
                current = None
                continue
            rank = first_rank.get(f"{row['host']}/{bus}")
            current = {
                "host": row["host"],
                "gpu": bus,
                "rank": rank,
                "nvlink_gb_s": 0.0,
                "pcie_gb_s": row["value"],
                "source_id": row["source_id"],
                "line_no": row["line_no"],
                "writer": writer,
                "in_dump": row["b"],
                "seen": key in found,
            }
            if current["seen"]:
                current = None
                continue
            found[key] = current
        elif current is not None and (row["host"], row["pid"]) == writer and row["value"] is not None:
            current["nvlink_gb_s"] = float(str(current["nvlink_gb_s"])) + float(row["value"])
            current["line_no"] = row["line_no"]
    for host in {host for host, _ in found}:
        _name_unseen([row for (of, _), row in found.items() if of == host])
    rows = [{k: r[k] for k in GPU_LINKS} for _, r in sorted(found.items())]
    return pl.DataFrame(rows, schema=GPU_LINKS, infer_schema_length=None).lazy()


def _name_unseen(gpus: list[dict[str, object]]) -> None:
    """Ranks of the GPUs of one host that have none, from the dump itself."""
    known = [g for g in gpus if g["rank"] is not None]
    if known and all(str(g["rank"]) == g["in_dump"] for g in known):
        for gpu in gpus:
            if gpu["rank"] is None and gpu["in_dump"] is not None:
                gpu["rank"] = int(str(gpu["in_dump"]))


@view(rows="communicators x ranks")
def local_channels(nccl_channels: pl.LazyFrame, comms: pl.LazyFrame, gpu_links: pl.LazyFrame) -> pl.LazyFrame:
    """Channel counts ('N coll channels') on the job's hosts of which some communicator has all of its ranks there: ``host``, ``coll``,
    ``nvlink_gb_s`` (the most that a GPU of the host has; null where no line tells), and the line."""
    single = (
        comms.filter(pl.col("nranks") > 1)
        .group_by("comm_key")
        .agg(pl.col("host").n_unique().alias("hosts"), pl.col("host").first(), pl.len().alias("members"), pl.col("nranks").first())
        .filter((pl.col("hosts") == 1) & (pl.col("members") == pl.col("nranks")))
        .select("host")
        .unique()
    )
    links = gpu_links.group_by("host").agg(pl.col("nvlink_gb_s").max())
    # A program beside the job has hosts, and as few channels as it needs.
    world = comms.filter(pl.col("nranks") == pl.col("nranks").max()).select("host").unique()
    return (
        nccl_channels.filter(pl.col("coll") > 0)
        .join(links, on="host", how="left")
        .join(single.join(world, on="host"), on="host")
        .select("host", "coll", "nvlink_gb_s", "source_id", "line_no")
        .sort("source_id", "line_no")
    )
