"""A process ended inside NCCL's init, and its peers wait for it.

## What it finds
A communicator that some ranks, or all, did not complete although all started it, with connections refused between the processes, or with all
hosts but one come through, and one process whose log ends earlier in init than those of all its peers.

## Why it matters
Its death leaves no line in NCCL's logs; the peers only see refused connections, or wait.

## What would refute it
The process is alive (it hangs in a driver call), or its exit code says otherwise.

## What to do next
Ask the launcher and the kernel log for the end of that process; get its standard error.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import ranks_in
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule

#: What a process warns of that lost a peer, or gave up on it.
_OF_PEERS = ("peer-closed", "recv-failed", "connect-gave-up", "other")
#: Lines of a process that lost a peer.
_OF_FAILURE = ("connect-retry", "peer-closed", "recv-failed", "connect-gave-up")


#: So many lines behind all others is clearly earlier in init, where nothing else tells of a process that is gone.
_CLEARLY = 2


@rule(
    name="died-in-init",
    code="IN02",
    cause="rank-died",
    severity="critical",
    at_most=2,
    explains=("connection-failed", "host-stall", "timeout"),
)
def died_in_init(
    nccl_tails: pl.LazyFrame,
    comms: pl.LazyFrame,
    nccl_errors: pl.LazyFrame,
    processes: pl.LazyFrame,
    cut_logs: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """The one process that got least far, if it is clearly behind all others."""
    members = comms.filter(pl.col("rank").is_not_null() & pl.col("nranks").is_not_null()).collect()
    world = members.filter(pl.col("nranks") == pl.col("nranks").max())
    # Ranks of other hosts may get through, where NCCL connects the ranks of a host among themselves first (2.30).
    through = set(world.filter(pl.col("completed"))["rank"].to_list())
    if through >= set(world["rank"].to_list()):
        return
    size = int(str(world["nranks"].max()))
    present = world["rank"].n_unique()
    if present < size - 1 or present < 3:
        return
    refused = (
        nccl_errors.filter(
            pl.col("kind").is_in(["connect-retry", "peer-closed", "recv-failed"]) & pl.col("message").str.contains("refused|closed|reset")
        )
        .sort("source_id", "line_no")
        .collect()
    )
    serious = nccl_errors.filter((pl.col("level") == "WARN") & ~pl.col("kind").is_in(_OF_PEERS)).collect()
    if serious.height or not (refused.height or _one_host_is_left(world)):
        return
    people = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    # Lines about the failure itself, and those that hand it up, do not count as progress.
    told = pl.col("kind").is_in(_OF_FAILURE) | ((pl.col("kind") == "propagation") & pl.col("code").is_between(1, 7))
    noise = nccl_errors.filter(told).group_by("host", "pid").agg(pl.len().alias("noise"))
    tails = (
        nccl_tails.sort("source_id", "line_no")
        .group_by("host", "pid")
        .agg(pl.col("lines").sum(), pl.col("source_id", "line_no", "message").last())
        .join(people, on=["host", "pid"])
        .join(noise, on=["host", "pid"], how="left")
        .with_columns(progress=pl.col("lines") - pl.col("noise").fill_null(0))
        .sort("progress", "rank")
        .collect()
    )
    if tails.height < present or tails["progress"][1] - tails["progress"][0] < (1 if refused.height else _CLEARLY):
        return
    row = tails.row(0, named=True)
    further = ranks_in(cut_logs)
    if row["noise"] or row["rank"] in through | further:
        return
    others = "its peers' connections are refused" if refused.height else "the others of its host wait, and all other hosts came through"
    yield Finding(
        title=f"rank {row['rank']} on {row['host']} ended during NCCL's init; {others}",
        summary=f"{present} of {size} ranks started the communicator and {len(through) or 'none'} completed it. The log of rank {row['rank']} ends first, at: {row['message']!r}.",
        confidence="medium" if present == size and refused.height else "low",
        ranks=(row["rank"],),
        hosts=(str(row["host"]),),
        culprits=(Culprit(rank=row["rank"], host=row["host"], pid=row["pid"]),),
        subject=("died-in-init",),
        evidence=(*cite([row], "the last line of this process"), *cite(refused, "a peer's connection fails", at_most=6)),
        evidence_total=1 + refused.height,
        remedy="Look at the exit code, standard error and kernel log of this process; a native stack or core file says where it ended.",
        prevention="Run with faulthandler and keep each rank's standard error and exit code.",
        would_refute=("the process is still alive",),
        actions=(Action("collect-more", ranks=(row["rank"],), hosts=(str(row["host"]),), command="dmesg -T; coredumpctl"),),
    )


def _one_host_is_left(world: pl.DataFrame) -> bool:
    """Whether the ranks of all hosts but one completed the communicator, and none of that host: its ranks connect among themselves first, and
    wait for one of theirs (NCCL 2.24 on)."""
    hosts = world.group_by("host").agg(pl.col("completed").all(), some=pl.col("completed").any(), ranks=pl.col("rank").n_unique())
    left = hosts.filter(~pl.col("completed"))
    return hosts.height > 1 and left.height == 1 and not left["some"][0] and int(left["ranks"][0]) > 1
