"""How NCCL's failures end processes: the communicator cannot be made or breaks, torch raises, the launcher takes down the rest."""

from __future__ import annotations

from nccl_forensics.simulate import fabric
from nccl_forensics.simulate.noise import share
from nccl_forensics.simulate.program import HERE, TORCH, Frame
from nccl_forensics.simulate.world import SECOND, Ending, Met, Process, World

#: Result code -> (ncclGetErrorString, torch's words for it).
RESULTS = {
    1: ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "ncclUnhandledCudaError: Call to CUDA function failed."),
    2: (
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    ),
    3: ("internal error - please report this issue to the NCCL developers", "ncclInternalError: Internal check failed."),
    5: (
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    ),
    6: (
        "remote process exited or there was a network error",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
}
SETUP: tuple[Frame, ...] = (
    ("barrier", f"{TORCH}distributed/distributed_c10d.py", 4836),
    ("wrapper", f"{TORCH}distributed/c10d_logger.py", 81),
    ("setup", f"{HERE}pretrain.py", 61),
    ("main", f"{HERE}pretrain.py", 90),
    ("<module>", f"{HERE}pretrain.py", 121),
)


def refused(process: Process, at: int, code: int, last: str, met: list[Met]) -> None:
    """The process meets errors of NCCL, torch raises with the last of them, and it ends with exit code 1."""
    text, meaning = RESULTS[code]
    said = (
        f"torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, {text}, "
        f"NCCL version {process.release}\n{meaning}\nLast error:\n{last}"
    )
    process.met += met
    process.met.append(Met(at + SECOND // 20, "torch.exception", {"text": said, "frames": SETUP}))
    process.ending = Ending(at + SECOND // 2, "exit", code=1)
    process.dumped_at = None


def broken_start(world: World, at: int, failing: dict[int, tuple[int, str, Met]], *, bootstrap: bool) -> None:
    """Ranks fail in their first communicator, the others see them go. ``bootstrap``: before the ranks knew each other.

    ``failing`` gives for each failing rank NCCL's result, its last message and what it met.
    """
    first = {r: fabric.comms_of(world, r)[0] for r in world.processes}
    gone = min(failing)
    peer = world.processes[gone].host
    for rank, process in world.processes.items():
        process.met = [m for m in process.met if not m.kind.startswith(("nccl.", "torch."))]
        process.opened = {first[rank].key}
        process.ready = set() if bootstrap else {first[rank].key}
        process.unconnected = True
        if rank in failing:
            code, last, met = failing[rank]
            met.at = at + int(share(world.seed, "fail", rank) * SECOND / 4)
            refused(process, met.at, code, last, [met])
            continue
        later = at + int((1.0 + share(world.seed, "follow", rank)) * SECOND)
        name = f"{peer.name}<{40000 + gone % 20000}>" if world.seed % 2 else ""
        kind = "nccl.closed-in-init" if bootstrap else "nccl.closed"
        met = Met(later, kind, {"peer": name})
        refused(process, later, 6, f"socketProgress: Connection closed by remote peer {name}", [met])
    world.now = at + 120 * SECOND


def broken_link(world: World, step_at: int, struck: dict[int, Met], code: int = 6) -> None:
    """Ranks lose a connection in the middle of the job; the watchdog of each sees the error of its communicator; the rest is taken down."""
    hosts = {world.processes[r].host.index for r in struck}
    begin = min(m.at for m in struck.values())
    text, meaning = RESULTS[code]
    for rank, process in world.processes.items():
        process.met = [m for m in process.met if not m.kind.startswith(("nccl.", "torch."))]
        process.dumped_at = None
        met = struck.get(rank)
        if met is not None:
            process.met.append(met)
            last = str(met.facts.get("last", ""))
            facts: dict[str, object] = {"error": text, "meaning": meaning, "last": last}
            process.met.append(Met(met.at + SECOND // 3, "torch.nccl-error", facts))
            process.ending = Ending(met.at + SECOND, "signal", 6)
            continue
        wait = 1.5 if process.host.index in hosts else 8 + share(world.seed, "down", process.host.index)
        process.ending = Ending(begin + int(wait * SECOND), "signal", 15, "launcher")
    world.now = max(step_at, begin) + 120 * SECOND
