"""What follows when nothing moves any more: watchdogs, dump signals, aborts, launchers that take down the rest, or an orderly end."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_forensics.simulate import fabric
from nccl_forensics.simulate.engine import Entry, RankState
from nccl_forensics.simulate.noise import share
from nccl_forensics.simulate.program import Frame
from nccl_forensics.simulate.world import SECOND, Ending, Met, World


@dataclass(frozen=True, slots=True)
class Death:
    """How a process goes: by a signal, or by an exception or exit code of its own; ``delay_ms`` after it came to that point."""

    how: str
    code: int
    text: str = ""
    frames: tuple[Frame, ...] = ()
    delay_ms: int = 0


def settle(world: World, deaths: dict[int, Death], observe: str, recorder: bool, swift: bool) -> None:
    """Let the job end. ``observe``: "live" stops the clock while it still runs or hangs; ``swift``: the launcher notices a death at
    once."""
    _communicators(world)
    states = world.model.ranks
    dead = {r: s for r, s in states.items() if s.blocked == "dead"}
    for rank, state in dead.items():
        _die(world, rank, state, deaths[rank])
    alive = [s for s in states.values() if s.blocked != "dead"]
    last = max((max(s.cpu, s.gpu) for s in states.values()), default=world.begin)
    world.now = last + 120 * SECOND
    if dead and swift:
        _take_down(world, min(world.processes[r].ending.at for r in dead))
        return
    late = _outlasted(world, alive)
    stuck = alive if late and observe != "live" else [s for s in alive if not s.finished]
    if not stuck or observe == "live":
        for s in alive:
            if s.finished and observe != "live":
                _orderly(world, s, last)
        if stuck:
            world.now = last + int((200 + 100 * share(world.seed, "look")) * SECOND)
        return
    _watchdogs(world, alive, recorder)


def _communicators(world: World) -> None:
    """Which communicators each process began, and which of them all members began."""
    started = {r for r, p in world.processes.items() if p.started}
    for rank, state in world.model.ranks.items():
        process = world.processes[rank]
        for comm in fabric.comms_of(world, rank):
            pair = -1
            if comm.pair >= 0:
                places = [comm.group.place(m) for m in comm.members]
                pair = next(p for p in places if comm.group.members[p] != rank)
            if world.model.first_step or state.ordinals.get((comm.role, pair), 0):
                process.opened.add(comm.key)
    absent = set(range(world.layout.world)) - started
    for rank in world.model.ranks:
        process = world.processes[rank]
        for comm in fabric.comms_of(world, rank):
            if comm.key in process.opened and not (absent and any(m in absent for m in comm.members)):
                process.ready.add(comm.key)


def _die(world: World, rank: int, state: RankState, death: Death) -> None:
    process = world.processes[rank]
    at = state.cpu + death.delay_ms * 1_000_000
    process.ending = Ending(at, death.how, death.code)
    if death.text:
        process.met.append(Met(at - 2_000_000, "torch.exception", {"text": death.text, "frames": death.frames}))


def _take_down(world: World, at: int) -> None:
    """Every process that is left gets SIGTERM: those of the host at once, the others when the step is ended."""
    hosts = {p.host.index for p in world.processes.values() if p.ending.how != "running" and p.ending.by == "self"}
    first_dead = min((p for p in world.processes.values() if p.ending.how != "running"), key=lambda p: p.ending.at)
    for process in world.processes.values():
        if process.ending.how != "running" or not process.started:
            continue
        wait = 0.4 if process.host.index in hosts else 6 + 3 * share(world.seed, "down", process.host.index)
        process.ending = Ending(at + int(wait * SECOND), "signal", 15, "launcher")
    world.scheduler += [
        Met(at + 2 * SECOND, "waiting"),
        Met(at + 2 * SECOND, "exit", {"host": first_dead.host.name, "task": first_dead.host.index, "code": 1, "first": True}),
    ]
    world.now = max(p.ending.at for p in world.processes.values() if p.started) + 60 * SECOND


def _orderly(world: World, state: RankState, last: int) -> None:
    process = world.processes[state.rank]
    at = last + int((1 + share(world.seed, "end", state.rank)) * SECOND)
    process.ending = Ending(at, "exit", 0)
    process.met.append(Met(at - SECOND // 2, "nccl.gone", {"word": "Destroy"}))


def _outlasted(world: World, alive: list[RankState]) -> bool:
    """Whether some operation took longer than the timeout although it would have ended."""
    limit = world.timeout_ms * 1_000_000
    return any(e.completed is not None and e.completed - e.created > limit for s in alive for e in s.ring)


def _counts(state: RankState, entry: Entry, at: int) -> tuple[int, int]:
    """(last enqueued, last completed) of the entry's group at a moment."""
    mine = [e for e in state.ring if e.local_group == entry.local_group and e.created <= at]
    done = [e.p2p_seq or e.seq for e in mine if e.completed is not None and e.completed <= at]
    enqueued = max(((e.p2p_seq or e.seq) for e in mine), default=0)
    return enqueued, max(done, default=min(((e.p2p_seq or e.seq) for e in mine), default=1) - 1)


