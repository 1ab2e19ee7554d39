"""How the NCCL log of a rank ends: between two steps, amid one, or where a buffer was full that was lost with the process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from nccl_forensics.views import view
from nccl_forensics.views.calls import ENDS, Calls, sequences


@view(rows="ranks")
def cut_logs(nccl_tails: pl.LazyFrame, processes: pl.LazyFrame, sources: pl.LazyFrame, cut_ends: pl.LazyFrame | None) -> pl.LazyFrame:
    """``rank``: ranks whose NCCL log ends where a full buffer does, or could not be unpacked to its end (``source_id``, ``line_no``): they
    went on, nobody knows how far."""
    cut = sources.filter(pl.col("error").is_not_null()).select("source_id", line_no=pl.col("lines").cast(pl.UInt32))
    if cut_ends is not None:
        cut = pl.concat([cut, cut_ends.select("source_id", "line_no")])
    own = nccl_tails.filter(pl.col("pid").is_not_null()).select("source_id", "host", "pid").join(cut, on="source_id")
    ranked = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank")
    return own.join(ranked, on=["host", "pid"], nulls_equal=True).select("rank", "source_id", "line_no").unique("rank").sort("rank")


def copied_in_part(cut_ends: pl.LazyFrame | None) -> pl.LazyFrame:
    """``source_id`` of texts that end amid a line where no buffer of their writer does: the copy is cut, and says nothing of what came
    then."""
    if cut_ends is None:
        return pl.LazyFrame(schema={"source_id": pl.UInt32()})
    return cut_ends.filter(~pl.col("buffer")).select("source_id").unique()


def tails(calls: Calls, found: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
    """How an NCCL log of a rank that is behind ends: ``boundary`` (after a whole number of steps) or ``inside`` a step."""
    behind = [
        ("nccl", row["group_key"], rank) for rank, row in found.items() if row.get("domain") == "nccl" and row.get("kind") == "behind"
    ]
    out = dict.fromkeys((rank for _, _, rank in behind), "inside")
    lines = sequences(calls, behind, ("op", "shape", "dtype"))
    even = {rank for (_, _, rank), line in lines if _left_over(line) == 0}
    return out | dict.fromkeys(even - _amid_steps(calls, even), "boundary")


def _amid_steps(calls: Calls, ranks: Collection[int]) -> set[int]:
    """Those of the ranks whose calls in all communicators, in their order, are no whole number of steps. Those of one alone, as of tensor
    parallelism, are often all alike."""
    if not ranks:
        return set()
    own = calls.recent().filter((pl.col("domain") == "nccl") & pl.col("rank").is_in(sorted(ranks)) & ~pl.col("is_p2p"))
    kind = pl.struct("group_key", "op", "shape", "dtype").rank("dense")
    lines = own.sort("rank", "source_id", "order").select("rank", kind=kind).group_by("rank", maintain_order=True).agg("kind").collect()
    return {rank for rank, line in lines.iter_rows() if len(line) < ENDS and _left_over(line)}


def _left_over(line: Sequence[int]) -> int | None:
    """How many calls a line has after its last whole step: one that it repeats at least twice, or three times after a beginning of its own
    that is no longer than a step, as of a broadcast of parameters; None where it repeats none."""
    # The longest beginning that is also an end, of every beginning of the line read from its end (Knuth, Morris and Pratt).
    back = line[::-1]
    border = [0] * len(back)
    length = 0
    for at in range(1, len(back)):
        while length and back[at] != back[length]:
            length = border[length - 1]
        length += back[at] == back[length]
        border[at] = length
    if line and (step := len(back) - border[-1]) * 2 <= len(back):
        return len(back) % step
    for size in range(len(back) - 1, 0, -1):
        # Calls that are all alike, after one that is not, have no steps.
        if (step := size - border[size - 1]) > 1 and step * 3 <= size:
            return size % step if len(back) - size <= step else None
    return None
