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