def _default_counts(state: RankState, at: int) -> dict[str, object]:
    """What a process tells when it dumps: counters of the default group, whichever group timed out; -1 where it was never used."""
    used = next((e for e in state.ring if e.local_group == 0), None)
    last = state.seqs.get("world", 0) or -1
    enqueued, done = (last, last) if used is None else _counts(state, used, at)
    return {"last_enqueued": enqueued, "last_completed": done}


def _watchdogs(world: World, alive: list[RankState], recorder: bool) -> None:
    timeout = world.timeout_ms * 1_000_000
    fires: dict[int, tuple[int, Entry]] = {}
    for s in alive:
        waiting = [e for e in s.ring if e.completed is None or e.completed - e.created > timeout]
        if waiting:
            entry = min(waiting, key=lambda e: (e.created, e.record_id))
            fires[s.rank] = (entry.created + timeout + int(share(world.seed, "poll", s.rank) * 100e6), entry)
    if not fires:
        world.now += 600 * SECOND
        return
    origin = min(fires, key=lambda r: (fires[r][0], r))
    begin = fires[origin][0]
    ends: dict[int, int] = {}
    for s in alive:
        process, fire = world.processes[s.rank], fires.get(s.rank)
        if fire is not None and fire[0] <= begin + 3 * SECOND:
            at, entry = fire
            enqueued, done = _counts(s, entry, at)
            facts: dict[str, object] = {
                "entry": entry, "elapsed_ms": (at - entry.created) // 1_000_000, "last_enqueued": enqueued, "last_completed": done,
                "recorder": recorder, "origin": s.rank,
            }  # fmt: skip
            process.met.append(Met(at, "torch.timeout", facts))
            wait = int((0.3 + 0.9 * share(world.seed, "dump", s.rank)) * SECOND)
            if recorder:
                process.met.append(Met(at + wait, "torch.dump", {**_default_counts(s, at), "origin": s.rank}))
                process.dumped_at = at + wait
            end = at + wait + int((1.0 + share(world.seed, "abort", s.rank)) * SECOND)
            process.met.append(Met(end - 900_000_000, "torch.abort", facts))
            process.ending = Ending(end, "signal", 6)
            ends[process.host.index] = min(ends.get(process.host.index, end), end)
        elif recorder:
            at = begin + int((0.2 + 1.2 * share(world.seed, "observe", s.rank)) * SECOND)
            process.met.append(Met(at, "torch.dump", {**_default_counts(s, at), "origin": origin}))
            process.dumped_at = at
    latest = max(ends.values())
    for s in alive:
        process = world.processes[s.rank]
        if process.ending.how == "running":
            at = ends.get(process.host.index, latest + 4 * SECOND) + int((0.5 + 0.3 * share(world.seed, "term", s.rank)) * SECOND)
            process.ending = Ending(at, "signal", 15, "launcher")
    first = min(ends, key=lambda h: (ends[h], h))
    world.scheduler += [
        Met(begin + 3 * SECOND, "exit", {"host": world.hosts[first].name, "task": first, "code": 1, "first": True}),
        Met(begin + 3 * SECOND, "waiting"),
    ]
    world.now = latest + 90 * SECOND
