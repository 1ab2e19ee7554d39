"""What each Xid of the NVIDIA driver means, and what NVIDIA says to do.

Source: NVIDIA's documents "Xid Errors" and "Analyzing Xid Errors with the Xid Catalog" (R610 edition, 172 codes): codes, mnemonics and the
two resolution buckets are theirs; meaning, kind and severity are this project's reading. Numbers below Ampere mean the same except that
63 and 64 are page retirement there. Widespread lists are wrong about some: 43 is a software fault (not NVLink), 79 is a GPU that fell off
the bus (not a hang), 94 is a *contained* memory error (nothing to do with containers), 137 is an illegal peer access of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

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


#: Code, mnemonic, kind, severity, action, NVIDIA's buckets (immediate, investigate), meaning.
_CATALOGUE = """
8 | RC_FIFO_ERROR_IDLE_TIMEOUT | firmware | critical | restart_job | RESTART_APP | CONTACT_SUPPORT | channel idle/FIFO timeout: GPU stopped processing
11 | RC_GR_ERROR_MISSING_HW | app | critical | fix_application | RESTART_APP | CHECK_APP/CUDA | bad push buffer: commands sent to the GPU were invalid or corrupted
13 | RC_GR_EXCEPTION/RC_GR_ERROR_SW_NOTIFY | app | critical | fix_application | RESTART_APP | WORKFLOW_XID_13 | shader/graphics engine exception: out-of-range address, illegal instruction, misaligned access. Message names GPC/TPC/SM
14 | RC_FAKE_ERROR | benign | info | none | IGNORE | CONTACT_SUPPORT | fake error used for testing
25 | RC_GR_ILLEGAL_NOTIFY | app | critical | fix_application | RESTART_APP | CHECK_APP/CUDA | illegal push buffer stream
31 | RC_FIFO_ERROR_MMU_ERR_FLT | app | critical | fix_application | RESTART_APP | WORKFLOW_XID_31 | MMU page fault: illegal GPU virtual address
32 | RC_PBDMA_ERROR | driver | critical | restart_job | RESTART_APP | CHECK_APP/CUDA | PBDMA: corrupted push buffer on the way to the GPU (PCIe quality or driver)
37 | RC_FECS_ERR_UNIMP_FIRMWARE_METHOD | benign | info | none | IGNORE | CHECK_APP/CUDA | FECS firmware method not implemented
38 | RC_FECS_ERR_WATCHDOG_TIMEOUT | driver | warning | none | IGNORE | CONTACT_SUPPORT | FECS firmware watchdog
39 | RC_CE0_ERROR | app | critical | fix_application | RESTART_APP | CONTACT_SUPPORT | copy engine 0 exception
40 | RC_CE1_ERROR | app | critical | fix_application | RESTART_APP | CONTACT_SUPPORT | copy engine 1 exception
41 | RC_CE2_ERROR | app | critical | fix_application | RESTART_APP | CONTACT_SUPPORT | copy engine 2 exception
43 | RC_RESETCHANNEL_VERIF_ERROR | consequence | info | none | IGNORE | CONTACT_SUPPORT | the channel was reset because of a software-induced fault; the app is ended, the GPU stays healthy
44 | RC_GR_FAULT_DURING_CTXSW | driver | warning | none | IGNORE | CONTACT_SUPPORT | graphics engine fault during context switch
45 | RC_PREEMPTIVE_REMOVAL | consequence | info | none | WORKFLOW_XID_45 | Solo: RESTART_FM / Not Solo: IGNORE (follow other Xid) | preemptive channel removal: cleanup when a process dies (signal, Ctrl-C, GPU reset) or after another Xid
46 | RC_GPU_TIMEOUT_ERROR | firmware | critical | reset_gpu | RESET_GPU | CONTACT_SUPPORT | GPU stopped processing (timeout)
48 | RC_GPU_ECC_DBE | memory | critical | drain_and_reset | WORKFLOW_XID_48 | WORKFLOW_XID_48 | double-bit (uncorrectable) ECC error
54 | SILENT_RUNNING_PWR_REDUCED_CLOCKING | bus | error | check_power_or_cooling | CHECK_MECHANICALS | CONTACT_SUPPORT | auxiliary power not connected
60 | RC_SEC2_ERROR | driver | critical | restart_job | RESTART_APP | INVESTIGATE_SW | SEC2 / video processor exception
62 | PMU_HALT_ERROR | firmware | critical | reset_gpu | RESET_GPU | CONTACT_SUPPORT | internal microcontroller (PMU) halt
63 | INFOROM_DRAM_RETIREMENT_EVENT | memory | warning | drain_and_reset | IGNORE | IGNORE | memory row remap (Ampere+) or page retirement (older) recorded for later
64 | INFOROM_DRAM_RETIREMENT_FAILURE | memory | critical | replace_hw | RESET_GPU | CONTACT_SUPPORT | row remap / page retirement could not be recorded or no spare rows
66 | RC_FECS_ERR_REG_ACCESS_VIOLATION | driver | warning | none | IGNORE | INVESTIGATE_SW | illegal register access by driver
67 | RC_FECS_ERR_VERIF_VIOLATION | driver | warning | none | IGNORE | CONTACT_SUPPORT | illegal access by driver (verification)
68 | RC_NVDEC0_ERROR | app | critical | fix_application | RESTART_APP | CONTACT_SUPPORT | NVDEC0 exception
69 | RC_GR_CLASS_ERROR | app | critical | fix_application | RESTART_APP | CHECK_APP/CUDA | graphics engine class error
70 | RC_CE3_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE3 error
71 | RC_CE4_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE4 error
72 | RC_CE5_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE5 error
74 | NVLINK_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK_ERR | CONTACT_SUPPORT | NVLink error on a link (both ends may log it; the far GPU or NVSwitch can be the real culprit). R≤Hopper
75 | RC_CE6_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE6 error
76 | RC_CE7_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE7 error
77 | RC_CE8_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE8 error
78 | VGPU_START_ERROR | config | info | update_sw_fw | UPDATE_SWFW | UPDATE_SWFW | vGPU start error
79 | RC_GPU_HAS_FALLEN_OFF_THE_BUS | bus | critical | reboot_node | RESTART_BM | CONTACT_SUPPORT | GPU has fallen off the bus: driver can no longer reach it over PCIe
80 | PBDMA_PUSHBUFFER_CRC_MISMATCH | driver | critical | restart_job | RESTART_APP | CHECK_APP/CUDA | push buffer CRC mismatch
82 | RC_NVJPG0_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG0 error
83 | RC_NVDEC1_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVDEC1 error
84 | RC_NVDEC2_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVDEC2 error
85 | RC_CE9_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE9 error
86 | RC_OFA0_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | OFA error
88 | RC_NVDEC3_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVDEC3 error
89 | RC_NVDEC4_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVDEC4 error
92 | EXCESSIVE_SBE_INTERRUPTS | memory | warning | collect_more | IGNORE | CONTACT_SUPPORT | high rate of corrected single-bit errors
93 | INFOROM_ERASE_LIMIT_EXCEEDED | benign | info | none | IGNORE | CONTACT_SUPPORT | InfoROM wear limit
94 | RC_CONTAINED_ERROR | memory | critical | restart_job | RESTART_APP | IGNORE (sympathetic) | contained uncorrectable memory error: only the process that touched it dies
95 | RC_UNCONTAINED_ERROR | memory | critical | reset_gpu | RESET_GPU | IGNORE (sympathetic) | uncontained memory error: every process on the GPU is affected
96 | RC_NVDEC5_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVDEC5 error
97 | RC_NVDEC6_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVDEC6 error
98 | RC_NVDEC7_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVDEC7 error
99 | RC_NVJPG1_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG1 error
100 | RC_NVJPG2_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG2 error
101 | RC_NVJPG3_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG3 error
102 | RC_NVJPG4_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG4 error
103 | RC_NVJPG5_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG5 error
104 | RC_NVJPG6_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG6 error
105 | RC_NVJPG7_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | NVJPG7 error
106 | SMBPBI_TEST_MESSAGE | benign | info | none | IGNORE | IGNORE | SMBPBI test
107 | SMBPBI_TEST_MESSAGE_SILENT | benign | info | none | IGNORE | IGNORE | SMBPBI test silent
108 | NVLINK_REMOTE_TRANSLATION_ERROR | app | critical | fix_application | IGNORE | XID_137_FLOW | NVLink remote translation error
109 | RC_CTXSW_TIMEOUT_ERROR | firmware | critical | reset_gpu | RESET_GPU | CONTACT_SUPPORT | context-switch timeout
110 | SEC_FAULT_ERROR | firmware | critical | reset_gpu | RESET_GPU | INVESTIGATE_SW | security fault
119 | GSP_RPC_TIMEOUT | firmware | critical | reset_gpu | RESET_GPU | INVESTIGATE_SW | GSP RPC timeout: the driver waited (6 s … 60 s) for the GPU System Processor firmware and got no answer
120 | GSP_ERROR | firmware | critical | reset_gpu | RESET_GPU | INVESTIGATE_SW | GSP firmware error/crash
121 | C2C_ERROR | link | warning | collect_more | IGNORE | CONTACT_SUPPORT | C2C link (Grace–GPU) error corrected/observed
126 | RC_CE10_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE10 error
127 | RC_CE11_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE11 error
128 | RC_CE12_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE12 error
129 | RC_CE13_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE13 error
130 | RC_CE14_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE14 error
131 | RC_CE15_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE15 error
132 | RC_CE16_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE16 error
133 | RC_CE17_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE17 error
134 | RC_CE18_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE18 error
135 | RC_CE19_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | CE19 error
136 | ALI_TRAINING_FAIL | link | error | reset_gpu | RESET_GPU | INVESTIGATE_LINK_SI | NVLink training (ALI) failed
137 | NVLINK_PRIV_ERR | app | critical | fix_application | IGNORE | XID_137_FLOW | NVLink privilege/translation error: illegal peer access reported by the far MMU. An application bug, not a link fault
139 | RC_OFA1_ERROR | engine | error | restart_job | RESTART_APP | CONTACT_SUPPORT | OFA1 error
140 | UNRECOVERABLE_ECC_ERROR_ESCAPE | memory | critical | reset_gpu | RESET_GPU | CONTACT_SUPPORT | unrecovered ECC error escaped handling
141 | RC_FAST_PATH_ERROR | driver | warning | none | IGNORE | CONTACT_SUPPORT | CUDA fast-path error
142 | RC_NVENC3_ERROR | engine | error | collect_more | CONTACT_SUPPORT | | NVENC3 error
143 | GPU_INIT_ERROR | firmware | critical | reset_gpu | RESET_GPU | CONTACT_SUPPORT | GPU initialisation error
144 | NVLINK_SAW_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK5_ERR | WORKFLOW_NVLINK5_ERR | NVLink5 SAW unit
145 | NVLINK_RLW_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK5_ERR | WORKFLOW_NVLINK5_ERR | NVLink5 RLW unit
146 | NVLINK_TLW_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK5_ERR | WORKFLOW_NVLINK5_ERR | NVLink5 TLW unit
147 | NVLINK_TREX_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK5_ERR | WORKFLOW_NVLINK5_ERR | NVLink5 TREX unit
148 | NVLINK_NVLPW_CTRL_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK5_ERR | WORKFLOW_NVLINK5_ERR | NVLink5 NVLPW unit
149 | NVLINK_NETIR_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK5_ERR | WORKFLOW_NVLINK5_ERR | NVLink5 NETIR (physical link up/down, BER, firmware)
150 | NVLINK_MSE_ERROR | link | error | reset_gpu | WORKFLOW_NVLINK5_ERR | WORKFLOW_NVLINK5_ERR | NVLink5 MSE (management engine)
151 | RC_KEY_ROTATION_ERROR | config | info | reboot_node | RESTART_VM | CONTACT_SUPPORT | confidential-compute key rotation error
152 | RC_DLA_SMMU_ERROR | engine | error | none | IGNORE | CONTACT_SUPPORT | DLA SMMU error
153 | RC_DLA_TIMEOUT | engine | error | none | IGNORE | CONTACT_SUPPORT | DLA timeout error
154 | GPU_RECOVERY_ACTION_CHANGED | summary | info | none | XID_154 | N/A Informational only regarding another Xid | summary: the driver changed its recommended recovery action; always about another Xid
155 | NVLINK_SW_DEFINED_ERROR | config | warning | fix_config | RESET_GPU | INVESTIGATE_SW_USER | NVLink software-defined event (for example links taken down by the fabric/user)
156 | RESOURCE_RETIREMENT_EVENT | memory | warning | drain_and_reset | RESET_GPU | IGNORE | a GPU resource (for example TPC/row/channel) was marked for retirement
157 | RESOURCE_RETIREMENT_FAILURE | memory | critical | replace_hw | IGNORE | CONTACT_SUPPORT | retirement failed: no spare resources
158 | GPU_FATAL_TIMEOUT | firmware | critical | reset_gpu | RESET_GPU | CONTACT_SUPPORT | GPU fatal timeout
159 | RC_CHI_NON_DATA_ERROR | link | warning | collect_more | CHECK_UVM | SYMPATHETIC_REPORT_SOLO | CHI (coherent interconnect) non-data error, Grace-Blackwell
160 | CHANNEL_RETIREMENT_EVENT | memory | warning | drain_and_reset | IGNORE | INVESTIGATE_SW | memory channel retirement recorded
161 | CHANNEL_RETIREMENT_FAILURE | memory | error | drain_and_reset | IGNORE | INVESTIGATE_SW | memory channel retirement failed
162 | PSHC_REENGAGED | config | info | none | | | power-smoothing hardware re-engaged
163 | PSHC_DISENGAGED | config | info | none | | | power-smoothing hardware disengaged
164 | PSHC_LOW_LIFETIME | config | info | none | | | power-smoothing lifetime low
165 | PSHC_ZERO_LIFETIME | config | info | none | | | power-smoothing lifetime exhausted
166 | NVLINK_SECURE_CRYPTO_ERR | config | info | none | | | confidential traffic seen before link was set up for encryption
167 | PCIE_FATAL_TIMEOUT | bus | critical | reboot_node | | | PCIe fatal timeout
168 | REDUCED_GPU_MEMORY_CAPACITY | memory | error | drain_and_reset | | | GPU memory capacity reduced (errors in protected region)
169 | SEC2_HALT_ERROR | firmware | critical | reset_gpu | | | SEC2 microcontroller halt
170 | NVLINK_SECURE_OTHER | config | info | none | | | interrupt seen in confidential-compute mode
171 | UNCORRECTABLE_DRAM_ERROR | memory | critical | drain_and_reset | | | qualifier of 48: the uncorrectable error was in DRAM (HBM)
172 | UNCORRECTABLE_SRAM_ERROR | memory | critical | drain_and_reset | | | qualifier of 48: the uncorrectable error was in SRAM
"""


def _row(text: str) -> Xid:
    code, mnemonic, kind, severity, action, immediate, investigate, meaning = (part.strip() for part in text.split("|"))
    return Xid(int(code), mnemonic, meaning, cast(XidKind, kind), cast(Severity, severity), action, immediate, investigate)


XIDS: dict[int, Xid] = {known.code: known for known in map(_row, _CATALOGUE.strip().splitlines())}

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
