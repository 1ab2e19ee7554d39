"""Processes of another kind use the job's GPUs.

## What it finds
Compute processes on a GPU beside the job's rank, with memory of their own: left-over trainers, notebooks, other jobs.

## Why it matters
They take memory and multiprocessors from one rank, and all the others wait for it.

## What would refute it
The processes belong to the job (a server or a second model of the same rank) or were started after it.

## What to do next
Look at owner and start time of the named process; end it if it is a left-over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, people, place


@rule(name="gpu-shared", code="GP05", cause="straggler", severity="warning", at_most=16)
def gpu_shared(
    gpu_processes: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    *,
    least_mib: Annotated[float, "memory of a process below which it does not count (monitoring agents)"] = 1024.0,
) -> Iterator[Finding]:
    """One finding per GPU that a known rank of the job shares with a process that is no rank."""
    known = people(processes)
    rows = located(gpu_processes, source_hosts).filter(
        pl.col("pid").is_not_null() & (pl.col("type").is_null() | pl.col("type").str.contains("C"))
    )
    gpu = pl.coalesce("uuid", "bus_id", pl.col("gpu_index").cast(pl.String))
    for (_, host, name), part in rows.with_columns(gpu=gpu).group_by("source_id", "host", "gpu", maintain_order=True):
        ranks = {pid: known.of_pid(host, pid) for pid in part["pid"].to_list()}
        own = [r for r in ranks.values() if r is not None]
        others = part.filter(~pl.col("pid").is_in([p for p, r in ranks.items() if r is not None]) & (pl.col("used_mib") >= least_mib))
        if not own or not others.height:
            continue
        listed = ", ".join(
            f"{n or 'a process'} (pid {p}, {m:.0f} MiB)" for n, p, m in others.select("name", "pid", "used_mib").head(3).iter_rows()
        )
        yield Finding(
            title=f"{place(host, name)} of rank {own[0]} is also used by {listed}",
            summary="The process is none of the job's ranks as far as the evidence knows them.",
            confidence="medium",
            ranks=(own[0],),
            hosts=names_of(host),
            culprits=(Culprit(rank=own[0], host=name_of(host), gpu=name_of(name)),),
            subject=("shared", str(host), str(name)),
            evidence=cite(others, "another process on the GPU"),
            evidence_total=others.height,
            remedy="End the left-over process, or keep other jobs off the node.",
            prevention="Check in the job's prologue that no process holds a GPU.",
            would_refute=("the process belongs to the job",),
            actions=(
                Action(
                    "collect-more",
                    hosts=names_of(host),
                    command="nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
                ),
            ),
        )
