"""Flight Recorder dumps: the pickle that the watchdog writes and the JSON that a live dump gives, in the schemas of several releases."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from functools import lru_cache

from nccl_forensics.simulate import fabric
from nccl_forensics.simulate.engine import Entry
from nccl_forensics.simulate.noise import share
from nccl_forensics.simulate.program import TORCH as TORCH_PATH
from nccl_forensics.simulate.program import Frame
from nccl_forensics.simulate.world import World

#: Line of the wrapper and of the call in torch/distributed/distributed_c10d.py.
_CALL_LINES = {
    "all_reduce": 2937, "all_reduce_barrier": 4835, "broadcast": 2727, "_all_gather_base": 3907, "_reduce_scatter_base": 4433,
    "all_to_all": 4607, "send": 2548, "recv": 2597, "reduce": 3068,
}  # fmt: skip
_PYTHON_NAMES = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
    "all_reduce_barrier": "barrier",
}


def library_frames(op: str) -> tuple[Frame, ...]:
    """Frames of torch.distributed above the user's, innermost first."""
    name = _PYTHON_NAMES.get(op, op)
    return (
        (name, f"{TORCH_PATH}distributed/distributed_c10d.py", _CALL_LINES.get(op, 2900)),
        ("wrapper", f"{TORCH_PATH}distributed/c10d_logger.py", 81),
    )


def recorded(world: World, rank: int) -> Iterator[Entry]:
    """Entries of a rank whose communicator came to life: before that nothing is recorded."""
    ready = world.processes[rank].ready
    for entry in world.entries(rank):
        if fabric.comm_of(entry.group, entry.item, rank).key in ready:
            yield entry


def profiling_name(entry: Entry, rank: int) -> str:
    """``nccl:send 0->1`` and the like; the numbers are places in the group."""
    item = entry.item
    if item.op == "send":
        return f"nccl:send {entry.group.place(rank)}->{item.peer}"
    if item.op == "recv":
        return f"nccl:recv {entry.group.place(rank)}<-{item.peer}"
    return f"nccl:{item.op}"


def discovered(world: World, rank: int, entry: Entry, at: int) -> int | None:
    """When the watchdog noticed the end of an operation; None at a moment before that."""
    if entry.completed is None:
        return None
    noticed = entry.completed + int(share(world.seed, "noticed", rank, entry.record_id) * 100e6)
    return min(noticed, at) if entry.completed <= at else None


def _entry(
    world: World, rank: int, entry: Entry, at: int, schema: tuple[int, ...], frames: dict[int, list[dict[str, object]]]
) -> dict[str, object]:
    item = entry.item
    done = discovered(world, rank, entry, at)
    row: dict[str, object] = {
        "record_id": entry.record_id,
        "pg_id": entry.local_group,
        "process_group": (entry.group.name, entry.group.desc),
    }
    if schema >= (2, 9):
        row |= {"thread_name": "python3", "thread_id": str(world.pointer(rank, "thread") & 0x7FFF_FFFF_FFFF)}
    row |= {
        "collective_seq_id": entry.seq,
        "p2p_seq_id": entry.p2p_seq,
        "op_id": entry.op_id,
        "profiling_name": profiling_name(entry, rank),
        "time_created_ns": entry.created,
        "input_sizes": [list(item.sizes)],
        "input_dtypes": [item.dtype],
        "output_sizes": [list(item.out_sizes)],
        "output_dtypes": [item.dtype],
        "state": "completed" if done is not None else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": done,
        "retired": done is not None,
        "timeout_ms": world.timeout_ms,
        "is_p2p": item.op in ("send", "recv"),
    }
    key = id(item.frames)
    stack = frames.get(key)
    if stack is None:
        whole = (*library_frames(item.op), *item.frames)
        stack = frames[key] = [{"name": name, "filename": file, "line": line} for name, file, line in whole]
    row["frames"] = stack
    return row


@lru_cache(maxsize=64)
def _members(members: range) -> str:
    return str(list(members))


def contents(world: World, rank: int, at: int) -> dict[str, object]:
    """A dump as torch builds it at a moment."""
    schema = tuple(int(x) for x in world.torch.schema.split("."))
    entries = [e for e in recorded(world, rank) if e.created <= at]
    groups = world.layout.groups(rank)
    used = {e.local_group for e in entries}
    frames: dict[int, list[dict[str, object]]] = {}
    status: dict[str, dict[str, int]] = {}
    for local in sorted(used):
        mine = [e for e in entries if e.local_group == local]
        done = [e for e in mine if discovered(world, rank, e, at) is not None]
        last = mine[-1]
        status[str(local)] = {
            "last_enqueued_collective": last.p2p_seq or last.seq,
            "last_started_collective": -1,
            "last_completed_collective": (done[-1].p2p_seq or done[-1].seq) if done else (mine[0].p2p_seq or mine[0].seq) - 1,
        }
    result: dict[str, object] = {"version": world.torch.schema}
    if schema >= (2, 10):
        result["comm_lib_version"] = world.processes[rank].release
    elif schema >= (2, 7):
        result["nccl_version"] = world.processes[rank].release
    result["pg_config"] = {
        g.name: {"name": g.name, "desc": g.desc, "ranks": _members(g.members)} for i, g in enumerate(groups) if i in used or i == 0
    }
    result["pg_status"] = status
    result["entries"] = [_entry(world, rank, e, at, schema, frames) for e in entries]
    return result


def as_pickle(world: World, rank: int, at: int) -> bytes:
    """The file of the timeout writer: protocol 2, containers and plain values only."""
    return pickle.dumps(contents(world, rank, at), protocol=2)


def as_json(world: World, rank: int, at: int) -> bytes:
    """The live dump: one line, keys sorted, no frames, zeros for absent times, counters as strings."""
    data = contents(world, rank, at)
    entries = data["entries"]
    assert isinstance(entries, list)
    for row in entries:
        row.pop("frames")
        row["process_group"] = list(row["process_group"])
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            row[name] = row[name] or 0
    status = data["pg_status"]
    assert isinstance(status, dict)
    data["pg_status"] = {k: {n: str(x) for n, x in v.items()} for k, v in status.items()}
    data["nccl_comm_state"] = {}
    if not entries:
        data.pop("entries")
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
