"""A worker, or a stage, computes longer than its peers in the timeline of a whole job.

## What it finds
Timelines of trainers (a track per worker that bears its parallel ranks, ranges that bear their step) in which one worker, or few of a stage,
compute clearly longer than the other workers of that stage in nearly every step; a stage of the pipeline of which all workers compute longer than
the other stages; and steps in each of which another worker takes longest, so that the work itself is unevenly divided.

## Why it matters
A step takes as long as its slowest worker: the others wait in the collectives at its end, or for their neighbour in the pipeline.

## What would refute it
The timeline is a simulated one, or its ranges hold waiting: computation that includes a collective is as long as that takes.

## What to do next
One worker: clocks, throttle reasons and other processes of that GPU and host. A stage: move layers, the loss and the embedding are work too.
Another worker in each step: batches of unlike length; balance them by their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import text_of
from nccl_forensics.model import Action, Confidence, Finding, Severity
from nccl_forensics.rules import rule
from nccl_forensics.words import time_words, verb

_CLOCKS = "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE"
#: A loss of this share of the time is an error (a smaller one a warning), by the contract.
_LOSS = 0.1
#: From here on nobody can take it for chance: half as long again, in so many steps, against so many peers.
_PLAIN, _STEPS, _PEERS = 1.5, 8, 3
_SHOWN = 6


@rule(name="slow-worker", code="ST23", cause="straggler", severity="error", at_most=2)
def slow_worker(
    timeline_work: pl.LazyFrame,
    *,
    slower: Annotated[float, "share by which a worker or a stage must compute longer than its peers"] = 0.1,
    agreeing: Annotated[float, "share of the steps that must show it"] = 0.8,
    steps: Annotated[int, "steps that must be in the timeline"] = 3,
    time_share: Annotated[float, "share of the steps' time that it must cost"] = 0.05,
) -> Iterator[Finding]:
    """At most one finding for workers or for a stage of each timeline, and one where the work is divided otherwise in each step."""
    every = timeline_work.filter(pl.col("compute_ns") > 0).collect()
    for _, rows in every.group_by("source_id", maintain_order=True):
        if rows["step"].n_unique() < steps:
            continue
        peers = _against(rows, ["pp"])
        slow = _lasting(peers, slower, agreeing, time_share)
        alike = slow.join(peers.select("worker", "pp").unique(), on="worker").group_by("pp").len().rows()
        most = dict(peers.group_by("pp").agg(pl.col("worker").n_unique()).rows())
        if slow.height and all(n * 2 < most[stage] or most[stage] == 2 == n + 1 for stage, n in alike):
            yield _workers(rows, peers, slow)
            continue
        stages = _against(_stages_of(rows), [])
        uneven = _lasting(stages, slower, agreeing, time_share) if rows["pp"].n_unique() > 2 else stages.clear()
        if 0 < uneven.height * 2 < rows["pp"].n_unique():
            yield _stages(rows, uneven)
            continue
        yield from _in_turns(peers, time_share)


#: What a stage is called where it stands for all of its workers.
_STAGE = text_of("PP {}", pl.col("pp"))


def _stages_of(rows: pl.DataFrame) -> pl.DataFrame:
    """The same with one row for each stage and step: the median of its workers."""
    first = [pl.col(c).first() for c in ("source_id", "record", "pp")]
    return rows.group_by(_STAGE.alias("worker"), "step", maintain_order=True).agg(*first, pl.col("compute_ns", "duration_ns").median())


def _against(rows: pl.DataFrame, stage: list[str]) -> pl.DataFrame:
    """For each worker and step: ``pace``, computation against the median of the others of the ``stage``, ``excess_ns`` and the ``share`` of
    the step that is."""
    place = ["step", *stage]
    others = rows.join(rows.select(*place, other="worker", theirs="compute_ns"), on=place, nulls_equal=True).filter(
        pl.col("worker") != pl.col("other")
    )
    usual = others.group_by("worker", "step", maintain_order=True).agg(usual=pl.col("theirs").median(), peers=pl.len())
    excess = pl.col("compute_ns") - pl.col("usual")
    return (
        rows.join(usual, on=["worker", "step"])
        .with_columns(pace=pl.col("compute_ns") / pl.col("usual"), excess_ns=excess)
        .with_columns(share=pl.col("excess_ns") / pl.col("duration_ns").max().over("step"))
    )


def _lasting(paces: pl.DataFrame, slower: float, agreeing: float, time_share: float) -> pl.DataFrame:
    """Those that are slow in nearly every step: ``worker``, ``pace``, ``share`` (of the time lost), ``steps``, ``peers``; slowest first."""
    return (
        paces.group_by("worker", maintain_order=True)
        .agg(
            pl.col("pace").median(),
            pl.col("share").mean(),
            pl.col("excess_ns").mean(),
            pl.col("peers").min(),
            steps=pl.len(),
            agree=(pl.col("pace") >= 1 + slower).mean(),
        )
        .filter((pl.col("pace") >= 1 + slower) & (pl.col("agree") >= agreeing) & (pl.col("share") >= time_share))
        .sort("pace", "worker", descending=[True, False])
    )


def _severity(share: float) -> Severity:
    return "error" if share >= _LOSS else "warning"


def _workers(rows: pl.DataFrame, peers: pl.DataFrame, slow: pl.DataFrame) -> Finding:
    """The workers of few that are slow, by rank where the tracks tell it: who is first on every axis is rank 0 in any layout."""
    names = slow["worker"].to_list()
    worst = slow.row(0, named=True)
    ranks = []
    for name in names:
        row = rows.filter(pl.col("worker") == name).row(0, named=True)
        axes = [row[axis] for axis in ("dp", "pp", "tp", "cp", "ep")]
        first = all(row[axis] is not None for axis in ("dp", "pp", "tp")) and not any(axes)
        if row["rank"] is not None or first:
            ranks.append(int(row["rank"]) if row["rank"] is not None else 0)
    of = peers.filter(pl.col("worker").is_in(names)).sort("pace", "step", descending=[True, False])
    beside = peers.filter((pl.col("step") == of["step"][0]) & ~pl.col("worker").is_in(names)).head(1)
    plain = worst["pace"] >= _PLAIN and worst["steps"] >= _STEPS and worst["peers"] >= _PEERS and len(names) == 1
    confidence: Confidence = "high" if plain else "medium" if worst["peers"] > 1 else "low"
    who = " and ".join(f"worker {n}" for n in names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return Finding(
        title=f"{who} {verb(names, 'computes', 'compute')} {worst['pace']:.1f} times as long as the other workers of the stage",
        summary=f"In {worst['steps']} steps: {time_words(worst['excess_ns'] / 1e6)} more in each, {worst['share']:.0%} of a step, for which all others wait.",
        confidence=confidence,
        severity=_severity(worst["share"]),
        ranks=tuple(sorted(ranks)),
        subject=tuple(names),
        evidence=(*cite(of.head(_SHOWN), "its longest computation of a step"), *cite(beside, "that of another worker of the stage")),
        evidence_total=of.height + beside.height,
        remedy="Compare clocks, throttle reasons and other processes of that worker's GPU and host with its neighbours'.",
        prevention="Log the step time of every worker, and compare them while jobs run.",
        would_refute=("the same worker as fast as the others on another host",),
        actions=(Action("collect-more", ranks=tuple(sorted(ranks)), command=_CLOCKS, confidence=confidence),),
        metrics={"pace": round(worst["pace"], 3), "time_share": round(worst["share"], 4)},
    )


def _stages(rows: pl.DataFrame, uneven: pl.DataFrame) -> Finding:
    names, worst = uneven["worker"].to_list(), uneven.row(0, named=True)
    of = rows.filter(_STAGE.is_in(names)).sort("compute_ns", "step", "worker", descending=[True, False, False])
    ranks = tuple(sorted({int(r) for r in of["rank"].drop_nulls()}))
    return Finding(
        title=f"stage {' and '.join(names)} {verb(names, 'computes', 'compute')} {worst['pace']:.1f} times as long as the others: the pipeline is unevenly divided",
        summary=f"All workers of the stage alike, in {worst['steps']} steps: {worst['share']:.0%} of a step. Layers, the embedding and the loss are work of their stage.",
        confidence="medium",
        severity=_severity(worst["share"]),
        ranks=ranks,
        subject=tuple(names),
        evidence=cite(of.head(_SHOWN), "the longest computation of a step of a worker of this stage"),
        evidence_total=of.height,
        remedy="Give that stage fewer layers, or put the loss on a stage of its own.",
        prevention="Profile a few steps of every stage when the model or its division changes.",
        would_refute=("hosts of that stage with slower GPUs than the others'",),
        actions=(Action("fix-code", ranks=ranks, confidence="medium"),),
        metrics={"pace": round(worst["pace"], 3), "time_share": round(worst["share"], 4)},
    )


def _in_turns(peers: pl.DataFrame, time_share: float) -> Iterator[Finding]:
    """Steps in each of which another worker of the stage takes longest by far."""
    last = peers.sort("excess_ns", descending=True).unique("step", keep="first", maintain_order=True)
    share = last["share"].mean()
    turns = last["worker"].value_counts().sort("count", "worker", descending=[True, False])
    if not last.height or not isinstance(share, float) or share < time_share or turns["count"][0] * 2 > last.height:
        return
    yield Finding(
        title=f"the work is unevenly divided: {turns.height} workers take turns at computing longest, {share:.0%} of a step longer than the usual",
        summary=f"In {last.height} steps the worker that all others wait for is most often another one: batches of unlike length, not a slow GPU.",
        confidence="medium",
        severity=_severity(share),
        culprits=(),
        subject=("divided in turns",),
        evidence=cite(last.head(_SHOWN), "the longest computation of the slowest worker of its step"),
        evidence_total=last.height,
        remedy="Balance the batches by the work that they are (tokens, and their squares for attention), not by their number.",
        prevention="Log the tokens of each worker's batch beside its step time.",
        would_refute=("steps of batches of one length in which it is the same",),
        actions=(Action("fix-code", confidence="medium"),),
        metrics={"time_share": round(share, 4)},
    )
