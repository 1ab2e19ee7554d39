"""Known texts of exceptions and what they say: a cause of their own, or only that another rank went away or did not come.

Sources of the texts: torch/csrc/distributed/c10d, third_party/gloo (tcp/pair.cc, unbound_buffer.cc), NCCL's ncclGetErrorString, the CUDA
runtime, torch/utils/data. Ordinary programs lose connections and run into full disks too, so texts that are not of one library alone
carry a second one that must occur with them.
"""

from __future__ import annotations

import re

#: Known texts in the order they are tried: the first entry of which all parts occur names the signature.
SIGNATURES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Detected mismatch between collectives on ranks",), "detail-mismatch"),
    (("monitoredBarrier",), "monitored-barrier"),
    (("Expected to have finished reduction in the prior iteration",), "ddp-unused"),
    (("CUDA out of memory",), "cuda-oom"),
    (("CUDA error: out of memory",), "cuda-oom"),
    (("Cuda failure 2 'out of memory'",), "cuda-oom"),
    (("Cuda failure 'out of memory'",), "cuda-oom"),
    (("CUBLAS_STATUS_ALLOC_FAILED",), "cuda-oom"),
    (("HIP out of memory",), "cuda-oom"),
    # What is left of a GPU beside the weights, or other processes, holds not one request (vllm/v1: core/kv_cache_utils.py, worker/gpu_worker.py;
    # sglang, model_runner.py).
    (("No available memory for the cache blocks",), "cuda-oom"),
    (("Free memory on device", "is less than desired GPU memory utilization"), "cuda-oom"),
    (("KV cache is needed, which is larger than the available KV cache memory",), "cuda-oom"),
    (("Not enough memory. Please try to increase --mem-fraction-static",), "cuda-oom"),
    (("No space left on device", "shm"), "shm"),
    (("No space left on device", "shared memory"), "shm"),
    (("unable to open shared memory object",), "shm"),
    (("unable to allocate shared memory",), "shm"),
    (("insufficient shared memory",), "shm"),
    (("is killed by signal: Bus error",), "shm"),
    (("No space left on device",), "disk-full"),
    (("Disk quota exceeded",), "disk-full"),
    # "Caught ValueError in DataLoader worker process 0" is the user's own exception, handed on.
    (("DataLoader worker (pid",), "worker-killed"),
    (("DefaultCPUAllocator: can't allocate memory",), "host-oom"),
    (("DefaultCPUAllocator: not enough memory",), "host-oom"),
    (("Unable to allocate", "for an array with shape"), "host-oom"),
    # Ray ends the task itself before the kernel would (ray/exceptions.py, OutOfMemoryError).
    (("Task was killed due to the node running low on memory",), "host-oom"),
    # Whoever asked for an actor or a task is told that its process ended (ray/exceptions.py, ActorDiedError, WorkerCrashedError).
    (("The actor died unexpectedly before finishing this task",), "actor-died"),
    (("because its worker process has died",), "actor-died"),
    (("The worker died unexpectedly while executing this task",), "actor-died"),
    # The same of Monarch (monarch/_rust_bindings, SupervisionError).
    (("The actor <", "and all its descendants have failed"), "actor-died"),
    (("uncorrectable ECC error",), "cuda-error"),
    (("_ERROR_ECC_UNCORRECTABLE",), "cuda-error"),
    (("_ERROR_NVLINK_UNCORRECTABLE",), "cuda-error"),
    # The process asked for a device by a number that it does not see (cudaErrorInvalidDevice, 101);
    # before device-side assertions, as PyTorch says behind each error of CUDA how to enable these.
    (("CUDA error: invalid device ordinal",), "refused"),
    (("HIP error: invalid device ordinal",), "refused"),
    (("unspecified launch failure",), "cuda-error"),
    (("illegal memory access",), "cuda-error"),
    (("device-side assert",), "cuda-error"),
    (("CUDA error: ",), "cuda-error"),
    (("CUDA driver error",), "cuda-error"),
    (("CUDA unknown error",), "cuda-error"),
    (("CUDA driver initialization failed",), "cuda-error"),
    (("cudaGetDeviceCount()", "Error "), "cuda-error"),
    (("No CUDA GPUs are available",), "cuda-error"),
    (("No HIP GPUs are available",), "cuda-error"),
    (("The NVIDIA driver on your system is too old",), "cuda-error"),
    (("cuDNN error: ",), "cuda-error"),
    (("HIP error: ",), "cuda-error"),
    (("HW Exception by GPU node-",), "cuda-error"),
    (("Memory access fault by GPU node-",), "cuda-error"),
    (("retrieving ncclUniqueId from", "Connection reset by peer"), "store-closed"),
    (("retrieving ncclUniqueId from", "Broken pipe"), "store-closed"),
    (("retrieving ncclUniqueId from", "failed to recv, got 0 bytes"), "store-closed"),
    (("retrieving ncclUniqueId from",), "store-timeout"),
    (("retreiving ncclUniqueId from",), "store-timeout"),
    (("Watchdog caught collective operation timeout",), "nccl-timeout"),
    (("NCCL communicator encountered error set by ProcessGroupNCCL",), "nccl-timeout"),
    # Ascend's HCCL (error codes EI0002, EI0006 and EI0005 of CANN) waited for another rank in vain, in an operation or while it connected,
    # or was given other arguments than that one; torch_npu raises it where the process waits next.
    (("The wait execution of the Notify register times out",), "nccl-timeout"),
    (("Getting socket times out",), "nccl-timeout"),
    (("The arguments for collective communication are inconsistent between ranks",), "in-collective"),
    # DeepEP's dispatch of tokens waits for those of the other ranks (csrc/deep_ep.cpp).
    (("DeepEP error: CPU recv timeout",), "nccl-timeout"),
    (("DeepEP error", "'timeout (dispatch CPU)'"), "nccl-timeout"),
    # Horovod (horovod/common/common.h, SHUT_DOWN_ERROR): an operation after another rank had failed, or finished.
    (("Horovod has been shut down",), "nccl-remote"),
    (("ncclUnhandledCudaError",), "nccl-cuda"),
    (("ncclRemoteError",), "nccl-remote"),
    # Releases before ncclRemoteError (NCCL 2.13) report a lost peer as a system error or an internal one; "Last error" tells.
    (("ncclSystemError", "closed by remote peer"), "nccl-remote"),
    (("ncclSystemError", "Connection reset by peer"), "nccl-remote"),
    (("ncclInternalError", "closed by remote peer"), "nccl-remote"),
    (("ncclInternalError", "Connection reset by peer"), "nccl-remote"),
    (("ncclSystemError",), "nccl-error"),
    (("ncclInternalError",), "nccl-error"),
    # c10d's own checks of what it is handed (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, distributed_c10d.py).
    (("Tensors must be contiguous",), "refused"),
    (("Tensors must be CUDA and dense",), "refused"),
    (("Tensors must be on distinct GPU devices",), "refused"),
    (("No backend type associated with device type",), "refused"),
    (("ProcessGroupNCCL is only supported with GPUs",), "refused"),
    (("nput tensor must be the same type as the output tensor",), "refused"),
    (("Invalid usage of tensors with different dtypes",), "refused"),
    # Of a list of tensors and of a root (c10d/Utils.hpp, assertSizesMatch and its siblings).
    (("invalid tensor size at index",), "refused"),
    (("invalid tensor type at index",), "refused"),
    (("invalid input tensor list size, must be world size",), "refused"),
    # Gloo's group says so of any argument (ProcessGroupGloo.cpp, invalidArgument).
    (("ProcessGroupGloo::", ": invalid "), "refused"),
    (("ProcessGroupGloo::", ": requires "), "refused"),
    (("ProcessGroupGloo::", ": unsupported "), "refused"),
    (("invalid root rank: ",), "refused"),
    (("invalid root tensor: ",), "refused"),
    (("tensor size must be equal to world_size times",), "refused"),
    (("Split sizes doesn't match total dim 0 size",), "refused"),
    # What a rank sends itself is another length than what it expects of itself (gloo/alltoallv.cc).
    (("inLengthPerRank[myRank] == outLengthPerRank[myRank]",), "refused"),
    (("Default process group has not been initialized",), "refused"),
    (("Invalid rank", "rank should be in the interval"), "refused"),
    (("ncclInvalidUsage",), "nccl-usage"),
    (("ncclInvalidArgument",), "nccl-usage"),
    # torch before 1.8 names the place and the text of the result alone (C10D_NCCL_CHECK).
    (("NCCL error in: ", ", unhandled cuda error"), "nccl-cuda"),
    (("NCCL error in: ", ", unhandled system error"), "nccl-error"),
    (("NCCL error in: ", ", internal error"), "nccl-error"),
    (("NCCL error in: ", ", invalid usage"), "nccl-usage"),
    (("NCCL error in: ", ", invalid argument"), "nccl-usage"),
    # MSCCL++ in NCCL's place (include/mscclpp/errors.hpp).
    (("mscclpp failure: InvalidUsage",), "nccl-usage"),
    # vLLM's own wrapper of NCCL gives the text of the result alone.
    (("NCCL error: unhandled cuda error",), "nccl-cuda"),
    (("NCCL error: unhandled system error",), "nccl-error"),
    (("NCCL error: internal error",), "nccl-error"),
    (("NCCL error: invalid usage",), "nccl-usage"),
    (("NCCL error: invalid argument",), "nccl-usage"),
    # XLA (xla/service/gpu/nccl_utils.cc and its successors) names the call before the text of the result.
    (("NCCL operation nccl", "failed: unhandled cuda error"), "nccl-cuda"),
    (("NCCL operation nccl", "failed: unhandled system error"), "nccl-error"),
    (("NCCL operation nccl", "failed: internal error"), "nccl-error"),
    (("NCCL operation nccl", "failed: invalid usage"), "nccl-usage"),
    (("NCCL operation nccl", "failed: invalid argument"), "nccl-usage"),
    # torch/csrc/cuda/nccl.cpp, with the number of the result.
    (("NCCL Error 1: ",), "nccl-cuda"),
    (("NCCL Error 4: ",), "nccl-usage"),
    (("NCCL Error 5: ",), "nccl-usage"),
    (("NCCL Error 6: ",), "nccl-remote"),
    (("NCCL Error ",), "nccl-error"),
    (("remote process exited or there was a network error",), "nccl-remote"),
    (("NCCL communicator was aborted",), "nccl-follow-up"),
    (("Unknown NCCL error",), "nccl-error"),
    (("Timed out waiting", "operation to complete"), "gloo-timeout"),
    (("gloo", "Connection closed by peer"), "gloo-closed"),
    (("gloo", "Connection reset by peer"), "gloo-reset"),
    (("gloo", "Broken pipe"), "gloo-closed"),
    # Another wait of this process timed out and closed its connections.
    (("Application timeout caused pair closure",), "gloo-timeout"),
    (("gloo", "Read error"), "gloo-reset"),
    (("gloo", "Write error"), "gloo-reset"),
    (("op.preamble.length <= op.nbytes",), "gloo-size-mismatch"),
    (("Received data size doesn't match expected size",), "gloo-size-mismatch"),
    (("Gloo connectFullMesh failed",), "gloo-connect"),
    # GLOO_SOCKET_IFNAME names one interface (gloo/transport/tcp/device.cc); NCCL's lists and exclusions are no names.
    (("Unable to find address for: ",), "gloo-interface"),
    # JAX's coordination service (xla/tsl/distributed_runtime/coordination): whoever came is told that others did not, or that they are gone.
    (("DEADLINE_EXCEEDED", "Barrier timed out"), "store-barrier"),
    # The same of PyTorch/XLA (xla_client/mesh_service.cc).
    (("Failed to meet rendezvous",), "store-barrier"),
    (("stopped sending heartbeats",), "store-closed"),
    (("Timed out initializing process group in store based barrier",), "store-barrier"),
    (("Waiting in store based barrier",), "store-barrier"),
    (("Socket Timeout",), "store-timeout"),
    (("wait timeout after",), "store-timeout"),
    (("Timeout waiting for key",), "store-timeout"),
    (("waiting for clients",), "store-timeout"),
    (("The client socket has timed out",), "store-unreachable"),
    (("The client socket has failed to connect",), "store-unreachable"),
    # What the store's client said of getaddrinfo before 1.10 (torch/lib/c10d/Utils.cpp).
    (("host not found: ",), "store-unreachable"),
    (("Did the remote server shutdown or crash",), "store-closed"),
    (("SocketImpl", "Broken pipe"), "store-closed"),
    # torch/csrc/distributed/c10d/TCPStore.cpp up to 1.13: a store that goes answers nothing.
    (("Stop_waiting response is expected",), "store-closed"),
    (("SocketImpl", "Connection reset by peer"), "store-closed"),
    # torchrun's meeting of launchers (torch/distributed/elastic/rendezvous): its store is gone, or was never reached.
    (("The connection to the C10d store has failed",), "rendezvous-lost"),
    (("EADDRINUSE",), "address-in-use"),
    (("server socket", "Address already in use"), "address-in-use"),
    # Ray compares what a process that joins its cluster runs on (ray/_private/utils.py, check_version_info).
    (("Version mismatch: The cluster was started with",), "other-versions"),
    (("got signal: 15",), "sigterm"),
)
TYPES = {
    "MemoryError": "host-oom",
    "_ArrayMemoryError": "host-oom",
    "bad_alloc": "host-oom",
    "KeyboardInterrupt": "keyboard-interrupt",
    "OutOfMemoryError": "cuda-oom",
    # The launchers that came waited for others as long as they may; the meeting was over when this one came.
    "RendezvousTimeoutError": "rendezvous-timeout",
    "RendezvousClosedError": "rendezvous-lost",
    # What c10d throws for an error of its backend, from the watchdog's thread too: without a text that is known it tells no fault of this
    # rank.
    "DistBackendError": "nccl-follow-up",
}
#: Exceptions of torchrun and of ``torch.multiprocessing.spawn`` themselves: they say nothing of a rank.
LAUNCHER_TYPES = frozenset({"SignalException", "ChildFailedError", "ProcessRaisedException", "ProcessExitedException"})


#: Type of what ``std::terminate`` ended without an exception: as a rule a thread that nobody joined, also in a process on its way out.
UNTHROWN = "no active exception"
#: Kinds of rows of ``exceptions`` after which the process went on: Python could raise them nowhere, or the program caught and printed them.
SURVIVED = ("unraisable", "survived")
#: What was asked for (c10/core/impl/alloc_cpu.cpp), and bytes that a process has addresses for (47 bits on x86-64 and as a rule elsewhere).
_ASKED = re.compile(r"you tried to allocate (\d{15,20}) bytes")
_ADDRESSES = 1 << 47


def classify(kind: str, message: str) -> str:
    """Signature of an exception by its text; ``user`` where nothing known occurs."""
    bare = kind.replace("::", ".").rsplit(".", 1)[-1]
    if bare in LAUNCHER_TYPES:
        return "launcher"
    asked = _ASKED.search(message)
    if asked and int(asked[1]) > _ADDRESSES:
        return "wrong-size"  # a number that is no size: memory did not run out
    for parts, name in SIGNATURES:
        if all(part in message for part in parts):
            return name
    return TYPES.get(bare, "user")
