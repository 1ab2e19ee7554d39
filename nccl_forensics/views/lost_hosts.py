"""Hosts on which a process of the job was over before others could not reach it, by something that no network does."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed, values_in
from nccl_forensics.views import view
from nccl_forensics.words import first_label, ranks_words

LOST = typed("host:str address:str ranks:list[i32] why:str")

#: Endings (``kind`` of the view ``endings``) that a connection which breaks does not bring about: it makes NCCL fail, and torch abort.
_OF_ITSELF = ("killed", "segfault", "bus-error", "fpe", "illegal", "exception", "gpu", "driver", "out-of-memory")
#: Lines of NCCL that name the interface by whose address peers know a process.
INTERFACES = ("bootstrap", "socket-interface", "ib-oob")
#: Why Kubernetes ends a pod that did nothing wrong (its API reference, DisruptionTarget, and the kubelet's and scheduler's events), in words.
TAKEN_AWAY = {
    "Evicted": "was evicted",
    "Preempted": "was preempted",
    "Preempting": "was preempted",
    "TaintManagerEviction": "was evicted because of a taint on its node",
    "EvictionByEvictionAPI": "was evicted",
    "PreemptionByScheduler": "was preempted",
    "DeletionByTaintManager": "was evicted because of a taint on its node",
    "TerminationByKubelet": "was ended by the node's kubelet",
}
_ENDED = (*TAKEN_AWAY, "OOMKilled")
#: srun names the node; slurmstepd's own line stands on another.
LOST_NODE = "Node failure on "


@view(rows="hosts x addresses")
def lost_hosts(
    nccl_network: pl.LazyFrame | None,
    processes: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    scheduler_nodes: pl.LazyFrame | None,
    pods: pl.LazyFrame | None,
    pod_events: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per address of such a host: its ``ranks`` that ended (all of a node that went away), and ``why`` in words. Peers find all
    connections to these processes, and to those that their launcher then ends with them, unanswered: that tells of no link. A node that the
    job's own launcher lost, that the scheduler has as down and of which there is evidence, or whose pod is one of the job's, has a row
    without ``address`` where nothing tells any."""
    home: dict[str | None, set[int]] = {}
    place: dict[object, str | None] = {}
    for rank, host in processes.filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null()).select("rank", "host").collect().rows():
        name = first_label(host)
        home.setdefault(name, set()).add(rank)
        place[rank] = name
    found: dict[str, tuple[set[int], str]] = {}
    for name in nodes_lost(worker_exits, scheduler_nodes):
        found.setdefault(name, (home.get(name, set()), "the node went away"))
    for name in _pods(pods, pod_events):
        found.setdefault(name, (home.get(name, set()), "its pod was ended"))
    unready = {name for name in pods_unready(pod_events) if any(_stem(name) == _stem(other) for other in home if other)}
    for name in sorted(unready):
        found.setdefault(name, (home.get(name, set()), "its node went away"))
    if endings is not None:
        own = pl.col("own") & pl.col("kind").is_in(_OF_ITSELF) & ~pl.col("signature").fill_null("").str.starts_with("nccl-")
        ended: dict[str, set[int]] = {}
        for rank, host in endings.filter(own & pl.col("rank").is_not_null()).select("rank", "host").collect().rows():
            if name := place.get(rank) or first_label(host):
                ended.setdefault(name, set()).add(rank)
        for name, ranks in ended.items():
            found.setdefault(name, (ranks, f"{ranks_words(sorted(ranks))} had ended there"))
    rows: list[dict[str, object]] = [
        {"host": host, "address": address, "ranks": sorted(found[name][0]), "why": found[name][1]}
        for host, address in addresses(nccl_network)
        if (name := first_label(host)) in found
    ]
    placed = {first_label(row["host"]) for row in rows}
    rows += [
        {"host": name, "address": None, "ranks": sorted(found[name][0]), "why": found[name][1]}
        for name in sorted(
            (nodes_lost(worker_exits, None) | (nodes_lost(None, scheduler_nodes) & _looked_at(source_hosts)) | unready) - placed
        )
    ]
    return pl.DataFrame(rows, schema=LOST).lazy()


def _looked_at(source_hosts: pl.LazyFrame | None) -> set[str]:
    """Hosts of which there is evidence."""
    return {name for h in values_in(source_hosts, "host") if (name := first_label(h))}


def addresses(nccl_network: pl.LazyFrame | None) -> list[tuple[str, str]]:
    """Hosts and the addresses by which peers know their processes."""
    if nccl_network is None:
        return []
    where = nccl_network.filter(pl.col("item").is_in(INTERFACES) & pl.col("address").is_not_null() & pl.col("host").is_not_null())
    told = where.select("host", pl.col("address").str.split("<").list.first()).unique().sort("host", "address")
    return [(str(host), str(address)) for host, address in told.collect().rows()]


def nodes_lost(worker_exits: pl.LazyFrame | None, scheduler_nodes: pl.LazyFrame | None) -> set[str]:
    """Nodes that the launcher lost or the scheduler has as down."""
    names: set[str | None] = set()
    if worker_exits is not None:
        said = worker_exits.filter((pl.col("kind") == "scheduler") & pl.col("message").str.contains(LOST_NODE, literal=True))
        names |= {first_label(h) for h in said.select(pl.col("host").drop_nulls().unique()).collect()["host"].to_list()}
    if scheduler_nodes is not None:
        down = pl.col("state").is_in(["DOWN", "ERROR"]) | pl.col("flags").list.contains("NOT_RESPONDING").fill_null(value=False)
        names |= {
            first_label(n) for n in scheduler_nodes.filter(down).select(pl.col("node").drop_nulls().unique()).collect()["node"].to_list()
        }
    return {name for name in names if name}


def pods_unready(pod_events: pl.LazyFrame | None) -> set[str]:
    """Pods of which Kubernetes says that their node is not ready: it no longer hears from it."""
    told = values_in(pod_events, "object", pl.col("reason") == "NodeNotReady")
    return {str(thing).partition("/")[2] for thing in told if str(thing).lower().startswith("pod/")}


def _stem(name: str) -> str:
    """What the pods of one job share of their names: all but the number at their ends."""
    return name.rstrip("0123456789")


def _pods(pods: pl.LazyFrame | None, pod_events: pl.LazyFrame | None) -> set[str]:
    """Names of pods that were taken away or killed for want of memory, and of the nodes that they ran on."""
    gone: set[str] = set()
    if pod_events is not None:
        told = pod_events.filter(pl.col("reason").is_in(list(TAKEN_AWAY))).select("object").collect()["object"].to_list()
        gone |= {str(thing).partition("/")[2] for thing in told if str(thing).lower().startswith("pod/")}
    names = {first_label(p) for p in gone}
    if pods is not None:
        ended = pl.col("reason").is_in(_ENDED) | pl.col("status").is_in(_ENDED) | pl.col("pod").is_in(sorted(gone))
        for pod, node in pods.filter(ended).select("pod", "node").collect().rows():
            names |= {first_label(pod), first_label(node)}
    return {name for name in names if name}
