"""The limit of locked memory is too low for RDMA.

## What it finds
Registrations of memory that the kernel refused, and limits of locked memory that are not unlimited, by host.

## Why it matters
RDMA pins the memory that it sends from. With the default limit NCCL fails at init, or on one host only, where its service manager sets
another limit than the login shell shows.

## What would refute it
/proc/<pid>/limits of the rank shows an unlimited "Max locked memory": then the host or the card ran out of something else.

## What to do next
Set the limit where the job is started (slurmd or containerd unit: LimitMEMLOCK=infinity; docker --ulimit memlock=-1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import EXPLAINS_STOP, People, located, people, place, ranks_of, refused
from nccl_forensics.words import ranks_words

_REFUSED = r"ibv_(?:reg_mr|reg_mr_iova2?|create_cq|create_qp|reg_dmabuf_mr|alloc_pd)\w* failed with error Cannot allocate memory"


@rule(
    name="memlock-limit",
    code="ME03",
    cause="memlock-limit",
    severity="critical",
    at_most=16,
    explains=(*EXPLAINS_STOP, "out-of-memory", "ib-link"),
)
def memlock_limit(
    nccl_errors: pl.LazyFrame | None,
    exceptions: pl.LazyFrame | None,
    limits: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    *,
    enough_gib: Annotated[float, "limit of locked memory that is enough for RDMA"] = 8.0,
) -> Iterator[Finding]:
    """One finding per host that was refused; a low limit alone is a warning."""
    low = _low(limits, source_hosts, enough_gib * 2**30) if limits is not None else []
    said = refused(nccl_errors, exceptions, source_hosts, pl.col("message").str.contains(_REFUSED), _COLUMNS)
    named = said.filter(pl.col("host").is_not_null())
    said = named if named.height else said
    hosts, who = set(said["host"].to_list()), people(processes)
    for (host,), part in said.group_by("host", maintain_order=True):
        yield _refusal(host, part, who, [row for row in low if row["host"] in (host, None)])
    for host in dict.fromkeys(row["host"] for row in low):
        if host not in hosts and not (hosts and host is None):
            yield _unused(host, [row for row in low if row["host"] == host])


def _low(limits: pl.LazyFrame, source_hosts: pl.LazyFrame | None, enough: float) -> list[dict[str, object]]:
    """Listings of a limit that is too low, of each host and source once."""
    wanted = limits.filter((pl.col("name") == "memlock") & ~pl.col("unlimited") & (pl.col("soft") < enough))
    return located(wanted, source_hosts).unique(["host", "source_id"], maintain_order=True).to_dicts()


def _refusal(host: object, part: pl.DataFrame, who: People, stated: list[dict[str, object]]) -> Finding:
    culprits = tuple(
        Culprit(rank=who.of_pid(host, pid), host=name_of(host), pid=pid) for pid in part["pid"].drop_nulls().unique(maintain_order=True)
    )
    # The limit is the host's: all of its ranks have it, also those whose log ends before they say so.
    ranks = tuple(sorted({*ranks_of(culprits), *who.of_host(host)}))
    command = "grep -i locked /proc/<pid>/limits"
    return Finding(
        title=f"{place(host)} refuses to lock memory for RDMA" + (f" ({ranks_words(ranks)})" if ranks else ""),
        summary=f'The first message says: "{str(part["message"][0])[:200]}". Only the limit of locked memory, or a card out of resources, answers so.'
        + (f" {_limit(stated[0])}" if stated else ""),
        confidence="high" if stated or host is not None else "medium",
        ranks=ranks,
        hosts=names_of(host),
        culprits=(Culprit(host=name_of(host)), *culprits),
        subject=(str(host or ""),),
        evidence=(*cite(part, "registration of memory was refused", 16), *cite(stated, "limit of locked memory", 4)),
        evidence_total=part.height + len(stated),
        remedy="Set the limit of locked memory to unlimited where the job is started: LimitMEMLOCK=infinity in the unit of slurmd or containerd, docker --ulimit memlock=-1.",
        prevention="Check grep locked /proc/self/limits inside the job's prologue, on every host.",
        would_refute=("/proc/<pid>/limits of a rank on this host shows unlimited locked memory",),
        actions=(Action("fix_config", hosts=names_of(host), ranks=ranks, command=command, confidence="high"),),
    )


def _unused(host: object, same: list[dict[str, object]]) -> Finding:
    """A low limit of a host that refused nothing."""
    return Finding(
        title=f"the limit of locked memory on {place(host)} is low",
        summary=_limit(same[0]) + " RDMA needs it unlimited; a listing of a login shell may differ from what the job gets.",
        severity="warning",
        confidence="low",
        hosts=names_of(host),
        culprits=(Culprit(host=name_of(host)),),
        subject=(str(host or ""), "state"),
        evidence=cite(same, "limit of locked memory", 8),
        evidence_total=len(same),
        remedy="Set it to unlimited where jobs are started.",
        would_refute=("the job gets another limit than this listing shows",),
        actions=(Action("fix_config", hosts=names_of(host)),),
    )


_COLUMNS = ["source_id", "line_no", "end_line", "host", "pid", "message"]


def _limit(row: dict[str, object]) -> str:
    return f"The listing shows a limit of {float(str(row['soft'])) / 1024:.0f} kB."
