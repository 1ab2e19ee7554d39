"""Horovod's coordinator says which ranks did not hand in tensors that the others wait for.

## What it finds
Reports of Horovod's stall inspector. Where all tensors of the last report wait for the same ranks, those did not come; where ranks wait for
each other with different tensors, the ranks run different graphs or different steps.

## Why it matters
Horovod reduces a tensor once every rank has handed it in. It waits without an end and prints this report every minute; nothing else in the
log tells whom it waits for.

## What would refute it
The job went on after the report: a rank that compiles, loads or saves for more than a minute brings it about too. A rank that ended, or an
earlier error of one of these ranks, is the deeper cause.

## What to do next
Take stacks of the named ranks (py-spy dump), and compare what they run with the others: a branch that depends on the rank, shards of different
sizes, a rank that raised an exception.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words

_EXPLAINS = ("timeout", "collective-stuck")


@rule(name="stalled-tensors", code="HV01", cause="host-stall", severity="critical", at_most=8, explains=_EXPLAINS)
def stalled_tensors(reports: pl.LazyFrame, training_steps: pl.LazyFrame | None) -> Iterator[Finding]:
    """The last report of each log. Steps that stand after it in the same log say that the job went on."""
    rows = reports.filter(pl.col("kind") == "stalled-tensors").sort("source_id", "line_no").collect()
    steps: dict[int, int] = {}
    if training_steps is not None and rows.height:
        last = training_steps.group_by("source_id").agg(pl.col("line_no").max()).select("source_id", "line_no").collect()
        steps = dict(last.drop_nulls().iter_rows())
    for (source,), part in rows.group_by("source_id", maintain_order=True):
        told = part.filter(pl.col("ranks").is_not_null())
        if told.height:
            # The last report may be cut off behind its heading.
            head = part.filter(pl.col("ranks").is_null() & (pl.col("line_no") <= told["line_no"].max()))["line_no"].max()
            latest = told.filter(pl.col("line_no") >= pl.lit(head if head is not None else 0))
            yield _finding(part, latest, went_on=steps.get(int(str(source)), -1) > int(str(latest["line_no"].max())))


def _finding(part: pl.DataFrame, latest: pl.DataFrame, *, went_on: bool) -> Finding:
    waits: dict[str, set[int]] = defaultdict(set)
    for ranks, detail in latest.select("ranks", "detail").iter_rows():
        for name in str(detail or "").split("\n"):
            waits[name] |= set(ranks)
    absent = tuple(sorted(set().union(*waits.values())))
    alike = len({frozenset(ranks) for ranks in waits.values()}) == 1
    # Who is missing for some tensors and not for others hands in others.
    crossed = not alike and not set.intersection(*waits.values())
    named = () if crossed else tuple(sorted(set.intersection(*waits.values())))
    who = ranks_words(named or absent)
    return Finding(
        cause="collective-mismatch" if crossed else None,
        title=f"Horovod waits for different tensors of {who}: the ranks do not hand in the same ones"
        if crossed
        else f"Horovod waits for {who} to hand in {len(waits)} tensor{'s' if len(waits) > 1 else ''}"
        + (", and the job went on" if went_on else ""),
        summary=f"Said by Horovod's coordinator, {part['ranks'].null_count()} times in this log. The first of the tensors is {next(iter(waits))}.",
        severity="warning" if went_on else "critical",
        confidence="low",
        ranks=named,
        subject=("horovod", *map(str, absent)),
        evidence=cite(latest, "line of Horovod's stall inspector"),
        evidence_total=part.height,
        remedy="Take stacks of these ranks while the job waits, and compare their path through the program with that of the others.",
        prevention="Set HOROVOD_STALL_SHUTDOWN_TIME_SECONDS so that a stall ends the job, and keep the output of every rank.",
        would_refute=("the ranks were only late", "a rank had ended, or raised an exception, before"),
        actions=(Action("collect-more", ranks=named, command="py-spy dump --pid <pid>"),),
        alternatives=(("collective-skipped", named, "the rank may have gone another way through the program"),),
    )
