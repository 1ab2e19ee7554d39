"""What each Xid of the NVIDIA driver means, and what NVIDIA says to do.

Source: NVIDIA's documents "Xid Errors" and "Analyzing Xid Errors with the Xid Catalog" (R610 edition, 172 codes): codes, mnemonics and the
two resolution buckets are theirs; meaning, kind and severity are this project's reading. Numbers below Ampere mean the same except that
63 and 64 are page retirement there. Widespread lists are wrong about some: 43 is a software fault (not NVLink), 79 is a GPU that fell off
the bus (not a hang), 94 is a *contained* memory error (nothing to do with containers), 137 is an illegal peer access of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nccl_forensics.model import Severity

XidKind = Literal["bus", "firmware", "memory", "link", "driver", "engine", "app", "consequence", "summary", "config", "benign"]


@dataclass(frozen=True, slots=True)
class Xid:
    """One code. ``action`` is a word of the contract; ``immediate`` and ``investigate`` are NVIDIA's buckets."""

    code: int
    mnemonic: str
    meaning: str
    kind: XidKind
    severity: Severity
    action: str
    immediate: str
    investigate: str


_ALL: tuple[Xid, ...] = (
    Xid(
        8,
        "RC_FIFO_ERROR_IDLE_TIMEOUT",
        "channel idle/FIFO timeout: GPU stopped processing",
        "firmware",
        "critical",
        "restart_job",
        "RESTART_APP",
        "CONTACT_SUPPORT",
    ),
    Xid(
        11,
        "RC_GR_ERROR_MISSING_HW",
        "bad push buffer: commands sent to the GPU were invalid or corrupted",
        "app",
        "critical",
        "fix_application",
        "RESTART_APP",
        "CHECK_APP/CUDA",
    ),
    Xid(
        13,
        "RC_GR_EXCEPTION/RC_GR_ERROR_SW_NOTIFY",
        "shader/graphics engine exception: out-of-range address, illegal instruction, misaligned access. Message names GPC/TPC/SM",
        "app",
        "critical",
        "fix_application",
        "RESTART_APP",
        "WORKFLOW_XID_13",
    ),
    Xid(14, "RC_FAKE_ERROR", "fake error used for testing", "benign", "info", "none", "IGNORE", "CONTACT_SUPPORT"),
    Xid(25, "RC_GR_ILLEGAL_NOTIFY", "illegal push buffer stream", "app", "critical", "fix_application", "RESTART_APP", "CHECK_APP/CUDA"),
    Xid(
        31,
        "RC_FIFO_ERROR_MMU_ERR_FLT",
        "MMU page fault: illegal GPU virtual address",
        "app",
        "critical",
        "fix_application",
        "RESTART_APP",
        "WORKFLOW_XID_31",
    ),
    Xid(
        32,
        "RC_PBDMA_ERROR",
        "PBDMA: corrupted push buffer on the way to the GPU (PCIe quality or driver)",
        "driver",
        "critical",
        "restart_job",
        "RESTART_APP",
        "CHECK_APP/CUDA",
    ),
    Xid(
        37,
        "RC_FECS_ERR_UNIMP_FIRMWARE_METHOD",
        "FECS firmware method not implemented",
        "benign",
        "info",
        "none",
        "IGNORE",
        "CHECK_APP/CUDA",
    ),
    Xid(38, "RC_FECS_ERR_WATCHDOG_TIMEOUT", "FECS firmware watchdog", "driver", "warning", "none", "IGNORE", "CONTACT_SUPPORT"),
    Xid(39, "RC_CE0_ERROR", "copy engine 0 exception", "app", "critical", "fix_application", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(40, "RC_CE1_ERROR", "copy engine 1 exception", "app", "critical", "fix_application", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(41, "RC_CE2_ERROR", "copy engine 2 exception", "app", "critical", "fix_application", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(
        43,
        "RC_RESETCHANNEL_VERIF_ERROR",
        "the channel was reset because of a software-induced fault; the app is ended, the GPU stays healthy",
        "consequence",
        "info",
        "none",
        "IGNORE",
        "CONTACT_SUPPORT",
    ),
    Xid(
        44,
        "RC_GR_FAULT_DURING_CTXSW",
        "graphics engine fault during context switch",
        "driver",
        "warning",
        "none",
        "IGNORE",
        "CONTACT_SUPPORT",
    ),
    Xid(
        45,
        "RC_PREEMPTIVE_REMOVAL",
        "preemptive channel removal: cleanup when a process dies (signal, Ctrl-C, GPU reset) or after another Xid",
        "consequence",
        "info",
        "none",
        "WORKFLOW_XID_45",
        "Solo: RESTART_FM / Not Solo: IGNORE (follow other Xid)",
    ),
    Xid(
        46, "RC_GPU_TIMEOUT_ERROR", "GPU stopped processing (timeout)", "firmware", "critical", "reset_gpu", "RESET_GPU", "CONTACT_SUPPORT"
    ),
    Xid(
        48,
        "RC_GPU_ECC_DBE",
        "double-bit (uncorrectable) ECC error",
        "memory",
        "critical",
        "drain_and_reset",
        "WORKFLOW_XID_48",
        "WORKFLOW_XID_48",
    ),
    Xid(
        54,
        "SILENT_RUNNING_PWR_REDUCED_CLOCKING",
        "auxiliary power not connected",
        "bus",
        "error",
        "check_power_or_cooling",
        "CHECK_MECHANICALS",
        "CONTACT_SUPPORT",
    ),
    Xid(60, "RC_SEC2_ERROR", "SEC2 / video processor exception", "driver", "critical", "restart_job", "RESTART_APP", "INVESTIGATE_SW"),
    Xid(62, "PMU_HALT_ERROR", "internal microcontroller (PMU) halt", "firmware", "critical", "reset_gpu", "RESET_GPU", "CONTACT_SUPPORT"),
    Xid(
        63,
        "INFOROM_DRAM_RETIREMENT_EVENT",
        "memory row remap (Ampere+) or page retirement (older) recorded for later",
        "memory",
        "warning",
        "drain_and_reset",
        "IGNORE",
        "IGNORE",
    ),
    Xid(
        64,
        "INFOROM_DRAM_RETIREMENT_FAILURE",
        "row remap / page retirement could not be recorded or no spare rows",
        "memory",
        "critical",
        "replace_hw",
        "RESET_GPU",
        "CONTACT_SUPPORT",
    ),
    Xid(
        66, "RC_FECS_ERR_REG_ACCESS_VIOLATION", "illegal register access by driver", "driver", "warning", "none", "IGNORE", "INVESTIGATE_SW"
    ),
    Xid(
        67,
        "RC_FECS_ERR_VERIF_VIOLATION",
        "illegal access by driver (verification)",
        "driver",
        "warning",
        "none",
        "IGNORE",
        "CONTACT_SUPPORT",
    ),
    Xid(68, "RC_NVDEC0_ERROR", "NVDEC0 exception", "app", "critical", "fix_application", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(69, "RC_GR_CLASS_ERROR", "graphics engine class error", "app", "critical", "fix_application", "RESTART_APP", "CHECK_APP/CUDA"),
    Xid(70, "RC_CE3_ERROR", "CE3 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(71, "RC_CE4_ERROR", "CE4 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(72, "RC_CE5_ERROR", "CE5 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(
        74,
        "NVLINK_ERROR",
        "NVLink error on a link (both ends may log it; the far GPU or NVSwitch can be the real culprit). R≤Hopper",
        "link",
        "error",
        "reset_gpu",
        "WORKFLOW_NVLINK_ERR",
        "CONTACT_SUPPORT",
    ),
    Xid(75, "RC_CE6_ERROR", "CE6 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(76, "RC_CE7_ERROR", "CE7 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(77, "RC_CE8_ERROR", "CE8 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(78, "VGPU_START_ERROR", "vGPU start error", "config", "info", "update_sw_fw", "UPDATE_SWFW", "UPDATE_SWFW"),
    Xid(
        79,
        "RC_GPU_HAS_FALLEN_OFF_THE_BUS",
        "GPU has fallen off the bus: driver can no longer reach it over PCIe",
        "bus",
        "critical",
        "reboot_node",
        "RESTART_BM",
        "CONTACT_SUPPORT",
    ),
    Xid(
        80,
        "PBDMA_PUSHBUFFER_CRC_MISMATCH",
        "push buffer CRC mismatch",
        "driver",
        "critical",
        "restart_job",
        "RESTART_APP",
        "CHECK_APP/CUDA",
    ),
    Xid(82, "RC_NVJPG0_ERROR", "NVJPG0 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(83, "RC_NVDEC1_ERROR", "NVDEC1 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(84, "RC_NVDEC2_ERROR", "NVDEC2 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(85, "RC_CE9_ERROR", "CE9 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(86, "RC_OFA0_ERROR", "OFA error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(88, "RC_NVDEC3_ERROR", "NVDEC3 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(89, "RC_NVDEC4_ERROR", "NVDEC4 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(
        92,
        "EXCESSIVE_SBE_INTERRUPTS",
        "high rate of corrected single-bit errors",
        "memory",
        "warning",
        "collect_more",
        "IGNORE",
        "CONTACT_SUPPORT",
    ),
    Xid(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "InfoROM wear limit", "benign", "info", "none", "IGNORE", "CONTACT_SUPPORT"),
    Xid(
        94,
        "RC_CONTAINED_ERROR",
        "contained uncorrectable memory error: only the process that touched it dies",
        "memory",
        "critical",
        "restart_job",
        "RESTART_APP",
        "IGNORE (sympathetic)",
    ),
    Xid(
        95,
        "RC_UNCONTAINED_ERROR",
        "uncontained memory error: every process on the GPU is affected",
        "memory",
        "critical",
        "reset_gpu",
        "RESET_GPU",
        "IGNORE (sympathetic)",
    ),
    Xid(96, "RC_NVDEC5_ERROR", "NVDEC5 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(97, "RC_NVDEC6_ERROR", "NVDEC6 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(98, "RC_NVDEC7_ERROR", "NVDEC7 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(99, "RC_NVJPG1_ERROR", "NVJPG1 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(100, "RC_NVJPG2_ERROR", "NVJPG2 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(101, "RC_NVJPG3_ERROR", "NVJPG3 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(102, "RC_NVJPG4_ERROR", "NVJPG4 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(103, "RC_NVJPG5_ERROR", "NVJPG5 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(104, "RC_NVJPG6_ERROR", "NVJPG6 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(105, "RC_NVJPG7_ERROR", "NVJPG7 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(106, "SMBPBI_TEST_MESSAGE", "SMBPBI test", "benign", "info", "none", "IGNORE", "IGNORE"),
    Xid(107, "SMBPBI_TEST_MESSAGE_SILENT", "SMBPBI test silent", "benign", "info", "none", "IGNORE", "IGNORE"),
    Xid(
        108,
        "NVLINK_REMOTE_TRANSLATION_ERROR",
        "NVLink remote translation error",
        "app",
        "critical",
        "fix_application",
        "IGNORE",
        "XID_137_FLOW",
    ),
    Xid(109, "RC_CTXSW_TIMEOUT_ERROR", "context-switch timeout", "firmware", "critical", "reset_gpu", "RESET_GPU", "CONTACT_SUPPORT"),
    Xid(110, "SEC_FAULT_ERROR", "security fault", "firmware", "critical", "reset_gpu", "RESET_GPU", "INVESTIGATE_SW"),
    Xid(
        119,
        "GSP_RPC_TIMEOUT",
        "GSP RPC timeout: the driver waited (6 s … 60 s) for the GPU System Processor firmware and got no answer",
        "firmware",
        "critical",
        "reset_gpu",
        "RESET_GPU",
        "INVESTIGATE_SW",
    ),
    Xid(120, "GSP_ERROR", "GSP firmware error/crash", "firmware", "critical", "reset_gpu", "RESET_GPU", "INVESTIGATE_SW"),
    Xid(121, "C2C_ERROR", "C2C link (Grace–GPU) error corrected/observed", "link", "warning", "collect_more", "IGNORE", "CONTACT_SUPPORT"),
    Xid(126, "RC_CE10_ERROR", "CE10 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(127, "RC_CE11_ERROR", "CE11 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(128, "RC_CE12_ERROR", "CE12 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(129, "RC_CE13_ERROR", "CE13 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(130, "RC_CE14_ERROR", "CE14 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(131, "RC_CE15_ERROR", "CE15 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(132, "RC_CE16_ERROR", "CE16 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(133, "RC_CE17_ERROR", "CE17 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(134, "RC_CE18_ERROR", "CE18 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(135, "RC_CE19_ERROR", "CE19 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(136, "ALI_TRAINING_FAIL", "NVLink training (ALI) failed", "link", "error", "reset_gpu", "RESET_GPU", "INVESTIGATE_LINK_SI"),
    Xid(
        137,
        "NVLINK_PRIV_ERR",
        "NVLink privilege/translation error: illegal peer access reported by the far MMU. An application bug, not a link fault",
        "app",
        "critical",
        "fix_application",
        "IGNORE",
        "XID_137_FLOW",
    ),
    Xid(139, "RC_OFA1_ERROR", "OFA1 error", "engine", "error", "restart_job", "RESTART_APP", "CONTACT_SUPPORT"),
    Xid(
        140,
        "UNRECOVERABLE_ECC_ERROR_ESCAPE",
        "unrecovered ECC error escaped handling",
        "memory",
        "critical",
        "reset_gpu",
        "RESET_GPU",
        "CONTACT_SUPPORT",
    ),
    Xid(141, "RC_FAST_PATH_ERROR", "CUDA fast-path error", "driver", "warning", "none", "IGNORE", "CONTACT_SUPPORT"),
    Xid(142, "RC_NVENC3_ERROR", "NVENC3 error", "engine", "error", "collect_more", "CONTACT_SUPPORT", ""),
    Xid(143, "GPU_INIT_ERROR", "GPU initialisation error", "firmware", "critical", "reset_gpu", "RESET_GPU", "CONTACT_SUPPORT"),
    Xid(144, "NVLINK_SAW_ERROR", "NVLink5 SAW unit", "link", "error", "reset_gpu", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    Xid(145, "NVLINK_RLW_ERROR", "NVLink5 RLW unit", "link", "error", "reset_gpu", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    Xid(146, "NVLINK_TLW_ERROR", "NVLink5 TLW unit", "link", "error", "reset_gpu", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    Xid(147, "NVLINK_TREX_ERROR", "NVLink5 TREX unit", "link", "error", "reset_gpu", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    Xid(148, "NVLINK_NVLPW_CTRL_ERROR", "NVLink5 NVLPW unit", "link", "error", "reset_gpu", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    Xid(
        149,
        "NVLINK_NETIR_ERROR",
        "NVLink5 NETIR (physical link up/down, BER, firmware)",
        "link",
        "error",
        "reset_gpu",
        "WORKFLOW_NVLINK5_ERR",
        "WORKFLOW_NVLINK5_ERR",
    ),
    Xid(
        150,
        "NVLINK_MSE_ERROR",
        "NVLink5 MSE (management engine)",
        "link",
        "error",
        "reset_gpu",
        "WORKFLOW_NVLINK5_ERR",
        "WORKFLOW_NVLINK5_ERR",
    ),
    Xid(
        151,
        "RC_KEY_ROTATION_ERROR",
        "confidential-compute key rotation error",
        "config",
        "info",
        "reboot_node",
        "RESTART_VM",
        "CONTACT_SUPPORT",
    ),
    Xid(152, "RC_DLA_SMMU_ERROR", "DLA SMMU error", "engine", "error", "none", "IGNORE", "CONTACT_SUPPORT"),
    Xid(153, "RC_DLA_TIMEOUT", "DLA timeout error", "engine", "error", "none", "IGNORE", "CONTACT_SUPPORT"),
    Xid(
        154,
        "GPU_RECOVERY_ACTION_CHANGED",
        "summary: the driver changed its recommended recovery action; always about another Xid",
        "summary",
        "info",
        "none",
        "XID_154",
        "N/A Informational only regarding another Xid",
    ),
    Xid(
        155,
        "NVLINK_SW_DEFINED_ERROR",
        "NVLink software-defined event (for example links taken down by the fabric/user)",
        "config",
        "warning",
        "fix_config",
        "RESET_GPU",
        "INVESTIGATE_SW_USER",
    ),
    Xid(
        156,
        "RESOURCE_RETIREMENT_EVENT",
        "a GPU resource (for example TPC/row/channel) was marked for retirement",
        "memory",
        "warning",
        "drain_and_reset",
        "RESET_GPU",
        "IGNORE",
    ),
    Xid(
        157,
        "RESOURCE_RETIREMENT_FAILURE",
        "retirement failed: no spare resources",
        "memory",
        "critical",
        "replace_hw",
        "IGNORE",
        "CONTACT_SUPPORT",
    ),
    Xid(158, "GPU_FATAL_TIMEOUT", "GPU fatal timeout", "firmware", "critical", "reset_gpu", "RESET_GPU", "CONTACT_SUPPORT"),
    Xid(
        159,
        "RC_CHI_NON_DATA_ERROR",
        "CHI (coherent interconnect) non-data error, Grace-Blackwell",
        "link",
        "warning",
        "collect_more",
        "CHECK_UVM",
        "SYMPATHETIC_REPORT_SOLO",
    ),
    Xid(
        160,
        "CHANNEL_RETIREMENT_EVENT",
        "memory channel retirement recorded",
        "memory",
        "warning",
        "drain_and_reset",
        "IGNORE",
        "INVESTIGATE_SW",
    ),
    Xid(
        161,
        "CHANNEL_RETIREMENT_FAILURE",
        "memory channel retirement failed",
        "memory",
        "error",
        "drain_and_reset",
        "IGNORE",
        "INVESTIGATE_SW",
    ),
    Xid(162, "PSHC_REENGAGED", "power-smoothing hardware re-engaged", "config", "info", "none", "", ""),
    Xid(163, "PSHC_DISENGAGED", "power-smoothing hardware disengaged", "config", "info", "none", "", ""),
    Xid(164, "PSHC_LOW_LIFETIME", "power-smoothing lifetime low", "config", "info", "none", "", ""),
    Xid(165, "PSHC_ZERO_LIFETIME", "power-smoothing lifetime exhausted", "config", "info", "none", "", ""),
    Xid(
        166, "NVLINK_SECURE_CRYPTO_ERR", "confidential traffic seen before link was set up for encryption", "config", "info", "none", "", ""
    ),
    Xid(167, "PCIE_FATAL_TIMEOUT", "PCIe fatal timeout", "bus", "critical", "reboot_node", "", ""),
    Xid(
        168,
        "REDUCED_GPU_MEMORY_CAPACITY",
        "GPU memory capacity reduced (errors in protected region)",
        "memory",
        "error",
        "drain_and_reset",
        "",
        "",
    ),
    Xid(169, "SEC2_HALT_ERROR", "SEC2 microcontroller halt", "firmware", "critical", "reset_gpu", "", ""),
    Xid(170, "NVLINK_SECURE_OTHER", "interrupt seen in confidential-compute mode", "config", "info", "none", "", ""),
    Xid(
        171,
        "UNCORRECTABLE_DRAM_ERROR",
        "qualifier of 48: the uncorrectable error was in DRAM (HBM)",
        "memory",
        "critical",
        "drain_and_reset",
        "",
        "",
    ),
    Xid(
        172,
        "UNCORRECTABLE_SRAM_ERROR",
        "qualifier of 48: the uncorrectable error was in SRAM",
        "memory",
        "critical",
        "drain_and_reset",
        "",
        "",
    ),
)


XIDS: dict[int, Xid] = {x.code: x for x in _ALL}

#: Which kind explains which when one fault yields several codes: smaller is nearer to the cause.
DEPTH: dict[str, int] = {
    "bus": 0,
    "firmware": 1,
    "memory": 2,
    "link": 3,
    "driver": 4,
    "engine": 5,
    "app": 6,
    "config": 7,
    "benign": 8,
    "consequence": 9,
    "summary": 10,
}


def xid(code: int) -> Xid:
    """Facts of a code. A code that the catalogue lists as unused gets a warning: newer drivers reuse such numbers."""
    known = XIDS.get(code)
    if known is not None:
        return known
    return Xid(code, "", "not in NVIDIA's catalogue; read the message", "driver", "warning", "collect_more", "CONTACT_SUPPORT", "")


#: Labels of an Xid 154 and of nvidia-smi's "GPU Recovery Action", lower-cased, to a word of the contract.
#: Source: NVML's enum NONE, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET; labels as R565 to R610 print them.
RECOVERY: dict[str, str] = {
    "none": "none",
    "reset": "reset_gpu",
    "gpu reset required": "reset_gpu",
    "gpu reset": "reset_gpu",
    "pf flr": "reset_gpu",
    "reboot": "reboot_node",
    "node reboot required": "reboot_node",
    "os reboot": "reboot_node",
    "drain p2p": "drain_and_reset",
    "drain and reset": "drain_and_reset",
}

#: Error status words of NVLink5 units that NVIDIA resolves with a GPU reset; the others are ignored or follow an Xid 154.
#: Source: the NVLink5 sheet of NVIDIA's Xid catalogue (driver columns before and from R575 name the same units).
NVLINK5_RESET: dict[str, frozenset[int]] = {
    "SAW_MVB": frozenset({0x02, 0x10}),
    "RLW_REMAP": frozenset({0x40, 0x80}),
    "RLW_RSPCOL": frozenset({0x02}),
    "RLW_SRC_TRACK": frozenset({0x01, 0x10, 0x20}),
    "RLW_TAGSTATE": frozenset({0x02, 0x00020000, 0x00100000}),
    "TLW_CTRL": frozenset({0x04}),
    "TLW_RX": frozenset({0x04}),
    "TLW_TX": frozenset({0x04}),
    "NETIR": frozenset({0x00}),
    "NETIR_LINK_EVT": frozenset({0x00}),
    "NETIR_MFDE_EVENT": frozenset({0x01, 0x04, 0x05, 0x07}),
    "MSE_WATCHDOG": frozenset({0x00}),
}
#: Sub-codes (bits 25 to 20 of the first word) of a NETIR_LINK_EVT that NVIDIA ignores: the link was taken down on purpose.
NVLINK5_LINK_IGNORED = frozenset({0b100110, 0b101000})


def nvlink5_needs_reset(unit: str, words: tuple[int, ...]) -> bool | None:
    """Whether NVIDIA's sheet asks for a reset; None where it does not know the unit or the line has no words."""
    name = unit.split("/", 1)[0]
    if len(words) < 2 or name not in NVLINK5_RESET:
        return None
    if name == "NETIR_LINK_EVT" and (words[0] >> 20) & 0x3F in NVLINK5_LINK_IGNORED:
        return False
    return words[1] in NVLINK5_RESET[name]


#: Memory errors that nothing held back: what the GPU computed meanwhile may be wrong. 171 and 172 qualify a 48.
UNCONTAINED = frozenset({48, 95, 140, 171, 172})
#: Memory errors that were corrected, mended, or kept to the process that met them.
CONTAINED = frozenset({63, 64, 92, 94})
