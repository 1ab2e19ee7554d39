"""What nvidia-smi calls each fact: in ``-q`` text, in ``-q -x`` XML and in ``--query-gpu`` headers, across driver branches 450 to 595.

Text paths are section names and key joined by ``/``; XML paths are element names below ``<gpu>``. ``a + b`` adds two fields (where a
branch splits what another prints as one). Alternatives are tried in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FieldType = Literal["text", "number", "bool"]


@dataclass(frozen=True, slots=True)
class GpuField:
    """One column of ``gpus`` with its names."""

    column: str
    type: FieldType
    text: tuple[str, ...] = ()
    xml: tuple[str, ...] = ()
    csv: tuple[str, ...] = ()


def _ecc(column: str, scope: str, text: str, xml: str, csv: str, old: tuple[str, str, str] | None = None) -> GpuField:
    """ECC counters: Ampere names, the split of R550, and the names before Ampere."""
    low = scope.lower()
    texts = [f"ECC Errors/{scope}/{text}"]
    xmls = [f"ecc_errors/{low}/{xml}"]
    if text == "SRAM Uncorrectable":
        texts.append(f"ECC Errors/{scope}/SRAM Uncorrectable Parity + ECC Errors/{scope}/SRAM Uncorrectable SEC-DED")
        xmls.append(f"ecc_errors/{low}/sram_uncorrectable_parity + ecc_errors/{low}/sram_uncorrectable_secded")
    if old:
        texts.append(f"ECC Errors/{scope}/{old[0]}")
        xmls.append(f"ecc_errors/{low}/{old[1]}")
    return GpuField(
        column, "number", tuple(texts), tuple(xmls), (f"{csv}.{'sram' if 'SRAM' in text else 'dram'}", *((old[2],) if old else ()))
    )


FIELDS: tuple[GpuField, ...] = (
    GpuField("gpu_index", "number", (), (), ("index",)),
    GpuField("bus_id", "text", ("PCI/Bus Id",), ("pci/pci_bus_id",), ("pci.bus_id", "gpu_bus_id")),
    GpuField("uuid", "text", ("GPU UUID",), ("uuid",), ("uuid", "gpu_uuid")),
    GpuField("name", "text", ("Product Name",), ("product_name",), ("name", "gpu_name")),
    GpuField("serial", "text", ("Serial Number",), ("serial",), ("serial", "gpu_serial")),
    GpuField("architecture", "text", ("Product Architecture",), ("product_architecture",), ()),
    GpuField("driver_version", "text", (), (), ("driver_version",)),
    GpuField("vbios", "text", ("VBIOS Version",), ("vbios_version",), ("vbios_version",)),
    GpuField("gsp_firmware", "text", ("GSP Firmware Version",), ("gsp_firmware_version",), ()),
    GpuField(
        "module_id", "text", ("Module ID", "Platform Info/Module Id"), ("gpu_module_id", "platformInfo/module_id"), ("platform.module_id",)
    ),
    GpuField("persistence", "bool", ("Persistence Mode",), ("persistence_mode",), ("persistence_mode",)),
    GpuField("mig", "bool", ("MIG Mode/Current",), ("mig_mode/current_mig",), ("mig.mode.current",)),
    GpuField("compute_mode", "text", ("Compute Mode",), ("compute_mode",), ("compute_mode",)),
    GpuField("ecc", "bool", ("ECC Mode/Current", "Ecc Mode/Current"), ("ecc_mode/current_ecc",), ("ecc.mode.current",)),
    GpuField("ecc_pending", "bool", ("ECC Mode/Pending", "Ecc Mode/Pending"), ("ecc_mode/pending_ecc",), ("ecc.mode.pending",)),
    _ecc("sram_corrected", "Volatile", "SRAM Correctable", "sram_correctable", "ecc.errors.corrected.volatile"),
    _ecc("sram_uncorrected", "Volatile", "SRAM Uncorrectable", "sram_uncorrectable", "ecc.errors.uncorrected.volatile"),
    _ecc(
        "dram_corrected",
        "Volatile",
        "DRAM Correctable",
        "dram_correctable",
        "ecc.errors.corrected.volatile",
        ("Single Bit/Total", "single_bit/total", "ecc.errors.corrected.volatile.total"),
    ),
    _ecc(
        "dram_uncorrected",
        "Volatile",
        "DRAM Uncorrectable",
        "dram_uncorrectable",
        "ecc.errors.uncorrected.volatile",
        ("Double Bit/Total", "double_bit/total", "ecc.errors.uncorrected.volatile.total"),
    ),
    _ecc("sram_corrected_total", "Aggregate", "SRAM Correctable", "sram_correctable", "ecc.errors.corrected.aggregate"),
    _ecc("sram_uncorrected_total", "Aggregate", "SRAM Uncorrectable", "sram_uncorrectable", "ecc.errors.uncorrected.aggregate"),
    _ecc(
        "dram_corrected_total",
        "Aggregate",
        "DRAM Correctable",
        "dram_correctable",
        "ecc.errors.corrected.aggregate",
        ("Single Bit/Total", "single_bit/total", "ecc.errors.corrected.aggregate.total"),
    ),
    _ecc(
        "dram_uncorrected_total",
        "Aggregate",
        "DRAM Uncorrectable",
        "dram_uncorrectable",
        "ecc.errors.uncorrected.aggregate",
        ("Double Bit/Total", "double_bit/total", "ecc.errors.uncorrected.aggregate.total"),
    ),
    GpuField(
        "sram_threshold_exceeded",
        "bool",
        ("ECC Errors/Aggregate/SRAM Threshold Exceeded",),
        ("ecc_errors/aggregate/sram_threshold_exceeded",),
        ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",),
    ),
    GpuField(
        "retired_single_bit",
        "number",
        ("Retired Pages/Single Bit ECC",),
        ("retired_pages/multiple_single_bit_retirement/retired_count",),
        ("retired_pages.single_bit_ecc.count",),
    ),
    GpuField(
        "retired_double_bit",
        "number",
        ("Retired Pages/Double Bit ECC",),
        ("retired_pages/double_bit_retirement/retired_count",),
        ("retired_pages.double_bit.count",),
    ),
    GpuField(
        "retirement_pending",
        "bool",
        ("Retired Pages/Pending Page Blacklist", "Retired Pages/Pending"),
        ("retired_pages/pending_blacklist", "retired_pages/pending_retirement"),
        ("retired_pages.pending",),
    ),
    GpuField(
        "remapped_corrected",
        "number",
        ("Remapped Rows/Correctable Error",),
        ("remapped_rows/remapped_row_corr",),
        ("remapped_rows.correctable",),
    ),
    GpuField(
        "remapped_uncorrected",
        "number",
        ("Remapped Rows/Uncorrectable Error",),
        ("remapped_rows/remapped_row_unc",),
        ("remapped_rows.uncorrectable",),
    ),
    GpuField("remap_pending", "bool", ("Remapped Rows/Pending",), ("remapped_rows/remapped_row_pending",), ("remapped_rows.pending",)),
    GpuField(
        "remap_failed",
        "bool",
        ("Remapped Rows/Remapping Failure Occurred",),
        ("remapped_rows/remapped_row_failure",),
        ("remapped_rows.failure",),
    ),
    *(
        GpuField(
            f"banks_{word}",
            "number",
            (f"Remapped Rows/Bank Remap Availability Histogram/{word.title()}",),
            (f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{word}",),
            (f"remapped_rows.histogram.{word}",),
        )
        for word in ("max", "high", "partial", "low", "none")
    ),
    GpuField(
        "repair_pending",
        "bool",
        ("ECC Errors/Channel Repair Pending", "ECC Errors/TPC Repair Pending"),
        ("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending"),
        (),
    ),
    GpuField("unrepairable", "bool", ("ECC Errors/Unrepairable Memory",), ("ecc_errors/unrepairable_memory",), ()),
    GpuField("recovery_action", "text", ("GPU Recovery Action",), ("gpu_recovery_action",), ("gpu_recovery_action",)),
    GpuField(
        "reset_required",
        "bool",
        ("GPU Reset Status/Reset Required",),
        ("gpu_reset_status/reset_required",),
        ("reset_status.reset_required",),
    ),
    GpuField(
        "pcie_gen",
        "number",
        ("PCI/GPU Link Info/PCIe Generation/Current",),
        ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
        ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"),
    ),
    GpuField(
        "pcie_gen_max",
        "number",
        ("PCI/GPU Link Info/PCIe Generation/Max",),
        ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
        ("pcie.link.gen.max",),
    ),
    GpuField(
        "pcie_gen_device_max",
        "number",
        ("PCI/GPU Link Info/PCIe Generation/Device Max",),
        ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",),
        ("pcie.link.gen.gpumax",),
    ),
    GpuField(
        "pcie_gen_host_max",
        "number",
        ("PCI/GPU Link Info/PCIe Generation/Host Max",),
        ("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",),
        ("pcie.link.gen.hostmax",),
    ),
    GpuField(
        "pcie_width",
        "number",
        ("PCI/GPU Link Info/Link Width/Current",),
        ("pci/pci_gpu_link_info/link_widths/current_link_width",),
        ("pcie.link.width.current",),
    ),
    GpuField(
        "pcie_width_max",
        "number",
        ("PCI/GPU Link Info/Link Width/Max",),
        ("pci/pci_gpu_link_info/link_widths/max_link_width",),
        ("pcie.link.width.max",),
    ),
    GpuField("pcie_replays", "number", ("PCI/Replays Since Reset", "PCI/Replays since reset"), ("pci/replay_counter",), ()),
    *(
        GpuField(
            f"throttle_{column}_us",
            "number",
            (f"Clocks Event Reasons Counters/{text}", f"Clocks Throttle Reasons Counters/{text}"),
            (f"clocks_event_reasons_counters/clocks_event_reasons_counters_{xml}",),
            (f"clocks_event_reasons_counters.{csv}",),
        )
        for column, text, xml, csv in (
            ("sw_power", "SW Power Capping", "sw_power_cap", "sw_power_cap"),
            ("sw_thermal", "SW Thermal Slowdown", "sw_therm_slowdown", "sw_thermal_slowdown"),
            ("hw_thermal", "HW Thermal Slowdown", "hw_therm_slowdown", "hw_thermal_slowdown"),
            ("power_brake", "HW Power Braking", "hw_power_brake", "hw_power_brake_slowdown"),
        )
    ),
    GpuField("performance_state", "text", ("Performance State",), ("performance_state",), ("pstate",)),
    GpuField("temperature_c", "number", ("Temperature/GPU Current Temp",), ("temperature/gpu_temp",), ("temperature.gpu",)),
    GpuField(
        "temperature_margin_c", "number", ("Temperature/GPU T.Limit Temp",), ("temperature/gpu_temp_tlimit",), ("temperature.gpu.tlimit",)
    ),
    GpuField(
        "temperature_slowdown_c",
        "number",
        ("Temperature/GPU Slowdown Temp", "Temperature/GPU Slowdown T.Limit Temp"),
        ("temperature/gpu_temp_slow_threshold", "temperature/gpu_temp_slow_tlimit_threshold"),
        (),
    ),
    GpuField("temperature_memory_c", "number", ("Temperature/Memory Current Temp",), ("temperature/memory_temp",), ("temperature.memory",)),
    GpuField(
        "temperature_memory_max_c", "number", ("Temperature/Memory Max Operating Temp",), ("temperature/gpu_temp_max_mem_threshold",), ()
    ),
    GpuField(
        "power_w",
        "number",
        (
            "GPU Power Readings/Power Draw",
            "GPU Power Readings/Average Power Draw",
            "GPU Power Readings/Instantaneous Power Draw",
            "Power Readings/Power Draw",
        ),
        (
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
        ),
        ("power.draw", "power.draw.average", "power.draw.instant"),
    ),
    GpuField(
        "power_limit_w",
        "number",
        ("GPU Power Readings/Current Power Limit", "Power Readings/Enforced Power Limit", "Power Readings/Power Limit"),
        ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit", "power_readings/power_limit"),
        ("enforced.power.limit", "power.limit"),
    ),
    GpuField(
        "power_limit_default_w",
        "number",
        ("GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"),
        ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        ("power.default_limit",),
    ),
    GpuField("sm_clock_mhz", "number", ("Clocks/SM",), ("clocks/sm_clock",), ("clocks.current.sm", "clocks.sm")),
    GpuField("sm_clock_max_mhz", "number", ("Max Clocks/SM",), ("max_clocks/sm_clock",), ("clocks.max.sm",)),
    GpuField(
        "app_clock_mhz",
        "number",
        ("Applications Clocks/Graphics",),
        ("applications_clocks/graphics_clock",),
        ("clocks.applications.graphics",),
    ),
    GpuField("memory_clock_mhz", "number", ("Clocks/Memory",), ("clocks/mem_clock",), ("clocks.current.memory", "clocks.mem")),
    GpuField("memory_clock_max_mhz", "number", ("Max Clocks/Memory",), ("max_clocks/mem_clock",), ("clocks.max.memory", "clocks.max.mem")),
    GpuField("memory_used_mib", "number", ("FB Memory Usage/Used",), ("fb_memory_usage/used",), ("memory.used",)),
    GpuField("memory_total_mib", "number", ("FB Memory Usage/Total",), ("fb_memory_usage/total",), ("memory.total",)),
    GpuField("utilization_percent", "number", ("Utilization/GPU", "Utilization/Gpu"), ("utilization/gpu_util",), ("utilization.gpu",)),
    GpuField("memory_utilization_percent", "number", ("Utilization/Memory",), ("utilization/memory_util",), ("utilization.memory",)),
    GpuField("fabric_state", "text", ("Fabric/State",), ("fabric/state",), ("fabric.state",)),
    GpuField("fabric_status", "text", ("Fabric/Status",), ("fabric/status",), ("fabric.status",)),
    GpuField("fabric_clique", "text", ("Fabric/CliqueId", "Fabric/Clique ID"), ("fabric/cliqueId",), ("fabric.cliqueId",)),
    GpuField("fabric_cluster", "text", ("Fabric/ClusterUUID", "Fabric/Cluster UUID"), ("fabric/clusterUuid",), ("fabric.clusterUuid",)),
)

#: Last part of a clock event reason's name, lower-cased with blanks as underscores, to this project's word.
THROTTLE_NAMES: dict[str, str] = {
    "idle": "idle",
    "gpu_idle": "idle",
    "applications_clocks_setting": "app-clocks",
    "sw_power_cap": "sw-power-cap",
    "hw_slowdown": "hw-slowdown",
    "hw_thermal_slowdown": "hw-thermal",
    "hw_power_brake_slowdown": "power-brake",
    "sync_boost": "sync-boost",
    "sw_thermal_slowdown": "sw-thermal",
    "display_clock_setting": "display",
    "display_clocks_setting": "display",
}
#: Sections or prefixes under which the reasons stand: the old name up to R530, the new one from R535.
THROTTLE_SECTIONS: tuple[str, ...] = (
    "Clocks Event Reasons/",
    "Clocks Throttle Reasons/",
    "clocks_event_reasons/",
    "clocks_throttle_reasons/",
    "clocks_event_reasons.",
    "clocks_throttle_reasons.",
)
#: Values of the fabric's health items that mean nothing is wrong.
FABRIC_FINE = frozenset({"full", "false", "no", "none", "healthy", "not degraded", "ok", "success", "completed"})
