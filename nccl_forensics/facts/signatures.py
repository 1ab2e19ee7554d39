"""Known texts of exceptions and what they say: a cause of their own, or only that another rank went away or did not come.

Sources of the texts: torch/csrc/distributed/c10d, third_party/gloo (tcp/pair.cc, unbound_buffer.cc), NCCL's ncclGetErrorString, the CUDA runtime.
"""

from __future__ import annotations

#: Known texts in the order they are tried; the first that occurs names the signature.
SIGNATURES: tuple[tuple[str, str], ...] = (
    ("Detected mismatch between collectives on ranks", "detail-mismatch"),
    ("failed to pass monitoredBarrier", "monitored-barrier"),
    ("successfully reached monitoredBarrier", "monitored-barrier"),
    ("monitoredBarrier", "monitored-barrier"),
    ("Expected to have finished reduction in the prior iteration", "ddp-unused"),
    ("CUDA out of memory", "cuda-oom"),
    ("CUDA error: out of memory", "cuda-oom"),
    ("Cuda failure 2 'out of memory'", "cuda-oom"),
    ("Cuda failure 'out of memory'", "cuda-oom"),
    ("HIP out of memory", "cuda-oom"),
    ("No space left on device", "shm"),
    ("unable to open shared memory object", "shm"),
    ("unable to allocate shared memory", "shm"),
    ("Bus error. This might be caused by insufficient shared memory", "shm"),
    ("is killed by signal: Killed", "worker-killed"),
    ("is killed by signal: Bus error", "shm"),
    ("DataLoader worker", "worker-killed"),
    ("uncorrectable ECC error", "cuda-error"),
    ("unspecified launch failure", "cuda-error"),
    ("illegal memory access", "cuda-error"),
    ("device-side assert", "cuda-error"),
    ("CUDA error: ", "cuda-error"),
    ("CUDA driver error", "cuda-error"),
    ("Watchdog caught collective operation timeout", "nccl-timeout"),
    ("NCCL communicator encountered error set by ProcessGroupNCCL", "nccl-timeout"),
    ("ncclUnhandledCudaError", "nccl-cuda"),
    ("ncclRemoteError", "nccl-remote"),
    ("ncclSystemError", "nccl-error"),
    ("ncclInternalError", "nccl-error"),
    ("ncclInvalidUsage", "nccl-usage"),
    ("ncclInvalidArgument", "nccl-usage"),
    ("NCCL communicator was aborted", "nccl-follow-up"),
    ("Timed out waiting", "gloo-timeout"),
    ("Connection closed by peer", "gloo-closed"),
    ("Connection reset by peer", "gloo-reset"),
    ("Broken pipe", "gloo-closed"),
    ("op.preamble.length <= op.nbytes", "gloo-size-mismatch"),
    ("Received data size doesn't match expected size", "gloo-size-mismatch"),
    ("Gloo connectFullMesh failed", "gloo-connect"),
    ("Socket Timeout", "store-timeout"),
    ("wait timeout after", "store-timeout"),
    ("Timeout waiting for key", "store-timeout"),
    ("The client socket has timed out", "store-timeout"),
    ("SIGTERM", "sigterm"),
    ("got signal: 15", "sigterm"),
)
TYPES = {
    "MemoryError": "host-oom",
    "KeyboardInterrupt": "keyboard-interrupt",
    "OutOfMemoryError": "cuda-oom",
    "SignalException": "launcher",
    "ChildFailedError": "launcher",
}


def classify(kind: str, message: str) -> str:
    """Signature of an exception by its text; ``user`` where nothing known occurs."""
    for text, name in SIGNATURES:
        if text in message:
            return name
    return TYPES.get(kind.rsplit(".", 1)[-1], "user")
