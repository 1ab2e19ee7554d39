"""Ranks of hosts whose own logs are not kept: from the places of their neighbours.

Large jobs keep the logs of some ranks, and the tools of the hosts of all. Launchers give ranks to hosts in the order of their names:
torchrun sorts the participants of a rendezvous by address (``torch/distributed/elastic/rendezvous/dynamic_rendezvous.py``), Slurm walks its
sorted node list in blocks (``--distribution=block``, the default of srun). Nothing is taken from that custom alone: the hosts whose ranks
are known must show it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.values import pci
from nccl_forensics.views import view
from nccl_forensics.words import first_label

#: Hosts that must agree on the GPU of each rank of a block: with fewer, their order may be chance.
LEAST_KNOWN = 3

PLACEMENTS_SCHEMA = typed("host:str bus_id:str gpu_index:i32 rank:i32 source_id:u32 line_no:u32 after_source_id:u32 after_line_no:u32")

_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class _Known:
    """Ranks of one host that its own logs tell: rank to (bus address, index of the GPU); and where the first of them stands."""

    ranks: dict[int, tuple[str | None, int | None]] = field(default_factory=dict)
    place: tuple[int, int] | None = None


@view(rows="hosts x GPUs")
def placements(processes: pl.LazyFrame, comms: pl.LazyFrame, source_hosts: pl.LazyFrame) -> pl.LazyFrame:
    """``host`` (first label), ``bus_id``, ``gpu_index``, ``rank`` of GPUs of which no log of a rank speaks, with the lines that place them:
    ``source_id`` and ``line_no`` of the known host before, ``after_source_id`` and ``after_line_no`` of the one behind (null at an end of
    the job).

    Empty unless every host with known ranks has them in one block of as many ranks as there are GPUs, all have one order of GPUs, and the
    blocks ascend with the names; and for each host only where between its two known neighbours lie as many hosts as blocks.
    """
    known = _known(processes)
    world = int(str(comms.select(pl.col("nranks").max()).collect().item() or 0))
    named = {first_label(h) for h in source_hosts.select("host").unique().collect()["host"]} - {None}
    rows = _placed(known, world, {str(h) for h in named})
    return pl.DataFrame(rows, schema=PLACEMENTS_SCHEMA, orient="row", infer_schema_length=None).lazy()


def _known(processes: pl.LazyFrame) -> dict[str, _Known]:
    found: dict[str, _Known] = defaultdict(_Known)
    told = processes.filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null()).sort("rank")
    for rank, host, bus, index, source, line in (
        told.select("rank", "host", "bus_id", "gpu_index", "source_id", "line_no").collect().iter_rows()
    ):
        one = found[str(first_label(host))]
        one.ranks[rank] = (pci.normal(bus), index)
        if one.place is None and source is not None and line is not None:
            one.place = (source, line)
    return found


def _placed(known: dict[str, _Known], world: int, named: set[str]) -> list[tuple[object, ...]]:
    # Logs of some ranks of a host may be lost: how many it has is told by the GPUs of all, which have one order.
    size = len({bus for k in known.values() for bus, _ in k.ranks.values()} - {None})
    if size < 1 or world % size or len({_skeleton(h) for h in known}) != 1:
        return []
    order = _order(known, size)
    first = {host: _first(k, size) for host, k in known.items()}
    if order is None or None in first.values():
        return []
    skeleton = _skeleton(next(iter(known)))
    everyone = sorted({h for h in named | set(known) if _skeleton(h) == skeleton}, key=_numbers)
    # Where the known hosts stand, between two ends that belong to nobody.
    stops = [(-1, -size), *((i, first[h]) for i, h in enumerate(everyone) if h in first), (len(everyone), world)]
    if any(b <= a for (_, a), (_, b) in pairwise((i, int(str(f))) for i, f in stops)):
        return []
    rows: list[tuple[object, ...]] = []
    for (left, low), (right, high) in pairwise((i, int(str(f))) for i, f in stops):
        if (right - left) * size != high - low:
            continue  # a host of the job is missing here, or one is not of the job
        before = known[everyone[left]].place if left >= 0 else None
        after = known[everyone[right]].place if right < len(everyone) else None
        for at in range(left + 1, right):
            base = low + (at - left) * size
            rows.extend(
                (everyone[at], bus, index, base + local, *(before or (None, None)), *(after or (None, None)))
                for local, (bus, index) in enumerate(order)
            )
    for host, k in known.items():
        base = int(str(first[host]))
        rows.extend(
            (host, bus, index, base + local, *(k.place or (None, None)), None, None)
            for local, (bus, index) in enumerate(order)
            if base + local not in k.ranks
        )
    return rows


def _first(known: _Known, size: int) -> int | None:
    """The rank at which the block of this host begins, or None where its ranks lie in several blocks."""
    blocks = {rank // size for rank in known.ranks}
    return blocks.pop() * size if len(blocks) == 1 else None


def _order(known: dict[str, _Known], size: int) -> list[tuple[str, int | None]] | None:
    """(bus address, index) of the GPU of each rank of a block, where at least ``LEAST_KNOWN`` hosts tell of each and none of another; else
    None."""
    told: list[list[tuple[str, int | None]]] = [[] for _ in range(size)]
    for one in known.values():
        for rank, (bus, index) in one.ranks.items():
            if bus is not None:
                told[rank % size].append((bus, index))
    order: list[tuple[str, int | None]] = []
    for gpus in told:
        buses, indexes = {bus for bus, _ in gpus}, {index for _, index in gpus} - {None}
        if len(gpus) < LEAST_KNOWN or len(buses) != 1:
            return None
        order.append((buses.pop(), indexes.pop() if len(indexes) == 1 else None))
    return order if len({bus for bus, _ in order}) == size else None


def _skeleton(host: str) -> str:
    return _NUMBER.sub("#", host)


def _numbers(host: str) -> tuple[int, ...]:
    return tuple(int(n) for n in _NUMBER.findall(host))
