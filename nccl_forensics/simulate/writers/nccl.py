"""NCCL's debug log of one process, for releases 2.18 to 2.30, at NCCL_DEBUG=INFO with the default subsystems or with COLL added.

The order of lines and their wording are those of real logs of the same release; numbers come from the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_forensics.facts.collective_kernels import REDUCTIONS
from nccl_forensics.simulate import fabric
from nccl_forensics.simulate.fabric import Comm
from nccl_forensics.simulate.noise import mix, share
from nccl_forensics.simulate.world import World
from nccl_forensics.simulate.writers.nccl_lines import Lines, Options
from nccl_forensics.simulate.writers.nccl_met import met_lines

DTYPES = {"Byte": 1, "Int": 2, "Long": 4, "Half": 6, "Float": 7, "Double": 8, "BFloat16": 9}
RED_OPS = {name: number for number, name in REDUCTIONS.items()}
_CALLS = {
    "all_reduce": "AllReduce",
    "all_reduce_barrier": "AllReduce",
    "_all_gather_base": "AllGather",
    "_reduce_scatter_base": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
#: Settings whose line ends in a full stop, because NCCL reads them as numbers.
_NUMBERS = frozenset(
    {
        "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_BUFFSIZE",
        "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX", "NCCL_CUMEM_ENABLE", "NCCL_NTHREADS", "NCCL_CROSS_NIC",
    }
)  # fmt: skip


class Log(Lines):
    """Lines of one process that loads NCCL, from the start of the library on."""

    def opening(self) -> Iterator[str]:
        """From the start of the library to the choice of the network."""
        return _setting_out(self)

    def birth(self, comm: Comm, rank: int, number: int) -> Iterator[str]:
        """The lines of a process's ``number``-th communicator."""
        return _communicator(self, comm, rank, number)

    def device(self, rank: int, *, near: bool) -> str:
        """How a connection names the GPU of a rank; ``near``: of the same host."""
        return str(self.world.processes[rank].gpu.index)

    def connection(self, comm: Comm) -> str:
        """What follows the transport of a connection."""
        return ""

    def operation(self, call: str, count: int, send: str, receive: str, rest: str) -> str:
        """The line of a call; ``rest`` from the number of elements to the stream."""
        return self.info(f"{call}: opCount {count:x} sendbuff {send} recvbuff {receive} {rest}")


def log(world: World, rank: int, options: Options) -> Iterator[str]:
    """All lines of a rank's log."""
    return written(Log(world, world.processes[rank], options))


def written(writer: Log) -> Iterator[str]:
    """All lines of the log that ``writer`` keeps."""
    world, process = writer.world, writer.process
    rank = process.rank
    yield from writer.opening()
    comms = fabric.comms_of(world, rank)
    if not writer.options.operations:
        for number, comm in enumerate(comms):
            if comm.key not in process.opened:
                break
            yield from writer.birth(comm, rank, number)
    else:
        yield from _operations(writer, rank)
    for met in sorted(process.met, key=lambda m: m.at):
        if met.kind.startswith("nccl."):
            yield from met_lines(writer, met)


def _setting_out(w: Log) -> Iterator[str]:
    v, host = w.version, w.process.host
    address = f"{host.interface}:{w.process.host.address}<0>"
    if v >= (2, 28, 7):
        yield w.info("ENV/Plugin: Could not find: libnccl-env.so")
    for name in ("NCCL_SOCKET_IFNAME",):
        if name in w.process.settings:
            yield w.info(f"{name} set by environment to {w.process.settings[name]}")
    driver = w.info(f"cudaDriverVersion {host.platform.cuda_driver}")
    if v < (2, 23):
        yield driver
        yield w.info(f"Bootstrap : Using {address}")
    else:
        yield w.info(f"Bootstrap: Using {address}")
        yield driver
    if v >= (2, 22, 3) or w.process.rank == 0:
        yield w.info(f"NCCL version {w.process.release}+cuda{w.cuda}")
    if v >= (2, 29, 2):
        yield w.info("NCCL git version unknown unknown")
    yield from _network(w)


