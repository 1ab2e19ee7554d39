"""What each rank's main thread is doing, from whatever sampler saw it."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nccl_forensics.facts.stack_places import COLLECTIVES, HINTS, LIBRARY, P2P, PLACES
from nccl_forensics.views import view

THREAD_STATES = {
    "rank": pl.Int32(),
    "pid": pl.Int64(),
    "host": pl.String(),
    "sampler": pl.String(),
    "sample": pl.UInt32(),
    "samples": pl.UInt32(),
    "moved": pl.Boolean(),
    "place": pl.String(),
    "op": pl.String(),
    "user_frame": pl.String(),
    "active": pl.Boolean(),
    "reason": pl.String(),
    "frames": pl.List(pl.String()),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "end_line": pl.UInt32(),
    "record": pl.String(),
}
#: Which sampler speaks for a process where several saw it: plain Python stacks first.
_TRUST = {"py-spy": 0, "py-spy-json": 1, "pystack": 2, "faulthandler": 3, "gdb": 4}


def place_of(frames: Sequence[str], active: bool | None) -> tuple[str, str | None, str | None, str]:
    """(place, operation, user frame, reason) of a stack, innermost frame first."""
    user = next((f for f in frames if not LIBRARY.search(f)), None)
    for index, frame in enumerate(frames[:24]):
        plain = frame.replace("_exception_logger.<locals>.", "")
        for pattern, place in ((P2P, "p2p"), (COLLECTIVES, "collective")):
            match = pattern.match(plain)
            if match:
                return place, match.group(1), user, f"frame {index}: {frame}"
    for known in PLACES:
        for index, frame in enumerate(frames[: known.depth]):
            if known.pattern.search(frame):
                return known.name, None, user, f"frame {index}: {frame}"
    own = [f for f in frames if not LIBRARY.search(f)][:3]
    for place, hint in HINTS:
        for frame in own:
            if hint.match(frame):
                return place, None, user, f"by the name of the user's function: {frame}"
    if frames and frames[0].startswith(("sleep", "time.sleep")):
        return "sleep", None, user, f"frame 0: {frames[0]}"
    if user is not None:
        return ("compute" if active else "user-code"), None, user, f"innermost user frame: {user}"
    return "unknown", None, None, "no frame that tells"


@view(rows="processes x samples")
def thread_states(stacks: pl.LazyFrame, processes: pl.LazyFrame | None, source_ranks: pl.LazyFrame | None) -> pl.LazyFrame:
    """The main thread of each process, the latest sample of its most trusted sampler: ``place`` (collective, p2p, data-loader, lock,
    gil, checkpoint, gc, cuda-sync, backward, file-io, compile, import, sleep, compute, user-code, unknown), ``op``, ``user_frame``,
    ``moved`` (its samples differ), with the frame that decided in ``reason``."""
    by_pid: dict[int, tuple[int | None, str | None]] = {}
    if processes is not None:
        for pid, rank, host in processes.filter(pl.col("pid").is_not_null()).select("pid", "rank", "host").collect().iter_rows():
            by_pid[pid] = (rank, host)
    by_source: dict[int, int] = {}
    if source_ranks is not None:
        by_source = dict(source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
    mains = stacks.filter(pl.col("is_main") & (pl.col("depth") > 0)).sort("source_id", "sample", "line_no", nulls_last=True).collect()
    people: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in mains.iter_rows(named=True):
        rank, host = by_pid.get(row["pid"], (None, None)) if row["pid"] is not None else (None, None)
        if rank is None and row["hint_scope"] == "global":
            rank = row["hint_rank"]
        if rank is None:
            rank = by_source.get(row["source_id"])
        key = ("rank", rank) if rank is not None else ("pid", row["pid"], row["source_id"] if row["pid"] is None else None, row["heading"])
        people.setdefault(key, []).append(row | {"rank": rank, "host": host or row["hint_host"]})
    out = []
    for rows in people.values():
        best = min(_TRUST.get(str(r["sampler"]), 9) for r in rows)
        chosen = [r for r in rows if _TRUST.get(str(r["sampler"]), 9) == best]
        last = chosen[-1]
        active = True if str(last["state"] or "").startswith("active") else (False if last["state"] == "idle" else None)
        place, op, user, reason = place_of(list(last["frames"] or []), active)  # type: ignore[call-overload]
        out.append(
            {name: last.get(name) for name in THREAD_STATES if name in last}
            | {
                "samples": len(chosen),
                "moved": len({tuple(r["frames"] or []) for r in chosen}) > 1,  # type: ignore[arg-type]
                "place": place,
                "op": op,
                "user_frame": user,
                "active": active,
                "reason": reason,
            }
        )
    out.sort(key=lambda r: (r["rank"] is None, int(str(r["rank"] or 0)), str(r["pid"]), str(r["source_id"])))
    return pl.DataFrame(out, schema=THREAD_STATES, infer_schema_length=None).lazy()
