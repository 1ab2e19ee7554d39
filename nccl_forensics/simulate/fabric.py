"""What NCCL makes of the machines: communicators, rings, trees, channels and the transport of each connection.

A communicator of one group (or of the two ends of a pipeline transfer) is cut into hosts; each channel runs through a host from an entry to
an exit GPU, and the exit of one host feeds the entry of the next over the adapters of the same rail, as NCCL's search does on such
machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nccl_forensics.simulate.clusters import Host
from nccl_forensics.simulate.layout import Group
from nccl_forensics.simulate.noise import mix
from nccl_forensics.simulate.program import Item, step_items
from nccl_forensics.simulate.world import World


@dataclass(frozen=True, slots=True)
class Comm:
    """One communicator: ``role`` and, for a pair, the smaller place of its two ends in the group."""

    group: Group
    role: str
    pair: int
    members: range

    @property
    def key(self) -> str:
        """A name that all its ranks agree on."""
        return self.group.name if self.pair < 0 else f"{self.group.name}:{self.pair}"


def comm_of(group: Group, item: Item, rank: int) -> Comm:
    """The communicator that carries an operation."""
    if item.op not in ("send", "recv"):
        return Comm(group, item.role, -1, group.members)
    a, b = sorted((group.place(rank), item.peer))
    low, high = group.members[a], group.members[b]
    return Comm(group, item.role, a, range(low, high + 1, high - low))


def comms_of(world: World, rank: int) -> list[Comm]:
    """Communicators of a rank in the order of their first use."""
    groups = {g.role: g for g in world.layout.groups(rank)}
    found: dict[str, Comm] = {}
    for item in step_items(world.layout, world.model.training, world.layout.digits(rank)["pp"], 0):
        if item.kind == "op":
            comm = comm_of(groups[item.role], item, rank)
            found.setdefault(comm.key, comm)
    return list(found.values())


def unique_id(world: World, comm: Comm) -> int:
    """The hash that all ranks of a communicator print."""
    return mix(world.seed, "comm", comm.key) | 1 << 60


@dataclass(frozen=True, slots=True)
class Part:
    """The ranks of a communicator on one host (by place in the communicator) and the host's place among its hosts."""

    host: int
    number: int
    places: tuple[int, ...]


def parts(world: World, comm: Comm) -> int:
    """Number of hosts of a communicator."""
    size = world.platform.gpus
    step = comm.members.step
    if step >= size:
        return len(comm.members)
    return comm.members[-1] // size - comm.members[0] // size + 1


