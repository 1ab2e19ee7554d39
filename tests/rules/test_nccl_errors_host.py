"""Resources of the host that NCCL's own warnings name."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.reading.source import read_source
from nccl_forensics.rules import Rule
from nccl_forensics.rules.nccl_errors_host import cuda_fault, driver_mismatch, memlock_limit_nccl, out_of_memory_nccl, shm_exhausted_nccl
from tests.rules.frames import cited, endings, errors, people, told

PEOPLE = people((0, "node1", 100), (1, "node1", 101))


@pytest.mark.parametrize(
    ("rule", "kind", "message", "harmless"),
    [
        (
            shm_exhausted_nccl,
            "shm",
            "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space left on device (28)",
            "Error while attaching to shared memory segment /dev/shm/nccl-x, error: No such file or directory (2)",
        ),
        (
            memlock_limit_nccl,
            "ibv-call",
            "Call to ibv_reg_mr failed with error Cannot allocate memory",
            "Call to ibv_modify_qp failed with error Connection timed out",
        ),
    ],
)
def test_a_limit_of_the_host_blames_the_host_and_no_rank(rule: Rule, kind: str, message: str, harmless: str) -> None:
    [finding] = rule.check(errors({"kind": kind, "pid": 101, "message": message, "line_no": 8}), PEOPLE)
    assert (finding.severity, finding.confidence, finding.ranks, finding.hosts) == ("critical", "high", (), ("node1",))
    assert [(c.rank, c.host) for c in finding.culprits] == [(None, "node1")]
    assert cited(finding) == [(0, 8)]
    assert rule.check(errors({"kind": kind, "pid": 101, "message": harmless}), PEOPLE) == []


def test_a_segment_that_could_not_be_extended_speaks_of_a_full_dev_shm_where_no_text_says_why() -> None:
    # Up to 2.21 the warning ends here.
    [finding] = shm_exhausted_nccl.check(
        errors({"kind": "shm", "pid": 101, "message": "Error: failed to extend /dev/shm/nccl-x to 9637892 bytes"}), PEOPLE
    )
    assert (finding.confidence, finding.hosts) == ("medium", ("node1",))
    assert finding.title.startswith("/dev/shm seems full on node1")
    other = "Error: failed to extend /dev/shm/nccl-x to 9637892 bytes, error: Interrupted system call (4)"
    assert shm_exhausted_nccl.check(errors({"kind": "shm", "pid": 101, "message": other}), PEOPLE) == []


def test_a_segment_that_could_not_be_made_is_a_guess_unless_a_line_gives_another_reason() -> None:
    made = {"kind": "shm", "pid": 101, "message": "Error while creating shared memory segment nccl-shm-recv-1833-0-2-3 (size 9637888)"}
    [finding] = shm_exhausted_nccl.check(errors(made), PEOPLE)
    assert (finding.confidence, finding.hosts) == ("low", ("node1",))
    other = {"kind": "shm", "pid": 101, "message": "shm_open failed on nccl-shm-recv-1833-0-2-3 : Permission denied"}
    assert shm_exhausted_nccl.check(errors(made, other), PEOPLE) == []


# ---- GPU memory ----

OOM = {"kind": "cuda-failure", "pid": 101, "message": "Cuda failure 2 'out of memory'", "line_no": 8}


def test_the_rank_whose_allocation_failed_is_named() -> None:
    [finding] = out_of_memory_nccl.check(errors(OOM), PEOPLE, None)
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(0, 8)]


def test_the_ranks_own_exception_counts_too_and_needs_no_nccl_log() -> None:
    raised = endings({"rank": 0, "kind": "out-of-memory", "exc_source_id": 4, "exc_line_no": 70})
    [finding] = out_of_memory_nccl.check(None, PEOPLE, raised)
    assert told(finding) == ("critical", "high", (0,))
    assert cited(finding) == [(4, 70)]


def test_memory_of_the_host_is_told_from_that_of_the_gpu() -> None:
    raised = {"rank": 0, "kind": "out-of-memory", "exc_source_id": 4, "exc_line_no": 70}
    [host] = out_of_memory_nccl.check(None, PEOPLE, endings(raised | {"signature": "host-oom"}))
    [gpu] = out_of_memory_nccl.check(None, PEOPLE, endings(raised | {"signature": "cuda-oom"}))
    assert ("host memory" in host.title, "nvidia-smi" in host.remedy, host.actions[0].command) == (True, False, "free -m; ulimit -a")
    assert ("host memory" in gpu.title, "nvidia-smi" in gpu.remedy, gpu.actions[0].command) == (False, True, "nvidia-smi")
    [both] = out_of_memory_nccl.check(errors(OOM), PEOPLE, endings(raised | {"signature": "host-oom"}))
    assert "host memory" not in both.title


def test_a_traceback_of_a_rank_that_nobody_missed_may_have_been_caught() -> None:
    raised = endings({"rank": 0, "kind": "out-of-memory", "over": False, "exc_source_id": 4, "exc_line_no": 70})
    heard = pl.LazyFrame({"rank": [0, 1]}, schema={"rank": pl.Int32()})
    [finding] = out_of_memory_nccl.check(None, PEOPLE, raised, heard, pl.LazyFrame({"sign": ["exceptions"]}))
    assert told(finding) == ("critical", "medium", (0,))
    [finding] = out_of_memory_nccl.check(None, PEOPLE, raised, heard, pl.LazyFrame({"sign": ["watchdog timeouts"]}))
    assert told(finding) == ("critical", "high", (0,))


def test_a_process_of_unknown_rank_is_named_by_its_host_with_less_confidence() -> None:
    [finding] = out_of_memory_nccl.check(errors(OOM | {"pid": 999}), PEOPLE, None)
    assert (finding.confidence, finding.ranks, finding.culprits[0].host) == ("medium", (), "node1")


def test_another_cuda_failure_and_another_ending_are_no_lack_of_memory() -> None:
    other = errors(OOM | {"message": "Cuda failure 719 'unspecified launch failure'"})
    assert out_of_memory_nccl.check(other, PEOPLE, endings({"rank": 0, "kind": "killed"})) == []


# ---- faults of the GPU ----

FAULT = OOM | {"message": "Cuda failure 719 'unspecified launch failure'"}


def test_a_sticky_cuda_error_names_its_rank() -> None:
    [finding] = cuda_fault.check(errors(FAULT), PEOPLE, None)
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(0, 8)]
    assert finding.title == "rank 1: CUDA reports 'unspecified launch failure'"


@pytest.mark.parametrize(
    ("message", "confidence"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "high"),
        ("CUDA error: unspecified launch failure", "high"),
        # By a wrong address of the program as well as by the device.
        ("CUDA error: an illegal memory access was encountered", "medium"),
        # The fabric manager of the host does not run; a process that sees no GPU may have been told to.
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "high"),
        ("No CUDA GPUs are available", "medium"),
    ],
)
def test_a_cuda_error_that_a_rank_raised_needs_no_nccl_log(message: str, confidence: str) -> None:
    raised = endings({"rank": 0, "kind": "gpu", "message": message, "line_no": 70})
    [finding] = cuda_fault.check(None, PEOPLE, raised)
    assert told(finding) == ("critical", confidence, (0,))
    assert cited(finding) == [(0, 70)]


@pytest.mark.parametrize(
    ("message", "cause", "other"),
    [
        ("CUDA error: misaligned address", "software-crash", "gpu-fault"),
        ("CUDA error: an illegal memory access was encountered", "software-crash", "gpu-fault"),
        ("CUDA error: unspecified launch failure", None, None),
        ("CUDA error: uncorrectable NVLink error detected during the execution", "nvlink-fault", None),
    ],
)
def test_a_wrong_address_in_a_kernel_speaks_of_the_program_and_leaves_the_device_open(
    message: str, cause: str | None, other: str | None
) -> None:
    [finding] = cuda_fault.check(None, PEOPLE, endings({"rank": 0, "kind": "gpu", "message": message, "line_no": 70}))
    assert finding.cause in (cause, "gpu-fault" if cause is None else cause)
    assert [a[0] for a in finding.alternatives] == ([other] if other else [])


OLD = "CUDA error: CUDA driver version is insufficient for CUDA runtime version"


def test_a_driver_that_does_not_fit_names_the_ranks_that_met_it() -> None:
    [finding] = driver_mismatch.check(None, PEOPLE, endings({"rank": 1, "kind": "driver", "message": OLD, "line_no": 70, "host": "node1"}))
    assert told(finding) == ("critical", "high", (1,))
    assert [c.rank for c in finding.culprits] == [1]
    said = errors(
        {"kind": "cuda-failure", "pid": 101, "message": "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'"}
    )
    [finding] = driver_mismatch.check(said, PEOPLE, None)
    assert finding.ranks == (1,)


def test_a_driver_that_fits_no_rank_is_no_fault_of_one() -> None:
    [finding] = driver_mismatch.check(None, PEOPLE, endings(*[{"rank": r, "kind": "driver", "message": OLD} for r in (0, 1)]))
    assert (finding.ranks, finding.culprits) == ((), ())
    assert driver_mismatch.check(None, PEOPLE, endings({"rank": 1, "kind": "exception", "message": "CUDA error: invalid argument"})) == []


def test_where_many_ranks_report_it_no_gpu_stands_out() -> None:
    everyone = people(*[(r, "node1", 100 + r) for r in range(5)])
    [finding] = cuda_fault.check(errors(*[FAULT | {"pid": 100 + r} for r in range(5)]), everyone, None)
    assert told(finding) == ("critical", "low", (0, 1, 2, 3, 4))


def test_a_lack_of_memory_is_no_fault_of_the_gpu() -> None:
    assert cuda_fault.check(errors(OOM), PEOPLE, endings({"rank": 0, "kind": "gpu", "message": "CUDA error: invalid argument"})) == []


@pytest.mark.parametrize(
    "message",
    [
        "misc/utils.cc:123 Unrecoverable error detected: malloc(size=4096) returned null.",
        "Failed to malloc 65536 bytes",
        "Allocation failed at init.cc:812",
    ],
)
def test_host_memory_that_ran_out_is_told_in_the_words_of_every_release(message: str) -> None:
    log = f"\nnode1:101:201 [1] misc/utils.cc:12 NCCL WARN {message}\n"
    frame = read_source(log.encode()).frames["nccl_errors"].lazy().with_columns(source_id=0)
    [finding] = out_of_memory_nccl.check(frame, PEOPLE, None)
    assert told(finding) == ("critical", "high", (1,))
