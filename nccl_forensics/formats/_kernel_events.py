"""Which lines of a kernel log become rows of ``kernel_events``, and what each says there."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nccl_forensics.values import pci

#: What every row takes from its line.
KEEP = ("line_no", "end_line", "host", "time_raw_ns", "time_kind", "hint_rank", "hint_scope", "hint_host", "hint_pid")

_IGNORED_PEERMEM = "follows the end of a process that had registered GPU memory; says nothing about why it ended"
_IGNORED_ACCESS_REG = "the driver's counter reads are refused on restricted functions; the port works"
_IGNORED_SAMPLING = "the kernel lowers its own sampling rate; harmless"


@dataclass(frozen=True, slots=True)
class Event:
    """How one line kind becomes a row of ``kernel_events``; a string is a constant."""

    line: str
    kind: pl.Expr | str
    severity: pl.Expr | str
    device: pl.Expr | None = None
    ifname: pl.Expr | None = None
    state: pl.Expr | str | None = None
    task: str | None = None
    detail: pl.Expr | str | None = None
    value: str | None = None

    def rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of the table, with ``row`` for their order."""
        values: dict[str, pl.Expr | str | None] = {
            "kind": self.kind,
            "severity": self.severity,
            "device": self.device,
            "ifname": self.ifname,
            "state": self.state,
            "pid": pl.col("pid").cast(pl.Int64, strict=False) if self.task and "pid" in rows.columns else None,
            "comm": pl.col(self.task) if self.task else None,
            "detail": self.detail,
            "value": pl.col(self.value).cast(pl.Float64, strict=False) if self.value else None,
            "message": pl.col("said"),
        }
        told = [
            (v if isinstance(v, pl.Expr) else pl.lit(v, dtype=pl.String())).alias(f"new_{n}") for n, v in values.items() if v is not None
        ]
        built = rows.select("row", *KEEP, *told)
        return built.rename({c: c.removeprefix("new_") for c in built.columns})


def _either(condition: pl.Expr, yes: str, no: str) -> pl.Expr:
    return pl.when(condition).then(pl.lit(yes)).otherwise(pl.lit(no))


_DEVICE, _BUS, _PORT = (pci.normal_expr(pl.col(c)) for c in ("device", "bus", "port"))
_WORD = pl.col("severity").str.to_lowercase()
_FATAL = _WORD.str.contains("fatal", literal=True) & ~_WORD.str.contains("non-fatal", literal=True)
_CORRECTED = _WORD.str.starts_with("correct")
_PCIE_STATE = pl.when(_FATAL).then(pl.lit("fatal")).otherwise(_either(_CORRECTED, "corrected", "nonfatal"))
_PCIE_SEVERITY = pl.when(_FATAL).then(pl.lit("fatal")).otherwise(_either(_CORRECTED, "info", "suspect"))
_ACCESS_REG = pl.col("operation").str.starts_with("ACCESS_REG")
_NFS_OK = pl.col("nfs_state") == "OK"
_AMD_BAD = pl.col("amd_text").str.contains(
    r"(?i)reset begin|timeout|page fault|uncorrectable|poison is consumed|bad pages \d+ reaches|\bring test failed|IB test failed on"
)
_STATE = pl.col("state").str.to_lowercase()

