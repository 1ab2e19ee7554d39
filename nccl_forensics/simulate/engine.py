"""The discrete-event model: ranks enqueue, streams run in order, a collective finishes when all its members have arrived.

Each rank has a CPU that runs ahead and a GPU that follows; only a sync, a host item that never ends or a dead process stops the CPU.
An operation starts once the compute stream has come to it and the operation before it on the same stream is done. It ends when every
member has started it, all of them agree on what it is, and every link between them works. Nothing here depends on the order in which
ranks are looked at, so a run is a function of its inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nccl_forensics.simulate.layout import Group, Layout
from nccl_forensics.simulate.noise import share
from nccl_forensics.simulate.program import FOREVER, Item, Training, step_items

Edit = Callable[[int, int, list[Item]], list[Item]]
#: A CPU does not run further ahead of its GPU than this many operations.
_AHEAD = 64


@dataclass(slots=True)
class Entry:
    """One operation of one rank, as the recorder keeps it. Times are ns since 1970; None is "not yet"."""

    record_id: int
    item: Item
    group: Group
    local_group: int
    seq: int
    p2p_seq: int
    op_id: int
    step: int
    created: int
    ordinal: int
    started: int | None = None
    completed: int | None = None
    ready: int | None = None


class _Meeting:
    """One collective or one pair of send and receive on its way."""

    __slots__ = ("agree", "members", "signature", "size", "start", "step")

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: list[tuple[int, Entry]] = []
        self.signature: tuple[object, ...] | None = None
        self.agree = True
        self.start = 0
        self.step = 0


@dataclass(slots=True)
class RankState:
    """Where one rank stands. ``blocked``: "", "sync", "host", "dead", "done"; ``at`` is the item it stands in."""

    rank: int
    cpu: int
    gpu: int
    step: int
    pos: int = 0
    items: list[Item] = field(default_factory=list)
    blocked: str = ""
    at: Item | None = None
    pending: deque[tuple[str, int, Entry | None]] = field(default_factory=deque)
    waiting: Entry | None = None
    stopped_gpu: bool = False
    streams: dict[tuple[str, int], deque[Entry]] = field(default_factory=dict)
    free: dict[tuple[str, int], int] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    p2p_seqs: dict[str, int] = field(default_factory=dict)
    ordinals: dict[tuple[str, int], int] = field(default_factory=dict)
    last_done: dict[str, int] = field(default_factory=dict)
    records: int = 0
    ring: deque[Entry] = field(default_factory=deque)
    groups: list[Group] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Came to the end of its program."""
        return self.blocked == "done"

    def unfinished(self) -> list[Entry]:
        """Operations that never ended, first enqueued first."""
        return sorted((e for queue in self.streams.values() for e in queue), key=lambda e: e.record_id)


@dataclass(frozen=True, slots=True)
class Cut:
    """From a step on no traffic passes between a host and the others (over one adapter or all of them)."""

    host: int
    step: int


