"""What environment settings of NCCL, PyTorch, libfabric, UCX, CUDA and RCCL do to a job, and which values harm it.

Sources: NCCL's documentation of environment variables and its src (2.4 to 2.30), PyTorch's ProcessGroupNCCL and Flight Recorder
documentation, libfabric's fi_provider pages, aws-ofi-nccl's README, the CUDA programming guide. A setting without a harmful value stands
here so that a report can say what it does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: error: a loss of a tenth and more for sure; warning: a risk or a loss that depends; info: context.
Weight = Literal["error", "warning", "info"]

#: Families of variables that are settings of the communication stack. Everything else of an environment is left alone.
PREFIXES = ("NCCL_", "RCCL_", "TORCH_", "PYTORCH_", "FI_", "GLOO_", "UCX_", "CUDA_", "HSA_", "OFI_NCCL_", "MSCCL_")
OTHERS = frozenset({"OMP_NUM_THREADS", "KINETO_USE_DAEMON", "NVIDIA_TF32_OVERRIDE"})


@dataclass(frozen=True, slots=True)
class Harm:
    """Values that harm (integers of a range, or a full match of a pattern, case ignored), how badly, and why."""

    values: range | str
    weight: Weight
    why: str

    def matches(self, value: str) -> bool:
        """Whether a value is one of these."""
        text = value.strip()
        if isinstance(self.values, str):
            return re.fullmatch(self.values, text, re.IGNORECASE) is not None
        return text.isascii() and text.isdigit() and len(text) < 20 and int(text) in self.values


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable: what it does, the values that harm, and the cause where the effect has a word of its own (another rule bears it)."""

    name: str
    does: str
    harms: tuple[Harm, ...] = ()
    own_word: str | None = None


def _s(name: str, does: str, *harms: tuple[range | str, Weight, str], own_word: str | None = None) -> Setting:
    return Setting(name, does, tuple(Harm(*h) for h in harms), own_word)


_ON, _OFF = r"1|y(es)?|t(rue)?|on", r"0|n(o)?|f(alse)?|off"
_ANY = r".+"
_MANY = 1 << 62

