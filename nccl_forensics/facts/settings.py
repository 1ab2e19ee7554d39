"""NCCL settings: which must agree between ranks, and which harm by themselves (NCCL documentation and src/param)."""

from __future__ import annotations

from dataclasses import dataclass

#: Settings that every rank reads at or before its first communicator and that must agree, or the ranks plan different things.
MUST_AGREE = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_CTAS",
        "NCCL_MIN_CTAS",
        "NCCL_BUFFSIZE",
        "NCCL_NTHREADS",
        "NCCL_IB_DISABLE",
        "NCCL_NET",
        "NCCL_NET_PLUGIN",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_P2P_DIRECT_DISABLE",
        "NCCL_SHM_DISABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_CUMEM_ENABLE",
        "NCCL_COLLNET_ENABLE",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_NET_GDR_READ",
        "NCCL_CROSS_NIC",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_PXN_DISABLE",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_CHUNK_SIZE",
    }
)


@dataclass(frozen=True, slots=True)
class Effect:
    """A setting whose value switches something off: the cause it bears and what it does."""

    name: str
    values: frozenset[str] | None
    cause: str
    words: str


def _effect(name: str, values: str | None, cause: str, words: str) -> Effect:
    return Effect(name, frozenset(values.split()) if values is not None else None, cause, words)


#: What NCCL calls settings that the program makes itself (ncclConfig_t), such as ``Comm config Max CTAs``.
IN_CONFIG = "Comm config"

EFFECTS: tuple[Effect, ...] = (
    _effect("NCCL_P2P_DISABLE", "1", "p2p-disabled", "switches direct GPU-to-GPU copies off"),
    _effect("NCCL_P2P_LEVEL", "LOC 0", "p2p-disabled", "allows direct copies within one GPU only"),
    _effect("NCCL_IB_DISABLE", "1", "socket-fallback", "switches InfiniBand and RoCE off"),
    _effect("NCCL_NET", "Socket socket", "socket-fallback", "forces TCP sockets"),
    _effect(f"{IN_CONFIG} Net name", "Socket socket", "socket-fallback", "chooses TCP sockets"),
    _effect("FI_PROVIDER", "tcp tcp;ofi_rxm sockets udp udp;ofi_rxd", "socket-fallback", "makes libfabric use TCP"),
    _effect("NCCL_NET_GDR_LEVEL", "LOC 0", "gdr-disabled", "switches GPUDirect RDMA off"),
    _effect("NCCL_IB_CUDA_SUPPORT", "0", "gdr-disabled", "switches GPUDirect RDMA off (before NCCL 2.4)"),
    _effect("FI_EFA_USE_DEVICE_RDMA", "0", "gdr-disabled", "switches RDMA of EFA off, and with it GPUDirect"),
    _effect("NCCL_NVLS_ENABLE", "0", "nvls-disabled", "switches NVLink SHARP off"),
)

#: Settings that only say what is printed where, or name a machine: two runs that differ in them communicate alike.
HARMLESS = frozenset(
    {
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_DEBUG_TIMESTAMP_FORMAT",
        "NCCL_DEBUG_TIMESTAMP_LEVELS",
        "NCCL_WARN_ENABLE_DEBUG_INFO",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_GRAPH_DUMP_FILE",
        "NCCL_HOSTID",
        "NCCL_COMM_ID",
        "NCCL_CONF_FILE",
        "NCCL_RAS_ADDR",
        "NCCL_INSPECTOR_DUMP_DIR",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_DISTRIBUTED_DEBUG",
    }
)

#: Settings that decide which hardware NCCL uses and how: the first ones to look at where two runs differ.
DECISIVE = (
    MUST_AGREE | {e.name for e in EFFECTS} | {"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_SHM_DISABLE"}
)
