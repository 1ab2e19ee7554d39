"""RCCL's debug log of one process: NCCL's, with what AMD adds and leaves out, for the releases of ROCm 7.0 and 7.2.

Wording and order are those of two public logs at NCCL_DEBUG=INFO: RCCL 2.26.6 on two hosts over sockets, RCCL 2.27.7 on one host with
operations. What neither holds (InfiniBand between hosts) follows the NCCL release that RCCL was made from, with RCCL's endings.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_forensics.simulate import fabric
from nccl_forensics.simulate.fabric import Comm
from nccl_forensics.simulate.noise import mix, share
from nccl_forensics.simulate.world import World
from nccl_forensics.simulate.writers.nccl import Log, connections, network_choice, ring_lines, tree_text, written
from nccl_forensics.simulate.writers.nccl_lines import Options

#: Release -> (commit, HIP, ROCm, HIP's number of itself, ROCr, folder).
_BUILDS = {
    "2.26.6": ("f224e2c", "7.0.51831-a3e329ad8", "7.0.0.0-38-9428210", 70051831, "1.18", "/opt/rocm-7.0.0"),
    "2.27.7": ("0d2c4fd", "7.2.26015-fc0010cf6a", "7.2.0.0-43-fc0010cf6a", 70226015, "1.18", "/opt/rocm-7.2.0"),
}
_SOURCES = "/longer_pathname_so_that_rpms_can_support_packaging_the_debug_info_for_all_os_profiles/src/out/ubuntu-22.04/22.04/build/rccl/hipify/src/"
_KERNEL = "6.8.0-79-generic"


def log(world: World, rank: int, options: Options) -> Iterator[str]:
    """All lines of a rank's log."""
    return written(RcclLog(world, world.processes[rank], options))


