"""What each rank's main thread is doing, from whatever sampler saw it, and which ranks stand apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from nccl_forensics.frames import typed, values_in
from nccl_forensics.stacks.frames import function_of, python_frames, runs_python, split_frame, without_address
from nccl_forensics.stacks.places import UNTOLD, WAITING, WAITING_ON_GPU, Standing, is_user, place_of, role_of, standing
from nccl_forensics.stacks.tree import key_list, moved, odd_ones_out
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at

THREAD_STATES = typed(
    "rank:i32 pid:i64 host:str role:str sampler:str sample:u32 samples:u32 moved:bool waits:u32 runs:u32 place:str op:str peer:i32",
    "user_frame:str active:bool by_name:bool stands_for:u32 reason:str frames:list[str] source_id:u32 line_no:u32 end_line:u32 record:str",
)
#: Which sampler speaks for a process where several saw it: plain Python stacks first. py-spy record leaves out threads that wait.
_TRUST = {"py-spy": 0, "py-spy-json": 1, "pystack": 2, "faulthandler": 3, "gdb": 4, "py-spy-raw": 8}
_ALIVE = ("active", "Has the GIL")


@view(rows="processes x samples")
def thread_states(
    stacks: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    watchdog_calls: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """The main thread of each process, the latest sample of its most trusted sampler (one with native frames where those without tell
    nothing): ``place`` (collective, p2p, data-loader, lock, gil, checkpoint, gc, rendezvous, cuda-sync, backward, file-io, compile, import,
    sleep, evaluation, ended, compute, user-code, unknown), ``op``, ``peer`` (whom a send or receive is for, where arguments were taken),
    ``user_frame``, ``moved`` (its samples show progress, or another sampler saw it elsewhere), ``waits`` (how many of its samples wait for
    others, or for its GPU), ``runs`` (how many find it on a CPU), with the frame that decided in ``reason``; ``by_name`` where only a name of the user's code hints at it.

    ``role`` names processes beside the ranks (data-worker, launcher, compile-worker, helper); they have no rank here. Where all main
    threads wait at one line for a thread of their own process, and most of those threads for other ranks, it is that thread of each. A rank
    that sleeps in its own code, and whose watchdog then timed out, waits for its GPU: what reads a number from it leaves no frame.
    """
    timed_out = values_in(watchdog_calls, "rank")
    by_pid: dict[int, list[tuple[int | None, str | None]]] = {}
    if processes is not None:
        for pid, rank, host in processes.filter(pl.col("pid").is_not_null()).select("pid", "rank", "host").collect().iter_rows():
            by_pid.setdefault(pid, []).append((rank, host))
    by_source: dict[int, int] = {}
    if source_ranks is not None:
        by_source = dict(source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
    shown = stacks.filter(pl.col("depth") > 0).sort("source_id", "sample", "line_no", nulls_last=True)

    def states(threads: pl.DataFrame) -> list[dict[str, object]]:
        return [_on_its_gpu(_state(rows), timed_out) for rows in _by_process(threads, by_pid, by_source).values()]

    out = states(shown.filter("is_main").collect())
    if _in_one_lock(out):
        beside = shown.filter(~pl.col("is_main") & pl.col("thread_name").is_not_null()).collect()
        out = _waiting_for_others([states(part) for _, part in beside.group_by("thread_name", maintain_order=True)], out)
    out.sort(key=lambda r: (r["rank"] is None, int(str(r["rank"] or 0)), str(r["pid"]), str(r["source_id"]), str(r["line_no"])))
    return pl.DataFrame(out, schema=THREAD_STATES, infer_schema_length=None).lazy()


#: Main threads that must stand alike.
_SEVERAL = 3


def _in_one_lock(states: list[dict[str, object]]) -> bool:
    """Whether the ranks' main threads all wait at one line for something of their own process."""
    own = [row for row in states if row["role"] is None]
    return len(own) >= _SEVERAL and {row["place"] for row in own} == {"lock"} and len({row["user_frame"] for row in own}) == 1


def _waiting_for_others(threads: list[list[dict[str, object]]], mains: list[dict[str, object]]) -> list[dict[str, object]]:
    """Of the threads of one name those that most processes have, and that wait for other ranks in most of them; ``mains`` where there are
    none."""
    for states in threads:
        own = [row for row in states if row["role"] is None]
        waiting = sum(row["place"] in WAITING for row in own)
        if 2 * waiting > len(own) and len(own) == sum(row["role"] is None for row in mains):
            return states + [row for row in mains if row["role"] is not None]
    return mains


