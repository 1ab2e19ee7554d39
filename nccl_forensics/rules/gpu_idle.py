"""One GPU of the job is idle while all others spin: its rank is the one that they wait for.

## What it finds
GPUs of the job without any kernel (0 % utilisation) while all others are at or near 100 % and draw little power: a kernel of NCCL that waits keeps a
GPU busy without work. Whether the idle GPU's memory is in use tells whether its process is still there, and a recorder with unfinished work of its rank
that the host went on and the GPU stands.

## Why it matters
The ranks that spin wait inside a collective. The idle one never enqueued it: it left, or it hangs on its host. One look at nvidia-smi tells which rank,
before any timeout has ended the job.

## What would refute it
A second sample with another idle GPU: then the job moves. A GPU that the job does not use. High power on the others: then they compute.

## What to do next
Take a stack of the idle GPU's process (py-spy dump --native); if it is gone, read the end of its own log and the kernel log of its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows, ranks_in
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import People, people, place, ranks_of
from nccl_forensics.words import first_label, ranks_words

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU of the job as its last samples show it; ``rows`` has one of each."""

    host: str | None
    gpu: str
    rank: int | None
    rows: tuple[Row, ...]

    def values(self, column: str) -> list[float]:
        return [float(str(r[column])) for r in self.rows if r[column] is not None]

    @property
    def power_share(self) -> float | None:
        shares = [
            float(str(r["power_w"])) / float(str(r["power_limit_w"]))
            for r in self.rows
            if r["power_w"] is not None and r["power_limit_w"] not in (None, 0.0)
        ]
        return median(shares) if shares else None


@rule(
    name="gpu-idle",
    code="GP07",
    cause="host-stall",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "collective-stuck", "connection-failed", "straggler"),
)
def gpu_idle(
    gpu_samples: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    progress: pl.LazyFrame | None = None,
    *,
    idle_percent: Annotated[float, "utilisation up to which a GPU counts as idle"] = 2.0,
    spin_percent: Annotated[float, "utilisation from which a GPU counts as spinning"] = 95.0,
    spin_power: Annotated[float, "share of the power limit above which busy GPUs compute rather than wait"] = 0.6,
    least_mib: Annotated[float, "used memory from which a process holds an idle GPU"] = 1024.0,
    times: Annotated[int, "spinning GPUs there must be for each idle one"] = 3,
    last: Annotated[int, "samples at the end of each source that must agree"] = 3,
) -> Iterator[Finding]:
    """At most one finding: the idle ones of a job of which nothing else moves."""
    who = people(processes)
    gpus = _of_the_job(_last_samples(gpu_samples, last), who)
    idle = [g for g in gpus if (u := g.values("utilization_percent")) and max(u) <= idle_percent]
    spin = [g for g in gpus if (u := g.values("utilization_percent")) and min(u) >= spin_percent]
    if not idle or len(idle) + len(spin) < len(gpus) or len(spin) < max(3, times * len(idle)):
        return
    shares = [s for g in spin if (s := g.power_share) is not None]
    waiting = bool(shares) and median(shares) <= spin_power
    failed = has_rows(failures)
    if (shares and not waiting) or not (waiting or failed):
        return
    used = {g.gpu + str(g.host): max(g.values("memory_used_mib"), default=None) for g in idle}
    empty = all(m is not None and m < least_mib for m in used.values())
    ranks = tuple(sorted(g.rank for g in idle if g.rank is not None))
    if empty and not ranks:
        return  # a GPU without a process and without a known rank may be none of the job's
    enqueued = not empty and bool(ranks) and set(ranks) <= _enqueued(progress)
    repeated = min(len(g.rows) for g in (*idle, *spin)) > 1
    yield _finding(idle, spin, shares, empty=empty, enqueued=enqueued, failed=failed, repeated=repeated)


def _enqueued(progress: pl.LazyFrame | None) -> set[int]:
    """Ranks whose recorder holds operations that are enqueued and not finished."""
    return ranks_in(progress, pl.col("domain") == "fr", pl.col("last_done").is_not_null(), pl.col("first_pending").is_not_null())