class RcclLog(Log):
    """Lines of one process that loads RCCL."""

    sources = _SOURCES

    def opening(self) -> Iterator[str]:
        """The banner: kernel, HIP, ROCr and the release, which every process prints."""
        commit, hip, rocm, runtime, rocr, folder = _BUILDS[self.process.release]
        host = self.process.host
        if "NCCL_SOCKET_IFNAME" in self.process.settings:
            yield self.info(f"NCCL_SOCKET_IFNAME set by environment to {self.process.settings['NCCL_SOCKET_IFNAME']}")
        yield self.info(f"Bootstrap: Using {host.interface}:{host.address}<0>")
        yield self.info(f"ROCr version {rocr}")
        yield self.info("Dmabuf feature disabled without NCCL_DMABUF_ENABLE=1")
        if mix(self.world.seed, "balancing") % 3 == 0:
            advice = 'Disable by "sudo sysctl kernel.numa_balancing=0"'
            said = f"NUMA auto balancing enabled which can lead to variability in the RCCL performance! {advice}"
            yield self.warn(self.world.begin, "", said, place="init.cc:140")
        yield self.info(f"Kernel version: {_KERNEL}")
        if self.version >= (2, 27):
            yield self.info(f"Hipruntime version: {runtime}, firmware version: 166")
        yield self.info(f"RCCL version : {self.process.release}-HEAD:{commit}")
        yield f"HIP version  : {hip}\nROCm version : {rocm}\nHostname     : {self.name}\nLibrccl path : {folder}/lib/librccl.so.1\n"
        if self.version >= (2, 27):
            yield self.info("Comm config Blocking set to 1")
            yield self.info("NET/Plugin: Could not find: libnccl-net.so. ")
        else:
            yield self.info("NET/Plugin: Could not find: librccl-net.so. Using internal net plugin.")
        yield from network_choice(self)
        if self.version < (2, 27):
            yield self.info("PROFILER/Plugin: Could not find: librccl-profiler.so. ")

    def birth(self, comm: Comm, rank: int, number: int) -> Iterator[str]:
        """A communicator: RCCL connects it before it is complete, and says of rings and trees whose they are."""
        name = fabric.transport_name(self.process.host)
        if self.version >= (2, 27):
            if number == 0:
                yield self.info(f"Initialized NET plugin {name}")
            yield self.info(f"Assigned NET plugin {name} to comm")
        yield self.info(f"Using network {name}")
        if number == 0:
            yield from self._devices()
        said = self._named(comm, rank)
        yield self.info(f"ncclCommInitRankConfig_impl {said} - Init START")
        if number == 0:
            yield self.info("RAS client listening socket at 127.0.0.1<28028>")
        if comm.key not in self.process.ready:
            return
        dice = share(self.world.seed, "boot", rank, comm.key)
        boot = 0.03 + 0.2 * dice + len(comm.members) * 2e-5
        if self.version < (2, 27):
            yield self.info(
                f"Bootstrap timings total {boot:.6f} (create {0.00003 + dice / 1e5:.6f}, send {0.0001 + dice / 1e4:.6f}, "
                f"recv {boot * 0.4:.6f}, ring {boot * 0.5:.6f}, delay 0.000001)"
            )
        yield self.info("initialized internal alternative rsmi functionality")
        for key in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
            if key in self.process.settings and number == 0:
                yield self.info(f"{key} set by environment to {self.process.settings[key]}")
        yield from self._shape(comm, rank, number)
        yield from connections(self, comm, rank)
        if self.process.unconnected:
            return
        yield from self._complete(comm, rank, number, said, boot)

    def device(self, rank: int, *, near: bool) -> str:
        """The bus inside a host, the number over the network."""
        return self._bus(rank) if near else super().device(rank, near=near)

    def connection(self, comm: Comm) -> str:
        """RCCL adds the communicator."""
        return f" comm {self.world.pointer(self.process.rank, comm.key):#x} nRanks {len(comm.members):02d}"

    def operation(self, call: str, count: int, send: str, receive: str, rest: str) -> str:
        """With a buffer to accumulate in from 2.27 on, the task and the rank in the job."""
        more = " acc (nil)" if self.version >= (2, 27) else ""
        tail = f"task 0 globalrank {self.process.rank}"
        return self.info(f"{call}: opCount {count:x} sendbuff {send} recvbuff {receive}{more} {rest} {tail}")

    def _bus(self, rank: int) -> str:
        return self.world.processes[rank].gpu.bus_id.replace(":", "").replace(".", "").lstrip("0")

    def _named(self, comm: Comm, rank: int) -> str:
        return (
            f"comm {self.world.pointer(rank, comm.key):#x} rank {comm.members.index(rank)} nranks {len(comm.members)} cudaDev {self.local} "
            f"nvmlDev {self.process.gpu.index} busId {self._bus(rank)} commId {fabric.unique_id(self.world, comm):#x}"
        )

    def _devices(self) -> Iterator[str]:
        """What the kernel's driver tells of the GPUs, the last first."""
        for gpu in reversed(self.process.host.gpus):
            unique = mix(self.world.seed, "unique", gpu.uuid)
            place = int(self._bus_of(gpu.bus_id), 16) >> 4
            yield self.info(
                f"[node_id = {gpu.index + 2}; gpu_id = {unique % 60000 + 2000}; unique_id = {unique}; location_id = {place}; bdf = {place}; "
                "domain = 0; partition = 0], "
            )
        yield self.info("initialized internal alternative rsmi functionality")

    @staticmethod
    def _bus_of(bus_id: str) -> str:
        return bus_id.replace(":", "").replace(".", "")

    def _shape(self, comm: Comm, rank: int, number: int) -> Iterator[str]:
        """Rings, trees and counts of channels."""
        world, process = self.world, self.process
        place = comm.members.index(rank)
        where, total = fabric.part_of(world, comm, rank), fabric.parts(world, comm)
        mask = "0-47,96-143" if process.gpu.index < process.host.platform.gpus // 2 else "48-95,144-191"
        words = mask if self.version >= (2, 27) else "ffff,ffffffff,00000000,0000ffff,ffffffff"
        yield self.info(f"Setting affinity for GPU {process.gpu.index} to {words}")
        if self.version >= (2, 27):
            yield self.info("GFX9 cheap fence is ON")
        owner = f"comm {world.pointer(rank, comm.key):#x} "
        yield self.info(
            f"{owner}rank {place} nRanks {len(comm.members)} nNodes {total} localRanks {len(where.places)} "
            f"localRank {where.places.index(place)} MNNVL 0"
        )
        yield from ring_lines(self, comm, rank, number)
        yield self.info(f"{tree_text(self, comm, rank)} {owner}nRanks {len(comm.members):02d} busId {self._bus(rank)}")
        yield self.info("P2P Chunksize set to 131072")
        if self.version >= (2, 27):
            yield self.info("PROFILER/Plugin: Could not find: librccl-profiler.so. ")
        if place == 0:
            all_direct = int(total == 1 and fabric.direct(process.host))
            yield self.info(
                f"Check P2P Type {'isAllDirectP2p' if self.version >= (2, 27) else 'intraNodeP2pSupport'} {all_direct} directMode 0"
            )
        yield self.info(f"[Proxy Service] Device {self.local} CPU core {number * 3 + self.local}", 40 + 2 * number)
        yield self.info(f"[Proxy Service UDS] Device {self.local} CPU core {number * 5 + self.local}", 41 + 2 * number)

    def _complete(self, comm: Comm, rank: int, number: int, said: str, boot: float) -> Iterator[str]:
        world = self.world
        total, count = fabric.parts(world, comm), fabric.channels(world, comm)
        place, size = comm.members.index(rank), len(comm.members)
        per_peer = 2 if total > 1 else count
        yield self.info(f"threadThresholds 8/8/64 | {8 * size}/8/64 | 256 | 256")
        if self.version >= (2, 27):
            yield self.info(
                f"comm:{world.pointer(rank, comm.key):#x}, nRanks:{size}, nNodes:{total}, coll channels:{count} collnet channels:{count}, "
                f"nvls channels:0, p2p channels:{count}, p2p channels per peer:{per_peer}"
            )
        else:
            yield self.info(
                f"{count} coll channels, {count} collnet channels, 0 nvls channels, {count} p2p channels, {per_peer} p2p channels per peer"
            )
        if place == 0:
            yield self.info("CC Off, workFifoBytes 4194304")
        if number == 0:
            yield self.info("RCCL Unroll Factor (pre-set): 2")
            tuner = "libnccl-tuner.so" if self.version >= (2, 27) else "librccl-tuner.so"
            yield self.info(f"TUNER/Plugin: Could not find: {tuner}. Using internal tuner plugin.")
        yield self.info(f"ncclCommInitRankConfig_impl {said} - Init COMPLETE")
        kernels = 2.8 + boot if number == 0 else 0.02
        yield self.info(
            f"Init timings - ncclCommInitRankConfig_impl: rank {place} nranks {size} total {boot + kernels + 0.35:.2f} (kernels {kernels:.2f}, "
            f"alloc 0.07, bootstrap {boot:.2f}, allgathers 0.00, topo 0.14, graphs 0.02, connections 0.11, rest 0.01)"
        )