def _network(w: Log) -> Iterator[str]:
    v, host = w.version, w.process.host
    name = fabric.transport_name(host)
    if name == "AWS Libfabric":
        yield w.info(f"NET/Plugin: Loaded net plugin {name} (v8)" if v < (2, 27) else f"Successfully loaded external network plugin {name}")
        yield w.info("NET/OFI Initializing aws-ofi-nccl 1.13.0-aws")
        yield w.info("NET/OFI Using Libfabric version 1.22")
        yield w.info(f"NET/OFI Selected provider is efa, fabric is efa-direct (found {host.platform.nics} nics)")
    elif v < (2, 19):
        missing = "libnccl-net.so: cannot open shared object file: No such file or directory"
        yield w.info(f"NET/Plugin : Plugin load (libnccl-net.so) returned 2 : {missing}")
        yield w.info("NET/Plugin : No plugin found, using internal implementation")
    elif v < (2, 22):
        missing = "libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so"
        yield w.info("NET/Plugin: No plugin found (libnccl-net.so)")
        yield w.info(f"NET/Plugin: Plugin load returned 2 : {missing}")
        yield w.info("NET/Plugin: Using internal network plugin.")
    elif v < (2, 27):
        yield w.info("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.")
    else:
        yield w.info("NET/Plugin: Could not find: libnccl-net.so. " if v < (2, 28) else "NET/Plugin: Could not find: libnccl-net.so")
    yield from network_choice(w)
    if v < (2, 22) and v >= (2, 19):
        yield w.info("Using non-device net plugin version 0")
    if (2, 26) <= v < (2, 27):
        yield w.info("PROFILER/Plugin: Could not find: libnccl-profiler.so. ")


def network_choice(w: Log) -> Iterator[str]:
    """The settings that bear on the network, and the adapters found."""
    v, host, settings = w.version, w.process.host, w.process.settings
    address = f"{host.interface}:{host.address}<0>"
    name = fabric.transport_name(host)
    for key in ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT"):
        if key in settings:
            yield w.info(f"{key} set by environment to {settings[key]}{'.' if key in _NUMBERS else ''}")
    if name == "Socket":
        if settings.get("NCCL_IB_DISABLE") != "1" and settings.get("NCCL_NET") != "Socket":
            yield w.info("NET/IB : No device found.")
            if v >= (2, 27):
                yield w.info(f"NET/IB : Using [RO]; OOB {address}")
        yield w.info(f"NET/Socket : Using [0]{address}")
    elif name == "IB":
        link = "RoCE" if host.platform.network == "roce" else "IB"
        used = " ".join(f"[{i}]{host.nics[n].device}:1/{link}" for i, n in enumerate(fabric.usable_nics(host)))
        yield w.info(f"NET/IB : Using {used} [RO]; OOB {address}")


def _named(w: Log, comm: Comm, rank: int) -> str:
    pointer = w.world.pointer(rank, comm.key)
    place, gpu = comm.members.index(rank), w.process.gpu
    bus = gpu.bus_id.replace(":", "").replace(".", "").lstrip("0")
    return (
        f"comm {pointer:#x} rank {place} nranks {len(comm.members)} cudaDev {w.local} nvmlDev {gpu.index} "
        f"busId {bus} commId {fabric.unique_id(w.world, comm):#x}"
    )


def _call(v: tuple[int, ...]) -> str:
    return "" if v < (2, 21) else "ncclCommInitRank " if v < (2, 23) else "ncclCommInitRankConfig "


