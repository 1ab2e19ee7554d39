"""A traceback is all that tells of the failure, and nothing tells whose it is.

## What it finds
An exception of the program that ended a process, in evidence in which no rank is known, no launcher tells how any process ended and no
kernel tells of its host: a text that was pasted, or standard error without prefixes. The same exception more than once, each of a process
of its own as far as is known, is told as one of the program.

## Why it matters
The process is gone, and whoever was to meet it in a collective waits or fails after it. Which rank it was, and whether the others did the
same, this text does not say.

## What would refute it
The program caught the exception and went on, or it was a helper beside the ranks.

## What to do next
Read the traceback; keep the output of each rank (torchrun --log-dir, --tee 3), so that its rank stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.cuda_errors import texts
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.views.failures import EXCEPTIONS
from nccl_forensics.views.raised import lived_on

#: Texts of the program itself and of its data; what libraries say of a cause, or of other ranks, is for the rules of these.
_OF_THE_PROGRAM = ("user", "worker-killed", "disk-full")
#: CUDA's words where they speak of something else than the caller's mistake.
_OF_THE_DEVICE = "(?i)" + "|".join(re.escape(t) for t in texts("gpu", "kernel", "not-ready", "driver", "memory"))


@rule(name="raised-by-nobody-known", code="DE14", cause="rank-died", severity="critical", at_most=1, explains=("timeout", "closed"))
def raised_by_nobody_known(
    raised: pl.LazyFrame,
    failures: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    kernel_events: pl.LazyFrame | None = None,
    oom_kills: pl.LazyFrame | None = None,
    xids: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """At most one finding: the first exception of the program, where no rank is known and there is no other sign of a failure, nor a host's
    log, which holds the tracebacks of any service."""
    ranks = source_ranks.filter(pl.col("rank").is_not_null()) if source_ranks is not None else None
    of_hosts = any(map(has_rows, (kernel_events, oom_kills, xids)))
    if of_hosts or has_rows(endings) or has_rows(ranks) or has_rows(failures.filter(pl.col("sign") != EXCEPTIONS)):
        return
    # torch.distributed's own errors blame no line of the program.
    asked_wrong = (pl.col("signature") == "cuda-error") & pl.col("message").str.starts_with("CUDA error: ")
    asked_wrong &= ~pl.col("message").str.contains(_OF_THE_DEVICE)
    own = (pl.col("signature").is_in(_OF_THE_PROGRAM) | asked_wrong) & ~pl.col("frames").fill_null("").str.contains(
        r"^[^\n]{0,400}torch/distributed/"
    )
    # A line alone that names an exception may be of a log of anything; a library's own text is not.
    whole = pl.col("frames").is_not_null() | (pl.col("signature") != "user")
    ended = (pl.col("kind") == "python") & whole & ~lived_on()
    rows = raised.filter(ended & own & pl.col("rank").is_null()).sort("source_id", "line_no").collect()
    if not rows.height:
        return
    first = rows.row(0, named=True)
    same = rows.filter(pl.col("type").eq_missing(first["type"]) & pl.col("frame").eq_missing(first["frame"]))
    writers = same["hint_pid"].n_unique() if same["hint_pid"].is_not_null().all() else same.height
    message = str(first["message"] or "").split("\n", 1)[0][:160]
    what = f"{first['type']}{f': {message}' if message else ''}" + (f" at {first['frame']}" if first["frame"] else "")
    yield Finding(
        cause="software-crash" if writers > 1 else None,
        title=f"{'processes' if writers > 1 else 'a process'} of unknown rank raised an exception: {what}",
        summary="Nothing but this traceback tells of the failure, and not whose it is.",
        confidence="low",
        culprits=(),
        subject=("raised", str(first["type"]), str(first["frame"] or "")),
        evidence=cite(same, "the exception", at_most=8),
        evidence_total=same.height,
        remedy="Fix the exception at the quoted line.",
        prevention="Keep each rank's output apart (torchrun --log-dir, --tee 3), or run each rank under torch.distributed.elastic's @record.",
        would_refute=("the program caught it and went on", "it was no rank of the job"),
        actions=(Action("fix-code", where=first["frame"]),),
        alternatives=(("rank-died" if writers > 1 else "software-crash", (), "how many ranks raised it is not known"),),
    )
