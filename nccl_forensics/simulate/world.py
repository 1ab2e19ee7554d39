"""What the model leaves behind: the machines, the job, its processes and what each of them met. Writers print this and nothing else."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nccl_forensics.simulate.clusters import Gpu, Host, Nic, Platform
from nccl_forensics.simulate.engine import Entry, Model, RankState
from nccl_forensics.simulate.layout import Layout
from nccl_forensics.simulate.noise import mix, pick

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Torch:
    """A PyTorch release as its logs and dumps show it. ``wording`` is the wording of the watchdog: 4, 5 or 7 for 2.4, 2.5, 2.7 and
    later."""

    version: str
    schema: str
    wording: int
    timed: bool = True


#: NCCL release -> the PyTorch release that is usually built with it.
TORCH = {
    "2.18.5": Torch("2.2.2", "2.1", 4, timed=False),
    "2.21.5": Torch("2.5.1", "2.4", 5),
    "2.26.2": Torch("2.7.1", "2.7", 7),
    "2.26.6": Torch("2.8.0", "2.7", 7),
    "2.27.7": Torch("2.9.0", "2.9", 7),
    "2.30.7": Torch("2.13.0", "2.10", 7),
}


@dataclass(slots=True)
class Met:
    """Something that a process met and its logs tell: a kind and its facts."""

    at: int
    kind: str
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Ending:
    """How a process ended: ``exit`` with a code, ``signal`` with a number, or ``running``. ``by`` is "self" or "launcher"."""

    at: int
    how: str = "running"
    code: int = 0
    by: str = "self"


@dataclass(slots=True)
class Process:
    """One rank's process."""

    rank: int
    local_rank: int
    host: Host
    gpu: Gpu
    pid: int
    settings: dict[str, str]
    release: str
    ending: Ending
    met: list[Met] = field(default_factory=list)
    dumped_at: int | None = None
    started: bool = True
    #: Keys of the communicators that came to life; those that were at least begun are in ``opened``.
    ready: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    #: The first connections failed: nothing after them was printed.
    unconnected: bool = False


@dataclass(frozen=True, slots=True)
class BandwidthTest:
    """A run of nccl-tests on the job's hosts before it: bus bandwidth at large sizes, and elements that came out wrong by size."""

    bus_gb_s: float
    wrong: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class World:
    """The incident."""

    seed: int
    platform: Platform
    layout: Layout
    hosts: list[Host]
    processes: dict[int, Process]
    model: Model
    torch: Torch
    timeout_ms: int
    begin: int
    now: int
    job: int
    agents: dict[int, int]
    scheduler: list[Met] = field(default_factory=list)
    launcher_died: set[int] = field(default_factory=set)
    bandwidth_test: BandwidthTest | None = None

    def state(self, rank: int) -> RankState | None:
        """The rank in the model; None where its process never ran the program."""
        return self.model.ranks.get(rank)

    def entries(self, rank: int) -> deque[Entry]:
        """Operations in the recorder of a rank."""
        state = self.state(rank)
        return state.ring if state is not None else deque()

    def host_ranks(self, host: int) -> list[int]:
        """Ranks of a host."""
        size = self.platform.gpus
        return list(range(host * size, min((host + 1) * size, self.layout.world)))

    def pointer(self, rank: int, what: str, span: int = 0x7F00_0000_0000) -> int:
        """An address in a process."""
        return span + (mix(self.seed, "pointer", rank, what) & 0xFF_FFFF_F000)


def make_hosts(platform: Platform, world: int, seed: int, begin: int, release: str, settings: dict[str, str]) -> list[Host]:
    """The hosts of a job, all in order."""
    dice = pick(seed, "hosts")
    style = dice.choice(("node-{:02d}", "gpu{:03d}", "h{:04d}", "ip-10-8-{}-{}"))
    first = dice.randrange(1, 60)
    count = -(-world // platform.gpus)
    hosts = []
    for index in range(count):
        number = first + index
        name = style.format(number // 200, number % 200 + 10) if style.startswith("ip") else style.format(number)
        address = f"10.{8 + number // 60000}.{number // 200 % 256}.{number % 200 + 10}"
        boot = begin - int((3 + 40 * pick(seed, "boot", index).random()) * 86400) * SECOND
        gpus = [_gpu(platform, seed, index, i) for i in range(platform.gpus)]
        nics = [_nic(platform, seed, index, i) for i in range(platform.nics)]
        host = Host(index, name, address, platform, gpus, nics, boot, interface="eth0", settings=dict(settings), release=release)
        hosts.append(host)
    return hosts


def _gpu(platform: Platform, seed: int, host: int, index: int) -> Gpu:
    dice = pick(seed, "gpu", host, index)
    h = f"{dice.getrandbits(128):032x}"
    uuid = f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
    gpu = Gpu(index, uuid, platform.bus_ids[index], str(1650000000000 + dice.randrange(10**9)), pcie_gen=platform.pcie_gen)
    gpu.sm_mhz = platform.sm_mhz - dice.randrange(0, 45, 15)
    gpu.temperature = dice.randrange(48, 66)
    gpu.power_w = int(platform.power_w * (0.80 + 0.12 * dice.random()))
    gpu.used_mib = int(platform.memory_mib * (0.72 + 0.02 * dice.random()))
    return gpu


def _nic(platform: Platform, seed: int, host: int, index: int) -> Nic:
    dice = pick(seed, "nic", host, index)
    guid = f"{0x946DAE0300000000 + dice.getrandbits(28):016x}"
    bus = platform.nic_bus_ids[index] if index < len(platform.nic_bus_ids) else f"0000:{0x50 + index:02x}:00.0"
    device = f"rdmap{82 + index}s0" if platform.network == "efa" else f"mlx5_{index}"
    netdev = f"ib{index}" if platform.network == "ib" else f"ens{20 + index}np0"
    nic = Nic(index, device, netdev, bus, guid, 100 + host * 16 + index, platform.nic_gbit_s, platform.nic_speed, platform.nic_lanes)
    traffic = dice.randrange(4 * 10**14, 5 * 10**14)
    nic.before = dict.fromkeys(COUNTERS, 0) | {
        "port_xmit_data": traffic,
        "port_rcv_data": traffic + dice.randrange(10**11),
        "port_xmit_packets": traffic // 500,
        "port_rcv_packets": traffic // 500 + 911,
        "port_xmit_wait": dice.randrange(10**6, 4 * 10**6),
    }
    grown = dice.randrange(2 * 10**12, 3 * 10**12)
    nic.after = dict(nic.before)
    for name in ("port_xmit_data", "port_rcv_data"):
        nic.after[name] += grown
    for name in ("port_xmit_packets", "port_rcv_packets"):
        nic.after[name] += grown // 500
    nic.after["port_xmit_wait"] += dice.randrange(10**4, 3 * 10**4)
    return nic


#: Counters of /sys/class/infiniband/<device>/ports/1/counters.
COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
)
#: Counters of hw_counters of an mlx5 port.
HW_COUNTERS = (
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "resp_cqe_error",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_icrc_encapsulated",
)
