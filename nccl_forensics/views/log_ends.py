"""How the NCCL log of a rank ends that is behind its peers: between two steps, or amid one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from nccl_forensics.views.calls import ENDS, Calls, sequences


def tails(calls: Calls, found: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
    """How an NCCL log of a rank that is behind ends: ``boundary`` (after a whole number of steps) or ``inside`` a step."""
    behind = [
        ("nccl", row["group_key"], rank) for rank, row in found.items() if row.get("domain") == "nccl" and row.get("kind") == "behind"
    ]
    out = dict.fromkeys((rank for _, _, rank in behind), "inside")
    for (_, _, rank), line in sequences(calls, behind, ("op", "shape", "dtype")):
        step = _period(line)
        out[rank] = "boundary" if step and len(line) % step == 0 and _whole_steps(calls, rank) else "inside"
    return out


def _whole_steps(calls: Calls, rank: int) -> bool:
    """Whether the calls of a rank in all its communicators, in their order, may be a whole number of steps. Those of one alone, as of tensor
    parallelism, are often all alike."""
    own = calls.recent().filter((pl.col("domain") == "nccl") & (pl.col("rank") == rank) & ~pl.col("is_p2p")).sort("source_id", "order")
    line = own.select(pl.struct("group_key", "op", "shape", "dtype").rank("dense")).collect().to_series().to_list()
    step = _period(line) if len(line) < ENDS else None
    return step is None or len(line) % step == 0


def _period(line: Sequence[int]) -> int | None:
    """Length of the step that the whole line repeats (at least twice), or None."""
    # The longest beginning that is also an end, of every beginning of the line (Knuth, Morris and Pratt).
    border = [0] * len(line)
    length = 0
    for at in range(1, len(line)):
        while length and line[at] != line[length]:
            length = border[length - 1]
        length += line[at] == line[length]
        border[at] = length
    step = len(line) - length
    return step if line and step * 2 <= len(line) else None