def _communicator(w: Log, comm: Comm, rank: int, number: int) -> Iterator[str]:
    """From the choice of the network to the last connection of one communicator."""
    v, world, process = w.version, w.world, w.process
    host, settings = process.host, process.settings
    name = fabric.transport_name(host)
    if v >= (2, 27):
        if number == 0:
            yield w.info(f"Initialized NET plugin {name}")
        yield w.info(f"Assigned NET plugin {name} to comm")
    yield w.info(f"Using network {name}")
    said = _named(w, comm, rank)
    lead = f"[Rank {comm.members.index(rank)}] " if v >= (2, 29, 2) else ""
    yield w.info(f"{lead}{_call(v)}{said} - Init START")
    if v >= (2, 24, 3) and number == 0:
        yield w.info("RAS client listening socket at 127.0.0.1<28028>")
    if comm.key not in process.ready:
        return
    dice = share(world.seed, "boot", rank, comm.key)
    boot = 0.04 + 0.3 * dice + len(comm.members) * 2e-5
    if v >= (2, 23):
        yield w.info(
            f"Bootstrap timings total {boot:.6f} (create {0.00003 + dice / 1e5:.6f}, send {0.0001 + dice / 1e4:.6f}, "
            f"recv {boot * 0.4:.6f}, ring {boot * 0.5:.6f}, delay 0.000000)"
        )
    for key in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_TOPO_FILE"):
        if key in settings and number == 0:
            old = key == "NCCL_P2P_DISABLE" and v < (2, 23, 4)
            yield w.info("NCCL_P2P_LEVEL set by environment to LOC" if old else f"{key} set by environment to {settings[key]}")
    if not host.direct_peers and number == 0:
        for peer in range(1, host.platform.gpus):
            yield w.info(
                f"P2P is disabled between connected GPUs {process.gpu.index} and {(process.gpu.index + peer) % host.platform.gpus}. "
                "You can repress this message with NCCL_IGNORE_DISABLED_P2P=1."
            )
    mask = "0-55,112-167" if process.gpu.index < host.platform.gpus // 2 else "56-111,168-223"
    if v >= (2, 28, 3):
        yield w.info(
            f"ncclTopoGetCpuAffinity: Affinity for GPU {process.gpu.index} is {mask}. (GPU affinity = {mask} ; CPU affinity = 0-223)."
        )
    else:
        words = mask if v >= (2, 27) else "ffff,ffffffff,ff000000,00ffffff,ffffffff"
        yield w.info(f"Setting affinity for GPU {process.gpu.index} to {words}")
    for key in ("NCCL_NVLS_ENABLE",):
        if key in settings and number == 0:
            yield w.info(f"{key} set by environment to {settings[key]}.")
    multicast = host.platform.multicast and settings.get("NCCL_NVLS_ENABLE") != "0"
    if settings.get("NCCL_NVLS_ENABLE") != "0":
        suffix = " (NVLS_NCHANNELS 16)" if (2, 27, 3) <= v < (2, 30) and multicast else ""
        yield w.info(f"NVLS multicast support is {'' if multicast else 'not '}available on dev {w.local}{suffix}")
    if v >= (2, 30, 3):
        nets, place = len(fabric.usable_nics(host)) or 1, comm.members.index(rank)
        yield w.info(f"Rank {place}: {nets} Net devices")
        yield w.info(f"Rank {place}: 0 CollNet devices")
        if place == 0:
            yield w.info(f"Local Net device counts across ranks: min {nets} max {nets}")
            yield w.info("Local CollNet device counts across ranks: min 0 max 0")
    yield from _shape(w, comm, rank, number, multicast)
    yield from _after_shape(w, comm, rank, number, said, boot)


def ring_lines(w: Log, comm: Comm, rank: int, number: int) -> Iterator[str]:
    """The settings of channels that this process has, with its first communicator, and on rank 0 the rings."""
    settings, count = w.process.settings, fabric.channels(w.world, comm)
    for key in ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE"):
        if key in settings and number == 0:
            yield w.info(f"{key} set by environment to {settings[key]}.")
    if comm.members.index(rank) == 0:
        for channel in range(count):
            yield w.info(f"Channel {channel:02d}/{count:02d} :{ring_text(w, comm, channel)}")


def _shape(w: Log, comm: Comm, rank: int, number: int, multicast: bool) -> Iterator[str]:
    """Rings, trees and counts of channels."""
    v, world = w.version, w.world
    place = comm.members.index(rank)
    where, total = fabric.part_of(world, comm, rank), fabric.parts(world, comm)
    count = fabric.channels(world, comm)
    if v >= (2, 20, 3):
        yield w.info(
            f"comm {world.pointer(rank, comm.key):#x} rank {place} nRanks {len(comm.members)} nNodes {total} "
            f"localRanks {len(where.places)} localRank {where.places.index(place)} MNNVL 0"
        )
    if v >= (2, 30, 3) and multicast:
        yield w.info(f"NVLS tuning: nChannels {count} chunkSize 131072 treeMaxChunkSize 131072")
    if v >= (2, 19) and multicast and 1 < total <= 20 and where.number == 0 and len(where.places) > 2:
        heads = len(where.places)
        for head in range(heads):
            shown = "".join(f"{fabric.part(world, comm, n).places[head]:3d}" for n in range(total))
            yield w.info(f"NVLS Head {head:2d}:{shown}")
    yield from ring_lines(w, comm, rank, number)
    yield w.info(tree_text(w, comm, rank))
    yield w.info(f"P2P Chunksize set to {524288 if total == 1 and world.platform.nvswitch else 131072}")


