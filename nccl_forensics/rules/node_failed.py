"""A node went away: its kernel panicked or locked up, or it stands still in storage or hardware errors.

## What it finds
Kernel panics, boots under the job, soft and hard lockups, stalls of the kernel, uncorrected host memory errors, tasks of the job that hang for minutes in
the kernel together with a file server that does not answer, and local disks that fail. Machine checks and processors that are held down for
heat are warnings. Processes that wait for a file server bear the name of what that is, a stall on the host side, and those that hang in the
GPU's driver that of a stalled GPU.

## Why it matters
All ranks of the node vanish or stop at once; the others wait for them until a timeout. The node must be kept out of the next start.

## What would refute it
The kernel's lines are from another boot or from after the job, or the hung task is not one of the job.

## What to do next
Drain the node; read its console, BMC log and pstore. With a file server that does not answer: look at the server before the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import (
    EXPLAINS_STOP,
    People,
    at_the_stop,
    located,
    people,
    place,
    ranks_of,
    timely,
    untimely_finding,
    while_it_stood,
)
from nccl_forensics.rules.common.thresholds import ZONES_H, AroundHours
from nccl_forensics.rules.common.ties import Job, job_of, tied

_WORDS: dict[str, tuple[str, Severity, Confidence]] = {
    "panic": ("its kernel panicked", "critical", "high"),
    "oops": ("its kernel ran into a fault of its own (oops)", "critical", "medium"),
    "memory-failure": ("uncorrectable host memory: the kernel killed the process that used it", "critical", "high"),
}
#: What alone ends nothing, but tells of a node that is not well.
_WARNED = {
    "mce": "reports hardware errors of its processors or memory (machine checks)",
    "throttle": "holds its processors down because they are too hot",
}
#: A disk that takes no more writes, or a file system that found itself damaged; a late answer alone may be made good.
_DAMAGED = r"(?i)read-only|corruption|fs error|shutting down|shut down"
#: What firmware says of an error that the hardware made good, and of others (Linux drivers/firmware/efi/cper.c).
_CORRECTED, _SERIOUS = r"(?i)corrected", r"(?i)\b(?:fatal|recoverable|uncorrected)\b"
#: Kinds that this rule reads.
_JUDGED = [*_WORDS, "boot", "lockup", "edac", "storage-hang", "storage-ok", "hung-task", "disk-error", *_WARNED]
_TRAINERS = r"^(?:python|pt_|ray::|torchrun)"


@rule(
    name="node-failed",
    code="NO01",
    cause="node-failed",
    severity="critical",
    at_most=64,
    explains=(*EXPLAINS_STOP, "input-stall", "gpu-fault"),
)
def node_failed(
    kernel_events: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    *,
    window_h: AroundHours = ZONES_H,
    stop_s: Annotated[
        float, "seconds around the begin of the call that timed out within which an event counts as what stopped the job"
    ] = 120.0,
    lockup_s: Annotated[float, "seconds that a CPU must be stuck before the node counts as failed"] = 60.0,
    hung_tasks: Annotated[int, "reports of hung tasks of the job from which they count as a stop"] = 2,
) -> Iterator[Finding]:
    """One finding per host and kind."""
    who = people(processes)
    job = job_of(job_signs, job_times, failures)
    failed = has_rows(failures)
    rows = located(kernel_events.filter(pl.col("kind").is_in(_JUDGED)), source_hosts)
    inside = timely(rows, job_times, window_h)
    old = rows.filter(~inside & (pl.col("kind") != "boot"))
    if old.height:
        yield untimely_finding(old, "kernel events")
    rows = rows.filter(inside)
    yield from _broken(rows, who, job)
    stood = rows.filter(while_it_stood(rows, job_times, stop_s) & failed)
    yield from _booted(stood.filter(pl.col("kind") == "boot"), who, job)
    rows = rows.with_columns(struck=at_the_stop(rows, job_times, stop_s) & failed)
    yield from _locked(rows.filter(pl.col("kind") == "lockup"), lockup_s, who, job)
    yield from _hung(rows, hung_tasks, who, failed=failed)
    yield from _not_well(rows)
    for (host,), part in rows.filter((pl.col("kind") == "edac") & (pl.col("severity") == "fatal")).group_by("host", maintain_order=True):
        title = f"{place(host)} has uncorrected errors of its host memory"
        yield _finding(host, title, _quoted(part), part, "error", "medium", (_whole(host),), (), "edac")


def _quoted(part: pl.DataFrame) -> str:
    return f'"{part["message"][0]}".'


def _broken(rows: pl.DataFrame, who: People, job: Job) -> Iterator[Finding]:
    """What ends a kernel, or a process that touched broken memory."""
    panicked = set(rows.filter(pl.col("kind") == "panic")["host"].to_list())
    for (host, kind), part in rows.filter(pl.col("kind").is_in(list(_WORDS))).group_by("host", "kind", maintain_order=True):
        if kind == "oops" and host in panicked:
            continue
        words, severity, confidence = _WORDS[str(kind)]
        requested = any("sysrq" in str(text or "").lower() for text in (part["message"][0], *part["detail"].to_list()))
        summary = _quoted(part) + (" It was asked for by hand (sysrq)." if requested else "")
        pids = part["pid"].drop_nulls().to_list()
        culprits = _processes(host, pids, who) or _all_of(host, who)
        ranks = ranks_of(culprits) or who.of_host(host)
        found = _finding(host, f"{place(host)} failed: {words}", summary, part, severity, confidence, culprits, ranks, str(kind))
        yield tied(found, job.tie(part, host, pids=pids))


def _booted(boots: pl.DataFrame, who: People, job: Job) -> Iterator[Finding]:
    for (host,), part in boots.group_by("host", maintain_order=True):
        found = _finding(
            host,
            f"{place(host)} was booted anew under the job",
            "Its kernel started between the beginning of the call that the job waits in and the last that the job told of it: all ranks of the "
            "host were gone then.",
            part,
            "critical",
            "high",
            _all_of(host, who),
            who.of_host(host),
            "boot",
        )
        yield tied(found, job.tie(part, host))


def _locked(lockups: pl.DataFrame, long_s: float, who: People, job: Job) -> Iterator[Finding]:
    """CPUs that are stuck in the kernel: a stop, if hard, for long, again and again or when the job stopped."""
    for (host,), part in lockups.group_by("host", maintain_order=True):
        hard = part.filter(pl.col("state") == "hard").height > 0
        longest = float(str(part["value"].max() or 0))
        struck = bool(part["struck"].any())
        long = hard or longest >= long_s or part.height >= 3 or struck
        names = sorted({str(c) for c in part["comm"].to_list() if c})
        pids = part["pid"].drop_nulls()
        culprits = _processes(host, pids.unique(maintain_order=True), who) or (_all_of(host, who) if long else (_whole(host),))
        found = _finding(
            host,
            f"CPUs of {place(host)} are stuck in the kernel"
            + (f" for {longest:.0f} s" if longest else "")
            + (f" ({', '.join(names[:3])})" if names else ""),
            f"{part.height} reports of {'hard and ' if hard else ''}soft lockups or stalls."
            + (" The call that the job waits in began then." if struck else ""),
            part,
            "critical" if long else "warning",
            "high" if hard else "medium" if long else "low",
            culprits,
            ranks_of(culprits) or (who.of_host(host) if long else ()),
            "lockup",
        )
        yield tied(found, job.tie(part, host, pids=pids.to_list())) if long else found


def _whole(host: object) -> Culprit:
    return Culprit(host=name_of(host))


def _processes(host: object, pids: Iterable[int], who: People) -> tuple[Culprit, ...]:
    """Processes of a host, with their ranks."""
    return tuple(replace(_whole(host), rank=who.of_pid(host, pid), pid=pid) for pid in pids)


def _all_of(host: object, who: People) -> tuple[Culprit, ...]:
    """The host with every rank that ran on it: with its kernel all of them stop."""
    return tuple(replace(_whole(host), rank=rank) for rank in who.of_host(host)) or (_whole(host),)


def _not_well(rows: pl.DataFrame) -> Iterator[Finding]:
    """Local disks, machine checks that were not corrected silently, and hot processors."""
    for (host,), part in rows.filter(pl.col("kind") == "disk-error").group_by("host", maintain_order=True):
        damaged = part.filter(pl.col("message").str.contains(_DAMAGED))
        first = (damaged if damaged.height else part)["message"][0]
        yield _finding(
            host,
            f"a local disk of {place(host)} "
            + ("fails: its file system takes no more writes or is damaged" if damaged.height else "answers late"),
            f'"{first}". Whatever reads or writes there waits or fails: data, checkpoints, logs.',
            part,
            "error" if damaged.height else "warning",
            "medium" if damaged.height else "low",
            (_whole(host),),
            (),
            "disk",
        )
    for kind, words in _WARNED.items():
        bad = rows.filter((pl.col("kind") == kind) & (pl.col("severity") != "info"))
        for (host,), part in bad.group_by("host", maintain_order=True):
            if part["message"].str.contains(_CORRECTED).any() and not part["message"].str.contains(_SERIOUS).any():
                continue
            yield _finding(host, f"{place(host)} {words}", _quoted(part), part, "warning", "medium", (_whole(host),), (), kind)


def _hung(rows: pl.DataFrame, least: int, who: People, *, failed: bool) -> Iterator[Finding]:
    """Tasks of the job that hang in the kernel, by their stack or by its own lines with storage that does not answer as the likely reason.
    Of a job that failed, one report of a rank's own process is enough, or storage that stopped when the job did and did not come back."""
    storage = rows.filter(pl.col("kind") == "storage-hang").filter(pl.col("severity") == "degraded")
    back = rows.filter(pl.col("kind") == "storage-ok")
    hung = rows.filter((pl.col("kind") == "hung-task") & pl.col("comm").fill_null("").str.contains(_TRAINERS))
    for host in sorted({*storage["host"].to_list(), *hung["host"].to_list()}, key=str):
        mine = _at(storage, host)
        tasks = _at(hung, host)
        recovered = _at(back, host).height > 0
        servers = sorted({str(s) for s in mine["ifname"].to_list() if s})
        culprits = _processes(host, tasks["pid"].drop_nulls().unique(maintain_order=True), who) or (_whole(host),)
        known = failed and bool(ranks_of(culprits))
        together = bool(mine["struck"].any()) and not recovered
        stop = tasks.height >= least or (mine.height > 0 and tasks.height > 0) or known or together
        if not mine.height and not stop:
            continue
        waits = set(tasks["detail"].drop_nulls().to_list())
        if mine.height:
            title = f"{place(host)} waits for storage that does not answer ({', '.join(servers[:3]) or 'file server'})"
        else:
            where = {"storage": ", waiting for storage", "gpu": ", in the GPU's driver"}.get(min(waits, default=""), "")
            names = ", ".join(sorted(set(tasks["comm"].to_list()))[:3])
            title = f"tasks of the job hang in the kernel of {place(host)} ({names}){where}"
        yield replace(
            _finding(
                host,
                title,
                (f"{mine.height} lines of the file system" if mine.height else "")
                + (" and " if mine.height and tasks.height else "")
                + (f"{tasks.height} reports of tasks blocked for minutes" if tasks.height else "")
                + (". The server answered again later." if recovered else ".")
                + (" The call that the job waits in began then." if together else ""),
                pl.concat([mine.head(10), tasks.head(10)]),
                "critical" if stop and not recovered else "error" if stop else "warning",
                "medium" if stop else "low",
                culprits,
                ranks_of(culprits),
                "storage" if mine.height or "storage" in waits else "hung-task",
            ),
            cause="host-stall" if mine.height or "storage" in waits else "gpu-stall" if "gpu" in waits else None,
        )


def _at(rows: pl.DataFrame, host: object) -> pl.DataFrame:
    return rows.filter(pl.col("host").eq_missing(pl.lit(host, dtype=pl.String())))


def _finding(
    host: object,
    title: str,
    summary: str,
    rows: pl.DataFrame,
    severity: Severity,
    confidence: Confidence,
    culprits: tuple[Culprit, ...],
    ranks: tuple[int, ...],
    subject: str,
) -> Finding:
    hosts = names_of(host)
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence=confidence,
        ranks=ranks,
        hosts=hosts,
        culprits=culprits,
        subject=(str(host or ""), subject),
        evidence=cite(rows, "line of the kernel"),
        evidence_total=rows.height,
        remedy="Look at the storage server first."
        if subject == "storage"
        else "Drain the node, reboot it and run hardware diagnostics before it takes jobs again.",
        prevention="Ship kernel logs off the node and keep pstore, so that the last words survive.",
        would_refute=("the lines are from another boot, or from after the job",),
        actions=(Action("collect_more" if subject == "storage" else "reboot_node", hosts=hosts, ranks=ranks, confidence=confidence),),
    )
