"""NCCL refused what it was asked: one GPU twice, an impossible algorithm, bad arguments.

## What it finds
WARN lines that NCCL prints when it refuses a call, with the ranks that the message itself names, and ranks that ended because NCCL or
torch.distributed refused what they were handed.

## Why it matters
The job stops at once on that rank; the others hang in init or in their first collective.

## What would refute it
The refused call was handled by the program and tried again with success.

## What to do next
Duplicate GPU: check CUDA_VISIBLE_DEVICES and local rank. No algorithm: look at NCCL_ALGO and NCCL_PROTO of that rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules_shared import hosts_of, ranks_of, where_reported
from nccl_forensics.words import ranks_words

_KINDS = ("invalid-usage", "invalid-argument", "no-algorithm", "no-network", "no-transport", "duplicate-rank", "rank-mismatch")

_EXPLAINS = (
    "connection-failed",
    "rank-died",
    "rank-never-joined",
    "host-stall",
    "collective-stuck",
    "software-crash",
    "collective-skipped",
)


@rule(
    name="invalid-usage",
    code="US01",
    cause="invalid-usage",
    severity="critical",
    at_most=8,
    explains=_EXPLAINS,
)
def invalid_usage(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame) -> Iterator[Finding]:
    """Refused calls, duplicates first."""
    twice = nccl_errors.filter(pl.col("kind") == "duplicate-gpu").sort("source_id", "line_no").collect()
    if twice.height:
        pairs = (
            twice["message"].str.extract_groups(r"rank ([0-9]+) and rank ([0-9]+) both on CUDA device ([0-9a-f]+)").struct.unnest().rows()
        )
        ranks = tuple(sorted({int(r) for pair in pairs for r in pair[:2] if r is not None}))
        bus = next((p[2] for p in pairs if p[2]), None)
        yield Finding(
            title=f"{ranks_words(ranks) if ranks else 'two ranks'} use the same GPU" + (f" ({bus})" if bus else ""),
            summary="NCCL refuses two ranks of one communicator on one device.",
            confidence="high",
            ranks=ranks,
            hosts=hosts_of(twice),
            culprits=tuple(Culprit(rank=r) for r in ranks),
            subject=("duplicate-gpu",),
            evidence=cite(twice, "refused: duplicate GPU"),
            evidence_total=twice.height,
            remedy="Call torch.cuda.set_device(local_rank) before init, and check CUDA_VISIBLE_DEVICES and the number of tasks per node.",
            prevention="Assert that local ranks of a host have distinct devices before the first collective.",
            would_refute=("MIG or multi-rank GPU sharing was meant and NCCL_MULTI_RANK_GPU_ENABLE is set",),
            actions=(Action("fix-code", ranks=ranks, confidence="high"),),
        )
    rows = where_reported(nccl_errors.filter(pl.col("kind").is_in(list(_KINDS)) & (pl.col("level") == "WARN")), processes)
    for (kind,), part in rows.group_by("kind", maintain_order=True):
        ranks = ranks_of(part)
        message = str(part["message"][0])[:160]
        yield Finding(
            title=f"NCCL refused a call of {ranks_words(ranks) if ranks else 'a process'}: {message}",
            summary="The call was wrong for this rank; the other ranks wait for it.",
            confidence="high" if ranks else "medium",
            ranks=ranks,
            hosts=hosts_of(part),
            culprits=tuple(Culprit(rank=r) for r in ranks),
            subject=(str(kind),),
            evidence=cite(part, "refused"),
            evidence_total=part.height,
            remedy="Compare the arguments and NCCL_* settings of this rank with those of its peers.",
            would_refute=("the program handled the error and went on",),
            actions=(Action("fix-code", ranks=ranks),),
        )


@rule(
    name="invalid-usage-by-exception",
    code="US02",
    cause="invalid-usage",
    severity="critical",
    at_most=8,
    explains=(*_EXPLAINS, "timeout", "closed"),
)
def invalid_usage_by_exception(endings: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks that ended by a refused call: one finding per text. Where all ranks that ended did so alike, none of them is special."""
    everyone = endings.collect()
    refused = everyone.filter((pl.col("kind") == "usage") & pl.col("own")).sort("rank")
    for (kind, frame), part in refused.group_by("type", "frame", maintain_order=True):
        ranks = ranks_of(part)
        alike = part.height == everyone.height > 1
        raised = [
            {"source_id": r["exc_source_id"], "line_no": r["exc_line_no"]}
            for r in part.iter_rows(named=True)
            if r["exc_source_id"] is not None
        ]
        message = " ".join(str(part["message"][0]).split())[:160]
        yield Finding(
            title=f"a call of {'all ranks' if alike else ranks_words(ranks) if ranks else 'a process'} was refused: {message}"
            + (f" at {frame}" if frame else ""),
            summary="All ranks made the same mistake: it is the program's."
            if alike
            else "The call was wrong for this rank; the others wait for it.",
            confidence="high" if ranks else "medium",
            ranks=() if alike else ranks,
            hosts=() if alike else hosts_of(part),
            culprits=() if alike else tuple(Culprit(rank=r) for r in ranks),
            subject=("refused", str(kind or ""), str(frame or "")),
            evidence=cite(raised or part.to_dicts(), "the call that was refused"),
            evidence_total=part.height,
            remedy="Fix the call at the quoted line: device, layout, sizes and ranks of what it is handed.",
            would_refute=("the program handled the error and went on",),
            actions=(Action("fix-code", ranks=() if alike else ranks),),
        )
