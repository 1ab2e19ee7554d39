"""A process of the job stands still in the kernel, is stopped, or is held by a debugger.

## What it finds
Training processes that a ps listing shows as stopped (T) or traced (t), and such that sleep uninterruptibly (D) in a file system or in
the GPU driver; and ranks of a job that failed whose process the listing of their host lacks while it holds the others.

## Why it matters
All others wait in the next collective for the rank that does not run. A debugger or sampler that was left attached hangs the job.

## What would refute it
The listing was taken while a stack sampler (py-spy, gdb) was at work on that process, or a second listing shows it running.

## What to do next
Detach the debugger or send SIGCONT; for D look at the kernel stack (/proc/<pid>/stack) and at the file server or the driver.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, cite_absence
from nccl_forensics.frames import has_rows, ranks_in
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import People, gave_up, located, people, place, ranks_of
from nccl_forensics.words import first_label, ranks_words

#: Words of a command line that trains.
_TRAINER = r"(?:^|/)(?:python[0-9.]*|pt_main_thread|ray::\S+)\s"
_STORAGE = r"nfs|rpc_|cl_sync|ll_|lustre|ceph|fuse|gpfs|beegfs|cifs"
_DRIVER = r"^(?:nv_|os_|uvm_|rm_)"
#: Share of a host's ranks that a listing must hold before it says something of those that it lacks.
_MOST_OF = 0.6


@rule(
    name="process-stopped",
    code="PS01",
    cause="host-stall",
    severity="error",
    at_most=32,
    explains=("timeout", "collective-stuck", "straggler", "gpu-stall", "host-stall", "closed"),
)
def process_stopped(
    host_processes: pl.LazyFrame,
    stacks: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    failures: pl.LazyFrame | None = None,
    watchdog_calls: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per host and reason."""
    who = people(processes)
    failed, waited = has_rows(failures), gave_up(watchdog_calls)
    rows = located(host_processes, source_hosts).filter(pl.col("state").is_not_null())
    ours = rows.filter(
        pl.col("command").str.contains(_TRAINER) | pl.col("pid").is_in(list(who.by_pid))
        if who.by_pid
        else pl.col("command").str.contains(_TRAINER)
    )
    if failed:
        yield from _gone(rows, who, waited)
    left = _left_over(ours, who, source_ranks)
    sampled = has_rows(stacks)
    held = ours.with_columns(reason=_reason()).filter(pl.col("reason").is_not_null())
    for (host, why), part in held.group_by("host", "reason", maintain_order=True):
        pids = part["pid"].drop_nulls().unique(maintain_order=True).to_list()
        found = ((pid, who.of_pid(host, pid)) for pid in pids)
        culprits = tuple(Culprit(rank=left.get(pid) if rank is None else rank, host=name_of(host), pid=pid) for pid, rank in found)
        ranks = ranks_of(culprits)
        # The others gave up waiting, and these few never told that they did.
        awaited = failed and bool(waited) and bool(ranks) and waited.isdisjoint(ranks) and len(ranks) * 2 <= len(waited)
        doubtful = why == "traced" and sampled
        yield _held(host, str(why), part, culprits, awaited=awaited, doubtful=doubtful, left_over=any(pid in left for pid in pids))


def _reason() -> pl.Expr:
    """Why a process does not run, by its state and what it waits for in the kernel; null of one that runs or may run."""
    state, wchan = pl.col("state").str.head(1), pl.col("wchan").fill_null("")
    return (
        pl.when(state == "T")
        .then(pl.lit("stopped"))
        .when(state == "t")
        .then(pl.lit("traced"))
        .when((state == "D") & wchan.str.contains(_STORAGE))
        .then(pl.lit("storage"))
        .when((state == "D") & wchan.str.contains(_DRIVER))
        .then(pl.lit("driver"))
    )


_WORDS = {
    "stopped": "is stopped (state T): a signal stopped it and nothing continued it",
    "traced": "is held by a debugger or a stack sampler (state t)",
    "storage": "hangs in the file system (state D, {})",
    "driver": "hangs in the GPU driver (state D, {})",
}
_REMEDIES = {"stopped": "Send SIGCONT.", "traced": "Detach the debugger."}


