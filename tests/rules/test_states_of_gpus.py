"""What GPUs report of themselves, and what the kernel says of them beside Xids: one row for each sign that is read."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.facts.gpu import CORRECTED_DRAM_LIMIT, RETIRED_PAGES_LIMIT
from nccl_forensics.rules.gpu_fault import gpu_fault
from tests.rules.host_frames import check, table
from tests.rules.host_frames import processes as known

PEOPLE = known((8, "node7", 1, "17000"), (9, "node7", 2, "1a000")).with_columns(gpu_index=(pl.col("rank") - 8).cast(pl.Int32))


@pytest.mark.parametrize(
    ("state", "words", "severity", "action"),
    [
        ({"problem": "Unknown Error"}, "does not answer (Unknown Error)", "critical", "reboot_node"),
        ({"remap_failed": True}, "row remapping failed", "error", "replace_hw"),
        ({"unrepairable": True}, "unrepairable memory", "error", "replace_hw"),
        ({"sram_threshold_exceeded": True}, "uncorrected SRAM errors past NVIDIA's threshold", "error", "replace_hw"),
        ({"dram_uncorrected": 2}, "uncorrected memory errors since the last reset (2)", "error", "drain_and_reset"),
        ({"retired_double_bit": RETIRED_PAGES_LIMIT}, f"retired pages at or past the limit ({RETIRED_PAGES_LIMIT})", "error", "replace_hw"),
        ({"recovery_action": "Reset"}, "the driver asks for a recovery action (Reset)", "error", "reset_gpu"),
        ({"reset_required": True}, "the driver asks for a reset", "error", "reset_gpu"),
        ({"fabric_state": "In Progress"}, "the NVLink fabric is not ready", "error", "fix_config"),
        ({"fabric_state": "Completed", "fabric_status": "Failure"}, "joining the NVLink fabric failed", "error", "fix_config"),
        ({"fabric_health": ["Route Unhealthy"]}, "fabric health: Route Unhealthy", "warning", "collect_more"),
        ({"remap_pending": True}, "a memory repair waits for a reset", "warning", "drain_and_reset"),
        ({"sram_uncorrected_total": 3}, "uncorrected SRAM errors in the board's life (3)", "warning", "collect_more"),
        ({"banks_none": 1}, "memory banks without spare rows (1)", "warning", "collect_more"),
        ({"dram_corrected": CORRECTED_DRAM_LIMIT + 1}, "many corrected memory errors", "warning", "collect_more"),
    ],
)
def test_each_state_of_a_gpu_names_its_rank_and_what_to_do(state: dict[str, object], words: str, severity: str, action: str) -> None:
    def listed(index: int, **facts: object) -> dict[str, object]:
        return {"host": "node7", "gpu_index": index, "name": "NVIDIA H100 80GB HBM3", **facts}

    [finding] = check(gpu_fault, gpus=table("gpus", listed(0), listed(1, **state)), processes=PEOPLE)
    assert words in finding.title
    assert (finding.severity, finding.ranks, [a.action for a in finding.actions]) == (severity, (9,), [action])


def test_counters_that_a_reset_has_cleared_and_a_healthy_fabric_are_quiet() -> None:
    healthy = {"fabric_state": "Completed", "fabric_status": "Success", "recovery_action": "None", "retired_single_bit": 3, "banks_none": 0}
    row = {
        "host": "node7",
        "gpu_index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "sram_uncorrected": 0,
        "dram_corrected": CORRECTED_DRAM_LIMIT,
        **healthy,
    }
    assert check(gpu_fault, gpus=table("gpus", row), processes=PEOPLE) == []


@pytest.mark.parametrize(
    ("kind", "severity", "words", "sure"),
    [
        ("gpu-start-failed", "fatal", "could not be started by the driver", ("critical", "high")),
        ("amdgpu", "fatal", "failed", ("critical", "high")),
        ("inforom", "suspect", "has a corrupted InfoROM", ("warning", "medium")),
    ],
)
def test_what_the_kernel_says_of_a_gpu_names_the_rank_on_its_address(kind: str, severity: str, words: str, sure: tuple[str, str]) -> None:
    said = {"host": "node7", "kind": kind, "severity": severity, "device": "0000:1a:00.0", "message": "text"}
    [finding] = check(gpu_fault, kernel_events=table("kernel_events", said), processes=PEOPLE)
    assert words in finding.title
    assert ((finding.severity, finding.confidence), finding.ranks) == (sure, (9,))


def test_what_amd_s_driver_says_in_passing_is_quiet() -> None:
    said = {"host": "node7", "kind": "amdgpu", "severity": "info", "device": "0000:1a:00.0", "message": "text"}
    assert check(gpu_fault, kernel_events=table("kernel_events", said), processes=PEOPLE) == []
