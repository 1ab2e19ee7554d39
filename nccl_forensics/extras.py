"""What a report shows beside ``report.json``: the rows of its figures, already reduced to what a page can carry.

Frozen values without frames or files. An empty tuple means that nothing in the evidence could fill the part, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CellState = Literal["completed", "waiting", "diverged", "missing", "unknown"]
RankState = Literal["culprit", "waiting", "dead", "missing", "ok", "unknown"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What one class of ranks did at one position of a group. ``text`` is the operation, empty where none is known; ``site`` is the line
    of code that called it."""

    text: str
    state: CellState
    path: str | None = None
    line: int | None = None
    record: str | None = None
    site: str | None = None


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """Ranks that behave alike over all columns, so that thousands of ranks stay a handful of rows. One cell per column."""

    ranks: tuple[int, ...]
    cells: tuple[Cell, ...]
    host: str | None = None


@dataclass(frozen=True, slots=True)
class GroupTimeline:
    """Positions of one group around its first divergence. ``columns`` are sequence numbers, ``first_divergence`` is one of them. Calls of
    the ranks ``moved`` stand from there on one place later than those ranks number them: they left one out and count their own calls."""

    group: str
    columns: tuple[int, ...]
    rows: tuple[TimelineRow, ...]
    desc: str | None = None
    comm_id: str | None = None
    size: int | None = None
    first_divergence: int | None = None
    moved: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank on its host. ``gpu`` is what the evidence calls it: an index, a bus id or a UUID."""

    rank: int
    state: RankState
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """One host with its ranks. ``state`` is the host's own, where it says more than its ranks (a dead or faulty node)."""

    name: str
    seats: tuple[Seat, ...]
    state: RankState = "unknown"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Ranks that wait, and the ranks that they wait for."""

    waiting: tuple[int, ...]
    waited_for: tuple[int, ...]
    group: str = ""
    op: str | None = None
    seq: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Motion:
    """Ranks that move, are stuck or are not known to do either, for one reason. ``since`` is the earliest and ``until`` the latest of their
    last moments of progress, epoch ns; ``path``, ``line`` and ``record`` point at one of them."""

    ranks: tuple[int, ...]
    motion: str
    why: str
    since: int | None = None
    until: int | None = None
    timeout_ms: int | None = None
    waited_ms: int | None = None
    path: str | None = None
    line: int | None = None
    record: str | None = None


@dataclass(frozen=True, slots=True)
class StackClass:
    """Ranks that stand in the same stack, innermost frame first. ``path`` and ``line`` point at one of them."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    odd_one_out: bool = False
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class TransportRow:
    """Connections of one kind between two ends; ``count`` says how many alike. ``gdr`` is null where the log does not tell."""

    source: str
    destination: str
    transport: str
    network: str | None = None
    gdr: bool | None = None
    channels: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """How the GPUs of a host reach each other, row to column; hosts that are alike share one matrix. ``cells`` are short words such as
    ``P2P/CUMEM``, ``SHM`` or ``NV18``, empty where nothing tells. ``path`` and ``line`` point at one of the lines."""

    title: str
    hosts: tuple[str, ...]
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Ring:
    """One ring order with the channels that have it. ``ranks`` are those of the communicator; ``hosts`` the hosts in the order in which
    the ring enters them, empty where not known."""

    channels: tuple[int, ...]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...] = ()
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Channels whose trees have the same shape: depth and the most children of one rank. ``roots`` are those of all of them."""

    channels: tuple[int, ...]
    roots: tuple[int, ...]
    depth: int | None
    widest: int
    ranks: int
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class HostNics:
    """Network devices that NCCL listed on hosts that are alike, and those of them that connections use."""

    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    used: tuple[str, ...]
    speed_gbit_s: float | None = None
    link: str | None = None
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ChannelCount:
    """Channels of one communicator."""

    communicator: str
    ranks: int | None = None
    coll_channels: int | None = None
    p2p_channels: int | None = None
    nvls_channels: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with each of its values and the ranks that have it: ``(value, "0-3, 8")``."""

    name: str
    values: tuple[tuple[str, str], ...]
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, once or ``count`` times alike. ``time`` is ISO 8601 UTC or null; the order of events is the order of the
    tuple. ``lane`` is the row of the time axis that it stands in; ``ranks`` and ``hosts`` are all those of a folded event. ``local`` says
    that the source does not tell the zone of its time, which is then shown as written."""

    text: str
    time: str | None = None
    rank: int | None = None
    host: str | None = None
    path: str | None = None
    line: int | None = None
    kind: str = ""
    lane: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    count: int = 1
    until: str | None = None
    local: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the run, as far as the evidence tells."""

    rank: int | None
    state: RankState = "unknown"
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None
    nccl_version: str | None = None
    exit: str | None = None
    last_collective: str | None = None


@dataclass(frozen=True, slots=True)
class LagMap:
    """How long after the first rank each rank came to each collective of a group, by profiler traces. One row per rank, one value per
    column, null where the rank was not seen. ``more_ranks`` and ``more_collectives`` are left out, those that tell least."""

    group: str
    ranks: tuple[int, ...]
    columns: tuple[str, ...]
    lag_ms: tuple[tuple[float | None, ...], ...]
    more_ranks: int = 0
    more_collectives: int = 0


@dataclass(frozen=True, slots=True)
class StepLane:
    """What ran in one lane of a step: (start in ms since the step's begin, length in ms)."""

    name: str
    segments: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class StepLanes:
    """One traced step of one rank. ``role`` says why it is shown: slowest, median, fastest."""

    rank: int
    role: str
    step: int
    span_ms: float
    lanes: tuple[StepLane, ...]


#: One raw line around an evidence line: number, text, and whether it is the evidence itself.
ContextLine = tuple[int, str, bool]


@dataclass(frozen=True, slots=True)
class Extras:
    """All parts. ``contexts`` is keyed by finding id and index of the evidence item in that finding."""

    timeline: tuple[GroupTimeline, ...] = ()
    cluster: tuple[Host, ...] = ()
    waits: tuple[Wait, ...] = ()
    motions: tuple[Motion, ...] = ()
    stacks: tuple[StackClass, ...] = ()
    transports: tuple[TransportRow, ...] = ()
    channels: tuple[ChannelCount, ...] = ()
    matrices: tuple[LinkMatrix, ...] = ()
    rings: tuple[Ring, ...] = ()
    trees: tuple[TreeShape, ...] = ()
    nics: tuple[HostNics, ...] = ()
    settings: tuple[Setting, ...] = ()
    events: tuple[Event, ...] = ()
    processes: tuple[Process, ...] = ()
    lag_map: LagMap | None = None
    step_lanes: tuple[StepLanes, ...] = ()
    contexts: Mapping[tuple[str, int], tuple[ContextLine, ...]] = field(default_factory=dict)