def _held(
    host: object, why: str, part: pl.DataFrame, culprits: tuple[Culprit, ...], *, awaited: bool, doubtful: bool, left_over: bool
) -> Finding:
    """``awaited``: others gave up waiting for them; ``doubtful``: the look itself may hold them; ``left_over``: the rank of one is told by
    what is left alone."""
    ranks = ranks_of(culprits)
    whom = ranks_words(ranks) if ranks else f"process {', '.join(str(c.pid) for c in culprits[:4])}"
    severity: Severity = "warning" if doubtful else "critical" if why == "stopped" or awaited else "error"
    confidence: Confidence = "low" if doubtful else "high" if why == "stopped" and ranks else "medium"
    return Finding(
        title=f"{whom} on {place(host)} {_WORDS[why].format(part['wchan'][0])}",
        summary="The listing shows one moment only."
        + (
            " Of the processes that its parent started it is the only one whose pid no file ties to a rank, and its rank the only one without a pid."
            if left_over
            else ""
        )
        + (" A stack sampler was at work in this bundle, which holds a process for an instant." if doubtful else ""),
        severity=severity,
        confidence=confidence,
        ranks=ranks,
        hosts=names_of(host),
        culprits=culprits,
        subject=(str(host or ""), why),
        evidence=cite(part, "state of the process"),
        evidence_total=part.height,
        remedy=_REMEDIES.get(why, "Look at the kernel stack of the process and at the file server or driver."),
        prevention="Take stacks with tools that let the process go on at once (py-spy dump), and none with a debugger that stays attached.",
        would_refute=("a second listing shows the process running",),
        actions=(Action("collect_more", hosts=names_of(host), ranks=ranks, command="cat /proc/<pid>/stack /proc/<pid>/wchan"),),
    )


def _gone(rows: pl.DataFrame, who: People, waited: set[int]) -> Iterator[Finding]:
    """Ranks whose process a listing of their host lacks that holds most of the others: it ended, and did so before they gave up."""
    for (_, host), part in rows.group_by("source_id", "host", maintain_order=True):
        known = {pid: rank for (name, pid), rank in who.pids.items() if name == first_label(host) and name is not None}
        there = known.keys() & set(part["pid"].drop_nulls().to_list())
        gone = {pid: known[pid] for pid in sorted(known.keys() - there)}
        if not gone or len(there) < _MOST_OF * len(known) or not waited.isdisjoint(gone.values()):
            continue
        ranks = tuple(sorted(gone.values()))
        shown = part.filter(pl.col("pid").is_in(list(there)))
        yield Finding(
            title=f"{place(host)} has no process of {ranks_words(ranks)} any more, while those of {len(there)} other ranks are there",
            summary=f"The listing holds neither pid {', '.join(map(str, gone))} nor a line that tells how it ended.",
            cause="rank-died",
            severity="critical",
            confidence="medium",
            ranks=ranks,
            hosts=(str(host),),
            culprits=tuple(Culprit(rank=rank, host=str(host), pid=pid) for pid, rank in gone.items()),
            subject=(str(host), "gone"),
            evidence=(
                *cite(shown.head(4), "a process of another rank"),
                *cite_absence(f"no process {', '.join(map(str, gone))}", [f"the listing of {host}"]),
            ),
            evidence_total=shown.height + 1,
            remedy="Look into the rank's standard error, the kernel log and the scheduler for how the process ended.",
            prevention="Have the launcher end the job when one of its processes ends (srun --kill-on-bad-exit, torchrun).",
            would_refute=("the listing was cut, or shows the processes of one user only",),
            actions=(Action("collect_more", hosts=(str(host),), ranks=ranks, command="dmesg -T | tail -200; journalctl -n 200"),),
        )


def _left_over(ours: pl.DataFrame, who: People, source_ranks: pl.LazyFrame | None) -> dict[int, int]:
    """The rank of the one process that no file ties to a rank, where its parent started it beside others by the same command, the ranks of
    all these are known, and of the ranks that left a file one alone has no pid. A process that is stopped answers no sampler, and its own
    log need not say its pid."""
    if source_ranks is None:
        return {}
    told = {rank for ranks in who.by_pid.values() for rank in ranks}
    without = ranks_in(source_ranks) - told
    if len(without) != 1:
        return {}
    started = ours.drop_nulls(["pid", "ppid"]).group_by("source_id", "host", "ppid", "command").agg(pl.col("pid").unique())
    found: list[int] = []
    for host, pids in started.select("host", "pid").iter_rows():
        unknown = [pid for pid in pids if who.of_pid(host, pid) is None]
        if len(pids) > 1 and len(unknown) < len(pids):
            found += unknown
    return {found[0]: without.pop()} if len(found) == 1 else {}
