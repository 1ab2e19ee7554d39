"""Where one stack stands: the place, the operation, the user's own frame and the frame that decided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nccl_forensics.facts.stack_places import (
    COLLECTIVES,
    COMMUNICATION_DEPTH,
    HINT_CLASSES,
    HINT_FILES,
    HINTS,
    INTERRUPTIONS,
    LIBRARIES,
    NATIVE_COLLECTIVES,
    NATIVE_P2P,
    OPERATIONS,
    P2P,
    PLACES,
    ROLES,
    STDLIB,
    WAITS,
    Place,
)
from nccl_forensics.stacks.frames import function_of, runs_python, split_frame

#: User frames whose names are asked.
_HINTING = 3
#: Places in which a rank waits for others, by itself or through its GPU.
WAITING = ("collective", "p2p")
WAITING_ON_GPU = ("cuda-sync", "backward")
#: What a frame of Python's own loader bears: the process was importing.
LOADING = "(<frozen importlib"
#: Places that say what holds a process up, and that it is nobody else; a loader is where ranks of a job at work are now and then, too.
OWN_HOST = ("lock", "gil", "checkpoint", "gc", "file-io", "sleep")
#: Places of a stack of which no frame tells what the process does or waits in.
UNTOLD = ("compute", "user-code", "unknown")
#: Places that say nothing by themselves: a snapshot of a healthy job shows them too.
PLAIN = (*UNTOLD, *WAITING_ON_GPU)
#: Where a process of Python's multiprocessing begins.
_BEGIN = "_bootstrap (multiprocessing/process.py)"
#: What runs a script as a program, for a launcher that is one itself.
_RUNS_A_SCRIPT = re.compile(r"run_path \((?:<frozen )?runpy")
#: What faulthandler and pystack write above the frames of a thread while its interpreter collects garbage (Python 3.11 traceback.c).
_MARK = re.compile(r"Garbage-collecting\b")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a stack stands. ``frame`` is the index of the frame that decided; ``by_name`` that only a name of the user's hints at it."""

    place: str
    op: str | None
    user_frame: str | None
    frame: int | None
    reason: str
    by_name: bool = False


def standing(frames: Sequence[str], active: bool | None = None) -> Standing:
    """Where a stack stands, innermost frame first."""
    plain = [f"{function_of(f)} ({split_frame(f)[1]})" for f in frames]
    user = user_frame(frames)
    found = _first(INTERRUPTIONS, plain)
    if found and found[0] == "gc" and not any(runs_python(f) for f in frames[found[1] + 1 :]):
        found = None  # a collection with no program below it is the interpreter taking itself down: the program is over
    call = _communication(plain)
    if found and call and _MARK.match(frames[found[1]]) and not any(is_user(f) for f in frames[found[1] : call[2]]):
        # The mark tells of the interpreter, whichever of its threads collects: one that stands in a call that waits has let go of it.
        found = None
    if found and (call is None or found[1] <= call[2]):
        return Standing(found[0], None, user, found[1], f"frame {found[1]}: {frames[found[1]]}")
    if call:
        # What runs inside the call, a handler of signals or what failed while its exception was handled, did not make it.
        maker = user_frame(frames[call[2] :]) or user
        return Standing(call[0], call[1], maker, call[2], f"frame {call[2]}: {frames[call[2]]}")
    found = _first(PLACES, plain)
    if found:
        # What stands below the end of a function started it.
        user = None if found[0] == "ended" else user
        return Standing(found[0], None, user, found[1], f"frame {found[1]}: {frames[found[1]]}")
    own = [n for n, frame in enumerate(frames) if is_user(frame)][:_HINTING]
    hinted = _hint(frames, own)
    if hinted:
        return hinted
    found = _first(WAITS, plain)
    if found:
        return Standing(found[0], None, user, found[1], f"frame {found[1]}: {frames[found[1]]}")
    if user is not None:
        return Standing("compute" if active else "user-code", None, user, frames.index(user), f"innermost user frame: {user}")
    return Standing("unknown", None, None, None, "no frame that tells")