EVENTS: tuple[Event, ...] = (
    Event("gpu_at", "gpu-name", "info", device=_BUS, detail=pl.col("uuid")),
    Event("gpu_serial", "gpu-name", "info", detail=pl.col("serial")),
    Event("rm_init", "gpu-start-failed", "fatal", device=_BUS, detail=pl.col("detail")),
    Event("crash_dump", "gpu-crash-dump", "info"),
    Event("gsp_rate", "gpu-crash-dump", "info", device=_BUS),
    Event("inforom", "inforom", "suspect", device=_BUS),
    Event("api_mismatch", "api-mismatch", "suspect"),
    Event("driver_load", "driver-load", "info", detail=pl.col("version")),
    Event("boot", "boot", "info", detail=pl.col("release")),
    Event("peermem", "noise", "benign", detail=_IGNORED_PEERMEM),
    Event("page_allocation", "page-allocation", "suspect", task="comm_word", value="order"),
    Event("aer", "pcie-error", _PCIE_SEVERITY, device=_DEVICE, state=_PCIE_STATE),
    Event("aer_old", "pcie-error", _PCIE_SEVERITY, device=_PORT, state=_PCIE_STATE),
    Event("pcie_error", "pcie-error-layer", _PCIE_SEVERITY, device=_DEVICE, state=_PCIE_STATE, detail=pl.col("layer")),
    Event("pcie_status", "pcie-error-status", "info", device=_DEVICE, detail=pl.col("detail")),
    Event("pcie_bit", "pcie-error-bit", _either(pl.col("bit") == "SDES", "fatal", "info"), device=_DEVICE, detail=pl.col("bit")),
    Event("aer_recovery", "pcie-recovery", _either(pl.col("result") == "failed", "fatal", "info"), device=_PORT, state=pl.col("result")),
    Event("dpc", "pcie-down", "fatal", device=_PORT, detail=pl.col("detail")),
    Event(
        "hotplug",
        "pcie-down",
        _either(pl.col("state_text").str.contains("Down|not present"), "fatal", "info"),
        device=_PORT,
        detail=pl.col("state_text"),
    ),
    Event("pcie_limited", "pcie-limited", "degraded", device=_DEVICE, value="gb_s", detail=pl.col("detail")),
    Event("pcie_power", "pcie-power", "suspect", device=_DEVICE, value="watts"),
    Event("power_state", "pcie-down", "fatal", device=_DEVICE, detail=pl.col("detail")),
    Event("apei", "mce", "suspect"),
    Event("dmar", "iommu-fault", "suspect", device=pci.normal_expr(pl.col("detail").str.extract(r"device \[([0-9a-fA-F:.]+)\]"))),
    Event("amd_vi", "iommu-fault", "suspect", detail=pl.col("detail")),
    Event("mlx5_link", "nic-link", "suspect", device=_DEVICE, ifname=pl.col("ifname"), state=_STATE),
    Event(
        "mlx5_module",
        "nic-module",
        _either(pl.col("module_text").str.contains(r"\bplugged$"), "info", "suspect"),
        device=_DEVICE,
        detail=pl.col("module_text"),
    ),
    Event("mlx5_health", "nic-health", "fatal", device=_DEVICE, detail=pl.col("health")),
    Event(
        "mlx5_command",
        _either(_ACCESS_REG, "noise", "nic-health"),
        _either(_ACCESS_REG, "benign", "suspect"),
        device=_DEVICE,
        detail=pl.when(_ACCESS_REG).then(pl.lit(_IGNORED_ACCESS_REG)).otherwise("operation"),
    ),
    Event("mlx5_timeout", "nic-health", "fatal", device=_DEVICE, detail=pl.col("operation")),
    Event("mlx5_heat", "nic-heat", "suspect", device=_DEVICE),
    Event("mlx5_probe", "nic-start-failed", "suspect", device=_DEVICE, detail=pl.lit("error ") + pl.col("detail")),
    Event(
        "carrier",
        "carrier",
        "suspect",
        ifname=pl.col("ifname"),
        state=_either(pl.col("carrier").str.to_lowercase().str.starts_with("lost"), "down", "up"),
    ),
    Event("link_ready", "nic-link", "info", ifname=pl.col("ifname"), state=_either(pl.col("link_state") == "becomes ready", "up", "down")),
    Event("nic_link", "carrier", "suspect", device=_DEVICE, ifname=pl.col("ifname"), state=_STATE),
    Event("bond_old", "bond-down", "degraded", ifname=pl.col("ifname"), state=_STATE, detail=pl.col("bond")),
    Event("bond_none", "carrier", "suspect", ifname=pl.col("bond"), state="down"),
    Event("bond", "bond-down", "degraded", ifname=pl.col("ifname"), state=_STATE, detail=pl.col("bond")),
    Event("ena", "nic-reset", "suspect", device=_DEVICE, ifname=pl.col("ifname"), detail=pl.col("ena_text")),
    Event(
        "nfs",
        _either(_NFS_OK, "storage-ok", "storage-hang"),
        _either(_NFS_OK, "info", "degraded"),
        ifname=pl.col("server"),
        state=_either(_NFS_OK, "up", "down"),
    ),
    Event("lustre_error", "storage-hang", "suspect"),
    Event("lustre_lost", "storage-hang", "degraded", ifname=pl.col("server"), state="down"),
    Event("nvme", "disk-error", "suspect", ifname=pl.col("disk")),
    Event("filesystem", "disk-error", "suspect", detail=pl.col("filesystem")),
    Event("file_max", "limit", "suspect", value="limit", detail="open files of the host"),
    Event("syn_flood", "tcp", "suspect", ifname=pl.col("port_number"), detail="more connection attempts than the listener takes"),
    Event("conntrack", "tcp", "degraded", detail="connection tracking table full: packets are dropped"),
    Event("arp_overflow", "tcp", "degraded", detail="neighbour table full: hosts become unreachable"),
    Event("soft_lockup", "lockup", "fatal", state="soft", task="comm_task", value="stuck_s"),
    Event("hard_lockup", "lockup", "fatal", state="hard", detail=pl.col("cpu")),
    Event("rcu_stall", "lockup", "fatal", state="rcu", detail=pl.col("stall")),
    Event("hung_task", "hung-task", "suspect", task="comm_task", value="stuck_s", detail=pl.col("waits_in")),
    Event("mce", "mce", "suspect", detail=pl.col("detail")),
    Event("mce_logged", "mce", "info"),
    Event(
        "edac",
        "edac",
        _either(pl.col("error_class") == "UE", "fatal", "info"),
        state=pl.col("error_class"),
        value="count",
        detail=pl.col("detail"),
    ),
    Event("memory_failure", "memory-failure", "fatal", task="comm_task"),
    Event("cpu_throttle", "throttle", "suspect", detail=pl.col("cpu")),
    Event("panic", "panic", "fatal", detail=pl.col("message")),
    Event("kernel_bug", "oops", "fatal", detail=pl.col("bug_text")),
    Event("oops", "oops", "fatal", detail=pl.col("detail")),
    Event("segfault", "segfault", "suspect", task="comm_bracket", detail=pl.col("library")),
    Event("protection_fault", "segfault", "suspect", task="comm_bracket", detail=pl.col("library")),
    Event("amdgpu", "amdgpu", _either(_AMD_BAD, "fatal", "info"), device=_DEVICE, detail=pl.col("amd_text")),
    Event("suppressed", "lost-lines", "info", value="count"),
    Event("dropped", "lost-lines", "info", value="count"),
    Event("slow_interrupt", "noise", "benign", detail=_IGNORED_SAMPLING),
)
