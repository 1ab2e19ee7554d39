"""Ranks that computed the same number step by step no longer agree: their copies of the model have parted.

## What it finds
Logs of several ranks that print the norm of all gradients: it is the same on every rank, until one rank's differs from then on while the
others still agree with each other.

## Why it matters
After an all-reduce every rank holds the same gradients. A rank whose norm differs got other numbers, or changed them: its copy of the model
is another one from that step on, and no message says so.

## What would refute it
The rank prints the norm of its own part only. Then its norm would have differed from the first step.

## What to do next
Compare checksums of the parameters between ranks at that step; test the GPU and the links of the odd rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule


@rule(name="replicas-differ", code="DC03", cause="data-corruption", severity="error", at_most=16)
def replicas_differ(
    replica_norms: pl.LazyFrame,
    *,
    agreed: Annotated[int, "steps for which a rank must have agreed with all others before its difference counts"] = 10,
    differs: Annotated[int, "steps in a row for which it must differ"] = 3,
    tolerance: Annotated[float, "relative difference below which norms are the same, printed with few digits"] = 2e-3,
) -> Iterator[Finding]:
    """One finding per rank that left the others."""
    judged = (
        replica_norms.with_columns(odd=(pl.col("grad_norm") - pl.col("usual")).abs() > tolerance * pl.col("usual").abs())
        .with_columns(odd_ranks=pl.col("odd").sum().over("step"))
        # Where more than one in three differs, none is right by number.
        .filter(pl.col("odd_ranks") * 3 <= pl.col("ranks"))
        .sort("rank", "step")
        .with_columns(order=pl.int_range(pl.len()).over("rank"))
    )
    starts = (
        judged.filter(pl.col("odd"))
        .group_by("rank", maintain_order=True)
        .agg(pl.col("order").first().alias("since"), pl.col("step").first(), pl.col("order").head(differs).alias("run"))
        .filter((pl.col("since") >= agreed) & (pl.col("run").list.len() >= differs))
        .filter(pl.col("run").list.get(differs - 1, null_on_oob=True) == pl.col("since") + differs - 1)
        .sort("rank")
        .collect()
    )
    frame = judged.join(starts.lazy().select("rank"), on="rank", how="semi").collect() if starts.height else pl.DataFrame()
    for rank, since, step, _ in starts.iter_rows():
        own = frame.filter((pl.col("rank") == rank) & pl.col("odd"))
        first = own.row(0, named=True)
        yield Finding(
            title=f"rank {rank} computes another gradient norm than all others from step {step} on: {first['grad_norm']:.6g}, not {first['usual']:.6g}",
            summary=f"It had agreed for {since} steps. Its copy of the model has parted from the others'.",
            confidence="medium",
            ranks=(int(rank),),
            subject=(f"rank {rank}", "gradient norm"),
            evidence=cite(own.head(6), "the norm that only this rank has"),
            evidence_total=own.height,
            remedy="Go back to a checkpoint before this step; test the GPU of this rank, its memory and its links.",
            prevention="Compare the gradient norm, or a checksum of the parameters, between ranks every few steps.",
            would_refute=("the number is the rank's own share and not that of all gradients",),
            actions=(Action("collect-more", ranks=(int(rank),), command="dcgmi diag -r 3", confidence="medium"),),
            metrics={"step": int(step), "agreed_steps": int(since)},
        )
