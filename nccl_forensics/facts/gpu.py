"""What a healthy GPU looks like: NVLink counts and rates, clock event reasons, thresholds of memory health.

Sources are noted at each figure. Link rates are per direction, as ``nvidia-smi nvlink -s`` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NvlinkModel:
    """NVLinks of one product: words that its name holds, and their number."""

    words: tuple[str, ...]
    links: int


#: Longest match first. Counts: NVIDIA data sheets. Boards with optional bridges
#: (PCIe A100, H100, A40, A6000) are left out on purpose: there the neighbours tell, not the model.
NVLINK_MODELS: tuple[NvlinkModel, ...] = (
    NvlinkModel(("H100 NVL",), 12),
    NvlinkModel(("A800", "SXM"), 8),
    NvlinkModel(("H800", "SXM"), 8),
    NvlinkModel(("V100", "SXM"), 6),
    NvlinkModel(("A100", "SXM"), 12),
    NvlinkModel(("H100", "HBM3"), 18),
    NvlinkModel(("H100", "SXM"), 18),
    NvlinkModel(("H200",), 18),
    NvlinkModel(("H20",), 18),
    NvlinkModel(("GH200",), 18),
    NvlinkModel(("GB200",), 18),
    NvlinkModel(("GB300",), 18),
    NvlinkModel(("B200",), 18),
    NvlinkModel(("B300",), 18),
)
_NOT_SXM = ("PCIE", "NVL", "MIG")


def nvlink_model(name: str | None) -> NvlinkModel | None:
    """The product's NVLinks, or None where its name does not settle them."""
    if not name:
        return None
    upper = name.upper()
    for model in NVLINK_MODELS:
        words = upper.replace("-", " ").split()
        if all(any(w == part or w.startswith(part) for w in words) if " " not in part else part in upper for part in model.words):
            exact = model.words[0] != "H20" or "H20" in words
            if exact and (model.words == ("H100 NVL",) or not any(bad in upper for bad in _NOT_SXM)):
                return model
    return None


#: Bits of clocks_event_reasons.active (NVML header) to this project's words.
THROTTLE_BITS: dict[int, str] = {
    0x1: "idle",
    0x2: "app-clocks",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "power-brake",
    0x100: "display",
}
#: Reasons that cost speed for a cause outside the program, with what they mean. A power cap under load is normal in training.
HARMFUL_THROTTLE: dict[str, str] = {
    "hw-thermal": "too hot: the hardware halves its clocks",
    "power-brake": "an external power brake: power supply or rack",
    "sw-thermal": "too hot: the driver lowers the clocks",
    "hw-slowdown": "the hardware holds the clocks down",
}

#: Pages retired before a board counts as worn out (NVIDIA's dynamic page retirement guide).
RETIRED_PAGES_LIMIT = 60
#: Corrected errors above which Azure's node health checks call a GPU unhealthy (values in its public configuration).
CORRECTED_DRAM_LIMIT = 20_000_000
CORRECTED_SRAM_LIMIT = 10_000