def part(world: World, comm: Comm, number: int) -> Part:
    """The ``number``-th host of a communicator; numbers wrap around."""
    size = world.platform.gpus
    total = parts(world, comm)
    number %= total
    step, first = comm.members.step, comm.members[0]
    if step >= size:
        return Part(comm.members[number] // size, number, (number,))
    host = first // size + number
    low = max(0, -(-(host * size - first) // step))
    high = min(len(comm.members), -(-((host + 1) * size - first) // step))
    return Part(host, number, tuple(range(low, high)))


def part_of(world: World, comm: Comm, rank: int) -> Part:
    """The part of a communicator that a rank belongs to."""
    size = world.platform.gpus
    if comm.members.step >= size:
        return part(world, comm, comm.members.index(rank))
    return part(world, comm, rank // size - comm.members[0] // size)


def order(world: World, comm: Comm, where: Part, channel: int) -> tuple[int, ...]:
    """Places in the order in which a channel's ring runs through a host."""
    places = where.places
    if parts(world, comm) == 1:
        return places
    count = len(places)
    at = channel % count
    if where.number % 2 == 0:
        return tuple(places[(at - i) % count] for i in range(count))
    turned = tuple(places[(at + 1 + i) % count] for i in range(count))
    return turned


def neighbours(world: World, comm: Comm, rank: int, channel: int) -> tuple[int, int]:
    """(previous, next) place of a rank in a channel's ring."""
    where = part_of(world, comm, rank)
    ring = order(world, comm, where, channel)
    at = ring.index(comm.members.index(rank))
    before = ring[at - 1] if at > 0 else order(world, comm, part(world, comm, where.number - 1), channel)[-1]
    after = ring[at + 1] if at < len(ring) - 1 else order(world, comm, part(world, comm, where.number + 1), channel)[0]
    return before, after


def ring(world: World, comm: Comm, channel: int) -> Iterator[int]:
    """Places along a channel's ring, from place 0 on."""
    total = parts(world, comm)
    first = order(world, comm, part(world, comm, 0), channel)
    at = first.index(0)
    yield from first[at:]
    for number in range(1, total):
        yield from order(world, comm, part(world, comm, number), channel)
    yield from first[:at]


def tree(world: World, comm: Comm, rank: int, channel: int) -> tuple[list[int], int]:
    """(places below, place above) of a rank in a channel's tree; -1 for none. A chain inside the host, a binary tree between hosts."""
    where = part_of(world, comm, rank)
    total = parts(world, comm)
    chain = list(where.places)
    if total > 1:
        at = channel % len(chain)
        chain = chain[at:] + chain[:at]
    mine = chain.index(comm.members.index(rank))
    down = [chain[mine + 1]] if mine + 1 < len(chain) else []
    up = chain[mine - 1] if mine else -1
    if mine == 0 and total > 1:
        second = channel >= len(chain) and total > 2
        number = (total - 1 - where.number) if second else where.number

        def head(at: int) -> int:
            there = part(world, comm, total - 1 - at if second else at).places
            return there[channel % len(there)]

        down += [head(n) for n in (2 * number + 1, 2 * number + 2) if n < total]
        up = head((number - 1) // 2) if number else -1
    return ([*down, -1, -1, -1])[:3], up


def channels(world: World, comm: Comm) -> int:
    """Collective channels: what the platform's links feed, within the limits that the settings set."""
    platform = world.platform
    count = platform.channels_inside if parts(world, comm) == 1 else platform.channels_between
    hosts = {part(world, comm, n).host for n in range(min(parts(world, comm), 64))}
    if any(not world.hosts[h].direct_peers or world.hosts[h].settings.get("NCCL_P2P_DISABLE") == "1" for h in hosts):
        count = min(count, 4)
    if parts(world, comm) > 1 and any(transport_name(world.hosts[h]) == "Socket" for h in hosts):
        count = min(count, 4)
    links = min(len(world.hosts[h].gpus) and min(platform.nvlinks - len(g.dead_links) for g in world.hosts[h].gpus) for h in hosts)
    if platform.nvlinks and links < platform.nvlinks:
        count = max(2, count * links // platform.nvlinks)
    if parts(world, comm) > 1 and platform.nics:
        used = min(len(usable_nics(world.hosts[h])) for h in hosts) or platform.nics
        count = max(2, count * used // platform.nics)
    for h in hosts:
        top = world.hosts[h].settings.get("NCCL_MAX_NCHANNELS")
        if top is not None:
            count = min(count, int(top))
    return count


def transport_name(host: Host) -> str:
    """The network that NCCL takes on a host."""
    if host.settings.get("NCCL_IB_DISABLE") == "1" or host.settings.get("NCCL_NET") == "Socket" or not usable_nics(host):
        return "Socket"
    return "AWS Libfabric" if host.platform.network == "efa" else "IB"


def usable_nics(host: Host) -> list[int]:
    """Numbers of the adapters that NCCL uses on a host: those that are up and that NCCL_IB_HCA allows."""
    allowed = host.settings.get("NCCL_IB_HCA")
    names = None if allowed is None else {n.strip("=") for n in allowed.split(",")}
    return [n.index for n in host.nics if n.up and (names is None or n.device in names)]


def direct(host: Host) -> bool:
    """Whether GPUs of a host may talk to each other directly."""
    return host.direct_peers and host.settings.get("NCCL_P2P_DISABLE") != "1" and host.settings.get("NCCL_P2P_LEVEL") != "LOC"


def via(world: World, comm: Comm, a: int, b: int, version: tuple[int, ...]) -> tuple[bool, str]:
    """(over the network, text behind ``via``) of a connection between two places, as the rank ``a`` prints it."""
    ranks = comm.members
    host = world.processes[ranks[a]].host
    other = world.processes[ranks[b]].host
    if host.index == other.index:
        if direct(host):
            old = version < (2, 19) or world.platform.architecture == "Volta" or world.platform.library == "rccl"
            kind = "P2P/IPC" if old else "P2P/CUMEM"
            return False, kind + ("/read" if world.platform.architecture in ("Ampere", "Volta") else "")
        if host.settings.get("NCCL_SHM_DISABLE") != "1":
            return False, "SHM/direct" if version >= (2, 30, 7) else "SHM/direct/direct"
    name = transport_name(host)
    if name == "Socket":
        return True, "NET/Socket/0"
    nics = usable_nics(host)
    gpu = world.processes[ranks[a]].gpu.index
    near = world.platform.nic_of(gpu)
    place = nics.index(near) if near in nics else gpu % len(nics)
    rdma = "/GDRDMA" if host.peer_memory and host.settings.get("NCCL_NET_GDR_LEVEL") not in ("0", "LOC") else ""
    shared = "/Shared" if comm.pair >= 0 else ""
    return True, f"NET/{name}/{place}{rdma}{shared}"


def has_proxy(world: World, comm: Comm, rank: int) -> bool:
    """Whether a rank drives the network (or shared memory) for a communicator."""
    host = world.processes[rank].host
    if not direct(host):
        return True
    if parts(world, comm) == 1:
        return False
    where = part_of(world, comm, rank)
    count = len(where.places)
    return any(
        comm.members.index(rank) in (o[0], o[-1]) for o in (order(world, comm, where, c) for c in range(min(count, channels(world, comm))))
    )