def place_of(frames: Sequence[str], active: bool | None) -> tuple[str, str | None, str | None, str]:
    """(place, operation, user frame, reason) of a stack, innermost frame first."""
    found = standing(frames, active)
    return found.place, found.op, found.user_frame, found.reason


def role_of(frames: Sequence[str]) -> str | None:
    """What a process is, if not a rank: data-worker, launcher, compile-worker, helper."""
    plain = [f"{function_of(f)} ({split_frame(f)[1]})" for f in frames]
    # What stands below is the parent's, at the moment when it forked this process.
    own = plain[: plain.index(_BEGIN)] if _BEGIN in plain else plain
    return next((role for role, pattern in ROLES for frame in own if pattern.search(frame)), None)


def is_user(frame: str) -> bool:
    """Whether a frame is the user's own code: Python, and neither of the standard library nor of a known library."""
    path = split_frame(frame)[1]
    if not path.endswith(".py") or path.startswith("<"):
        return False
    top = path.split("/", 1)[0]
    return top.removesuffix(".py") not in STDLIB and top not in LIBRARIES


def user_frame(frames: Sequence[str]) -> str | None:
    """The innermost frame of the user's own code; else of a library that is neither Python's nor torch's."""
    scripts = [n for n, frame in enumerate(frames) if _RUNS_A_SCRIPT.match(frame)]
    if scripts and any(is_user(f) for f in frames[: scripts[0]]):
        frames = frames[: scripts[0]]  # what stands below runs the script, and is no part of it
    found = next((f for f in frames if is_user(f) and function_of(f) != "<module>"), None) or next((f for f in frames if is_user(f)), None)
    if found is not None:
        return found
    return next((f for f in frames if (p := split_frame(f)[1]).endswith(".py") and _foreign(p)), None)


def _foreign(path: str) -> bool:
    top = path.split("/", 1)[0]
    return top != "torch" and top.removesuffix(".py") not in STDLIB and not path.startswith("<")


def _first(places: Sequence[Place], plain: Sequence[str]) -> tuple[str, int] | None:
    for known in places:
        for index, frame in enumerate(plain[: known.depth]):
            if known.pattern.search(frame):
                return known.name, index
    return None


def _communication(plain: Sequence[str]) -> tuple[str, str | None, int] | None:
    """(place, operation, index) of the innermost call that waits for other ranks; a nameless native wait takes the name further out."""
    first: tuple[str, str | None, int] | None = None
    for index, frame in enumerate(plain[:COMMUNICATION_DEPTH]):
        for pattern, place in ((P2P, "p2p"), (COLLECTIVES, "collective"), (NATIVE_P2P, "p2p"), (NATIVE_COLLECTIVES, "collective")):
            match = pattern.match(frame)
            if not match:
                continue
            raw = next((g for g in match.groups() if g), None)
            op = None if raw is None or raw.startswith("GroupEnd") else OPERATIONS.get(raw.lower(), raw if "_" in raw else raw.lower())
            if op is not None:
                return place, op, first[2] if first else index
            first = first or (place, None, index)
            break
    return first


def _hint(frames: Sequence[str], own: Sequence[int]) -> Standing | None:
    user = frames[own[0]] if own else None
    for place, pattern in HINTS:
        for n in own:
            if pattern.search(function_of(frames[n])):
                return Standing(place, None, user, n, f"by the name of the user's function: {frames[n]}", by_name=True)
    for place, pattern in HINT_CLASSES:
        for n in own:
            if pattern.search(split_frame(frames[n])[0]):
                return Standing(place, None, user, n, f"by the name of the user's class: {frames[n]}", by_name=True)
    for place, pattern in HINT_FILES:
        for n in own[:1]:
            if pattern.search(split_frame(frames[n])[1]):
                return Standing(place, None, user, n, f"by the name of the user's module: {frames[n]}", by_name=True)
    return None
