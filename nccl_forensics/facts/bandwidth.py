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

#: NVLink bandwidth of one GPU in one direction, GB/s: number of links x rate of a link (NVIDIA data sheets).
NVLINK_GB_S: dict[str, float] = {
    "v100-sxm": 150.0,
    "a100-sxm": 300.0,
    "h100 80gb hbm3": 450.0,
    "h200": 450.0,
    "b200": 900.0,
    "gb200": 900.0,
    "b300": 900.0,
}

#: Host to device and device to device (copy engine) limits of nvbandwidth in GB/s, from the same health checks.
NVBANDWIDTH_GB_S: dict[str, tuple[float, float | None]] = {
    "h100": (48.0, 335.0),
    "h200": (48.0, 335.0),
    "a100": (21.0, 235.0),
    "v100": (9.0, None),
    "mi300x": (48.0, 44.0),
}


def ceiling(gpus: list[str], ranks: int | None, hosts: int | None) -> Ceiling | None:
    """What a run on these GPUs should reach in AllReduce; None where no source says so (mixed GPUs, other counts)."""
    if len(gpus) != 1 or ranks is None or hosts is None:
        return None
    name = gpus[0].lower()
    return next((c for c in CEILINGS if c.gpu in name and c.ranks == ranks and c.hosts == hosts), None)