def _by_process(
    threads: pl.DataFrame, by_pid: dict[int, list[tuple[int | None, str | None]]], by_source: dict[int, int]
) -> dict[tuple[object, ...], list[dict[str, object]]]:
    """Samples of threads by rank, else by process."""
    people: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in threads.iter_rows(named=True):
        role = role_of(row["frames"])
        rank, host = _process(by_pid.get(row["pid"], []), row["hint_host"])
        if rank is None and row["hint_scope"] == "global":
            rank = row["hint_rank"]
        if rank is None:
            rank = by_source.get(row["source_id"])
        rank = rank if role is None else None
        if rank is not None:
            key: tuple[object, ...] = ("rank", rank)
        elif row["pid"] is not None:
            key = ("pid", row["pid"], host or row["hint_host"])
        else:
            key = ("stack", row["source_id"], row["heading"])
        people.setdefault(key, []).append(row | {"rank": rank, "host": host or row["hint_host"], "role": role})
    return people


def _process(same: list[tuple[int | None, str | None]], host: str | None) -> tuple[int | None, str | None]:
    """(rank, host) of the process with this pid on this host. Containers count pids from 1: the same pid on several hosts proves
    nothing."""
    there = [p for p in same if p[1] == host] if host is not None else []
    chosen = there or same
    return chosen[0] if len(chosen) == 1 else (None, host)


def _state(rows: list[dict[str, object]]) -> dict[str, object]:
    best = min(_TRUST.get(str(r["sampler"]), 9) for r in rows)
    chosen = [r for r in rows if _TRUST.get(str(r["sampler"]), 9) == best]
    # One taken while the process was ending says nothing of where it stood.
    chosen = [r for r in chosen if any(runs_python(f) for f in _frames(r))] or chosen
    natives = [r for r in chosen if len(python_frames(_frames(r))) < len(_frames(r))]
    if 0 < len(natives) < len(chosen):
        # Samples with native frames beside samples without: what both have is compared.
        chosen = [r | {"frames": python_frames(_frames(r)) or _frames(r)} for r in chosen]
    # A profile has no last sample: the stack seen most often speaks.
    last = max(chosen, key=lambda r: int(str(r["times"] or 0))) if best == _TRUST["py-spy-raw"] else chosen[-1]
    moves = moved([_frames(r) for r in chosen])
    # Another sampler looked at another moment. What it names is compared, as samplers write the same frame differently.
    looks = [look for name in _LIVE if (look := _look(rows, name, best)) is not None]
    spot = _spot(chosen[-1])
    moves = moves or (spot is not None and any(_apart(spot, look) for look in looks))
    found, active = standing(_frames(last), _active(last)), _active(last)
    if found.place in UNTOLD and not moves and len(natives) < len(chosen):
        for row in reversed(natives):
            # The same wait, and its native frames tell what it waits in: that of a request leaves no frame of Python.
            inside = standing(_frames(row), active)
            if inside.place in WAITING and inside.frame is not None:
                last = row | {"frames": [_frames(row)[inside.frame], *python_frames(_frames(row))]}
                found = standing(_frames(last), active)
                break
    if found.place == "user-code" and active is False and any(_asks(r, last) for r in rows):
        found = replace(found, place="collective", reason=f"idle in a frame that holds a request of torch.distributed: {found.user_frame}")
    return {name: last.get(name) for name in THREAD_STATES if name in last} | {
        "samples": len(chosen) + (len(looks) if spot is not None else 0),
        "moved": moves,
        "waits": sum(standing(_frames(r), _active(r)).place in (*WAITING, *WAITING_ON_GPU) for r in chosen),
        "runs": sum(_active(r) is True for r in chosen),
        "place": found.place,
        "op": found.op,
        "peer": _peer(rows, found) if found.place == "p2p" else None,
        "user_frame": found.user_frame,
        "active": active,
        "by_name": found.by_name,
        "reason": found.reason,
    }


def _on_its_gpu(state: dict[str, object], timed_out: set[object]) -> dict[str, object]:
    """The process as one that waits for its GPU, where it sleeps in its own code and its rank is one of those whose watchdog ``timed_out``."""
    if state["place"] != "user-code" or state["active"] is not False or state["moved"] or state["rank"] not in timed_out:
        return state
    why = f"idle in the user's code, and its watchdog timed out: {state['user_frame']}"
    return state | {"place": "cuda-sync", "waits": max(int(str(state["waits"])), 1), "reason": why}


def _asks(row: dict[str, object], last: dict[str, object]) -> bool:
    """Whether a look at this very stack found a request in its innermost frame, where ``Work.wait()`` leaves none of its own."""
    return bool(row.get("request")) and _frames(row)[:1] == _frames(last)[:1]


def _peer(rows: list[dict[str, object]], found: Standing) -> object:
    """Whom the send or receive is for, by the last look at this very call that took arguments."""
    told = [r for r in rows if r.get("peer") is not None]
    same = [r for r in told if (own := standing(_frames(r), _active(r))).op == found.op and own.user_frame == found.user_frame]
    return same[-1]["peer"] if same else None


