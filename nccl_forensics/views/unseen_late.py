"""A rank without a trace for which all traced ranks wait in each step.

Durations tell who came last only among ranks that left a trace. Where all of these wait alike, in a call that carries far too little to
take so long, whoever it is that comes late left none.
"""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.collective_kernels import PAIRWISE
from nccl_forensics.frames import has_rows, typed
from nccl_forensics.views import view

UNSEEN_LATE = typed(
    "rank:i32 world_size:i32 op:str bytes:i64 group_name:str group_desc:str steps:u32 least_ms:f64 lost_ms:f64 window_share:f64",
    "source_id:u32 record:str",
)
#: A wait of a step: at least so long, on every traced rank, and on none longer than on another by more than this factor.
_LONG_NS, _ALIKE = 20_000_000, 1.25
#: So few bytes per second pass over no link: whoever is in a call so long waits for somebody. A call without a size carries nothing.
_BYTES_PER_S = 1e6
#: Fewer steps than this are no rule, and in none of them may the wait be shorter than this share of the usual one.
_STEPS, _STEADY = 3, 0.5


@view(rows="ranks")
def unseen_late(
    trace_matches: pl.LazyFrame, trace_ranks: pl.LazyFrame, trace_collectives: pl.LazyFrame, lag: pl.LazyFrame | None
) -> pl.LazyFrame:
    """At most one row: the one rank of the job that left no trace, where every traced rank waits in the same call of each step, in all
    steps for about as long. ``least_ms`` is the shortest of these waits, ``lost_ms`` what they and those in further such calls come to in
    all steps at the usual length, ``window_share`` its share of the traced time. Empty where a recorder tells when that rank came, where
    ranks send to each other in pairs, and where steps are not marked. Cites the longest wait."""
    traces = trace_ranks.filter(pl.col("duplicate_of").is_null() & pl.col("rank").is_not_null() & (pl.col("capture") == 0)).collect()
    seen, world = set(traces["rank"].to_list()), traces["world_size"].max()
    size = int(str(world)) if world is not None else 0
    missing = set(range(size)) - seen if size <= len(seen) + 1 else set()  # a trace may state any size
    row = _row(trace_matches, trace_collectives, traces, size) if len(missing) == 1 and len(seen) > 1 else None
    if row is None or has_rows(lag, pl.col("rank").is_in(list(missing))):
        return pl.LazyFrame(schema=UNSEEN_LATE)
    return pl.LazyFrame([{"rank": missing.pop(), "world_size": world, **row}], schema=UNSEEN_LATE)


def _row(matches: pl.LazyFrame, collectives: pl.LazyFrame, traces: pl.DataFrame, world: int) -> dict[str, object] | None:
    """What the traced ranks wait in, where they wait for a rank that is not among them."""
    # Neighbours of a pipeline wait for each other in turns, in a good job too.
    if has_rows(collectives, pl.col("op").is_in(PAIRWISE)):
        return None
    everybody = (pl.col("group_size").fill_null(world) == world) & (pl.col("capture") == 0) & pl.col("step").is_not_null()
    calls = (
        matches.filter(everybody)
        .group_by("group_key", "position")
        .agg(
            pl.col("op", "bytes", "group_name", "group_desc", "step").first(),
            pl.col("source_id", "record").sort_by("duration_ns").last(),
            kinds=pl.struct("op", "bytes", "step").n_unique(),
            ranks=pl.col("rank").n_unique(),
            least=pl.col("duration_ns").min(),
            most=pl.col("duration_ns").max(),
        )
        .filter((pl.col("ranks") == traces.height) & (pl.col("kinds") == 1))
        .sort("group_key", "position")
        .collect()
    )
    slow = pl.col("bytes").fill_null(0) <= _BYTES_PER_S * pl.col("least") / 1e9
    alike = (pl.col("least") >= _LONG_NS) & (pl.col("most") <= _ALIKE * pl.col("least"))
    every = calls.filter(slow & alike)
    waits = every.group_by("step", maintain_order=True).agg(
        pl.exclude("least").first(), pl.col("least").first(), whole=pl.col("least").sum()
    )
    if waits.height < max(_STEPS, calls["step"].n_unique()) or waits.select(pl.struct("group_key", "op", "bytes").n_unique()).item() > 1:
        return None
    usual = float(str(waits["least"].median()))
    if float(str(waits["least"].min())) < _STEADY * usual:
        return None
    longest = waits.sort("least", "step").row(-1, named=True)
    # One step that is slow for all, as a first step is, counts as any other.
    lost = waits.height * float(str(waits["whole"].median()))
    return {
        **{c: longest[c] for c in ("op", "bytes", "group_name", "group_desc", "source_id", "record")},
        "steps": waits.height,
        "least_ms": int(str(waits["least"].min())) / 1e6,
        "lost_ms": lost / 1e6,
        "window_share": lost / int(str(traces["span_ns"].max())),
    }