_NCCL: tuple[Setting, ...] = (
    _s(
        "NCCL_ALGO",
        "forces the algorithm of collectives",
        (_ANY, "warning", "NCCL no longer chooses per size and topology; an algorithm that suits one size is slow for others"),
    ),
    _s(
        "NCCL_PROTO",
        "forces the protocol",
        (r"LL", "error", "LL sends a flag with every 4 bytes: at most half of the bandwidth of the links for large messages"),
        (_ANY, "warning", "NCCL no longer chooses per size: Simple is slow for small messages, LL and LL128 for large ones"),
    ),
    _s(
        "NCCL_BUFFSIZE",
        "size of the buffer per channel, 4 MiB by default",
        (range(256 << 10), "error", "below 256 KiB the pipeline between steps runs dry: large collectives lose much of their bandwidth"),
    ),
    _s("NCCL_LL_BUFFSIZE", "size of the LL buffer"),
    _s("NCCL_LL128_BUFFSIZE", "size of the LL128 buffer"),
    _s("NCCL_P2P_NET_CHUNKSIZE", "chunk of send and recv over the network"),
    _s("NCCL_P2P_PCI_CHUNKSIZE", "chunk of send and recv over PCIe"),
    _s("NCCL_P2P_NVL_CHUNKSIZE", "chunk of send and recv over NVLink"),
    _s("NCCL_NVLS_CHUNKSIZE", "chunk of NVLink SHARP"),
    _s("NCCL_NVLSTREE_MAX_CHUNKSIZE", "chunk of the NVLS tree"),
    _s("NCCL_CHUNK_SIZE", "chunk of all collectives"),
    _s("NCCL_NTHREADS", "CUDA threads per channel", (range(129), "warning", "128 threads and fewer cannot keep fast links busy")),
    _s("NCCL_MAX_NCHANNELS", "upper bound of channels", own_word="few-channels"),
    _s("NCCL_MAX_CTAS", "upper bound of channels", own_word="few-channels"),
    _s("NCCL_MAX_NRINGS", "old name of NCCL_MAX_NCHANNELS", own_word="few-channels"),
    _s(
        "NCCL_MIN_NCHANNELS",
        "lower bound of channels",
        (range(32, _MANY), "warning", "each channel holds a multiprocessor while it runs: compute that should overlap slows down"),
    ),
    _s(
        "NCCL_MIN_CTAS",
        "lower bound of channels",
        (range(32, _MANY), "warning", "each channel holds a multiprocessor while it runs: compute that should overlap slows down"),
    ),
    _s("NCCL_MIN_NRINGS", "old name of NCCL_MIN_NCHANNELS"),
    _s("NCCL_NCHANNELS_PER_NET_PEER", "channels of send and recv per network peer"),
    _s("NCCL_P2P_DISABLE", "direct GPU-to-GPU copies off", own_word="p2p-disabled"),
    _s("NCCL_P2P_LEVEL", "distance up to which GPUs copy directly", own_word="p2p-disabled"),
    _s("NCCL_P2P_DIRECT_DISABLE", "no direct pointers between GPUs of one process"),
    _s("NCCL_P2P_USE_CUDA_MEMCPY", "copies by copy engine", (_ON, "info", "copy engines take part; slower for many channels")),
    _s("NCCL_IGNORE_DISABLED_P2P", "hides the warning that P2P is off", (r"[12]", "warning", "NCCL stays silent where GPU pairs lack peer access")),
    _s(
        "NCCL_SHM_DISABLE",
        "shared memory between GPUs of a host off",
        (_ON, "warning", "GPU pairs without peer access then talk over the network inside their host"),
    ),
    _s("NCCL_SHM_USE_CUDA_MEMCPY", "copies to shared memory by copy engine"),
    _s("NCCL_CUMEM_ENABLE", "memory by cuMem", (_OFF, "info", "no P2P/CUMEM, no NVLS registration, no MNNVL")),
    _s("NCCL_CUMEM_HOST_ENABLE", "host memory by cuMem", (_OFF, "info", "/dev/shm is used for host buffers and must be large enough")),
    _s("NCCL_NVLS_ENABLE", "NVLink SHARP", own_word="nvls-disabled"),
    _s("NCCL_MNNVL_ENABLE", "NVLink between hosts", (_OFF, "warning", "on NVL72-class systems traffic between trays goes over the network")),
    _s("NCCL_COLLNET_ENABLE", "reduction inside the network (SHARP)"),
    _s("NCCL_COLLNET_NODE_THRESHOLD", "hosts from which SHARP is used"),
    _s("NCCL_SHARP_DISABLE", "SHARP plugin off"),
    _s("NCCL_NET", "network to use", own_word="socket-fallback"),
    _s("NCCL_NET_PLUGIN", "network plugin to load", (r"none", "info", "external plugins are off; on EFA and TCPX clouds only sockets remain")),
    _s("NCCL_TUNER_PLUGIN", "tuner plugin to load"),
    _s("NCCL_TUNER_CONFIG_FILE", "table of the tuner plugin", (_ANY, "info", "algorithm and protocol come from a table made elsewhere")),
    _s("NCCL_PROFILER_PLUGIN", "profiler plugin to load", (_ANY, "info", "a profiler runs along")),
    _s("NCCL_NET_DISABLE_INTRA", "no network inside a host"),
    _s("NCCL_NET_GDR_LEVEL", "distance up to which GPUDirect RDMA is used", own_word="gdr-disabled"),
    _s("NCCL_NET_GDR_READ", "GPUDirect RDMA for sends", (_OFF, "info", "sends are staged in host memory")),
    _s("NCCL_NET_GDR_C2C", "GPUDirect over C2C"),
    _s("NCCL_IB_CUDA_SUPPORT", "old switch of GPUDirect RDMA", own_word="gdr-disabled"),
    _s("NCCL_DMABUF_ENABLE", "GPUDirect by dma-buf", (_OFF, "info", "without nvidia-peermem there is no GPUDirect RDMA then")),
    _s("NCCL_GDRCOPY_ENABLE", "small copies by GDRCopy"),
    _s("NCCL_NET_FORCE_FLUSH", "flush after each receive", (_ON, "info", "a read after every receive")),
    _s("NCCL_NET_SHARED_BUFFERS", "shared network buffers of send and recv"),
    _s("NCCL_NET_SHARED_COMMS", "shared connections of send and recv"),
    _s("NCCL_NET_MERGE_LEVEL", "distance up to which ports are merged"),
    _s("NCCL_NET_FORCE_MERGE", "ports that are merged"),
    _s("NCCL_NET_OVERHEAD", "cost of the network that the tuner assumes", (_ANY, "info", "the tuner's model is changed")),
    _s("NCCL_CROSS_NIC", "whether rings may change the rail"),
    _s("NCCL_PXN_DISABLE", "sending through the NIC of a neighbour GPU off", (_ON, "warning", "in rail-optimised fabrics all-to-all then crosses spine switches")),
    _s("NCCL_PXN_C2C", "PXN over C2C"),
    _s("NCCL_P2P_PXN_LEVEL", "when send and recv use PXN"),
    _s("NCCL_IB_DISABLE", "InfiniBand and RoCE off", own_word="socket-fallback"),
    _s("NCCL_IB_HCA", "RDMA devices to use", own_word="nic-underused"),
    _s("NCCL_IB_GID_INDEX", "GID of RoCE", (range(3), "info", "on RoCE low indices are often link-local or RoCE v1 and cannot be routed")),
    _s("NCCL_IB_ROCE_VERSION_NUM", "RoCE version", (r"1", "warning", "RoCE v1 cannot be routed")),
    _s("NCCL_IB_ADDR_FAMILY", "address family of the GID"),
    _s("NCCL_IB_ADDR_RANGE", "network of the GID"),
    _s("NCCL_IB_TC", "traffic class of RDMA"),
    _s("NCCL_IB_FIFO_TC", "traffic class of control messages"),
    _s("NCCL_IB_SL", "service level of InfiniBand"),
    _s("NCCL_IB_PKEY", "partition of InfiniBand"),
    _s(
        "NCCL_IB_TIMEOUT",
        "wait for an acknowledgement, 4.096 us x 2^n",
        (range(14), "warning", "below 14 (67 ms) a short pause of the fabric already ends in RETRY_EXC"),
        (range(23, _MANY), "info", "from 23 on (34 s per try) a dead link is reported only after minutes"),
    ),
    _s("NCCL_IB_RETRY_CNT", "tries until a transfer fails", (range(7), "warning", "fewer tries than the default of 7: short pauses end the job")),
    _s("NCCL_IB_QPS_PER_CONNECTION", "queue pairs per connection"),
    _s("NCCL_IB_SPLIT_DATA_ON_QPS", "spread of a message over queue pairs"),
    _s("NCCL_IB_AR_THRESHOLD", "size from which adaptive routing is used"),
    _s("NCCL_IB_ADAPTIVE_ROUTING", "adaptive routing", (_OFF, "info", "static routes: flows may share a link of the fabric")),
    _s("NCCL_IB_PCI_RELAXED_ORDERING", "PCIe relaxed ordering", (_OFF, "warning", "in virtual machines and on AMD hosts RDMA then loses much of its bandwidth")),
    _s("NCCL_IB_MERGE_NICS", "merging of ports of one NIC"),
    _s("NCCL_IB_WARN_RAIL_LOCAL", "warning about rails"),
    _s("NCCL_IB_RETURN_ASYNC_EVENTS", "port events end the communicator", (_OFF, "info", "fatal port events no longer end the job: it hangs")),
    _s("NCCL_IB_ECE_ENABLE", "enhanced connection establishment"),
    _s("NCCL_IB_DATA_DIRECT", "Data Direct devices"),
    _s("NCCL_SOCKET_IFNAME", "interfaces of bootstrap and sockets", own_word="wrong-interface"),
    _s("NCCL_SOCKET_FAMILY", "address family"),
    _s("NCCL_SOCKET_NTHREADS", "threads per socket connection"),
    _s("NCCL_NSOCKS_PERTHREAD", "sockets per thread"),
    _s("NCCL_SOCKET_RETRY_CNT", "tries of a connection", (range(20), "warning", "few tries: a rank that starts late is given up")),
    _s("NCCL_SOCKET_RETRY_SLEEP_MSEC", "pause between tries"),
    _s("NCCL_OOB_NET_ENABLE", "bootstrap over the network plugin"),
    _s("NCCL_OOB_NET_IFNAME", "interface of that bootstrap"),
    _s("NCCL_COMM_ID", "fixed address of the bootstrap root", (_ANY, "info", "a left-over address lets jobs meet each other")),
    _s("NCCL_HOSTID", "identity of the host: ranks count as on one host only where it is equal"),
    _s("NCCL_MULTI_RANK_GPU_ENABLE", "several ranks on one GPU", (_ON, "warning", "hides that two ranks were given the same GPU")),
    _s("NCCL_TOPO_FILE", "topology instead of detection", own_word="bad-setting"),
    _s("NCCL_TOPO_DUMP_FILE", "writes the topology"),
    _s("NCCL_TOPO_DUMP_FILE_RANK", "rank that writes the topology"),
    _s("NCCL_GRAPH_FILE", "channels instead of a search", (_ANY, "warning", "the channels come from a file, whatever the hardware is like")),
    _s("NCCL_GRAPH_DUMP_FILE", "writes the channels"),
    _s("NCCL_GRAPH_MIXING_SUPPORT", "CUDA graphs beside plain launches", (_OFF, "info", "mixing graphs and plain calls is then wrong")),
    _s("NCCL_GRAPH_REGISTER", "buffer registration in CUDA graphs"),
    _s("NCCL_IGNORE_CPU_AFFINITY", "ignores the job's CPU binding"),
    _s("NCCL_SET_STACK_SIZE", "stack size of kernels"),
    _s("NCCL_SET_THREAD_NAME", "names of threads"),
    _s("NCCL_LAUNCH_MODE", "how kernels are launched", (r"GROUP", "info", "cooperative launches: slower")),
    _s("NCCL_LAUNCH_ORDER_IMPLICIT", "implicit order of communicators"),
    _s("NCCL_RUNTIME_CONNECT", "connects at the first collective", (_OFF, "info", "all connections are made at init: slower start, more memory")),
    _s("NCCL_CHECK_POINTERS", "checks every pointer", (_ON, "info", "each call asks CUDA about its buffers")),
    _s("NCCL_CHECK_MODE", "checks of arguments between ranks", (_ANY, "info", "each call is compared between ranks")),
    _s("NCCL_CHECKS_DISABLE", "no checks of arguments", (_ON, "info", "wrong arguments are not refused any more")),
    _s("NCCL_IGNORE_NET_MISMATCH", "accepts hosts with fewer NICs", (_ON, "warning", "a host that lacks a NIC slows the job without a word")),
    _s("NCCL_IGNORE_COLLNET_MISMATCH", "accepts hosts with fewer SHARP devices", (_ON, "info", "a host that lacks a device is not refused")),
    _s("NCCL_DEBUG", "level of the log", (r"TRACE", "info", "every call is logged: slow, and large logs")),
    _s("NCCL_DEBUG_SUBSYS", "parts of the log", (r"(.*,)?(ALL|COLL|CALL|PROXY|TUNING|ALLOC)(,.*)?", "info", "lines for each operation: slow, and large logs")),
    _s(
        "NCCL_DEBUG_FILE",
        "file of the log",
        (r"(?!.*%p)(?!/dev/).+", "warning", "without %p all processes truncate and write the same file: lines are lost and torn"),
    ),
    _s("NCCL_DEBUG_TIMESTAMP_LEVELS", "levels with a timestamp"),
    _s("NCCL_DEBUG_TIMESTAMP_FORMAT", "form of the timestamp"),
    _s("NCCL_WARN_ENABLE_DEBUG_INFO", "INFO after the first WARN"),
    _s("NCCL_PROXY_PROFILE", "profile of the proxy threads"),
    _s("NCCL_PROFILE_DUMP_FILE", "file of the example profiler"),
    _s("NCCL_INSPECTOR_ENABLE", "the Inspector"),
    _s("NCCL_INSPECTOR_DUMP_DIR", "folder of the Inspector"),
    _s("NCCL_INSPECTOR_DUMP_VERBOSE", "events of the Inspector", (_ON, "info", "one record per channel and operation: large files")),
    _s("NCCL_RAS_ENABLE", "the RAS service", (_OFF, "info", "a hang can no longer be asked about with ncclras")),
    _s("NCCL_RAS_ADDR", "address of the RAS service"),
    _s("NCCL_RAS_TIMEOUT_FACTOR", "timeouts of the RAS service"),
    _s("NCCL_NVTX_DISABLE", "no NVTX ranges"),
    _s("NCCL_CTA_POLICY", "how channels are used"),
    _s("NCCL_SINGLE_RING_THRESHOLD", "old size for one ring"),
    _s("NCCL_LL_THRESHOLD", "old size for LL", (_ANY, "info", "of releases before 2.5; newer ones read NCCL_PROTO")),
    _s("NCCL_TREE_THRESHOLD", "old size for trees", (_ANY, "info", "of releases before 2.5; newer ones read NCCL_ALGO")),
    _s("NCCL_SPLIT_NOCOLOR", "a value of ncclCommSplit, no setting"),
    _s("NCCL_WORK_FIFO_BYTES", "queue of work for kernels"),
    _s("NCCL_WORK_ARGS_BYTES", "arguments of kernels"),
    _s("NCCL_CONF_FILE", "file with settings"),
    _s("NCCL_NET_OPTIONAL_RECV_COMPLETION", "completions of LL receives"),
    _s("NCCL_MEM_SYNC_DOMAIN", "memory domain of kernels"),
    _s("NCCL_TESTS_MIN_BW", "bandwidth that nccl-tests must reach"),
    _s("NCCL_TESTS_SPLIT", "groups of nccl-tests"),
    _s("NCCL_TESTS_SPLIT_MASK", "groups of nccl-tests"),
    _s("NCCL_ASYNC_ERROR_HANDLING", "old name of TORCH_NCCL_ASYNC_ERROR_HANDLING", (r"0", "warning", "a timeout no longer ends the job: it hangs for ever")),
    _s("NCCL_BLOCKING_WAIT", "old name of TORCH_NCCL_BLOCKING_WAIT", (_ON, "warning", "the host waits in every wait(): launches no longer run ahead")),
    _s("RCCL_MSCCL_ENABLE", "MSCCL algorithms of RCCL"),
    _s("RCCL_MSCCLPP_ENABLE", "MSCCL++ algorithms of RCCL"),
    _s("RCCL_KERNEL_COLL_TRACE_ENABLE", "kernel trace of RCCL", (_ON, "info", "kernels write events: slower")),
    _s("HSA_FORCE_FINE_GRAIN_PCIE", "fine-grained memory over PCIe (AMD)", (_OFF, "warning", "AMD GPUs cannot copy directly over PCIe without it")),
    _s("HSA_NO_SCRATCH_RECLAIM", "keeps scratch memory (AMD)"),
)  # fmt: skip
_TORCH: tuple[Setting, ...] = (
    _s("TORCH_DISTRIBUTED_DEBUG", "checks of torch.distributed", (r"DETAIL", "warning", "every collective is preceded by a comparison between all ranks: slow, and it can crash by itself")),
    _s("TORCH_CPP_LOG_LEVEL", "level of the C++ log"),
    _s("TORCH_NCCL_BLOCKING_WAIT", "wait() blocks the host", (_ON, "warning", "the host waits in every wait(): launches no longer run ahead")),
    _s("TORCH_NCCL_ASYNC_ERROR_HANDLING", "what a timeout does", (r"0", "warning", "a timeout no longer ends the job: it hangs for ever")),
    _s("TORCH_NCCL_ENABLE_MONITORING", "the heartbeat monitor", (_OFF, "warning", "a watchdog that hangs itself is no longer noticed")),
    _s("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "patience of the heartbeat monitor", (range(60), "warning", "below a minute long CUDA calls (lazy init, checkpoint) look like a hang")),
    _s("TORCH_NCCL_TRACE_BUFFER_SIZE", "entries of the Flight Recorder", (r"0", "info", "no Flight Recorder dump: the next hang leaves no trace")),
    _s("TORCH_TRACE_BUFFER_SIZE", "entries of the Flight Recorder in one release"),
    _s("TORCH_FR_BUFFER_SIZE", "entries of the Flight Recorder", (r"0", "info", "no Flight Recorder dump: the next hang leaves no trace")),
    _s("TORCH_FR_CPP_STACK", "C++ frames in the Flight Recorder", (_ON, "info", "each operation unwinds the C++ stack: slower")),
    _s("TORCH_NCCL_TRACE_CPP_STACK", "C++ frames in the Flight Recorder", (_ON, "info", "each operation unwinds the C++ stack: slower")),
    _s("TORCH_NCCL_DUMP_ON_TIMEOUT", "dump on a timeout", (_OFF, "info", "no Flight Recorder dump: the next hang leaves no trace")),
    _s("TORCH_FR_DUMP_TEMP_FILE", "where dumps are written"),
    _s("TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "name of dumps read anew"),
    _s("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "where dumps are written"),
    _s("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "pipe that asks for a dump"),
    _s("TORCH_HCCL_DEBUG_INFO_TEMP_FILE", "where dumps are written (Ascend)"),
    _s("TORCH_NCCL_ENABLE_TIMING", "start events of collectives", (_ON, "info", "one more CUDA event per collective")),
    _s("TORCH_NCCL_DESYNC_DEBUG", "report of ranks that differ", (_ON, "info", "each collective is noted in the store: slower in large worlds")),
    _s("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "wait for dumps"),
    _s("TORCH_NCCL_COORD_CHECK_MILSEC", "how often a dump signal is looked for"),
    _s("TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "extra dump on an exception"),
    _s("TORCH_NCCL_HIGH_PRIORITY", "streams of high priority"),
    _s("TORCH_NCCL_AVOID_RECORD_STREAMS", "how tensors are kept alive"),
    _s("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "buffer registration"),
    _s("TORCH_NCCL_CUDA_EVENT_CACHE", "reuse of CUDA events"),
    _s("TORCH_NCCL_NAN_CHECK", "looks for NaN", (_ON, "info", "each buffer is read once more")),
    _s("TORCH_NCCL_RETHROW_CUDA_ERRORS", "errors of the watchdog"),
    _s("TORCH_SHOW_CPP_STACKTRACES", "C++ frames in tracebacks"),
    _s("PYTORCH_CUDA_ALLOC_CONF", "CUDA allocator", (r".*expandable_segments:true.*", "info", "such memory has no legacy IPC handle: P2P/IPC is refused where cuMem is off")),
    _s("PYTORCH_ALLOC_CONF", "CUDA allocator", (r".*expandable_segments:true.*", "info", "such memory has no legacy IPC handle: P2P/IPC is refused where cuMem is off")),
    _s("PYTORCH_NO_CUDA_MEMORY_CACHING", "no caching allocator", (_ON, "warning", "each allocation synchronises the device")),
    _s("GLOO_SOCKET_IFNAME", "interface of Gloo", (r"lo|docker\d*|virbr\d*|cni\d*", "warning", "other hosts cannot reach that interface")),
    _s("CUDA_LAUNCH_BLOCKING", "each launch waits", (r"1", "error", "no kernel overlaps another: communication is never hidden")),
    _s("CUDA_DEVICE_MAX_CONNECTIONS", "hardware queues"),
    _s("CUDA_VISIBLE_DEVICES", "GPUs of the process"),
    _s("CUDA_DEVICE_ORDER", "order of GPUs", (r"FASTEST_FIRST", "info", "ordinals do not follow the PCI order")),
    _s("CUDA_MODULE_LOADING", "when kernels are loaded", (r"LAZY", "info", "the first call of a kernel may wait for running ones")),
    _s("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "GPU core dumps", (_ON, "info", "after a fault the process writes memory for minutes: the others time out")),
    _s("OMP_NUM_THREADS", "threads of CPU operations"),
    _s("KINETO_USE_DAEMON", "on-demand profiling"),
)  # fmt: skip
_FABRIC: tuple[Setting, ...] = (
    _s("FI_PROVIDER", "provider of libfabric", own_word="socket-fallback"),
    _s("FI_EFA_USE_DEVICE_RDMA", "RDMA of EFA", own_word="gdr-disabled"),
    _s("FI_EFA_FORK_SAFE", "safe fork for EFA"),
    _s("FI_EFA_ENABLE_SHM_TRANSFER", "shared memory of EFA"),
    _s("FI_EFA_USE_HUGE_PAGE", "huge pages of EFA"),
    _s("FI_EFA_SET_CUDA_SYNC_MEMOPS", "synchronous memory operations"),
    _s("FI_EFA_TX_MIN_CREDITS", "credits of EFA"),
    _s("FI_LOG_LEVEL", "log of libfabric", (r"debug|trace|info", "info", "each operation is logged: slow")),
    _s("FI_HMEM", "device memory of libfabric"),
    _s("FI_HMEM_CUDA_USE_GDRCOPY", "GDRCopy of libfabric"),
    _s("FI_MR_CACHE_MONITOR", "who watches registered memory", (r"memhooks", "info", "hooks on malloc: known to deadlock with CUDA in some releases")),
    _s("FI_CXI_DISABLE_HOST_REGISTER", "registration of host memory with CUDA (Slingshot)"),
    _s("FI_CXI_DEFAULT_CQ_SIZE", "completion queue (Slingshot)"),
    _s("FI_CXI_DEFAULT_TX_SIZE", "transmit queue (Slingshot)"),
    _s("FI_CXI_RX_MATCH_MODE", "matching of messages (Slingshot)"),
    _s("FI_CXI_RDZV_PROTO", "rendezvous protocol (Slingshot)"),
    _s("FI_CXI_RDZV_EAGER_SIZE", "rendezvous size (Slingshot)"),
    _s("FI_CXI_RDZV_GET_MIN", "rendezvous size (Slingshot)"),
    _s("FI_CXI_RDZV_THRESHOLD", "rendezvous size (Slingshot)"),
    _s("FI_CXI_REQ_BUF_SIZE", "request buffers (Slingshot)"),
    _s("FI_CXI_COMPAT", "old protocol (Slingshot)"),
    _s("OFI_NCCL_PROTOCOL", "protocol of aws-ofi-nccl"),
    _s("OFI_NCCL_FORCE_NUM_RAILS", "rails of aws-ofi-nccl"),
    _s("OFI_NCCL_EAGER_MAX_SIZE", "eager size of aws-ofi-nccl"),
    _s("OFI_NCCL_TOPO_FILE_WRITE_ENABLE", "writes a topology file"),
    _s("UCX_TLS", "transports of UCX", (r"(?!\^)(?!.*\b(rc|dc|ud|ib|all)(_\w+)?\b).*\btcp\b.*", "warning", "UCX uses TCP only")),
    _s("UCX_NET_DEVICES", "devices of UCX"),
    _s("UCX_IB_PCI_RELAXED_ORDERING", "PCIe relaxed ordering of UCX"),
    _s("UCX_LOG_LEVEL", "log of UCX", (r"debug|trace.*|data|async|func|poll", "info", "each operation is logged: slow")),
)  # fmt: skip

SETTINGS: dict[str, Setting] = {s.name: s for s in (*_NCCL, *_TORCH, *_FABRIC)}


def is_setting(name: str) -> bool:
    """Whether a variable of an environment is a setting of the communication stack."""
    return name in OTHERS or name.startswith(PREFIXES)
