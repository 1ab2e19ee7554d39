"""The Inspector's execution times show a rank that always comes last.

## What it finds
Ranks whose collectives take much less time than those of all their peers, operation by operation, in the records of NCCL's Inspector.

## Why it matters
A collective's kernel waits for the last rank: the rank with the shortest times is the one that all the others wait for.

## What would refute it
Ranks that share its host are short as well: then their links are faster; or the times were taken on the CPU.

## What to do next
Profile that rank's step: input pipeline, GPU clocks, other processes on its host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, names_of
from nccl_forensics.rules import rule


@rule(
    name="inspector-straggler",
    code="ST16",
    cause="straggler",
    severity="error",
    at_most=8,
    explains=("low-bus-bandwidth", "communication-bound"),
)
def inspector_straggler(
    nccl_inspector: pl.LazyFrame,
    *,
    least: Annotated[int, "collectives that all ranks recorded"] = 20,
    share: Annotated[float, "share of them in which the rank must have the shortest time"] = 0.6,
    times: Annotated[float, "how many times longer the median rank must take"] = 2.0,
    lost_ms: Annotated[float, "milliseconds that the others must have waited in all"] = 1.0,
) -> Iterator[Finding]:
    """At most one rank per communicator, from operations that every rank of the communicator recorded."""
    key = ["comm_id", "op", "seq"]
    timed = nccl_inspector.filter(
        pl.col("peer").is_null() & (pl.col("timing_source") == "kernel_gpu") & (pl.col("time_us") > 0) & pl.col("rank").is_not_null()
    )
    once = timed.unique(["comm_id", "op", "seq", "rank"], keep="first", maintain_order=True)
    whole = once.with_columns(seen=pl.len().over(key), median=pl.col("time_us").median().over(key), short=pl.col("time_us").min().over(key))
    full = whole.filter((pl.col("seen") == pl.col("nranks")) & (pl.col("nranks") > 2))
    late = (pl.col("time_us") == pl.col("short")) & (pl.col("median") >= times * pl.col("time_us"))
    per_rank = (
        full.with_columns(late=late)
        .group_by("comm_id", "rank")
        .agg(
            pl.len().alias("count"),
            pl.col("late").sum().alias("late_count"),
            pl.col("nranks").first(),
            ((pl.col("median") - pl.col("time_us")).filter(pl.col("late")).sum() / 1000).alias("lost_ms"),
            pl.col("host").first(),
            pl.col("pid").first(),
            pl.col("source_id").first(),
            pl.col("line_no").filter(pl.col("late")).first(),
        )
        .filter((pl.col("count") >= least) & (pl.col("late_count") >= share * pl.col("count")) & (pl.col("lost_ms") >= lost_ms))
        .sort("lost_ms", "rank", descending=[True, False])
        .collect()
    )
    world = nccl_inspector.select(pl.col("nranks").max()).collect().item()
    for row in per_rank.unique("comm_id", keep="first", maintain_order=True).iter_rows(named=True):
        is_world = row["nranks"] == world
        who = f"rank {row['rank']}" if is_world else f"rank {row['rank']} of communicator {row['comm_id']}"
        peers = full.filter((pl.col("comm_id") == row["comm_id"]) & (pl.col("rank") != row["rank"]))
        longest = peers.filter(pl.col("median") >= times * pl.col("short")).sort("time_us", descending=True).head(1).collect()
        yield Finding(
            title=f"{who} on {row['host']} came last to {row['late_count']} of {row['count']} collectives; the others waited {row['lost_ms']:.1f} ms",
            summary="Its kernels are the shortest: the kernels of its peers contain the wait for it.",
            confidence="medium",
            ranks=(row["rank"],) if is_world else (),
            hosts=names_of(row["host"]),
            culprits=(Culprit(rank=row["rank"] if is_world else None, host=row["host"], pid=row["pid"]),),
            subject=("inspector", str(row["host"]), str(row["rank"])),
            evidence=(*cite([row], "shortest time of all ranks"), *cite(longest, "a peer that waited")),
            evidence_total=row["late_count"],
            remedy="Find what delays this rank before its collectives: data loading, clocks, other work on its GPU or host.",
            prevention="Log the step time of every rank, and compare them while jobs run.",
            would_refute=("all ranks of its host are short alike",),
            actions=(Action("collect-more", ranks=(row["rank"],) if is_world else (), command="nvidia-smi -q -d PERFORMANCE,CLOCK"),),
            metrics={"collectives": row["count"], "late": row["late_count"], "lost_ms": round(row["lost_ms"], 3)},
        )
