"""The kernel of a host ran out of room for connections, neighbours or open files.

## What it finds
Lines of the kernel that its connection tracking table or its neighbour table is full, that a listener (the rendezvous' port, say) gets more
connection attempts than it takes, and that the host's limit of open files is met.

## Why it matters
Large jobs open connections between all ranks at once. A full table drops packets without a word to the program: ranks see refused or timed
out connections, and blame the peer that they called.

## What would refute it
The lines are older than the job, or another service of the host filled the table.

## What to do next
Raise the named limit (sysctl) on all hosts of the job, and start again; the command is with the finding.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, near_job, place, untimely_finding
from nccl_forensics.rules.common.thresholds import BESIDE_S, ZONES_H, AroundHours, NearSeconds

#: What the kernel says, its cause, what it does, and what to set (Linux Documentation/networking/nf_conntrack-sysctl, ip-sysctl,
#: sysctl/fs).
_FULL: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "nf_conntrack",
        "packet-loss",
        "tracks as many connections as it may and drops the packets of new ones",
        "sysctl net.netfilter.nf_conntrack_max net.netfilter.nf_conntrack_count",
        "Raise net.netfilter.nf_conntrack_max, or exempt the job's ports from tracking.",
    ),
    (
        "table overflow",
        "connection-failed",
        "knows as many neighbours as it may: it cannot reach further hosts",
        "sysctl net.ipv4.neigh.default.gc_thresh3",
        "Raise net.ipv4.neigh.default.gc_thresh1, 2 and 3 above the number of hosts.",
    ),
    (
        "SYN flooding",
        "connection-failed",
        "gets more connection attempts at once than the listener takes",
        "sysctl net.core.somaxconn net.ipv4.tcp_max_syn_backlog",
        "Raise net.core.somaxconn and net.ipv4.tcp_max_syn_backlog on the host of the rendezvous.",
    ),
    (
        "file-max",
        "bad-setting",
        "has as many files open as it may: no process gets another file or connection",
        "sysctl fs.file-max fs.file-nr",
        "Raise fs.file-max, and look which process holds the files (lsof).",
    ),
)


@rule(
    name="host-tables-full",
    code="NO02",
    cause="connection-failed",
    severity="error",
    at_most=32,
    explains=("timeout", "closed", "connection-failed", "rank-never-joined", "rank-died"),
)
def host_tables_full(
    kernel_events: pl.LazyFrame,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    *,
    window_h: AroundHours = ZONES_H,
    near_s: NearSeconds = BESIDE_S,
) -> Iterator[Finding]:
    """One finding per host and table. In the time of a job that failed it stops; without times it is a loss that may."""
    rows = located(kernel_events.filter(pl.col("kind").is_in(["tcp", "limit"])), source_hosts).sort("source_id", "line_no")
    rows = near_job(rows, job_times, near_s, window_h)
    if not rows["inside"].all():
        yield untimely_finding(rows.filter(~pl.col("inside")), "lines of full tables")
    failed = has_rows(failures)
    for said, cause, does, look, remedy in _FULL:
        lines = rows.filter(pl.col("inside") & pl.col("message").str.contains(said, literal=True))
        for (host,), part in lines.group_by("host", maintain_order=True):
            close = bool(part["close"].any())
            hosts = names_of(host)
            few = said == "SYN flooding"  # The kernel answers with cookies: attempts are slow, and some are refused.
            yield Finding(
                title=f"{place(host)} {does}",
                summary=f'The kernel wrote {part.height} time{"s" if part.height > 1 else ""}: "{part["message"][0]}".',
                cause=cause,
                severity="warning" if few else "critical" if close and failed else "error" if failed or job_times is None else "warning",
                confidence="medium" if close and not few else "low",
                hosts=hosts,
                culprits=(Culprit(host=name_of(host)),),
                subject=(str(host or ""), said),
                evidence=cite(part, "line of the kernel"),
                evidence_total=part.height,
                remedy=remedy,
                prevention="Set these limits by the size of the largest job on all hosts, and check them in the job's prologue.",
                would_refute=("another service of the host filled the table", "the lines are older than the job"),
                actions=(Action("fix_config", hosts=hosts, command=look),),
            )
