"""Which kernels communicate, and what their functions are called elsewhere.

NCCL's and RCCL's own names are read by ``grammars/collective_kernel.lark``; here stand the others, and how the peers' tools class kernels
(so that their numbers can be given by their own definitions).
"""

from __future__ import annotations

import re

#: What torch calls exchanges of a pair of ranks; all else is of a group.
PAIRWISE = ("send", "recv", "send_recv", "coalesced")
#: Functions in NCCL kernel names and what torch calls the operation. ``Generic`` tells nothing: the kernel finds its work by table.
NCCL_FUNCTIONS: dict[str, str] = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "AllGatherV": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "send_recv",
    "AllToAll": "all_to_all",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}

#: Kernels of others that communicate: a part of the name in lower case, and the operation where the name tells it. vLLM, TensorRT-LLM
#: and flashinfer, torch's symmetric memory, NVSHMEM, DeepEP, MSCCL++, RCCL's older generic kernel.
CUSTOM: tuple[tuple[str, str | None], ...] = (
    ("cross_device_reduce", "all_reduce"),
    ("allreduce_fusion", "all_reduce"),
    ("multimem_all_reduce", "all_reduce"),
    ("one_shot_all_reduce", "all_reduce"),
    ("two_shot_all_reduce", "all_reduce"),
    ("multimem_one_shot", "all_reduce"),
    ("multimem_all_gather", "all_gather"),
    ("oneshotallreduce", "all_reduce"),
    ("twoshotallreduce", "all_reduce"),
    ("rcclgenerickernel", None),
    ("mscclkernel", None),
    ("mscclpp", None),
    ("nvshmem", None),
    ("deep_ep::", None),
)

#: HolisticTraceAnalysis: communication by the start of the name (AMD's own copies and fills begin with ``hip`` and fall under it).
HTA_COMMUNICATION = re.compile(r"^(?:nccl|hip|hccl)|^.*ncclKernel")
HTA_MEMORY = re.compile(r"^(?:Memcpy|Memset|hipMemcpy|hipMemset|dma)", re.IGNORECASE)
#: TraceLens: any part of the name, upper or lower case; memsets count as computation there.
TRACELENS_COMMUNICATION = re.compile(r"rccl|nccl|cross_device_reduce", re.IGNORECASE)

#: Names of a collective as its callers write them (record_param_comms, nccl:/gloo: ranges, c10d), by torch's plain name.
OPERATIONS: dict[str, str] = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "barrier": "barrier",
    "coalesced": "coalesced",
}

#: NCCL's reductions by the numbers that its logs give them (``ncclRedOp_t`` in nccl.h); larger ones are made by the program.
REDUCTIONS: dict[int, str] = {0: "sum", 1: "prod", 2: "max", 3: "min", 4: "avg"}

#: Bytes of an element by the names of torch (``Float``), of ATen's type ids (``c10::BFloat16``) and of C.
ELEMENT_BYTES: dict[str, int] = {
    "float": 4,
    "double": 8,
    "half": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "short int": 2,
    "byte": 1,
    "unsigned char": 1,
    "char": 1,
    "signed char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "complexfloat": 8,
}


def operation(name: str | None) -> str | None:
    """Plain name of a collective as a caller wrote it (``nccl:_all_gather_base``, ``send 0->1``); None where it is none of these."""
    if name is None:
        return None
    word = name.rsplit(":", 1)[-1].split(" ", 1)[0].lower()
    return OPERATIONS.get(word) or OPERATIONS.get(word.removesuffix("_coalesced"))


def message_bytes(
    op: str | None, in_elements: int | None, out_elements: int | None, dtype: str | None, group_size: int | None
) -> int | None:
    """Size of a collective as nccl-tests counts it: for AllGather what every rank ends up with, for ReduceScatter what it starts with,
    else what one rank sends (doc/PERFORMANCE.md of nccl-tests)."""
    width = ELEMENT_BYTES.get((dtype or "").lower())
    if width is None:
        return None
    if op == "all_gather":
        if out_elements:
            return out_elements * width
        return in_elements * group_size * width if in_elements and group_size else None
    elements = in_elements if in_elements else out_elements
    return elements * width if elements else None
