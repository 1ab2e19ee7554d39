"""The training loops' own times show one rank that waits for its batch in every step, and all others wait for it.

## What it finds
A rank whose log tells step after step that its batch took much longer than any other rank's, by a fifth of the step and more, while the
steps themselves take all ranks alike: the others spend that time in a collective.

## Why it matters
A collective runs at the pace of its last rank: one slow reader slows the whole job, and no error tells of it.

## What would refute it
The loop measures something else under that name, as the copy to a device that still computes.

## What to do next
Look at the storage and the worker processes of that rank's host; compare the number of its workers with its neighbours'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import LOG_LAG, RECORD_STACKS

#: Fewer ranks than this: either of two may be meant to do more.
_SEVERAL = 3


@rule(name="input-stall-by-logs", code="ST27", cause="input-stall", severity="error", at_most=1, explains=("straggler",))
def input_stall_by_logs(
    input_times: pl.LazyFrame,
    *,
    at_least: Annotated[int, "steps that all ranks must tell"] = 5,
    sure: Annotated[int, "steps from which nothing else is needed"] = 8,
    often: Annotated[float, "share of these in which the rank alone waits longest"] = 0.8,
    alike: Annotated[float, "share by which the step times of ranks that wait for each other may differ"] = 0.3,
) -> Iterator[Finding]:
    """The one rank, if there is one."""
    ranks = input_times.collect()
    slow = ranks.filter((pl.col("steps") >= at_least) & (pl.col("longest_steps") >= often * pl.col("steps")))
    usual = float(str(ranks["step_ms"].median() or 0.0))
    if slow.height != 1 or not ((ranks["step_ms"] - usual).abs() <= alike * usual).all():
        return
    [row] = slow.to_dicts()
    rank, certain = int(row["rank"]), row["steps"] >= sure and ranks.height >= _SEVERAL
    yield Finding(
        title=f"rank {rank} waits {row['input_ms']:,.0f} ms for its batch, of steps of {row['step_ms']:,.0f} ms; no other rank more than {row['others_ms']:,.0f} ms",
        summary=f"By the times that the ranks print: in {row['longest_steps']} of {row['steps']} steps its batch alone comes later by a fifth of the step "
        "or more, and the steps take all ranks alike, so that the others wait for it.",
        confidence="high" if certain else "medium",
        ranks=(rank,),
        subject=("steps", "input"),
        evidence=cite(slow, "its longest wait for a batch"),
        evidence_total=int(row["longest_steps"]),
        remedy="Look at this rank's storage, the worker processes of its loader and their number; compare with its neighbours.",
        prevention=LOG_LAG,
        would_refute=("the time under that name holds more than the batch",),
        actions=(Action("collect-more", ranks=(rank,), command=RECORD_STACKS),),
        metrics={"input_ms": round(float(row["input_ms"]), 1), "others_ms": round(float(row["others_ms"]), 1), "steps": int(row["steps"])},
    )
