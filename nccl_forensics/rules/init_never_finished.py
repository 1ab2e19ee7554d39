"""Processes wait in the bootstrap of a communicator, and none says how many ranks it waits for.

## What it finds
Jobs on NCCL before 2.23 in which the log of every process ends right after the network was chosen ("Using network …"), and no process ever
wrote an init line. The next thing NCCL does there is the bootstrap, in which each rank waits for all the others. These releases print the
size of the communicator only after it (NCCL 2.21 src/init.cc ncclCommInitRankFunc), so the logs cannot say who is missing.
A later communicator shows the same way; there all processes but one wait, and that one is known from the first.

## Why it matters
A job with a node that never started looks like this: healthy logs that just end.

## What would refute it
The logs were copied before init went on, or were cut; or the ranks cannot reach rank 0's bootstrap address.

## What to do next
Compare the processes that run with the world size of the launcher; start those that are missing, or let them reach the bootstrap address.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, cite_absence
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import hosts_of
from nccl_forensics.views.log_ends import copied_in_part

#: The first release that prints "Init START", with the number of ranks, before the bootstrap (src/init.cc; 2.22 prints it after it).
_STARTS_FIRST = (2, 23)


@rule(
    name="init-never-finished",
    code="IN03",
    cause="rank-never-joined",
    severity="critical",
    at_most=1,
    explains=("host-stall", "timeout"),
)
def init_never_finished(
    nccl_tails: pl.LazyFrame,
    nccl_network: pl.LazyFrame,
    nccl_versions: pl.LazyFrame,
    comms: pl.LazyFrame | None,
    processes: pl.LazyFrame | None = None,
    progress: pl.LazyFrame | None = None,
    cut_ends: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding where several processes end at the same place before the bootstrap: all of them, and no communicator was ever seen; or
    all but one, which made one with them before. Logs of which the copy was cut do not say where their process ended."""
    if has_rows(copied_in_part(cut_ends)):
        return
    known = [_release(v) for v in nccl_versions.select("version").unique().collect()["version"].to_list() if v]
    if not known or any(v is None or v >= _STARTS_FIRST for v in known):
        return
    tails = (
        nccl_tails.filter(pl.col("pid").is_not_null() & pl.col("dev").is_not_null())
        .sort("lines", "source_id", descending=[True, False])
        .unique(["host", "pid"], keep="first", maintain_order=True)
        .sort("source_id", "line_no")
        .collect()
    )
    # The bootstrap's own line is printed under INIT: with it, the absence of later init lines says something.
    asked = nccl_network.filter(pl.col("item") == "bootstrap").select("host", "pid").unique().collect()
    waiting = tails.filter(pl.col("message").str.starts_with("Using network ")).join(asked, on=["host", "pid"], how="semi")
    if waiting.height < 2:
        return
    if has_rows(comms):
        yield from _left_out(waiting, tails.join(waiting, on=["host", "pid"], how="anti"), processes)
        return
    if waiting.height < tails.height or _calls_done(progress):
        return
    hosts = hosts_of(waiting)
    gaps = _gaps(waiting, nccl_versions, processes)
    missing = tuple(sorted(r for *_, r in gaps if r is not None)) if all(r is not None for *_, r in gaps) else ()
    yield Finding(
        title=f"No communicator was ever made: all {waiting.height} processes stop where they wait for all ranks to check in",
        summary=f"The NCCL log of each process ({', '.join(hosts)}) ends after the network was chosen; the bootstrap comes next and none got "
        "through it. This release prints neither rank nor number of ranks before that"
        + (
            f", but no process is there for {', '.join(f'GPU {dev} of {host}' for host, dev, _ in gaps)}, while all others have one."
            if gaps
            else ", so the logs cannot say which rank is missing."
        ),
        confidence="medium",
        hosts=hosts,
        ranks=missing,
        culprits=tuple(Culprit(rank=rank, host=host) for host, _, rank in gaps) if missing else (),
        subject=("init-never-finished",),
        evidence=(
            *cite(waiting, "the last NCCL line of this process", at_most=12),
            *cite_absence("a line of an initialised communicator (Init START, Init COMPLETE)", ("all NCCL logs of the bundle",)),
        ),
        evidence_total=waiting.height + 1,
        remedy="Compare the running processes with the launcher's world size: a rank was not started, or cannot reach rank 0's address.",
        prevention="Let the launcher check that all ranks are up before init; set a short timeout for init_process_group.",
        would_refute=("an NCCL line of one of these processes that was written after the bootstrap",),
        actions=(Action("collect-more", hosts=hosts, command="ps -ef | grep python; squeue -s; kubectl get pods -o wide"),),
        metrics={"processes": waiting.height},
    )


