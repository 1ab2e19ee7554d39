"""The timeout of a process group ended a job that was still advancing.

## What it finds
Collectives that every rank of the group entered, the last of them later after the first than the group's timeout allows, in a job that then
failed; and, as a warning, groups whose ranks came near to their timeout without failing.

## Why it matters
Nothing was wrong but the wait: a checkpoint, an evaluation or a compilation on one rank took longer than the others may wait.

## What would refute it
The late rank was stuck and came only because the others gave up; or the clocks of the hosts are apart by minutes.

## What to do next
Raise the timeout of init_process_group or of the group used around the slow part, or let all ranks wait in a barrier with its own timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import group_words, operation_words, ranks_words


@rule(
    name="timeout-too-short",
    code="TO02",
    cause="timeout-too-short",
    severity="critical",
    at_most=8,
    explains=("collective-stuck", "connection-failed", "rank-died", "host-stall", "straggler", "timeout", "closed"),
)
def timeout_too_short(
    long_waits: pl.LazyFrame,
    failures: pl.LazyFrame | None,
    *,
    near: Annotated[float, "share of the timeout from which a wait is worth a warning, 0.05 at least"] = 0.5,
) -> Iterator[Finding]:
    """At most one finding per group: its longest wait."""
    waits = (
        long_waits.filter(pl.col("wait_ms") >= near * pl.col("timeout_ms"))
        .sort("wait_ms", "group_key", "seq", descending=[True, False, False])
        .unique("group_key", keep="first", maintain_order=True)
        .collect()
    )
    failed = has_rows(failures)
    for row in waits.iter_rows(named=True):
        over = row["wait_ms"] >= row["timeout_ms"] and failed
        seconds, limit = row["wait_ms"] / 1e3, row["timeout_ms"] / 1e3
        where = f" at {row['call_site']}" if row["call_site"] else ""
        yield Finding(
            title=f"{ranks_words((row['late'],))} entered {operation_words(row['op'], row['seq'])} of {group_words(row)} {seconds:.0f} s after the first rank; "
            + (f"the timeout is {limit:.0f} s" if over else f"the timeout of {limit:.0f} s is near"),
            summary="Every rank of the group came to this collective: nobody skipped it or died before it. The wait alone was too long."
            + (f" The late rank called it{where}." if where else ""),
            severity="critical" if over else "warning",
            confidence="high" if over else "medium",
            ranks=(row["late"],),
            subject=("timeout", str(row["group_desc"] or row["group_name"]), str(row["op"])),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["op"]),
            evidence=(
                *cite([whereabouts(row)], "the last rank enters"),
                *cite([whereabouts(row, "first_")], "the first rank enters"),
            ),
            remedy=f"Give the group a timeout above {2 * seconds:.0f} s (timeout= of init_process_group or new_group), or shorten what this rank does before.",
            prevention="Wrap checkpoints, evaluation and compilation of single ranks in a barrier of a group with a timeout of its own.",
            would_refute=("the late rank was stuck until the others gave up", "the hosts' clocks are that far apart"),
            actions=(Action("change-setting", ranks=(row["late"],), confidence="medium"),),
            metrics={"wait_s": round(seconds, 1), "timeout_s": round(limit, 1), "members": row["members"]},
        )