def tree_text(w: Log, comm: Comm, rank: int) -> str:
    """A rank's place in the tree of every channel, cut off where NCCL's buffer ends."""
    place = comm.members.index(rank)
    trees = []
    for channel in range(fabric.channels(w.world, comm)):
        down, up = fabric.tree(w.world, comm, rank, channel)
        trees.append(f"[{channel}] {down[0]}/{down[1]}/{down[2]}->{place}->{up}")
    return ("Trees " + " ".join(trees))[:1023]


def ring_text(w: Log, comm: Comm, channel: int) -> str:
    """A channel's ring, cut off where NCCL cuts it."""
    if w.version < (2, 23, 4):
        shown = []
        for place in fabric.ring(w.world, comm, channel):
            shown.append(f"{place:4d}")
            if len(shown) == 20:
                break
        return " " + "".join(shown)
    width = len(str(len(comm.members) - 1))
    text = ""
    for place in fabric.ring(w.world, comm, channel):
        more = f" {place:{width}d}"
        if len(text) + len(more) > 123:
            return text + " ..."
        text += more
    return text


def _after_shape(w: Log, comm: Comm, rank: int, number: int, said: str, boot: float) -> Iterator[str]:
    v, world, process = w.version, w.world, w.process
    total, count = fabric.parts(world, comm), fabric.channels(world, comm)
    place = comm.members.index(rank)
    all_direct = fabric.direct(process.host)
    if v >= (2, 30) and total > 1:
        yield w.info(f"Tuning P2P operations with maxP2pPeers = {len(comm.members)}")
    if v >= (2, 27):
        yield w.info("PROFILER/Plugin: Could not find: libnccl-profiler.so" + (". " if v < (2, 28) else ""))
    if (place == 0 or v >= (2, 30)) and v >= (2, 24, 3):
        if v < (2, 27):
            yield w.info(f"Check P2P Type intraNodeP2pSupport {int(all_direct)} directMode 0")
        else:
            tail = f" isAllCudaP2p {int(all_direct)}" if v >= (2, 28, 7) else ""
            yield w.info(f"Check P2P Type isAllDirectP2p {int(all_direct)} directMode 0{tail}")
    if v >= (2, 23, 4):
        yield w.info(f"[Proxy Service] Device {w.local} CPU core {number * 3 + w.local}", 40 + 2 * number)
        yield w.info(f"[Proxy Service UDS] Device {w.local} CPU core {number * 5 + w.local}", 41 + 2 * number)
    lazy = v >= (2, 22, 3)
    if not lazy:
        yield from _connections(w, comm, rank, 0)
        if process.unconnected:
            return
    nvls = 16 if world.platform.multicast and process.settings.get("NCCL_NVLS_ENABLE") != "0" and len(comm.members) > 2 else 0
    collnet = count if v >= (2, 27) else 0
    p2p = count if total > 1 else max(count, 16)
    per_peer = (4 if v >= (2, 30) else 2) if total > 1 else p2p
    yield w.info(f"threadThresholds 8/8/64 | {8 * len(comm.members)}/8/64 | 512 | 512")
    middle = f"{collnet} collnet channels, " if v >= (2, 20, 3) else ""
    yield w.info(f"{count} coll channels, {middle}{nvls} nvls channels, {p2p} p2p channels, {per_peer} p2p channels per peer")
    if place == 0 and v >= (2, 24, 3):
        yield w.info("CC Off, workFifoBytes 1048576")
    if v >= (2, 26):
        yield w.info("TUNER/Plugin: Could not find: libnccl-tuner.so" + (". Using internal tuner plugin." if v < (2, 28) else ""))
    elif v >= (2, 21):
        missing = "libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-tuner.so"
        yield w.info(f"TUNER/Plugin: Plugin load returned 2 : {missing}")
        yield w.info("TUNER/Plugin: Using internal tuner plugin.")
    yield w.info(f"{_call(v)}{said} - Init COMPLETE")
    if v >= (2, 23, 4):
        kernels, graphs = 0.12 + boot / 3, 0.05 + boot / 7
        rest = 0.03
        spent = boot + kernels + graphs + 0.31 + rest
        yield w.info(
            f"Init timings - ncclCommInitRankConfig: rank {place} nranks {len(comm.members)} total {spent:.2f} (kernels {kernels:.2f}, "
            f"alloc 0.01, bootstrap {boot:.2f}, allgathers 0.02, topo 0.25, graphs {graphs:.2f}, connections 0.03, rest {rest:.2f})"
        )
    if v >= (2, 28, 3) and number == 0:
        yield w.info("Symmetric VA size=80GB")
    if lazy:
        yield from _connections(w, comm, rank, 50 + 6 * number)