@dataclass(slots=True)
class Model:
    """The job while it runs. ``host_of`` and ``duration_us`` tell the engine what it needs of the machines."""

    layout: Layout
    training: Training
    seed: int
    begin: int
    first_step: int
    steps: int
    host_of: Callable[[int], int]
    duration_us: Callable[[Group, Item], int]
    edit: Edit
    ring_size: int
    cuts: tuple[Cut, ...] = ()
    absent: frozenset[int] = frozenset()
    slow_gpu: dict[int, float] = field(default_factory=dict)
    ranks: dict[int, RankState] = field(default_factory=dict)
    meetings: dict[tuple[str, int, int, int], _Meeting] = field(default_factory=dict)
    plans: dict[tuple[int, int], list[Item]] = field(default_factory=dict)

    def run(self) -> None:
        """Until nothing moves any more."""
        todo: deque[int] = deque()
        stage_ops = [self._per_step(stage) for stage in range(self.layout.pp)]
        for rank in range(self.layout.world):
            if rank in self.absent:
                continue
            start = self.begin + int(share(self.seed, "begin", rank) * 4e6)
            state = RankState(rank, start, start, self.first_step, ring=deque(maxlen=self.ring_size), groups=self.layout.groups(rank))
            self.ranks[rank] = state
            stage = self.layout.digits(rank)["pp"]
            for role, (collectives, transfers) in stage_ops[stage].items():
                state.seqs[role] = collectives * self.first_step
                state.p2p_seqs[role] = transfers * self.first_step
            state.records = sum(a + b for a, b in stage_ops[stage].values()) * self.first_step
            if self.first_step:
                state.seqs["world"] += 1
                state.records += 1
            todo.append(rank)
        self._todo = todo
        while todo:
            self._advance(self.ranks[todo.popleft()])

    _todo: deque[int] = field(default_factory=deque)

    def _per_step(self, stage: int) -> dict[str, tuple[int, int]]:
        """Role -> (collectives, sends and receives) of an ordinary step."""
        counts: dict[str, tuple[int, int]] = {}
        for item in step_items(self.layout, self.training, stage, 1):
            if item.kind == "op":
                a, b = counts.get(item.role, (0, 0))
                counts[item.role] = (a, b + 1) if item.op in ("send", "recv") else (a + 1, b)
        return counts

    def _plan(self, rank: int, step: int) -> list[Item]:
        stage = self.layout.digits(rank)["pp"]
        plan = self.plans.get((stage, step))
        if plan is None:
            plan = self.plans[(stage, step)] = step_items(self.layout, self.training, stage, step)
        return self.edit(rank, step, plan)

    def _advance(self, s: RankState) -> None:
        while self._run_cpu(s) | self._run_gpu(s):
            pass

    def _run_cpu(self, s: RankState) -> bool:
        moved = False
        while not s.blocked and len(s.pending) < _AHEAD:
            if s.pos >= len(s.items):
                if s.items:
                    s.step += 1
                if s.step >= self.first_step + self.steps:
                    if s.pending:
                        return moved
                    s.blocked = "done"
                    return True
                s.items, s.pos = self._plan(s.rank, s.step), 0
                if not s.items:
                    s.blocked = "done"
                    return True
            item = s.items[s.pos]
            moved = True
            s.at = item
            s.pos += 1
            noise = 0.9 + 0.2 * share(self.seed, s.rank, s.step, s.pos)
            if item.kind == "host":
                if item.us >= FOREVER:
                    s.blocked = "host"
                    return True
                s.cpu += int(item.us * 1000 * noise)
            elif item.kind == "die":
                s.blocked = "dead"
                return True
            elif item.kind == "gpu-stop":
                s.pending.append(("stop", 0, None))
            elif item.kind == "compute":
                s.pending.append(("compute", int(item.us * 1000 * noise * self.slow_gpu.get(s.rank, 1.0)), None))
            elif item.kind == "sync":
                s.blocked = "sync"
                s.pending.append(("sync", 0, None))
            else:
                s.cpu += int(item.us * 1000 * noise)
                s.pending.append(("op", 0, self._enqueue(s, item)))
        return moved

    def _enqueue(self, s: RankState, item: Item) -> Entry:
        group = next(g for g in s.groups if g.role == item.role)
        local = s.groups.index(group)
        pair = item.peer if item.op in ("send", "recv") else -1
        if pair >= 0:
            s.p2p_seqs[item.role] = s.p2p_seqs.get(item.role, 0) + 1
        else:
            s.seqs[item.role] = s.seqs.get(item.role, 0) + 1
        ordinal = s.ordinals.get((item.role, pair), 0)
        s.ordinals[(item.role, pair)] = ordinal + 1
        seq, p2p = s.seqs.get(item.role, 0), s.p2p_seqs.get(item.role, 0)
        entry = Entry(s.records, item, group, local, seq, p2p if pair >= 0 else 0, seq + p2p, s.step, s.cpu, ordinal)
        s.records += 1
        s.ring.append(entry)
        return entry

    def _run_gpu(self, s: RankState) -> bool:
        moved = False
        while not s.stopped_gpu:
            if s.waiting is not None:
                if s.waiting.completed is None:
                    return moved
                s.gpu = max(s.gpu, s.waiting.completed)
                s.waiting = None
                moved = True
            if not s.pending:
                return moved
            what, duration, entry = s.pending.popleft()
            moved = True
            if what == "compute":
                s.gpu += duration
            elif what == "stop":
                s.stopped_gpu = True
            elif what == "sync":
                s.cpu = max(s.cpu, s.gpu)
                s.blocked = ""
            elif entry is not None:
                entry.ready = max(s.gpu, entry.created)
                key = (entry.item.role, entry.item.peer if entry.item.op in ("send", "recv") else -1)
                queue = s.streams.setdefault(key, deque())
                queue.append(entry)
                if len(queue) == 1:
                    self._start(s, key, entry)
                if entry.item.wait:
                    s.waiting = entry
        return moved

    def _start(self, s: RankState, key: tuple[str, int], entry: Entry) -> None:
        entry.started = max(entry.ready or 0, s.free.get(key, 0)) + 3000
        item, group = entry.item, entry.group
        if key[1] >= 0:
            mine = group.place(s.rank)
            place = (group.name, min(mine, key[1]), max(mine, key[1]), entry.ordinal)
            size = 2
        else:
            place, size = (group.name, -1, -1, entry.ordinal), len(group.members)
        meeting = self.meetings.get(place)
        if meeting is None:
            meeting = self.meetings[place] = _Meeting(size)
        signature = item.signature()
        if size == 2 and key[1] >= 0:
            if meeting.members:
                other = meeting.members[0][1].item
                meeting.agree = {other.op, item.op} == {"send", "recv"} and other.bytes == item.bytes
        elif meeting.signature is None:
            meeting.signature = signature
        elif meeting.signature != signature:
            meeting.agree = False
        meeting.members.append((s.rank, entry))
        meeting.start = max(meeting.start, entry.started)
        meeting.step = max(meeting.step, entry.step)
        if len(meeting.members) == size and meeting.agree and not self._is_cut(group, meeting.step, key[1], s.rank):
            del self.meetings[place]
            end = meeting.start + self.duration_us(group, item) * 1000
            for rank, member in meeting.members:
                self._finish(self.ranks[rank], member, end)

    def _is_cut(self, group: Group, step: int, peer: int, rank: int) -> bool:
        if not any(step >= c.step for c in self.cuts):
            return False
        ranks = (rank, group.members[peer]) if peer >= 0 else group.members
        hosts = {self.host_of(r) for r in ranks}
        return len(hosts) > 1 and any(c.host in hosts and step >= c.step for c in self.cuts)

    def _finish(self, s: RankState, entry: Entry, end: int) -> None:
        if entry.item.note == "hang":
            return
        entry.completed = end
        key = (entry.item.role, entry.item.peer if entry.item.op in ("send", "recv") else -1)
        queue = s.streams[key]
        queue.popleft()
        s.free[key] = end
        s.last_done[entry.item.role] = entry.p2p_seq or entry.seq
        if queue:
            self._start(s, key, queue[0])
        self._todo.append(s.rank)
