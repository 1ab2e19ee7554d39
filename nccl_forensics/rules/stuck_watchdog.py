"""The watchdog of few ranks stood still: a call of CUDA or NCCL did not come back there, or the GIL was held.

## What it finds
The heartbeat monitor's report that a rank's watchdog got stuck, and that the GIL could not be had, on ranks that report no timeout of a
collective, while the others report one or nothing.

## Why it matters
A watchdog asks the GPU for events and waits for nobody. Where it stands still itself, the process or its driver does; the other ranks only wait
for its collectives.

## What would refute it
A timeout of the same rank before the report: then it stood in the clean-up of a hang that began elsewhere.

## What to do next
Take native stacks of the named rank (py-spy dump --native, gdb): which thread holds the GIL, which call of CUDA does not return. Read the
kernel log of its host for Xid.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words


@rule(
    name="host-stall-by-heartbeat",
    code="ST21",
    cause="host-stall",
    severity="critical",
    at_most=4,
    explains=("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler"),
)
def host_stall_by_heartbeat(watchdog: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> Iterator[Finding]:
    """At most one finding, for all such ranks."""
    rows = watchdog.filter(pl.col("kind").is_in(["heartbeat-stuck", "gil", "timeout", "failure"])).sort("source_id", "line_no").collect()
    known: set[int] = set()
    rows = rows.with_columns(owner=pl.lit(None, dtype=pl.Int32()))
    if source_ranks is not None:
        sources = source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").unique("source_id").collect()
        known = set(sources["rank"].to_list())
        rows = rows.drop("owner").join(sources.rename({"rank": "owner"}), on="source_id", how="left", maintain_order="left")
    default = (pl.col("pg_desc") == "default_pg") | (pl.col("pg_name") == "0")
    rank = pl.coalesce(pl.when(pl.col("hint_scope") == "global").then("hint_rank"), "owner", pl.when(default).then("pg_rank"))
    rows = rows.with_columns(rank=rank.cast(pl.Int32)).filter(pl.col("rank").is_not_null())
    own = rows["kind"].is_in(["timeout", "failure"])
    late = set(rows.filter(own)["rank"].to_list())
    stuck = rows.filter(~own & ~pl.col("rank").is_in(sorted(late)))
    ranks = tuple(sorted(set(stuck["rank"].to_list())))
    if not ranks or len(ranks) * 2 > len(known | late | set(ranks)):
        return
    held = "gil" in stuck["kind"].to_list()
    yield Finding(
        title=f"the watchdog of {ranks_words(ranks)} stood still"
        + (": the GIL was held" if held else ": a call of CUDA or NCCL did not come back"),
        summary="No timeout was reported there before, so that it did not wait for others."
        + (f" A timeout struck {ranks_words(tuple(sorted(late)))}." if late else ""),
        confidence="medium",
        ranks=ranks,
        subject=("watchdog", *map(str, ranks)),
        evidence=cite(stuck, "the watchdog stood still"),
        evidence_total=stuck.height,
        remedy="Take native stacks of this rank; look for a thread that holds the GIL inside a call of CUDA, and for Xid in its host's kernel log.",
        prevention="Sample stacks of all ranks before the watchdog ends them (TORCH_NCCL_DUMP_ON_TIMEOUT=1, py-spy).",
        would_refute=("a timeout of this rank before", "an Xid of its GPU: then the device is the cause"),
        actions=(Action("collect-more", ranks=ranks, command="py-spy dump --native --pid <pid>"),),
        alternatives=() if held else (("gpu-stall", ranks, "the driver or the GPU may not answer"),),
    )
