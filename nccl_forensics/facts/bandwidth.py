"""What nccl-tests numbers mean, and what a healthy platform reaches.

Factors are those of nccl-tests itself (doc/PERFORMANCE.md and src/*.cu): bus bandwidth = algorithm bandwidth x factor(n).
"""

from __future__ import annotations

from dataclasses import dataclass

#: Collectives whose factor is 2(n-1)/n, (n-1)/n and 1.
_TWICE = frozenset({"all_reduce"})
_ONCE = frozenset({"all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter"})
_PLAIN = frozenset({"broadcast", "reduce", "sendrecv", "hypercube"})

#: Largest sizes only: the average over all sizes says nothing about the links.
LARGE_BYTES = 256 << 20


def bus_factor(collective: str | None, ranks: int | None) -> float | None:
    """Bus bandwidth over algorithm bandwidth for ``ranks`` ranks; None where the collective is unknown."""
    if collective in _PLAIN:
        return 1.0
    if ranks is None or ranks < 1 or collective is None:
        return None
    if collective in _TWICE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _ONCE else None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Bus bandwidth in GB/s (10^9) that a healthy platform reaches in large AllReduces, and where the figure is from."""

    gpu: str
    ranks: int
    hosts: int
    bus_bw_gb_s: float
    source: str


_NHC = "pass limit of Azure node health checks (AzureNHC, nd*_v4/v5 configurations)"

#: Eight GPUs in one host. ``gpu`` is a part of the GPU's name in lower case; the first that fits counts.
CEILINGS: tuple[Ceiling, ...] = (
    Ceiling("h200", 8, 1, 431.0, _NHC),
    Ceiling("h100 80gb hbm3", 8, 1, 460.0, f"{_NHC}, with NVLS"),
    Ceiling("a100-sxm", 8, 1, 228.0, _NHC),
    Ceiling("mi300x", 8, 1, 314.0, f"{_NHC}, rccl"),
    Ceiling("v100-sxm2", 8, 1, 110.0, _NHC),
)

#: Parts of the names of GPUs that reach their NICs through a PCIe switch that both hang on: what several hosts carry is then what their NICs
#: carry. Cards in any slot may have to go through the processor, which is less by design.
_BESIDE_NICS = ("v100-sxm", "a100-sxm", "a800-sxm", "h100 80gb hbm3", "h800", "h200", "h20", "b200", "b300", "mi300x", "mi325x", "mi355x")

#: Share of the rate of the NICs that a large AllReduce over several hosts carries where all is well (NDR 340 to 390 of 400, HDR 170 to 195 of
#: 200, one 100 GbE 10 to 11.5 of 12.5 with RoCE).
OF_NICS = 0.85

#: GB/s that one NIC of 100 Gbit/s carries: the least that hosts of such boards are joined by.
ONE_NIC_GB_S = OF_NICS * 100 / 8


def beside_nics(gpus: list[str]) -> bool:
    """Whether all of these GPUs sit on boards on which each has a NIC behind the same PCIe switch."""
    return bool(gpus) and all(any(part in gpu.lower() for part in _BESIDE_NICS) and not _is_card(gpu) for gpu in gpus)


def _is_card(gpu: str) -> bool:
    """A PCIe card of a GPU that boards with NVSwitch bear too (H200 NVL)."""
    return gpu.lower().rstrip().endswith("nvl")


#: Host to device and device to device (copy engine) limits of nvbandwidth in GB/s, from the same health checks; the first part of a GPU's
#: name that fits counts. Those of other boards of the same GPU (PCIe cards) are not known.
_COPIES_GB_S: dict[str, tuple[float, float | None]] = {
    "h100 80gb hbm3": (48.0, 335.0),
    "h200": (48.0, 335.0),
    "a100-sxm": (21.0, 235.0),
    "v100-sxm": (9.0, None),
    "mi300x": (48.0, 44.0),
}
COPIES_FROM = "limit of Azure node health checks (AzureNHC) for nvbandwidth"
_COPIES = {
    "host_to_device_memcpy_ce": 0,
    "device_to_host_memcpy_ce": 0,
    "device_to_device_memcpy_read_ce": 1,
}


def copy_limit(gpu: str | None, test: str | None) -> float | None:
    """What each cell of a matrix of nvbandwidth reaches on this GPU, in GB/s; None where no source says so."""
    limits = next((known for part, known in _COPIES_GB_S.items() if gpu and part in gpu.lower() and not _is_card(gpu)), None)
    return limits[_COPIES[test]] if limits and test in _COPIES else None


def ceiling(gpus: list[str], ranks: int | None, hosts: int | None) -> Ceiling | None:
    """What a run on these GPUs should reach in AllReduce; None where no source says so (mixed GPUs, other counts)."""
    if len(gpus) != 1 or ranks is None or hosts is None or _is_card(gpus[0]):
        return None
    name = gpus[0].lower()
    return next((c for c in CEILINGS if c.gpu in name and c.ranks == ranks and c.hosts == hosts), None)
