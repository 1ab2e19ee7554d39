"""The exhibits of a report, in the order in which an engineer asks: what parted, who waits, where they stand, on which machine, over what
links, with which settings, when, and how fast.

Each is one module with a function ``build(report, extras)`` that returns blocks (``base``). To add one, name it in ``EXHIBITS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from nccl_forensics.exhibits import cluster, events, measures, settings, stacks, timeline, traces, transports, waits
from nccl_forensics.exhibits.base import Block, Exhibit, Report
from nccl_forensics.extras import Extras

EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit(
        "timeline", "Divergence timeline", "Flight Recorder dumps of all ranks, or NCCL logs with NCCL_DEBUG_SUBSYS=COLL", timeline.build
    ),
    Exhibit("waits", "Who waits for whom", "Flight Recorder dumps or logs that tell which collectives each rank entered", waits.build),
    Exhibit("stacks", "Where the ranks stand", "py-spy, gdb or faulthandler stacks of the processes", stacks.build),
    Exhibit("cluster", "Cluster map", "any source that tells which rank ran on which host", cluster.build),
    Exhibit(
        "transports", "Topology and transports", "NCCL logs with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET", transports.build
    ),
    Exhibit("settings", "Environment differences", "NCCL logs with NCCL_DEBUG=INFO, or the environment of each process", settings.build),
    Exhibit("events", "Sequence of events", "logs with times: kernel, scheduler, launcher, watchdog", events.build),
    Exhibit("traces", "Where the time goes", "profiler traces (Kineto)", traces.build),
    Exhibit("measures", "Measures", "nccl-tests output, or Flight Recorder dumps with times", measures.build),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """An exhibit with its blocks."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Exhibits:
    """What there is evidence of, and what not: title and what would fill it."""

    shown: tuple[Shown, ...]
    absent: tuple[tuple[str, str], ...]


def exhibit(report: Report, extras: Extras) -> Exhibits:
    """All exhibits of a report."""
    built = [(e, e.build(report, extras)) for e in EXHIBITS]
    shown = tuple(Shown(e.anchor, e.title, blocks) for e, blocks in built if blocks)
    return Exhibits(shown, tuple((e.title, e.filler) for e, blocks in built if not blocks))
