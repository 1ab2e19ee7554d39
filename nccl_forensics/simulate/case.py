"""One made-up incident: the job, what is done to it, what is gathered afterwards, and the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

from nccl_forensics.simulate import fabric
from nccl_forensics.simulate.aftermath import Death, settle
from nccl_forensics.simulate.clusters import PLATFORMS, Host, Platform
from nccl_forensics.simulate.engine import Cut, Model
from nccl_forensics.simulate.layout import Group, Layout, default_layout
from nccl_forensics.simulate.noise import mix, pick
from nccl_forensics.simulate.program import Item, Training
from nccl_forensics.simulate.world import SECOND, TORCH, Ending, Process, World, make_hosts

Change = Callable[[list[Item]], list[Item]]


@dataclass(slots=True)
class Gathered:
    """Which evidence there is. ``nccl``: "", "default" or "operations"; ``recorder``: "", "pickle" or "json"."""

    nccl: str = "default"
    recorder: str = "pickle"
    torch: bool = True
    launcher: bool = True
    stacks: bool = False
    kernel: bool = False
    gpus: bool = False
    fabric: bool = False
    network: bool = False
    scheduler: bool = False


#: Symptom variants: what the job's owner had switched on and collected.
VARIANTS: dict[str, Gathered] = {
    "dump": Gathered(nccl="default", recorder="pickle"),
    "log": Gathered(nccl="operations", recorder=""),
    "log-dump": Gathered(nccl="operations", recorder="pickle"),
    "log-net": Gathered(nccl="default", recorder="", network=True, scheduler=True),
    "live": Gathered(nccl="operations", recorder="json", launcher=False, stacks=True),
    "dump-only": Gathered(nccl="", recorder="pickle"),
    "host": Gathered(nccl="default", recorder="pickle", kernel=True, gpus=True, fabric=True, network=True, scheduler=True),
    "host-only": Gathered(nccl="", recorder="", torch=False, launcher=True, kernel=True, gpus=True, fabric=True, scheduler=True),
    "log-host": Gathered(nccl="default", recorder="", kernel=True, gpus=True, fabric=True, network=True, scheduler=True),
}


@dataclass(slots=True)
class Truth:
    """The truth: accepted causes, accepted lists of culprits (None: not scored), where the ranks parted."""

    causes: tuple[str | None, ...] = (None,)
    culprits: tuple[tuple[int, ...], ...] | None = ((),)
    hosts: tuple[str, ...] = ()
    divergence: dict[str, object] | None = None
    what: str = ""


@dataclass(slots=True)
class Case:
    """An incident in the making. Scenarios change it, then ``build`` runs it."""

    world_size: int
    seed: int
    variant: str
    gathered: Gathered
    platform: Platform
    layout: Layout
    training: Training
    release: str
    rank_asked: int | None = None
    step_asked: int | None = None
    step_taken: bool = False
    first_step: int = 0
    steps: int = 5
    timeout_ms: int = 600_000
    settings: dict[str, str] = field(default_factory=dict)
    changes: dict[tuple[int, int], list[Change]] = field(default_factory=dict)
    every_step: dict[int, Change] = field(default_factory=dict)
    deaths: dict[int, Death] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    cuts: list[Cut] = field(default_factory=list)
    slow_gpu: dict[int, float] = field(default_factory=dict)
    hosts: list[Callable[[list[Host]], None]] = field(default_factory=list)
    after: list[Callable[[World], None]] = field(default_factory=list)
    observe: str = "timeout"
    swift: bool = True
    link_share: float = 1.0
    ring_size: int = 2000
    truth: Truth = field(default_factory=Truth)
    also: list[tuple[str, Truth]] = field(default_factory=list)

    def dice(self, *what: int | str) -> float:
        """A number in [0, 1) of this case."""
        return pick(self.seed, *what).random()

    def rank(self, *, among: range | None = None, not_first: bool = False) -> int:
        """The rank that a fault strikes."""
        if self.rank_asked is not None:
            return self.rank_asked
        among = among or range(self.world_size)
        dice = pick(self.seed, "rank")
        low = 1 if not_first and len(among) > 1 else 0
        return among[dice.randrange(low, len(among))]

    def step(self) -> int:
        """The step in which a fault strikes."""
        self.step_taken = True
        if self.step_asked is not None:
            return self.step_asked
        return self.first_step + 1 + pick(self.seed, "step").randrange(max(1, self.steps - 3))

    def change(self, rank: int, step: int, change: Change) -> None:
        """Change what a rank does in a step."""
        self.changes.setdefault((rank, step), []).append(change)

    def host_of(self, rank: int) -> int:
        """The host of a rank."""
        return rank // self.platform.gpus

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """The ranks of a host."""
        size = self.platform.gpus
        return tuple(range(host * size, min((host + 1) * size, self.world_size)))

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return -(-self.world_size // self.platform.gpus)

    def edit(self, rank: int, step: int, items: list[Item]) -> list[Item]:
        """What a rank really does in a step."""
        always = self.every_step.get(rank)
        if always is not None:
            items = always(items)
        for change in self.changes.get((rank, step), ()):
            items = change(items)
        return items

    def duration_us(self, group: Group, item: Item) -> int:
        """How long an operation takes once everybody is there: a latency and the bytes over the slowest link on the way."""
        size = len(group.members) if item.peer < 0 else 2
        inside = group.members[-1] // self.platform.gpus == group.members[0] // self.platform.gpus
        rate = (
            (self.platform.nvlinks * self.platform.nvlink_gb_s or 20.0)
            if inside
            else max(self.platform.nics, 1) * self.platform.nic_gbit_s / 8
        )
        if not inside:
            rate = min(rate, 300.0) * self.link_share
        elements = max(prod(item.sizes), prod(item.out_sizes))
        bytes_moved = elements * 4 * 2 * (size - 1) / size
        return int(24 + 4 * size.bit_length() + bytes_moved / rate / 1000)

    def build(self) -> World:
        """Run the job and what follows."""
        begin = 1_760_000_000 * SECOND + mix(self.seed, "begin") % (200 * 86400) * SECOND
        hosts = make_hosts(self.platform, self.world_size, self.seed, begin, self.release, self.settings)
        for change in self.hosts:
            change(hosts)
        for host in hosts:
            _history(self.seed, host, begin)
        keep = self.gathered.nccl == "operations"
        ring = max(self.ring_size, 10_000) if keep else self.ring_size
        model = Model(
            self.layout, self.training, self.seed, begin, self.first_step, self.steps, self.host_of, self.duration_us, self.edit, ring,
            tuple(self.cuts), frozenset(self.absent), self.slow_gpu,
        )  # fmt: skip
        model.run()
        processes = {}
        agents = {h.index: 20_000 + mix(self.seed, "agent", h.index) % 60_000 for h in hosts}
        for rank in range(self.world_size):
            host = hosts[self.host_of(rank)]
            local = rank % self.platform.gpus
            pid = agents[host.index] + 67 + local
            started = rank not in self.absent
            processes[rank] = Process(rank, local, host, host.gpus[local], pid, host.settings, host.release, Ending(begin), started=started)
        world = World(
            self.seed, self.platform, self.layout, hosts, processes, model, TORCH[self.release], self.timeout_ms, begin, begin,
            100_000 + mix(self.seed, "job") % 900_000, agents,
        )  # fmt: skip
        settle(world, self.deaths, self.observe, bool(self.gathered.recorder), self.swift)
        for late in self.after:
            late(world)
        return world


def _history(seed: int, host: Host, begin: int) -> None:
    """What a kernel log tells of the days before the job and has nothing to do with it: another job's faults, links coming up after
    boot."""
    dice = pick(seed, "history", host.index)
    if dice.random() < 0.15 and host.platform.vendor == "nvidia":
        gpu, at = dice.randrange(len(host.gpus)), begin - int(dice.uniform(20, 60) * 3600) * SECOND
        text = "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address"
        pid = dice.randrange(3000, 9000)
        host.events.append((at, "xid", {"gpu": gpu, "code": 13, "text": text, "pid": pid}))
        host.events.append((at + SECOND // 5, "xid", {"gpu": gpu, "code": 43, "text": "Ch 00000008", "pid": pid}))
    for nic in host.nics:
        if host.platform.network in ("ib", "roce") and nic.index < 2:
            host.events.append((host.boot_ns + (41 + nic.index) * SECOND, "link", {"nic": nic.index, "state": "up"}))
    host.events[:] = [e for e in host.events if e[0] > host.boot_ns]


def new_case(
    world_size: int,
    seed: int,
    variant: str,
    *,
    platform: str | None = None,
    layout: Layout | None = None,
    release: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> Case:
    """A healthy job of this size; the seed chooses what is not asked for."""
    dice = pick(seed, "case")
    kind = PLATFORMS[platform] if platform else PLATFORMS[dice.choice(("a100", "h100", "h200", "h100-roce"))]
    releases = kind.releases
    chosen = release or releases[dice.randrange(len(releases))]
    plan = layout or default_layout(world_size, dice.randrange(1 << 30), kind.gpus)
    gathered = replace(VARIANTS[variant])
    training = Training(
        layers=1 + dice.randrange(2),
        micro_batches=1 if world_size > 512 else 1 + dice.randrange(2),
        hidden=dice.choice((2048, 4096, 5120, 8192)),
        tokens=dice.choice((1024, 2048, 4096)),
        buckets=2 + dice.randrange(3),
        sharded=plan.dp == plan.world and dice.random() < 0.5,
    )
    case = Case(world_size, seed, variant, gathered, kind, plan, training, chosen, rank_asked=rank, step_asked=step)
    case.timeout_ms = dice.choice((600_000, 600_000, 1_800_000, 300_000))
    if gathered.nccl != "operations":
        case.first_step = dice.choice((0, 40, 812, 5307))
        # What is kept of a long run begins shortly before the step that is asked for.
        case.first_step = case.first_step if step is None else max(0, step - 2)
    case.steps = 5 if world_size <= 512 else 4
    if world_size > 4096:
        case.ring_size = 16
    if variant == "live":
        case.observe = "live"
    return case


def unit(case: Case, role: str, rank: int, place: int) -> dict[str, object]:
    """Where the ranks part: group and sequence number of a position in the group's program."""
    group = case.layout.group(role, rank)
    assert group is not None
    return {"process_group": group.name, "desc": group.desc, "collective_seq_id": place}


__all__ = ["VARIANTS", "Case", "Death", "Gathered", "Truth", "fabric", "new_case", "unit"]
