"""What rules about hosts and GPUs share: whose evidence a row is, and which ranks stand behind a host, a GPU or a process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics import pci
from nccl_forensics.model import Culprit


def located(table: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.DataFrame:
    """The rows with ``host``: what the line states, then the launcher's prefix, then what is known of the source; null if nothing is."""
    frame = table.collect()
    if source_hosts is not None and frame.height:
        known = source_hosts.select("source_id", source_host="host").unique("source_id").collect()
        frame = frame.join(known, on="source_id", how="left", maintain_order="left")
    else:
        frame = frame.with_columns(source_host=pl.lit(None, dtype=pl.String()))
    stated = [c for c in ("host", "hint_host", "source_host") if c in frame.columns]
    return frame.with_columns(host=pl.coalesce(stated)).drop("source_host")


def short(host: object) -> str | None:
    """The first label: logs mix short and full names."""
    return str(host).split(".", 1)[0] if host else None


@dataclass(frozen=True, slots=True)
class People:
    """Ranks by host, by GPU and by process."""

    gpus: dict[tuple[str | None, str], int] = field(default_factory=dict)
    pids: dict[tuple[str | None, int], int] = field(default_factory=dict)
    hosts: dict[str, list[int]] = field(default_factory=dict)
    by_bus: dict[str, set[int]] = field(default_factory=dict)
    by_pid: dict[int, set[int]] = field(default_factory=dict)

    def of_gpu(self, host: object, bus_id: object) -> int | None:
        """The rank on a GPU; without a host only where one rank of the job sits on that address."""
        if bus_id is None:
            return None
        if host is not None:
            return self.gpus.get((short(host), str(bus_id)))
        ranks = self.by_bus.get(str(bus_id), set())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def of_pid(self, host: object, pid: object) -> int | None:
        """The rank of a process; without a host only where the pid is unique."""
        if pid is None:
            return None
        number = int(str(pid))
        if host is not None and (short(host), number) in self.pids:
            return self.pids[(short(host), number)]
        ranks = self.by_pid.get(number, set())
        return next(iter(ranks)) if host is None and len(ranks) == 1 else None

    def of_host(self, host: object) -> tuple[int, ...]:
        """All ranks of a host."""
        return tuple(sorted(self.hosts.get(short(host) or "", ())))


def people(processes: pl.LazyFrame | None) -> People:
    """From the ``processes`` view; empty without one."""
    found = People()
    if processes is None:
        return found
    by_bus: dict[str, set[int]] = defaultdict(set)
    by_pid: dict[int, set[int]] = defaultdict(set)
    rows = processes.filter(pl.col("rank").is_not_null()).select("rank", "host", "pid", "bus_id").sort("rank").collect()
    for rank, host, pid, bus in rows.iter_rows():
        name, address = short(host), pci.normal(bus)
        if name:
            found.hosts.setdefault(name, []).append(rank)
        if address:
            found.gpus[(name, address)] = rank
            by_bus[address].add(rank)
        if pid is not None:
            found.pids[(name, pid)] = rank
            by_pid[pid].add(rank)
    found.by_bus.update(by_bus)
    found.by_pid.update(by_pid)
    return found


def place(host: object, gpu: object = None) -> str:
    """``GPU 0000:9b:00.0 of node7``, ``node7``, or words for what is not known."""
    if gpu is None:
        return str(host) if host else "a host whose name is not in the evidence"
    return f"GPU {gpu} of {host}" if host else f"GPU {gpu}"


def ranks_of(culprits: Iterable[Culprit]) -> tuple[int, ...]:
    """Ranks that culprits name, in order."""
    return tuple(dict.fromkeys(c.rank for c in culprits if c.rank is not None))


#: What a dead or ill device, host or process accounts for.
EXPLAINS_STOP: tuple[str, ...] = (
    "timeout",
    "closed",
    "rank-died",
    "gpu-stall",
    "collective-stuck",
    "connection-failed",
    "rank-never-joined",
    "host-stall",
    "straggler",
    "software-crash",
    "p2p-deadlock",
)
