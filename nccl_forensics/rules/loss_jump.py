"""The loss or the norm of the gradients broke away from its course.

## What it finds
Training logs in which the loss or the gradient norm becomes not-a-number and stays so, or jumps far above its course and stays high.

## Why it matters
It is the first, and often the only sign that numbers went wrong somewhere: a spoiled gradient reaches every rank with the next all-reduce,
and every checkpoint after it.

## What would refute it
A learning rate that is too high, a bad batch, a new phase of the data, or half precision without loss scaling do the same.

## What to do next
Go back to the checkpoint before the step and run the same batches again on other hosts: if the jump does not come back, it was no fault of
the program. Look for memory and link errors of the hosts around that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule

_NAMES = {"loss": "the loss", "grad-norm": "the norm of the gradients"}


@rule(name="loss-jump", code="DC01", cause="data-corruption", severity="warning", at_most=8)
def loss_jump(loss_jumps: pl.LazyFrame) -> Iterator[Finding]:
    """One finding for each curve and kind of break, at its earliest step over all ranks: they print the same curve."""
    order = ["what", "kind", "step", "source_id", "line_no"]
    rows = loss_jumps.sort(order, descending=[True, True, False, False, False], nulls_last=True).collect()
    for (what, kind), part in rows.group_by("what", "kind", maintain_order=True):
        first = part.row(0, named=True)
        at = f" at step {first['step']}" if first["step"] is not None else ""
        value = first["value"]
        became = "became not-a-number" if math.isnan(value) else "became infinite" if math.isinf(value) else f"jumped to {value:.4g}"
        before = f", after {first['before']:.4g} in the median of the steps before" if first["before"] is not None else ""
        yield Finding(
            title=f"{_NAMES[str(what)]} {became}{at}{before}, and stayed so",
            summary="Wrong numbers of hardware look so, and so do a learning rate that is too high, a bad batch and too small a number format.",
            confidence="low",
            culprits=(),
            subject=(str(what), str(kind)),
            evidence=cite(part, "the first value off the course"),
            evidence_total=part.height,
            remedy="Repeat the steps before the jump from the last good checkpoint on other hosts; only if the jump stays away, suspect hardware.",
            prevention="Stop the job when the loss is no number; log the gradient norm of every step and every rank.",
            would_refute=("the same batches from the same checkpoint do the same on other hosts",),
            actions=(Action("collect-more", command="dcgmi diag -r 3", confidence="low"),),
            alternatives=(("software-crash", (), "learning rate, data and number format explain such a jump as well"),),
            metrics={"step": first["step"], "before": first["before"]},
        )
