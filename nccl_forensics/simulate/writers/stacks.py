"""Stacks of the ranks that still run, as ``py-spy dump`` prints them."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_forensics.simulate.noise import mix
from nccl_forensics.simulate.program import HERE, Frame, Item
from nccl_forensics.simulate.world import World
from nccl_forensics.simulate.writers.recorder import library_frames

SITE = "/opt/venv/lib/python3.11/site-packages/"
STDLIB = "/usr/lib/python3.11/"


def _short(file: str) -> str:
    for prefix in (HERE, SITE, STDLIB):
        file = file.removeprefix(prefix)
    return file


def _thread(tid: int, state: str, name: str, frames: tuple[Frame, ...]) -> Iterator[str]:
    yield f'Thread {tid} ({state}): "{name}"\n'
    for function, file, line in frames:
        yield f"    {function} ({_short(file)}:{line})\n"


def _standing(world: World, rank: int, sample: int) -> Item | None:
    """Where the rank stands when the sample is taken; one that came to the end of the modelled steps works on, and is somewhere in its
    next."""
    state = world.state(rank)
    if state is None:
        return None
    places = [item for item in state.items if item.frames]
    return places[mix(world.seed, "sample", rank, sample) % len(places)] if state.finished and places else state.at


def text(world: World, rank: int, sample: int) -> Iterator[str]:
    """The dump of one rank, the first or the second."""
    process, at = world.processes[rank], _standing(world, rank, sample)
    yield f"Process {process.pid}: {'/opt/venv/bin/python3'} -u /opt/job/pretrain.py --config conf/pretrain.yaml\n"
    yield "Python v3.11.9 (/usr/bin/python3.11)\n\n"
    if at is not None:
        frames = at.frames if at.kind != "op" else (*library_frames(at.op), *at.frames)
        busy = at.kind == "host" and at.note.endswith("busy")
        yield from _thread(process.pid, "active+gil" if busy else "active" if at.kind == "sync" else "idle", "MainThread", frames)
    loop: tuple[Frame, ...] = (
        ("wait", f"{STDLIB}threading.py", 331),
        ("wait", f"{STDLIB}threading.py", 629),
        ("run", f"{SITE}tqdm/_monitor.py", 60),
        ("_bootstrap_inner", f"{STDLIB}threading.py", 1045),
        ("_bootstrap", f"{STDLIB}threading.py", 1002),
    )
    yield from _thread(process.pid + 301, "idle", "Thread-1", loop)
