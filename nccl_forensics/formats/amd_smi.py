"""``amd-smi static --json`` and ``amd-smi metric --json``: one object per GPU, in a list or (from ROCm 6.4 on) under ``gpu_data``.

Values are numbers, or objects with ``value`` and ``unit``; what a card does not know is ``"N/A"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats._gpu_values import clean, number
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading
from nccl_forensics.tables import TABLES
from nccl_forensics.values import pci
from nccl_forensics.values.documents import items

#: Column, the path of keys in static or metric output, in order of preference.
_NUMBERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("temperature_c", ("temperature.hotspot", "temperature.edge")),
    ("temperature_memory_c", ("temperature.mem",)),
    ("utilization_percent", ("usage.gfx_activity",)),
    ("memory_utilization_percent", ("usage.umc_activity",)),
    ("power_w", ("power.socket_power", "power.current_socket_power", "power.average_socket_power")),
    ("power_limit_w", ("limit.socket_power", "limit.power_cap", "limit.max_power")),
    ("sm_clock_mhz", ("clock.gfx_0.clk", "clock.gfx.clk")),
    ("sm_clock_max_mhz", ("clock.gfx_0.max_clk", "clock.gfx.max_clk")),
    ("memory_clock_mhz", ("clock.mem_0.clk", "clock.mem.clk")),
    ("memory_clock_max_mhz", ("clock.mem_0.max_clk", "clock.mem.max_clk")),
    ("memory_total_mib", ("mem_usage.total_vram", "vram.size")),
    ("memory_used_mib", ("mem_usage.used_vram",)),
    ("dram_corrected", ("ecc.total_correctable_count", "ecc.total_correctable")),
    ("dram_uncorrected", ("ecc.total_uncorrectable_count", "ecc.total_uncorrectable")),
    ("pcie_width", ("pcie.width", "pcie.current_lanes")),
    ("pcie_width_max", ("bus.max_pcie_width", "bus.max_pcie_lanes")),
    ("pcie_replays", ("pcie.replay_count", "pcie.pcie_replay_count")),
)
_TEXTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("name", ("asic.market_name", "board.product_name")),
    ("serial", ("asic.asic_serial",)),
    ("uuid", ("uuid",)),
    ("vbios", ("vbios.version", "vbios.build_number")),
    ("driver_version", ("driver.version", "driver.driver_version")),
)
#: Rate of one PCIe lane in GT/s to its generation.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def _sniff(head: bytes) -> bool:
    return (
        head.lstrip()[:1] in (b"[", b"{")
        and b'"gpu"' in head
        and any(key in head for key in (b'"asic"', b'"usage"', b'"mem_usage"', b'"bdf"'))
    )


@of_json("unparsed")
def read(document: object) -> Reading:
    """One row of ``gpus`` per GPU."""
    under = "gpu_data" if isinstance(document, Mapping) else ""
    listed = document.get(under) if isinstance(document, Mapping) else document
    rows = [
        _row(gpu, f"{under}[{place}]")
        for place, gpu in enumerate(items(listed))
        if isinstance(gpu, Mapping) and isinstance(gpu.get("gpu"), int)
    ]
    if not rows:
        return Reading(gaps=(Gap("not a listing of amd-smi: no GPU"),))
    return Reading(frames={"gpus": TABLES["gpus"].frame(rows)}, records=len(rows))


def _row(gpu: Mapping[str, object], record: str) -> dict[str, object]:
    row: dict[str, object] = {
        "record": record,
        "tool": "amd-smi",
        "gpu_index": gpu["gpu"],
        "bus_id": pci.normal(clean(_text(gpu, ("bus.bdf",)))),
    }
    row |= {column: _amount(gpu, paths) for column, paths in _NUMBERS}
    row |= {column: clean(_text(gpu, paths)) for column, paths in _TEXTS}
    row["pcie_gen"] = _generation(_amount(gpu, ("pcie.speed", "pcie.current_speed")))
    row["pcie_gen_device_max"] = _generation(_amount(gpu, ("bus.max_pcie_speed",)))
    return row


def _find(gpu: Mapping[str, object], path: str) -> object:
    value: object = gpu
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(gpu: Mapping[str, object], paths: Sequence[str]) -> str | None:
    return next((str(value) for path in paths if (value := _find(gpu, path)) is not None and not isinstance(value, Mapping)), None)


def _amount(gpu: Mapping[str, object], paths: Sequence[str]) -> float | None:
    """The first of these that is a number; watts, MHz, MB and degrees are what amd-smi prints, so units are not converted."""
    for path in paths:
        value = _find(gpu, path)
        value = value.get("value") if isinstance(value, Mapping) else value
        amount = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else number(str(value))
        if amount is not None:
            return amount
    return None


def _generation(rate: float | None) -> int | None:
    return _GENERATIONS.get(rate) if rate is not None else None


FORMAT = DocumentFormat(
    name="amd-smi", title="amd-smi static and metric (JSON, --json)", tables=("gpus",), sniff=_sniff, read=read, priority=46
)
