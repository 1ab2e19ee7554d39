"""How the NCCL log of a rank ends that is behind its peers: between two steps, or amid one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from nccl_forensics.views.calls import ENDS, Calls, sequences


def tails(calls: Calls, found: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
    """How an NCCL log of a rank that is behind ends: ``boundary`` (after a whole number of steps) or ``inside`` a step."""
    behind = [
        ("nccl", row["group_key"], rank) for rank, row in found.items() if row.get("domain") == "nccl" and row.get("kind") == "behind"
    ]
    out = dict.fromkeys((rank for _, _, rank in behind), "inside")
    lines = sequences(calls, behind, ("op", "shape", "dtype"))
    even = {rank for (_, _, rank), line in lines if (step := _period(line)) and len(line) % step == 0}
    return out | dict.fromkeys(even - _amid_steps(calls, even), "boundary")


def _amid_steps(calls: Calls, ranks: Collection[int]) -> set[int]:
    """Those of the ranks whose calls in all communicators, in their order, are no whole number of steps. Those of one alone, as of tensor
    parallelism, are often all alike."""
    if not ranks:
        return set()
    own = calls.recent().filter((pl.col("domain") == "nccl") & pl.col("rank").is_in(sorted(ranks)) & ~pl.col("is_p2p"))
    kind = pl.struct("group_key", "op", "shape", "dtype").rank("dense")
    lines = own.sort("rank", "source_id", "order").select("rank", kind=kind).group_by("rank", maintain_order=True).agg("kind").collect()
    return {rank for rank, line in lines.iter_rows() if len(line) < ENDS and (step := _period(line)) and len(line) % step}


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
