"""One rank waits in no collective while all others of its group wait for it, by how long recorders say that operations ran.

## What it finds
In the dumps of a job with timing (TORCH_NCCL_ENABLE_TIMING) a rank whose collectives of a group are again and again the shortest, by a
margin that costs the others real time, and that waits in no other group, send or receive for as long: it comes last by itself.

## Why it matters
A collective runs at the pace of its last rank. A slow GPU delays no enqueue, as its host runs ahead of it, so that enqueue times hide it.

## What would refute it
Its place in the job asks more of it than of its peers, or it waits for another group whose operations are not timed.

## What to do next
Compare the clocks, throttling and kernels of its GPU, and its input, with those of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.values.chances import tail
from nccl_forensics.words import group_words, time_words

#: Chance of so many last places, up to which nothing else is needed.
_SURELY = 1e-6


@rule(
    name="straggler-by-durations",
    code="ST24",
    cause="straggler",
    severity="error",
    at_most=1,
    explains=("communication-bound", "low-overlap", "straggler"),
)
def straggler_by_durations(
    recorded_waits: pl.LazyFrame,
    bridges: pl.LazyFrame | None,
    *,
    late_at_least: Annotated[int, "collectives that a rank must come last to"] = 5,
    at_least: Annotated[int, "collectives of the group that must be comparable"] = 8,
    lost_share: Annotated[float, "share of all time lost to waiting in the group that must be this rank's"] = 0.6,
    time_share: Annotated[float, "share of the window that must be lost to the rank"] = 0.1,
    late_chance: Annotated[float, "chance of so many last places among alike ranks of all groups"] = 0.01,
    waited_share: Annotated[float, "share of what the others lose to it that it may wait itself"] = 0.5,
) -> Iterator[Finding]:
    """The one rank that all groups which wait for somebody wait for; nobody where they are several."""
    rows = recorded_waits.collect()
    looked_at = rows["group_key"].n_unique()
    if bridges is not None:
        rows = rows.join(bridges.collect(), on=["group_key", "rank"], how="anti", maintain_order="left")
    # One long delay, as a checkpoint that is written, is no habit.
    known = rows.with_columns(habit_ms=pl.col("lost_ms") - pl.col("worst_ms")).with_columns(
        share=pl.col("habit_ms") / pl.col("habit_ms").sum().over("group_key")
    )
    itself = pl.col("waited_in_all_ms") <= waited_share * pl.col("lost_ms")
    costly = (pl.col("share") >= lost_share) & (pl.col("habit_ms") >= time_share * pl.col("span_ms"))
    often = (pl.col("collectives") >= at_least) & (pl.col("last_count") >= late_at_least)
    late = [
        (row, chance)
        for row in known.filter(itself & costly & often & ~pl.col("piped")).sort("habit_ms", descending=True).iter_rows(named=True)
        if (chance := tail(row["material"], row["last_count"], 1 / row["members"]) * looked_at) <= late_chance
    ]
    if len({row["rank"] for row, _ in late}) != 1:
        return
    row, chance = late[0]
    sure: Confidence = "high" if row["members"] > 2 and row["share"] >= 0.8 and chance <= _SURELY else "medium"
    rank = (row["rank"],)
    yield Finding(
        title=f"rank {row['rank']} came last to {row['last_count']} of {row['collectives']} timed collectives of {group_words(row)}; the others lost "
        f"{time_words(row['lost_ms'])} waiting for it",
        summary=f"By how long they ran on each GPU, whatever the clocks say: {row['share']:.0%} of what is lost to waiting in this group is its own, and in "
        f"all of its groups it waited {time_words(row['waited_in_all_ms'])} itself.",
        confidence=sure,
        ranks=rank,
        subject=("straggler", str(row["group_desc"] or row["group_name"])),
        evidence=cite([row], "the collective to which it came latest: its own time in it is the shortest"),
        evidence_total=row["last_count"],
        remedy="Look at what this rank does between collectives: clocks and throttling of its GPU, data loading, a noisy neighbour.",
        prevention="Log how long each rank waits in collectives; alarm when one rank never does.",
        would_refute=("its place in the job asks more of it than of its peers",),
        actions=(Action("collect-more", ranks=rank, command="nvidia-smi -q -d CLOCK,PERFORMANCE"),),
        metrics={"lost_ms": round(row["lost_ms"], 1), "late": row["last_count"]},
    )