#: Samplers that see Python's frames of a process that lives, at a moment of their own; py-spy's text and JSON come from one call.
_LIVE = ("py-spy", "pystack", "faulthandler")


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a stack stands in the user's code: frames as function, file without folders, and line, the innermost first; ``waits`` for
    others."""

    frames: tuple[tuple[str, str, int | None], ...]
    waits: bool


def _look(rows: list[dict[str, object]], sampler: str, best: int) -> _Spot | None:
    """Where the last sample of another sampler stood; None where it is the one that speaks, or tells no line of the user's code."""
    own = [r for r in rows if r["sampler"] == sampler and any(runs_python(f) for f in _frames(r))]
    return _spot(own[-1]) if own and _TRUST[sampler] > best else None


def _spot(row: dict[str, object]) -> _Spot | None:
    frames = _frames(row)
    named = tuple((function_of(f), path.rsplit("/", 1)[-1], line) for f in frames if is_user(f) for _, path, line in [split_frame(f)])
    return _Spot(named, standing(frames, _active(row)).place in WAITING) if named else None


def _apart(one: _Spot, other: _Spot) -> bool:
    """Whether two looks found the process in different places. What runs inside one call shows other lines of it; what waits stands
    still."""
    at = 3 if one.waits or other.waits else 2
    return one.frames[0][:at] != other.frames[0][:at] or one.frames[1:] != other.frames[1:]


def _active(row: dict[str, object]) -> bool | None:
    state = str(row["state"] or "")
    return True if state.startswith(_ALIVE) else (False if state == "idle" else None)


def _frames(row: dict[str, object]) -> list[str]:
    frames = row["frames"]
    return [str(f) for f in frames] if isinstance(frames, list) else []


ODD_STACKS = typed(
    "rank:i32 pid:i64 host:str samples:u32 place:str op:str user_frame:str why_place:str shared_frame:str parts_at:str others_at:str",
    "others_op:str others_place:str others:list[i32] others_text:str others_count:u32 reason:str sure:bool source_id:u32 line_no:u32",
    "end_line:u32 record:str",
    read_at("peer_"),
)


@view(rows="processes")
def odd_stacks(thread_states: pl.LazyFrame) -> pl.LazyFrame:
    """Processes that stand apart from the others by their stacks, also where no rank is known: where they stand, the frame at which
    their stack parts from that of the others (``parts_at``), and where the others are (``others_at``, ``others_place``, ``others_op``).

    ``sure`` where most wait for others and these do not. Processes that move between samples are not named.
    """
    rows = thread_states.filter(pl.col("role").is_null()).collect().to_dicts()
    people: dict[int | str, dict[str, object]] = {}
    samples: list[tuple[int | str, list[str]]] = []
    for row in rows:
        key = row["rank"] if row["rank"] is not None else f"pid {row['pid']}" if row["pid"] is not None else f"stack {row['line_no']}"
        # The same number may stand for processes of several hosts.
        key = f"{key} on {row['host']}" if key in people else key
        people[key] = row
        frames = [without_address(f) for f in row["frames"]]
        samples += [(key if n == 0 else f"{key} #{n + 1}", frames) for n in range(int(row["stands_for"] or 1))]
    still = {key for key, row in people.items() if not row["moved"]}
    out = []
    running = {key for key, row in people.items() if row["active"]}
    held = {key for key, row in people.items() if row["place"] in WAITING_ON_GPU}
    for odd in odd_ones_out(samples, running, held):
        for key in odd.keys:
            if key not in still:
                continue
            peer = next((people[k] for k in odd.others if k in people), None)
            out.append(
                {name: people[key].get(name) for name in ("rank", "pid", "host", "samples", "source_id", "line_no", "end_line", "record")}
                | {name: getattr(odd, name) for name in ("shared_frame", "parts_at", "others_at", "others_place", "reason", "sure")}
                | {
                    # Frames alone do not tell a thread that runs from one that sleeps.
                    "place": people[key]["place"] if odd.standing.place == "user-code" else odd.standing.place,
                    "op": odd.standing.op,
                    "user_frame": odd.standing.user_frame,
                    "why_place": odd.standing.reason,
                    "others_op": ", ".join(odd.others_ops) or None,
                    "others": [k for k in odd.others if isinstance(k, int)],
                    "others_text": key_list(odd.others),
                    "others_count": len(odd.others),
                    "peer_source_id": peer["source_id"] if peer else None,
                    "peer_line_no": peer["line_no"] if peer else None,
                    "peer_record": peer["record"] if peer else None,
                }
            )
    return pl.DataFrame(out, schema=ODD_STACKS, infer_schema_length=None).lazy()


__all__ = ["ODD_STACKS", "THREAD_STATES", "odd_stacks", "place_of", "thread_states"]
