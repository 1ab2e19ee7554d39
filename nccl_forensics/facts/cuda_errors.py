"""CUDA's error texts and what each of them speaks of: the GPU, the driver, the way it was started, or the program.

Source: NVIDIA CUDA Runtime API, ``enum cudaError`` with the meanings given there, and the texts of ``cudaGetErrorString``; PyTorch 2.x
``torch/cuda/__init__.py`` and ``c10/cuda/CUDAFunctions.cpp`` for what they say in its place. HIP uses the same words for most of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``gpu``: the device failed. ``kernel``: a kernel on it did, by hardware or by a wrong address. ``not-ready``: the device or what serves
#: it
#: could not be started. ``driver``: driver and library do not fit each other. ``memory``: not enough of it. ``program``: the caller's
#: mistake.
Speaks = Literal["gpu", "kernel", "not-ready", "driver", "memory", "program"]


@dataclass(frozen=True, slots=True)
class CudaError:
    """One text, CUDA's number for it where there is one, what it speaks of, and what that means."""

    text: str
    number: int | None
    speaks: Speaks
    meaning: str


CUDA_ERRORS: tuple[CudaError, ...] = (
    CudaError("uncorrectable ECC error", 214, "gpu", "memory of the GPU failed beyond correction"),
    CudaError("uncorrectable NVLink error", 220, "gpu", "an NVLink of the GPU failed beyond correction"),
    CudaError("ERROR_ECC_UNCORRECTABLE", 214, "gpu", "memory of the GPU failed beyond correction"),
    CudaError("ERROR_NVLINK_UNCORRECTABLE", 220, "gpu", "an NVLink of the GPU failed beyond correction"),
    CudaError("GPU is lost", None, "gpu", "the GPU does not answer its driver any more"),
    CudaError("fallen off", None, "gpu", "the GPU does not answer on the PCIe bus any more"),
    CudaError("contained error", 728, "gpu", "the GPU met an error of its own that it could contain to one process"),
    CudaError("hardware stack error", 714, "gpu", "the call stack of a kernel is damaged"),
    CudaError("device not ready", None, "gpu", "the device did not come back"),
    CudaError("unknown error", 999, "gpu", "an error of the device that has no name"),
    CudaError(
        "unspecified launch failure", 719, "gpu", "a kernel ended by an exception of the device; an Xid stands for it in the kernel log"
    ),
    CudaError("illegal memory access", 700, "kernel", "a kernel used an address that is not its own"),
    CudaError("misaligned address", 716, "kernel", "a kernel used an address that is not aligned"),
    CudaError("illegal instruction", 715, "kernel", "a kernel has an instruction that the GPU does not know"),
    CudaError("invalid program counter", 718, "kernel", "a kernel jumped outside its code"),
    CudaError("operation not supported on global/shared address space", 717, "kernel", "a kernel used an address of the wrong space"),
    CudaError("GPU Hang", None, "gpu", "the driver gave up waiting for the GPU and reset it"),
    CudaError("Memory access fault by GPU", None, "kernel", "a kernel used an address that is not its own"),
    CudaError("HW Exception by GPU", None, "gpu", "the GPU met an exception of its own"),
    CudaError("launch timed out", 702, "gpu", "a kernel ran longer than the driver lets it"),
    CudaError(
        "system not yet initialized",
        802,
        "not-ready",
        "the GPUs of the host are not ready: on hosts with NVSwitch the fabric manager does not run or is not done",
    ),
    CudaError("busy or unavailable", 46, "not-ready", "the GPUs are held by others (exclusive mode), or in a state that takes no work"),
    CudaError("device unavailable", None, "not-ready", "the device is in a state that takes no work"),
    CudaError("no CUDA-capable device is detected", 100, "not-ready", "the process sees no GPU"),
    CudaError("No CUDA GPUs are available", None, "not-ready", "the process sees no GPU"),
    CudaError("No HIP GPUs are available", None, "not-ready", "the process sees no GPU"),
    CudaError(
        "CUDA driver initialization failed", None, "not-ready", "the driver could not be started: the process may see no working GPU"
    ),
    CudaError("initialization error", 3, "not-ready", "CUDA could not be started in this process"),
    CudaError("driver version is insufficient for CUDA runtime version", 35, "driver", "the driver is older than the CUDA library needs"),
    CudaError("NVIDIA driver on your system is too old", None, "driver", "the driver is older than the CUDA library needs"),
    CudaError(
        "unsupported display driver / cuda driver combination", 803, "driver", "the CUDA driver library and the kernel's driver differ"
    ),
    CudaError(
        "forward compatibility was attempted on non supported HW",
        804,
        "driver",
        "a compatibility library of CUDA stands before the driver's own on a GPU that does not take it",
    ),
    CudaError(
        "PTX was compiled with an unsupported toolchain", 222, "driver", "the driver is older than the compiler that made the program"
    ),
    CudaError("device kernel image is invalid", 200, "driver", "the driver cannot load the program's GPU code"),
    CudaError("driver/library version mismatch", None, "driver", "the driver's library and the kernel's driver differ"),
    CudaError("invalid device ordinal", 101, "program", "the process asked for a GPU by a number that it does not see"),
    CudaError("out of memory", 2, "memory", "the GPU has no memory left"),
)


def cuda_error(message: str) -> CudaError | None:
    """What a message says in CUDA's words, or None where it has none of these: then it is an error that the caller made, or another
    text."""
    lower = message.lower()
    return next((error for error in CUDA_ERRORS if error.text.lower() in lower), None)


def texts(*speaks: Speaks) -> tuple[str, ...]:
    """Texts that speak of any of these."""
    return tuple(e.text for e in CUDA_ERRORS if e.speaks in speaks)


def fault_of(text: str) -> Literal["software-crash", "nvlink-fault", "gpu-fault"]:
    """The cause that an error of the device speaks for, by one of these texts."""
    return "software-crash" if text in texts("kernel") else "nvlink-fault" if "nvlink" in text.lower() else "gpu-fault"
