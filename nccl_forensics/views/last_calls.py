"""What each rank was doing last, from the best witness: its stack, else the traceback of the exception that ended it, else its recorder."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.stacks.frames import line_of_code, shortened
from nccl_forensics.stacks.places import LOADING, WAITING, place_of
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at

LAST_CALLS = typed(
    "rank:i32 place:str op:str peer:i32 user_frame:str frames:list[str] reason:str witness:str moved:bool waits_from:bool",
    read_at(),
)


@view(rows="ranks")
def last_calls(thread_states: pl.LazyFrame | None, raised: pl.LazyFrame | None, checked_calls: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """One row per rank: ``place``, ``op``, ``peer``, ``user_frame`` and ``frames`` (innermost first) as in ``thread_states``; ``witness``
    is stack, exception, or record (of a call that was being compared with the other ranks'); ``moved``: null where one sample was taken,
    which tells no motion; ``waits_from``: it stands in a line of a function from which others call what they wait in, and may wait there
    itself (``Work.wait()`` leaves no frame of its own)."""
    found: dict[int, dict[str, object]] = {}
    if thread_states is not None:
        states = thread_states.filter(pl.col("rank").is_not_null()).collect()
        callers = states.filter(pl.col("place").is_in(WAITING))["frames"].to_list()
        waiting = {line_of_code(frame)[0::2] for frames in callers for frame in frames or ()}
        for row in states.iter_rows(named=True):
            here = row["place"] == "user-code" and row["user_frame"] is not None and line_of_code(row["user_frame"])[0::2] in waiting
            found[row["rank"]] = by_stack(row, waits_from=here)
    if raised is not None:
        framed = raised.filter(pl.col("frames").is_not_null()).collect()
        _known_waits(found, framed)
        begun = _begun(found)
        for row in framed.iter_rows(named=True):
            rank = row["rank"]
            if rank is None or rank in begun:
                continue
            frames = [shortened(f) for f in str(row["frames"]).split("\n")]
            place, op, user, reason = place_of(frames, None)
            begun.add(rank)
            found[rank] = {
                "rank": rank,
                "frames": frames,
                "place": place,
                "op": op,
                "user_frame": user or row["frame"],
                "reason": reason,
                "witness": "exception",
                "moved": False,
                "source_id": row["source_id"],
                "line_no": row["line_no"],
                "record": None,
            }
        _as_they_gave_up(found, framed)
    if checked_calls is not None:
        for row in checked_calls.collect().iter_rows(named=True):
            told = {name: row[name] for name in ("rank", "op", "user_frame", "reason", "source_id", "record")}
            found.setdefault(row["rank"], told | {"place": "collective", "witness": "record", "moved": False, "line_no": None})
    return pl.DataFrame([found[r] for r in sorted(found)], schema=LAST_CALLS, infer_schema_length=None).lazy()


def by_stack(state: Mapping[str, object], *, waits_from: bool = False) -> dict[str, object]:
    """The row of a process by its main thread as in ``thread_states``; one sample tells no motion."""
    samples = state["samples"]
    moved = state["moved"] if isinstance(samples, int) and samples > 1 else None
    return {name: state[name] for name in LAST_CALLS if name in state} | {"witness": "stack", "moved": moved, "waits_from": waits_from}


def _begun(found: Mapping[int, Mapping[str, object]]) -> set[int]:
    """Ranks whose stack tells what the process did last, and not what it did before a later traceback: a sampler that could not read the
    process in time leaves a head without frames; one that came while the program's own file was loading what it imports came before the job
    had begun, and so did one that found every rank loading (PyTorch takes seconds, half a minute on a busy host; torch 2.2 to 2.7 load a
    large part only as the first optimizer is made)."""
    told = {rank for rank, row in found.items() if row["place"] != "unknown" or row["user_frame"] is not None}
    loading = {rank for rank in told if any(LOADING in str(f) for f in _frames(found[rank]))}
    if len(loading) > 1 and loading == told:
        return set()
    return told - {rank for rank in loading if str(found[rank]["user_frame"]).startswith("<module> (")}


def _frames(row: Mapping[str, object]) -> list[object]:
    frames = row["frames"]
    return frames if isinstance(frames, list) else []


def _as_they_gave_up(found: dict[int, dict[str, object]], raised: pl.DataFrame) -> None:
    """Tracebacks speak for all where a stack tells nothing of some rank that gave up (it was ending, or was not sampled), and each that a
    stack tells of gave up in the very call that it shows: it stood there all the time."""
    gave_up = {row["rank"]: row for row in raised.filter(pl.col("signature").is_in(_GAVE_UP)).iter_rows(named=True)}
    by_stack = {rank for rank, row in found.items() if row["witness"] == "stack"}
    if not by_stack or not by_stack <= set(gave_up) or by_stack >= set(found):
        return
    ends = {rank: place_of([shortened(f) for f in str(gave_up[rank]["frames"]).split("\n")], None) for rank in by_stack}
    if all(ends[rank][:3] == tuple(found[rank][name] for name in ("place", "op", "user_frame")) for rank in by_stack):
        for rank in by_stack:
            found[rank].update(witness="exception", moved=False)


#: What a process says that gave up waiting for others.
_GAVE_UP = ("gloo-timeout", "gloo-closed", "gloo-reset", "nccl-timeout", "nccl-remote", "store-timeout", "store-unreachable")


def _known_waits(found: dict[int, dict[str, object]], raised: pl.DataFrame) -> None:
    """A stack in a line of the program at which a process later gave up waiting waits too: ``Work.wait()`` leaves no frame of its own. In
    its backward pass a rank may as well compute: there its own word counts, as its reducer's wait leaves none either."""
    gave_up = raised.filter(pl.col("signature").is_in(_GAVE_UP) & pl.col("frame").is_not_null()).select("rank", "frame").rows()
    own = {(rank, line_of_code(frame)) for rank, frame in gave_up}
    lines = {line for _, line in own}
    for rank, row in found.items():
        line = line_of_code(row["user_frame"]) if row["user_frame"] else None
        if (row["place"] == "user-code" and line in lines) or (row["place"] == "backward" and (rank, line) in own):
            row.update(place="collective", reason="ranks gave up waiting at this very line")