def _last_samples(gpu_samples: pl.LazyFrame, last: int) -> list[_Gpu]:
    rows = gpu_samples.filter(pl.col("utilization_percent").is_not_null()).collect()
    rows = rows.filter(pl.col("sample") + last > pl.col("sample").max().over("source_id", "tool", "host"))
    return [
        _Gpu(host, str(gpu), None, tuple(part.iter_rows(named=True)))
        for (host, gpu), part in rows.group_by("host", "gpu", maintain_order=True)
    ]


def _of_the_job(gpus: Sequence[_Gpu], who: People) -> list[_Gpu]:
    """With ranks; without the GPUs that no rank has on hosts where ranks are known by their GPUs. One GPU by index and by address is
    one."""
    by_address = {(g.host, r["gpu_index"]) for g in gpus for r in g.rows if r["bus_id"] is not None and r["gpu_index"] is not None}
    known = {host for host, _ in (*who.gpus, *who.indices)}
    found: list[_Gpu] = []
    for g in gpus:
        first = g.rows[0]
        if first["bus_id"] is None and (g.host, first["gpu_index"]) in by_address:
            continue
        rank = who.of_gpu(g.host, first["bus_id"])
        rank = rank if rank is not None else who.of_index(g.host, first["gpu_index"])
        if rank is not None or first_label(g.host) not in known:
            found.append(_Gpu(g.host, g.gpu, rank, g.rows))
    return found


def _finding(
    idle: Sequence[_Gpu], spin: Sequence[_Gpu], shares: Sequence[float], *, empty: bool, enqueued: bool, failed: bool, repeated: bool
) -> Finding:
    ranks = tuple(sorted(g.rank for g in idle if g.rank is not None))
    culprits = tuple(Culprit(rank=g.rank, host=g.host, gpu=g.gpu) for g in idle)
    hosts = tuple(sorted({g.host for g in idle if g.host}))
    what = place(idle[0].host, idle[0].gpu) if len(idle) == 1 else f"{len(idle)} GPUs of {', '.join(hosts) or 'the job'}"
    named = f"{what} ({ranks_words(ranks_of(culprits))})" if ranks else what
    severity: Severity = "critical" if failed or repeated else "warning"
    confidence: Confidence = "medium" if failed or repeated else "low"
    held = max((m for g in idle for m in g.values("memory_used_mib")), default=None)
    process = (
        "Its memory is not in use: its process is gone."
        if empty
        else "Its recorder holds work that is enqueued and not finished: its host has gone on, and its GPU does none of it."
        if enqueued
        else f"Its memory is in use ({held:.0f} MiB): its process is there and hangs on its host."
        if held is not None
        else "Whether its process is still there the listing does not say."
    )
    return Finding(
        title=f"{named} {'is' if len(idle) == 1 else 'are'} idle while the {len(spin)} others spin at full utilisation: they wait for "
        f"{'it' if len(idle) == 1 else 'them'}",
        cause="rank-died" if empty else "gpu-stall" if enqueued else "host-stall",
        summary=process
        + (f" The others draw {100 * median(shares):.0f} % of their power limit, as kernels do that wait." if shares else "")
        + ("" if repeated else " This is one sample only."),
        severity=severity,
        confidence=confidence,
        ranks=ranks,
        hosts=hosts,
        culprits=culprits,
        subject=("idle", *(f"{g.host or ''} {g.gpu}" for g in idle)),
        evidence=(
            *cite([r for g in idle for r in g.rows[-2:]], "idle"),
            *cite([g.rows[-1] for g in spin[:4]], "spins"),
        ),
        evidence_total=sum(len(g.rows) for g in (*idle, *spin)),
        remedy="Read the end of its own log and the kernel log of its host."
        if empty
        else "Take a stack of its process: it tells the line where it stands while the others wait.",
        prevention="Alert on one idle GPU among busy ones of a job; let the Flight Recorder dump before the timeout.",
        would_refute=("a second sample shows another GPU idle", "the job does not use the idle GPU"),
        alternatives=(
            ("host-stall", ranks, "its host has enqueued more than its GPU has done")
            if enqueued
            else ("host-stall" if empty else "rank-died", ranks, "utilisation alone does not tell a process that left from one that hangs"),
        ),
        actions=(
            Action(
                "collect_more",
                hosts=hosts,
                gpus=tuple(g.gpu for g in idle),
                ranks=ranks,
                command="tail -n 200 LOG; dmesg -T | tail -n 100" if empty else "py-spy dump --native --pid PID, twice",
            ),
        ),
    )
