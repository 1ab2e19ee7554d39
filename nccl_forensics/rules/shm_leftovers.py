"""Files that earlier jobs left fill /dev/shm.

## What it finds
Listings of /dev/shm in which files of NCCL or PyTorch take a good share of it, or are older than the newest ones by their dates as written.

## Why it matters
Processes that were killed leave their segments behind. The next job then fails with "No space left on device" or a bus error.

## What would refute it
The files belong to the job that runs: their owners live, and their dates are those of its start.

## What to do next
fuser /dev/shm/nccl-* tells which files nobody holds; remove those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place


@rule(name="shm-leftovers", code="ME05", cause="shm-exhausted", severity="warning", at_most=16)
def shm_leftovers(
    shm_files: pl.LazyFrame,
    filesystems: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    *,
    full: Annotated[float, "share of /dev/shm that these files may take"] = 0.25,
    many_bytes: Annotated[int, "bytes from which files of several days are told where the size of /dev/shm is not known"] = 1 << 30,
) -> Iterator[Finding]:
    """One finding per source and host."""
    sizes: dict[object, float] = {}
    if filesystems is not None:
        known = located(filesystems.filter((pl.col("mount") == "/dev/shm") & (pl.col("size_kb") > 0)), source_hosts)
        sizes = {(r["source_id"], r["host"]): r["size_kb"] * 1024 for r in known.iter_rows(named=True)}
    for (source, host), part in located(shm_files, source_hosts).group_by("source_id", "host", maintain_order=True):
        total = int(part["bytes"].fill_null(0).sum())
        size = sizes.get((source, host))
        days = part["modified"].str.replace(r" +\d\d:\d\d.*$", "").n_unique()
        share = total / size if size else None
        if (share is None or share < full) and (size is not None or days < 2 or total < many_bytes):
            continue
        yield Finding(
            title=f"{part.height} files of NCCL and PyTorch take {total / 2**20:.0f} MiB of /dev/shm on {place(host)}"
            + (f" ({100 * share:.0f} % of it)" if share is not None else "")
            + (f", from {days} different days" if days > 1 else ""),
            summary="Segments of processes that were killed stay until somebody removes them.",
            confidence="medium" if days > 1 else "low",
            hosts=names_of(host),
            culprits=(Culprit(host=name_of(host)),),
            subject=("shm-files", str(host)),
            evidence=cite(part.sort("bytes", descending=True), "file in /dev/shm"),
            evidence_total=part.height,
            remedy="Remove files that no process holds (fuser), and give containers a larger /dev/shm (--shm-size, emptyDir).",
            prevention="Clean /dev/shm in the epilogue of every job.",
            would_refute=("the job that runs holds all of them",),
            actions=(Action("fix_config", hosts=names_of(host), command="fuser -v /dev/shm/nccl-*", confidence="low"),),
            metrics={"bytes": total, "files": part.height},
        )
