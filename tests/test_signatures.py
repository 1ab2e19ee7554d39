"""Known exception texts."""

from __future__ import annotations

import pytest

from nccl_forensics.facts.signatures import classify

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("kind", "message", "signature"),
    [
        ("RuntimeError", GLOO + "unbound_buffer.cc:78] Timed out waiting 25000ms for recv operation to complete", "gloo-timeout"),
        ("RuntimeError", GLOO + "pair.cc:553] Connection closed by peer [127.0.0.1]:19333.", "gloo-closed"),
        ("RuntimeError", GLOO + "pair.cc:537] Read error [127.0.0.1]:30614: Connection reset by peer.", "gloo-reset"),
        (
            "RuntimeError",
            "NPU function error: x, error code is 507011\nEI0002: The wait execution of the Notify register times out.",
            "nccl-timeout",
        ),
        (
            "RuntimeError",
            "HcclAllreduce, error code is 6\nEI0006: Getting socket times out. Reason: Remote Rank did not send",
            "nccl-timeout",
        ),
        ("RuntimeError", "NPU function error: aclrtSynchronizeDeviceWithTimeout, error code is 507015", "user"),
        ("XlaRuntimeError", "DEADLINE_EXCEEDED: Barrier timed out. Id: x::0. # of tasks that reached the barrier: 3/4.", "store-barrier"),
        ("XlaRuntimeError", "UNAVAILABLE: these tasks are unhealthy (stopped sending heartbeats): /job:x/task:2", "store-closed"),
        ("RuntimeError", "DeepEP error: CPU recv timeout", "nccl-timeout"),
        ("RuntimeError", "Failed: DeepEP error csrc/deep_ep.cpp:512 'num_experts % num_ranks == 0'", "user"),
        (
            "horovod.common.exceptions.HorovodInternalError",
            "Horovod has been shut down. This was caused by an exception on one",
            "nccl-remote",
        ),
        ("RuntimeError", "Stop_waiting response is expected", "store-closed"),
        ("RuntimeError", "Version mismatch: The cluster was started with:\n    Ray: 2.44.1", "other-versions"),
        ("ValueError", "Version mismatch: the file was written by 2.0", "user"),
        ("requests.exceptions.ConnectionError", "('Connection aborted.', 'Connection reset by peer')", "user"),
        ("BrokenPipeError", "[Errno 32] Broken pipe", "user"),
        ("gloo::EnforceNotMet", "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 768 vs 512.", "gloo-size-mismatch"),
        ("RuntimeError", "ProcessGroupGloo::allgather: invalid output tensor list at index 0 (expected length 4, got 3)", "refused"),
        ("RuntimeError", "something: invalid. frame #3: c10d::ProcessGroupGloo::runLoop(int)", "user"),
        ("RuntimeError", "Detected mismatch between collectives on ranks. Rank 3 is running collective", "detail-mismatch"),
        ("RuntimeError", "[Rank 0]: Ranks 2, 4 failed to pass monitoredBarrier in 12000 ms", "monitored-barrier"),
        ("RuntimeError", "Expected to have finished reduction in the prior iteration before starting a new one.", "ddp-unused"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda-oom"),
        ("torch.cuda.OutOfMemoryError", "", "cuda-oom"),
        ("torch.distributed.DistBackendError", "ncclUnhandledCudaError: x\nLast error:\nCuda failure 2 'out of memory'", "cuda-oom"),
        (
            "torch.distributed.DistBackendError",
            "ncclUnhandledCudaError: x\nLast error:\nCuda failure 700 'illegal memory access'",
            "cuda-error",
        ),
        ("torch.distributed.DistBackendError", "ncclUnhandledCudaError: x\nLast error:\nCuda failure 999 'unknown error'", "nccl-cuda"),
        ("torch.distributed.DistBackendError", "ncclRemoteError: A call failed possibly due to a network error", "nccl-remote"),
        ("torch.distributed.DistBackendError", "ncclSystemError: x\nLast error:\nConnection closed by remote peer", "nccl-remote"),
        (
            "torch.distributed.DistBackendError",
            "ncclSystemError: x\nLast error:\nError: failed to open /dev/shm: No space left on device",
            "shm",
        ),
        ("torch.distributed.DistBackendError", "ncclInvalidUsage: x\nLast error:\nDuplicate GPU detected", "nccl-usage"),
        ("torch.distributed.DistBackendError", "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0]", "store-timeout"),
        ("torch.distributed.DistBackendError", "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(", "nccl-timeout"),
        ("torch.distributed.DistStoreError", "Timed out after 901 seconds waiting for clients. 1/2 clients joined.", "store-timeout"),
        ("torch.distributed.DistNetworkError", "Failed to recv, got 0 bytes. Did the remote server shutdown or crash?", "store-closed"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", "cuda-error"),
        ("RuntimeError", "CUDA error: device-side assert triggered", "cuda-error"),
        ("c10::CUDAError", "CUDA error: unknown error", "cuda-error"),
        ("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Killed. ", "worker-killed"),
        ("RuntimeError", "DataLoader worker (pid(s) 4711) exited unexpectedly", "worker-killed"),
        ("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that ...", "shm"),
        ("ValueError", "Caught ValueError in DataLoader worker process 0.", "user"),
        ("OSError", "[Errno 28] No space left on device: '/checkpoints/step_100.pt'", "disk-full"),
        ("OSError", "[Errno 28] No space left on device: '/dev/shm/torch_1'", "shm"),
        ("MemoryError", "", "host-oom"),
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 12.0 GiB for an array with shape (3,)", "host-oom"),
        ("std::bad_alloc", "std::bad_alloc", "host-oom"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 137438953472 bytes. Error code 12", "host-oom"),
        ("ValueError", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "cuda-oom"),
        ("ValueError", "(18.35 GiB KV cache is needed, which is larger than the available KV cache memory (8.72 GiB).", "cuda-oom"),
        ("RuntimeError", "Not enough memory. Please try to increase --mem-fraction-static.", "cuda-oom"),
        ("ValueError", "the prompt is longer than the KV cache", "user"),
        ("ValueError", "Free memory on device (16.1/93.0 GiB) on startup is less than desired GPU memory utilization (0.8)", "cuda-oom"),
        ("ValueError", "host not found: Name or service not known", "store-unreachable"),
        ("RuntimeError", "NCCL error in: /src/c10d/ProcessGroupNCCL.cpp:400, invalid usage", "nccl-usage"),
        ("RuntimeError", "NCCL error in: /src/c10d/ProcessGroupNCCL.cpp:400, unhandled cuda error", "nccl-cuda"),
        ("RuntimeError", "Unsupported datatype: 3 (mscclpp failure: InvalidUsage)", "nccl-usage"),
        (
            "torch.AcceleratorError",
            "CUDA error: invalid device ordinal\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            "refused",
        ),
        # 4 PiB: no memory ran out, the number is wrong.
        (
            "RuntimeError",
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4503599627370496 bytes. Error code 12",
            "wrong-size",
        ),
        ("AssertionError", "loss is NaN at step 17", "user"),
        ("KeyboardInterrupt", "", "keyboard-interrupt"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException", "Process 2245 got signal: 2", "launcher"),
    ],
)
def test_a_text_has_its_signature(kind: str, message: str, signature: str):
    assert classify(kind, message) == signature
