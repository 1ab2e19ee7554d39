"""Shared memory (/dev/shm) is full or too small.

## What it finds
NCCL's or the data loader's complaints about shared memory, and /dev/shm file systems that are full or have a container's default of 64 MB.

## Why it matters
Ranks of one host exchange data through /dev/shm where GPUs cannot talk directly, and data loaders always do. Without room NCCL fails at
init, and a process that writes beyond it dies of SIGBUS.

## What would refute it
The message is about another path than /dev/shm, or the segment exists and only its permissions are wrong.

## What to do next
Start the container with a larger --shm-size (Kubernetes: an emptyDir of medium Memory at /dev/shm) or remove stale nccl-* and torch_* files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.endings import nobody_missed
from nccl_forensics.rules.common.hosts import EXPLAINS_STOP, People, located, people, place, ranks_of, refused
from nccl_forensics.views.raised import lived_on
from nccl_forensics.words import ranks_words

_NO_SPACE = r"No space left on device|insufficient shared memory|Cannot allocate memory|Bus error"
# torch names its segments without the folder (torch/csrc … shm_open): "unable to write to file </torch_4711_88_0>".
# A worker of a data loader that touches a page which no longer fits dies of SIGBUS (torch 1.1 and before say no more than that).
_ABOUT = r"/dev/shm|shared memory|</torch_[0-9]|DataLoader worker \(pid [0-9, ]{1,200}\) is killed by signal: Bus error"


@rule(
    name="shm-exhausted",
    code="ME02",
    cause="shm-exhausted",
    severity="critical",
    at_most=16,
    explains=(*EXPLAINS_STOP, "out-of-memory", "input-stall"),
)
def shm_exhausted(
    nccl_errors: pl.LazyFrame | None,
    exceptions: pl.LazyFrame | None,
    filesystems: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    endings: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    *,
    full_percent: Annotated[float, "use of /dev/shm that counts as full"] = 98.0,
    small_mib: Annotated[float, "size of /dev/shm that counts as a container's default"] = 64.0,
) -> Iterator[Finding]:
    """One finding per host for complaints, one per host for a full or small file system that nobody complained about."""
    state = _state(filesystems, source_hosts, full_percent, small_mib)
    ended = exceptions.filter(~lived_on()) if exceptions is not None else None
    about = pl.col("message").str.contains(_ABOUT) & pl.col("message").str.contains(_NO_SPACE)
    complaints = _with_hosts(refused(nccl_errors, ended, source_hosts, about, _COLUMNS))
    hosts = set(complaints["host"].to_list())
    who, of_source = people(processes), _ranks_of_sources(source_ranks)
    every = endings.collect() if endings is not None else None
    for host in sorted(hosts, key=str):
        part = complaints.filter(pl.col("host").eq_missing(pl.lit(host, dtype=pl.String())))
        culprits = _complaining(part, host, who, of_source)
        ranks = tuple(sorted(ranks_of(culprits)))
        # A worker that the loader started anew, or that it went on without, ends nobody.
        heard = len(set(of_source.values()))
        alone = every is not None and nobody_missed(every.filter(pl.col("rank").is_in(ranks)), every, heard, failures)
        yield _refusal(host, part, culprits, ranks, [r for r in state if r["host"] in (host, None)], alone=alone)
    for row in state:
        if row["host"] not in hosts and not (hosts and row["host"] is None):
            yield _unused(row, full=float(str(row["used_percent"] or 0)) >= full_percent)


def _with_hosts(complaints: pl.DataFrame) -> pl.DataFrame:
    """Where some tell their host, those that do not are of that one, or of none if there are several."""
    hosts = complaints["host"].drop_nulls().unique()
    if not hosts.len():
        return complaints
    only = hosts[0] if hosts.len() == 1 else None
    return complaints.with_columns(pl.col("host").fill_null(pl.lit(only, dtype=pl.String()))).filter(pl.col("host").is_not_null())


def _ranks_of_sources(source_ranks: pl.LazyFrame | None) -> dict[int, int]:
    if source_ranks is None:
        return {}
    return dict(source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())


def _complaining(part: pl.DataFrame, host: str | None, who: People, of_source: Mapping[int, int]) -> tuple[Culprit, ...]:
    """Who complained on a host, each once: by its rank, else by its pid."""
    found: dict[object, Culprit] = {}
    for row in part.iter_rows(named=True):
        rank = row["rank"] if row["rank"] is not None else who.of_pid(host, row["pid"])
        rank = rank if rank is not None else of_source.get(row["source_id"])
        found.setdefault(rank if rank is not None else ("pid", row["pid"]), Culprit(rank=rank, host=host, pid=row["pid"]))
    return tuple(found[k] for k in sorted(found, key=lambda k: str(k).zfill(9)))


def _refusal(
    host: str | None,
    part: pl.DataFrame,
    culprits: tuple[Culprit, ...],
    ranks: tuple[int, ...],
    state: list[dict[str, object]],
    *,
    alone: bool,
) -> Finding:
    """Complaints on a host, with the ``state`` of its file systems; ``alone``: nobody ended with who complained."""
    hosts = names_of(host)
    return Finding(
        title=f"/dev/shm is full on {place(host)}" + (f": {ranks_words(ranks)} could not get shared memory" if ranks else ""),
        summary=f'The first message says: "{str(part["message"][0])[:200]}".' + (f" {_size(state[0])}" if state else ""),
        severity="warning" if alone else "critical",
        confidence="low" if alone else "high",
        ranks=ranks,
        hosts=hosts,
        culprits=culprits,
        subject=(str(host or ""),),
        evidence=(*cite(part, "shared memory was refused", 16), *cite(state, "size and use of /dev/shm", 4)),
        evidence_total=part.height + len(state),
        remedy="Give the container a larger /dev/shm (docker --shm-size=16g or --ipc=host; Kubernetes: emptyDir with medium: Memory), and remove stale nccl-* files.",
        prevention="Check df /dev/shm in the job's prologue.",
        would_refute=("df /dev/shm in the same container shows free space at that time",),
        actions=(Action("fix_config", hosts=hosts, ranks=ranks, command="df -h /dev/shm; ls -la /dev/shm", confidence="high"),),
    )


def _unused(row: dict[str, object], *, full: bool) -> Finding:
    """A file system that is full or small, of which nobody complained."""
    host = name_of(row["host"])
    hosts = names_of(host)
    return Finding(
        title=f"/dev/shm of {place(host)} is {'full' if full else 'small'}",
        summary=_size(row) + " Nothing in the evidence complains about it yet.",
        severity="error" if full else "warning",
        confidence="medium" if full else "low",
        hosts=hosts,
        culprits=(Culprit(host=host),),
        subject=(str(host or ""), "state"),
        evidence=cite([row], "size and use of /dev/shm"),
        remedy="Give the container a larger /dev/shm before data loaders or NCCL need it.",
        prevention="Check df /dev/shm in the job's prologue.",
        would_refute=("the job does not use shared memory",),
        actions=(Action("fix_config", hosts=hosts),),
    )


_COLUMNS = ["source_id", "line_no", "end_line", "host", "pid", "rank", "message"]


def _state(filesystems: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None, full: float, small: float) -> list[dict[str, object]]:
    if filesystems is None:
        return []
    shm = filesystems.filter((pl.col("mount") == "/dev/shm") & ~pl.col("inodes").fill_null(False))
    bad = (pl.col("used_percent") >= full) | (pl.col("size_kb") <= small * 1024)
    return located(shm.filter(bad), source_hosts).unique(["host", "source_id"], maintain_order=True).to_dicts()


def _size(row: dict[str, object]) -> str:
    size = float(str(row["size_kb"])) / 1024 if row["size_kb"] is not None else None
    return (f"It has {size:.0f} MiB" if size is not None else "It is") + (
        f", {float(str(row['used_percent'])):.0f} % used." if row["used_percent"] is not None else "."
    )
