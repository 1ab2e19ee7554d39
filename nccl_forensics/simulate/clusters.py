"""Machines: what stands in a host of each platform and how its GPUs and adapters are joined.

Figures are those of the vendors' data sheets; PCI addresses are those of one public machine of each kind (or of its board's manual).
Rates are per direction: NVLinks in GB/s as ``nvidia-smi nvlink -s`` prints them, adapters in Gbit/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Platform:
    """One kind of host. ``bus_ids`` are full PCI addresses of the GPUs, ``nic_bus_ids`` those of the adapters."""

    name: str
    title: str
    product: str
    architecture: str
    gpus: int
    memory_mib: int
    sm_mhz: int
    power_w: int
    bus_ids: tuple[str, ...]
    nvlinks: int = 0
    nvlink_gb_s: float = 0.0
    nvswitch: bool = False
    multicast: bool = False
    pcie_gen: int = 5
    network: str = "ib"
    nics: int = 8
    nic_gbit_s: int = 400
    nic_speed: str = "NDR"
    nic_lanes: int = 4
    nic_type: str = "MT4129"
    nic_bus_ids: tuple[str, ...] = ()
    channels_inside: int = 24
    channels_between: int = 16
    driver: str = "550.127.08"
    cuda_driver: int = 12040
    releases: tuple[str, ...] = ("2.21.5", "2.26.2", "2.27.7", "2.30.7")
    vendor: str = "nvidia"

    @property
    def library(self) -> str:
        """The communication library of the vendor."""
        return "rccl" if self.vendor == "amd" else "nccl"

    def nic_of(self, gpu: int) -> int:
        """The adapter nearest to a GPU."""
        return gpu * self.nics // self.gpus


def _buses(numbers: str, domain: str = "0000", device: str = "00") -> tuple[str, ...]:
    return tuple(f"{domain}:{n}:{device}.0" for n in numbers.split())


_H100 = _buses("0f 2d 44 5b 89 a8 c0 d8")
_H100_NICS = _buses("0c 2a 41 58 86 a5 bd d5")
_A100 = _buses("07 0f 47 4e 87 90 b7 bd")
_A100_NICS = _buses("0c 12 4b 54 8d 94 ba cc")

PLATFORMS: dict[str, Platform] = {
    p.name: p
    for p in (
        Platform(
            "v100", "DGX-1, 8 V100, EDR", "Tesla V100-SXM2-32GB", "Volta", 8, 32768, 1530, 300,
            _buses("06 07 0a 0b 85 86 89 8a"), 6, 25.781, pcie_gen=3, nics=4, nic_gbit_s=100, nic_speed="EDR", nic_type="MT4115",
            nic_bus_ids=_buses("05 0c 84 8b"), channels_inside=12, channels_between=4, driver="535.183.01", cuda_driver=12020,
            releases=("2.21.5", "2.26.2"),
        ),
        Platform(
            "a100", "DGX A100, HDR", "NVIDIA A100-SXM4-80GB", "Ampere", 8, 81920, 1410, 400,
            _A100, 12, 25.0, nvswitch=True, pcie_gen=4, nic_gbit_s=200, nic_speed="HDR", nic_type="MT4123",
            nic_bus_ids=_A100_NICS, channels_inside=24, channels_between=16, releases=("2.21.5", "2.26.2", "2.27.7"),
        ),
        Platform(
            "h100", "HGX H100, NDR", "NVIDIA H100 80GB HBM3", "Hopper", 8, 81559, 1980, 700,
            _H100, 18, 26.562, nvswitch=True, multicast=True, nic_bus_ids=_H100_NICS,
        ),
        Platform(
            "h100-roce", "HGX H100, RoCE", "NVIDIA H100 80GB HBM3", "Hopper", 8, 81559, 1980, 700,
            _H100, 18, 26.562, nvswitch=True, multicast=True, network="roce", nic_speed="NDR", nic_bus_ids=_H100_NICS,
        ),
        Platform(
            "h100-efa", "H100 cloud instance, EFA", "NVIDIA H100 80GB HBM3", "Hopper", 8, 81559, 1980, 700,
            _buses("53 64 75 86 97 a8 b9 ca"), 18, 26.562, nvswitch=True, multicast=True, network="efa", nics=32, nic_gbit_s=100,
            nic_type="EFA", channels_between=16, releases=("2.21.5", "2.26.2", "2.27.7"),
        ),
        Platform(
            "h200", "HGX H200, NDR", "NVIDIA H200", "Hopper", 8, 143771, 1980, 700,
            _H100, 18, 26.562, nvswitch=True, multicast=True, nic_bus_ids=_H100_NICS, driver="570.124.06", cuda_driver=12080,
        ),
        Platform(
            "b200", "HGX B200, NDR", "NVIDIA B200", "Blackwell", 8, 183359, 1965, 1000,
            _buses("1b 43 52 61 9d c3 d1 df"), 18, 53.125, nvswitch=True, multicast=True,
            nic_bus_ids=_buses("18 40 4f 5e 9a c0 ce dc"), driver="570.158.01", cuda_driver=12080, channels_inside=32,
            channels_between=32, releases=("2.26.2", "2.27.7", "2.30.7"),
        ),
        Platform(
            "pcie", "PCIe box, 8 L40S, RoCE", "NVIDIA L40S", "Ada Lovelace", 8, 46068, 2520, 350,
            _buses("01 24 41 61 81 a1 c1 e1"), pcie_gen=4, network="roce", nics=2, nic_gbit_s=200, nic_speed="HDR", nic_type="MT4123",
            nic_bus_ids=_buses("21 a4"), channels_inside=4, channels_between=4,
        ),
        Platform(
            "mi300x", "MI300X, NDR", "AMD Instinct MI300X", "CDNA3", 8, 196592, 2100, 750,
            _buses("05 26 46 65 85 a6 c6 e5"), nic_bus_ids=_buses("08 29 49 68 88 a9 c9 e8"), channels_inside=56, channels_between=64,
            driver="6.12.12", releases=("2.26.6", "2.27.7"), vendor="amd",
        ),
        Platform(
            "tcp", "A100 hosts on Ethernet", "NVIDIA A100-SXM4-80GB", "Ampere", 8, 81920, 1410, 400,
            _A100, 12, 25.0, nvswitch=True, pcie_gen=4, network="tcp", nics=0, channels_inside=24, channels_between=16,
        ),
    )
}  # fmt: skip


@dataclass(slots=True)
class Gpu:
    """State of one GPU: what nvidia-smi would show."""

    index: int
    uuid: str
    bus_id: str
    serial: str
    lost: bool = False
    uncorrected: int = 0
    corrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    dead_links: frozenset[int] = frozenset()
    link_errors: dict[int, int] = field(default_factory=dict)
    pcie_gen: int = 5
    pcie_width: int = 16
    pcie_replays: int = 0
    sm_mhz: int = 0
    throttle: frozenset[str] = frozenset()
    temperature: int = 54
    used_mib: int = 61000
    utilization: int = 98
    power_w: int = 610
    recovery: str = "None"


@dataclass(slots=True)
class Nic:
    """State of one adapter port, with its counters at the start of the job and when the evidence was gathered."""

    index: int
    device: str
    netdev: str
    bus_id: str
    guid: str
    lid: int
    gbit_s: int
    speed: str
    lanes: int
    up: bool = True
    mtu: int = 4096
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Host:
    """One host: names, addresses, devices, limits, and what befell it. Times are ns since 1970."""

    index: int
    name: str
    address: str
    platform: Platform
    gpus: list[Gpu]
    nics: list[Nic]
    boot_ns: int
    interface: str = "eth0"
    mtu: int = 9000
    peer_memory: bool = True
    direct_peers: bool = True
    shm_bytes: int = 1 << 40
    memlock_kib: int | None = None
    settings: dict[str, str] = field(default_factory=dict)
    release: str = ""
    events: list[tuple[int, str, dict[str, object]]] = field(default_factory=list)
    alive: bool = True