def _connections(w: Log, comm: Comm, rank: int, thread: int) -> Iterator[str]:
    """Connections of the rings, then those of the trees and of NVLink SHARP that the rings have not made already."""
    v, total = w.version, fabric.parts(w.world, comm)
    made: set[tuple[int, int, int]] = set()
    yield from _rings(w, comm, rank, thread, made)
    if w.process.unconnected:
        return
    if v < (2, 22, 3):
        yield from _tree(w, comm, rank, thread, made)
        yield from _multicast(w, comm, rank, thread, made)
        return
    yield from _multicast(w, comm, rank, thread + 2, made)
    if total > 1 and comm.role == "world":
        yield from _tree(w, comm, rank, thread + 4, made)


def connections(w: Log, comm: Comm, rank: int) -> Iterator[str]:
    """Connections of rings and trees, made by the thread that makes the communicator."""
    made: set[tuple[int, int, int]] = set()
    yield from _rings(w, comm, rank, 0, made)
    if not w.process.unconnected:
        yield from _tree(w, comm, rank, 0, made)


def _rings(w: Log, comm: Comm, rank: int, thread: int, made: set[tuple[int, int, int]]) -> Iterator[str]:
    ring = []
    for channel in range(fabric.channels(w.world, comm)):
        before, after = fabric.neighbours(w.world, comm, rank, channel)
        ring.append((channel, before, after))
    place = comm.members.index(rank)
    yield from _pairs(w, comm, place, [(c, b) for c, b, _ in ring], [(c, a) for c, _, a in ring], thread, made)
    if w.process.unconnected:
        return
    if w.version >= (2, 24, 3):
        host = w.process.host
        gdr = int(fabric.parts(w.world, comm) == 1 or (fabric.transport_name(host) != "Socket" and host.peer_memory))
        yield w.info(f"Connected all rings, use ring PXN 0 GDR {gdr}", thread)
    else:
        yield w.info("Connected all rings", thread)


def _pairs(
    w: Log,
    comm: Comm,
    place: int,
    before: list[tuple[int, int]],
    after: list[tuple[int, int]],
    thread: int,
    made: set[tuple[int, int, int]],
) -> Iterator[str]:
    """Lines of the connections to these (channel, place): senders print direct ones, both ends those over the network."""
    world, v = w.world, w.version

    tail = w.connection(comm)

    def label(at: int, *, near: bool = False) -> str:
        return f"{at}[{w.device(comm.members[at], near=near)}]"

    near: list[str] = []
    far: list[str] = []
    for channel, peer in before:
        away, text = fabric.via(world, comm, place, peer, v)
        if away and (channel, peer, place) not in made:
            far.append(f"Channel {channel:02d}/0 : {label(peer)} -> {label(place)} [receive] via {text}{tail}")
        made.add((channel, peer, place))
    for channel, peer in after:
        if (channel, place, peer) in made:
            continue
        made.add((channel, place, peer))
        away, text = fabric.via(world, comm, place, peer, v)
        if away:
            far.append(f"Channel {channel:02d}/0 : {label(place)} -> {label(peer)} [send] via {text}{tail}")
        elif text.startswith("SHM"):
            near.append(f"Channel {channel:02d} : {label(place, near=True)} -> {label(peer, near=True)} via {text}{tail}")
        else:
            near.append(f"Channel {channel:02d}/0 : {label(place, near=True)} -> {label(peer, near=True)} via {text}{tail}")
    for text in (*near, *far):
        yield w.info(text, thread)


def _tree(w: Log, comm: Comm, rank: int, thread: int, made: set[tuple[int, int, int]]) -> Iterator[str]:
    peers = []
    for channel in range(fabric.channels(w.world, comm)):
        down, up = fabric.tree(w.world, comm, rank, channel)
        peers += [(channel, p) for p in (*down, up) if p >= 0]
    yield from _pairs(w, comm, comm.members.index(rank), peers, peers, thread, made)
    yield w.info("Connected all trees", thread)


