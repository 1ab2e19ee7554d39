"""NCCL's RAS client as JSON (``ncclras -f json``, NCCL 2.28.7 and later): every rank of every communicator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, filled
from nccl_forensics.values.documents import items, mapping
from nccl_forensics.values.units import local_time

_COUNTS = {
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllReduce": "all_reduce",
}


def sniff(head: bytes) -> bool:
    """An object with the client's own keys."""
    return head.lstrip().startswith(b"{") and b'"nccl_version"' in head and b'"communicators' in head


def read(data: bytes) -> Reading:
    """Ranks with data, and those without."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        return Reading(gaps=(Gap(f"unparsed: {problem}"),))
    if not isinstance(found, dict) or not isinstance(found.get("communicators"), list):
        return Reading(gaps=(Gap("unparsed: no list of communicators"),))
    rows = [row for number, comm in enumerate(found["communicators"]) for row in _ranks(found, comm, f"communicators[{number}]")]
    return Reading(frames=filled({"nccl_ras_ranks": rows}), records=max(1, len(rows)))


def _ranks(found: Mapping[str, object], comm: object, record: str) -> Iterator[Row]:
    if not isinstance(comm, dict):
        return
    hash_text = str(comm.get("hash") or "").lower().removeprefix("0x").lstrip("0")
    common = {
        **local_time(found.get("timestamp"), "%Y-%m-%d %H:%M:%S"),
        "nccl_version": found.get("nccl_version"),
        "comm_id": f"0x{hash_text}" if hash_text else None,
        "nranks": comm.get("size"),
    }
    for key in ("ranks", "missing_ranks"):
        listed = comm.get(key)
        for number, rank in enumerate(items(listed)):
            if isinstance(rank, dict):
                yield {"record": f"{record}.{key}[{number}]", **common, **_rank(rank), "missing": key == "missing_ranks"}


def _rank(rank: Mapping[str, object]) -> Row:
    status, counts = mapping(rank.get("status")), mapping(rank.get("collective_counts"))
    return {
        **{name: rank.get(name) for name in ("rank", "host", "pid", "cuda_dev", "nvml_dev")},
        **{name: status.get(name) for name in ("init_state", "async_error", "finalize_called", "unresponsive", "considered_dead")},
        "destroyed": status.get("destroy_flag"),
        "aborted": status.get("abort_flag"),
        **{column: counts.get(name) for name, column in _COUNTS.items()},
    }


FORMAT = DocumentFormat(
    name="nccl-ras-json",
    title="NCCL RAS client, JSON",
    tables=("nccl_ras_ranks",),
    sniff=sniff,
    read=read,
    priority=40,
)