#: Of so many processes one may be missing: of fewer, as of every other GPU, a gap tells nothing.
_PER_GAP = 3


def _gaps(waiting: pl.DataFrame, nccl_versions: pl.LazyFrame, processes: pl.LazyFrame | None) -> list[tuple[str, int, int | None]]:
    """Host, GPU and rank of those that are missing where each GPU has one process: below the last GPU that is used on any host. A rank is
    known on a host whose other processes have ranks in the order of their GPUs, as names of files and launchers tell them; on the host of
    rank 0, which alone prints the version (NCCL 2.14 to 2.21 src/init.cc; 2.22 on every rank), and on the other one of two: on the first
    host it is the number of the GPU, and the second one follows."""
    places = waiting.select("host", "dev").drop_nulls()
    if places.height < waiting.height or places.is_duplicated().any():
        return []
    size = int(str(places["dev"].max())) + 1
    hosts = places["host"].unique().sort().to_list()
    there = set(places.iter_rows())
    gaps = [(host, dev) for host in hosts for dev in range(size) if (host, dev) not in there]
    if len(gaps) * _PER_GAP > places.height:
        return []
    told = nccl_versions.select("host", "pid").drop_nulls().unique().collect()
    lead = told["host"].to_list() if told.height == 1 else hosts if len(hosts) == 1 and not told.height else []
    order = [*lead, *(h for h in hosts if h not in lead)] if lead and len(hosts) <= 2 else lead
    known = {host: at * size for at, host in enumerate(order)} | _first_ranks(waiting, processes)
    return [(host, dev, known[host] + dev if host in known else None) for host, dev in gaps]


def _first_ranks(waiting: pl.DataFrame, processes: pl.LazyFrame | None) -> dict[str, int]:
    """The rank of GPU 0 of each host, where two or more of its processes that wait have a rank and all agree."""
    if processes is None:
        return {}
    named = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").collect()
    first = waiting.join(named, on=["host", "pid"]).group_by("host").agg(first=(pl.col("rank") - pl.col("dev")).unique(), n=pl.len())
    return {host: ranks[0] for host, ranks, n in first.iter_rows() if n > 1 and len(ranks) == 1}


def _calls_done(progress: pl.LazyFrame | None) -> bool:
    """Whether recorders show calls that are over: communicators were made then, and the logs were filtered, or cut."""
    if progress is None:
        return False
    return has_rows(progress, (pl.col("domain") == "fr") & (pl.col("last_done") > 0))


def _left_out(waiting: pl.DataFrame, others: pl.DataFrame, processes: pl.LazyFrame | None) -> Iterator[Finding]:
    """The one process that does not wait for a later communicator with all the others."""
    if others.height != 1 or processes is None:
        return
    named = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").collect().join(others, on=["host", "pid"])
    if named["rank"].n_unique() != 1:
        return
    rank, host = named["rank"][0], named["host"][0]
    yield Finding(
        title=f"rank {rank} never came to a communicator for which all {waiting.height} other processes wait",
        summary=f"All other processes chose their network once more, as at the start of a communicator, and wait for its ranks to check in; the log "
        f"of rank {rank} ends elsewhere. This release names the communicator only afterwards.",
        confidence="medium",
        ranks=(rank,),
        hosts=names_of(host),
        culprits=(Culprit(rank=rank, host=host),),
        subject=("init-never-finished", f"rank-{rank}"),
        evidence=(
            *cite(others, f"the last NCCL line of rank {rank}"),
            *cite(waiting, "waits in the bootstrap of the next communicator", at_most=12),
        ),
        evidence_total=waiting.height + 1,
        remedy=f"Look at what rank {rank} does instead: its stack, or the condition under which the program makes this communicator.",
        prevention="Make communicators on all ranks that belong to them, outside of conditions that differ between ranks.",
        would_refute=(
            "the communicator is one of fewer ranks, and another of these is missing",
            f"the log of rank {rank} was copied earlier",
        ),
        metrics={"processes": waiting.height},
    )


def _release(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return None