def _multicast(w: Log, comm: Comm, rank: int, thread: int, made: set[tuple[int, int, int]]) -> Iterator[str]:
    world, v = w.world, w.version
    on = w.process.host.platform.multicast and w.process.settings.get("NCCL_NVLS_ENABLE") != "0"
    where, total = fabric.part_of(world, comm, rank), fabric.parts(world, comm)
    if not on or len(where.places) < 3:
        return
    place, heads = comm.members.index(rank), len(where.places)
    mine = where.places.index(place)
    extra = f"nvlsRanks {heads} " if v >= (2, 27) else ""
    size = 33554432 if v >= (2, 26) else 100663296
    memory = "" if v >= (2, 26) else "memSize 2097152 "
    yield w.info(
        f"NVLS comm {world.pointer(rank, comm.key):#x} headRank {mine} nHeads {heads} {extra}buffSize 1048576 "
        f"{memory}nvlsPerRankSize {size} nvlsTotalSize {size * heads}",
        thread,
    )
    if total == 1:
        return
    number = where.number
    hosts = [n for n in (2 * number + 1, 2 * number + 2) if n < total] + ([(number - 1) // 2] if number else [])
    there = [fabric.part(world, comm, n).places for n in hosts]
    peers = [(c, p[mine]) for c in range(fabric.channels(world, comm)) for p in there if mine < len(p)]
    yield from _pairs(w, comm, place, peers, peers, thread, made)
    yield w.info("Connected NVLS tree", thread)


def _operations(w: Log, rank: int) -> Iterator[str]:
    """Operations as they are enqueued, each communicator's birth before its first one."""
    world, process = w.world, w.process
    born: dict[str, int] = {}
    counts: dict[str, int] = {}
    entries = world.entries(rank)
    if not entries:
        for number, comm in enumerate(fabric.comms_of(world, rank)):
            if comm.key in process.opened:
                yield from w.birth(comm, rank, number)
        return
    stream = {c.key: world.pointer(rank, "stream" + c.key, 0x5500_0000_0000) for c in fabric.comms_of(world, rank)}
    for entry in entries:
        item = entry.item
        comm = fabric.comm_of(entry.group, item, rank)
        if process.ending.how != "running" and entry.created > process.ending.at:
            return
        if comm.key not in process.opened:
            return
        first = comm.key not in born
        if first:
            born[comm.key] = len(born)
            lines = list(w.birth(comm, rank, born[comm.key]))
            if comm.key not in process.ready:
                yield from lines
                return
            late = next((i for i, x in enumerate(lines) if "Init timings" in x), len(lines) - 1) + 1
            yield from lines[:late]
            after = lines[late:]
        count = counts.get(comm.key, 0)
        pointer = world.pointer(rank, comm.key)
        buffer = 0x7F80_0000_0000 + (mix(world.seed, rank, entry.record_id) & 0xF_FFE0_0000)
        where = f"comm {pointer:#x} [nranks={len(comm.members)}] stream {stream[comm.key]:#x}"
        kind = DTYPES[item.dtype]
        if item.op in ("send", "recv"):
            peer = 0 if comm.members.index(rank) else 1
            call = "Send" if item.op == "send" else "Recv"
            rest = f"count {item.numel} datatype {kind} op 0 root {peer} {where}"
            yield w.operation(call, count, "(nil)", f"{buffer:#x}", rest)
        elif item.op == "all_to_all":
            share_of = item.numel // len(comm.members)
            for peer in range(len(comm.members)):
                for call in ("Send", "Recv"):
                    rest = f"count {share_of} datatype {kind} op 0 root {peer} {where}"
                    yield w.operation(call, count, "(nil)", f"{buffer + 4096 * peer:#x}", rest)
        else:
            elements = item.out_numel if item.op == "_reduce_scatter_base" else item.numel
            rest = f"count {elements} datatype {kind} op {RED_OPS[item.red_op]} root {item.root} {where}"
            yield w.operation(_CALLS[item.op], count, f"{buffer:#x}", f"{buffer + (1 << 24):#x}", rest)
        if first:
            yield from after
        if w.version < (2, 27) or fabric.has_proxy(world, comm, rank):
            counts[comm.key] = count + 1
