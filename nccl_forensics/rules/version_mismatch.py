"""Ranks of one job loaded different NCCL versions.

## What it finds
NCCL version lines that differ between the processes of one run, and NCCL's own warnings about it.

## Why it matters
Bootstrap messages change between releases: the ranks read each other's bytes wrongly and fail with truncated messages or hang in init.

## What would refute it
The processes belong to different jobs that share a log folder.

## What to do next
Compare the images and LD_LIBRARY_PATH of the named ranks with the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.values.damage import cut_off, one_bit
from nccl_forensics.words import ranks_words


@rule(
    name="version-mismatch",
    code="EN02",
    cause="version-mismatch",
    severity="critical",
    at_most=4,
    explains=(
        "connection-failed",
        "rank-never-joined",
        "environment-mismatch",
        "rank-died",
        "collective-stuck",
        "host-stall",
        "invalid-usage",
        # What NCCL itself says of it, without naming the rank.
        "version-mismatch",
    ),
)
def version_mismatch(
    nccl_versions: pl.LazyFrame,
    processes: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    nccl_network: pl.LazyFrame | None = None,
    comms: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """At most one finding. Processes that came up in communicators of their own release alone are another program's. Of a process whose log
    names no release, the error counts with which NCCL failed it: torch names the release that it loaded (``NCCL error in: …, NCCL version
    2.21.5``, c10d/NCCLUtils.hpp)."""
    seen = _loaded(nccl_versions, processes, endings, nccl_network, comms)
    counts = seen.group_by("version").agg(pl.len(), pl.col("rank").drop_nulls().sort()).sort("len", "version").to_dicts()
    # A line that was cut off names the beginning of a release.
    whole = [c for c in counts if not any(cut_off(str(c["version"]), str(o["version"])) for o in counts)]
    if len(whole) > 1:
        yield _differ(seen, whole)


def _loaded(
    nccl_versions: pl.LazyFrame,
    processes: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    nccl_network: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
) -> pl.DataFrame:
    """Which release each process of the job loaded, with the line that tells it."""
    people = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    # Up to 2.21, and at the level WARN, the line bears no process: it is that of the only process of its file.
    alone = (
        processes.filter(pl.col("pid").is_not_null())
        .group_by("source_id")
        .agg(pl.col("host").first().alias("own_host"), pl.col("pid").first().alias("own_pid"), pl.col("pid").n_unique().alias("n"))
        .filter(pl.col("n") == 1)
    )
    bare = pl.col("pid").is_null() & pl.col("host").is_null()
    owned = nccl_versions.join(alone, on="source_id", how="left").with_columns(
        host=pl.when(bare).then("own_host").otherwise("host"), pid=pl.coalesce("pid", pl.when(bare).then("own_pid"))
    )
    seen = (
        owned.filter(pl.col("pid").is_not_null() & pl.col("version").is_not_null())
        .sort("source_id", "line_no")
        .unique(["host", "pid"], keep="first", maintain_order=True)
        .join(people, on=["host", "pid"], how="left")
        .sort("source_id", "line_no")
        .drop("own_host", "own_pid", "n")
        .collect()
    )
    if endings is not None:
        seen = pl.concat([seen, _by_errors(endings, seen)], how="diagonal")
    if comms is not None:
        seen = seen.join(_among_themselves(seen, comms), on=["host", "pid"], how="anti", nulls_equal=True)
    if nccl_network is not None:
        nobodys = owned.filter(pl.col("pid").is_null() & pl.col("version").is_not_null()).sort("source_id", "line_no").collect()
        seen = pl.concat([seen, _unsaid(nccl_network, people, seen, nobodys)], how="diagonal")
    return seen


def _differ(seen: pl.DataFrame, counts: list[dict[str, Any]]) -> Finding:
    """The release that fewest loaded against the one that most did. ``counts``: releases with the number and the ranks of their processes,
    fewest first."""
    # Up to 2.21 only rank 0 of a communicator prints its release, so that the lines cannot be counted against each other.
    countable = all(_prints_everywhere(str(c["version"])) or (c["rank"] != [0] and (c["rank"] or c["len"] > 1)) for c in counts)
    odd, usual = counts[0], counts[-1]
    # Of as many against as many nobody can say which are the odd ones.
    tied = counts[-2]["len"] == usual["len"]
    one, two = (_who(c["rank"] if countable else [], c["len"]) for c in (odd, usual))
    ranks = tuple(odd["rank"]) if countable and not tied else ()
    line = ["source_id", "line_no"]
    lines = seen.filter(pl.col("version") == odd["version"]).unique(line, keep="first", maintain_order=True)
    other = seen.filter(pl.col("version") == usual["version"]).unique(line, keep="first", maintain_order=True).head(2)
    # The line of one process alone may be damaged.
    flipped = odd["len"] == 1 and one_bit(str(odd["version"]), str(usual["version"]))
    return Finding(
        title=f"{one} loaded NCCL {odd['version']}, {two if tied else 'the others'} {usual['version']}",
        summary="Releases of NCCL do not talk to each other: bootstrap messages differ in size."
        + (" Which of them is the one that was meant, these lines do not tell." if tied else ""),
        confidence="medium" if flipped or (countable and tied) else "high",
        ranks=ranks,
        hosts=tuple(sorted({h for h in lines["host"].to_list() if h})) if ranks else (),
        subject=("nccl", str(odd["version"]), str(usual["version"])),
        evidence=(*cite(lines, f"loads {odd['version']}"), *cite(other, f"loads {usual['version']}")),
        remedy="Use one image (or one NCCL in LD_LIBRARY_PATH) on all ranks.",
        prevention="Print torch.cuda.nccl.version() of every rank at start and compare.",
        would_refute=("the processes belong to different jobs", *(("one flipped bit in its line",) if flipped else ())),
        actions=(Action("change-setting", ranks=ranks, confidence="high"),),
    )


def _among_themselves(seen: pl.DataFrame, comms: pl.LazyFrame) -> pl.DataFrame:
    """``host``, ``pid`` of processes of a release that fewer have, all of which completed whatever communicators they began, without any
    process of another."""
    members = comms.select("host", "pid", "comm_key", "completed").collect().join(seen.select("host", "pid", "version"), on=["host", "pid"])
    members = members.with_columns(mixed=pl.col("version").n_unique().over("comm_key") > 1)
    usual = seen["version"].mode().sort().to_list()[:1]  # of as many, one
    alone = members.group_by("version").agg(up=(pl.col("completed") & ~pl.col("mixed")).all(), n=pl.struct("host", "pid").n_unique())
    every = seen.group_by("version").agg(all=pl.len())
    done = alone.join(every, on="version").filter(pl.col("up") & (pl.col("n") == pl.col("all")) & ~pl.col("version").is_in(usual))
    return seen.join(done, on="version", how="semi").select("host", "pid")


def _who(ranks: list[int], processes: int) -> str:
    return ranks_words(ranks) if ranks else f"{processes} process{'es' if processes != 1 else ''}"


def _by_errors(endings: pl.LazyFrame, seen: pl.DataFrame) -> pl.DataFrame:
    """Rank, host and release of the ranks whose last error names one and whose log does not, citing the error."""
    told = endings.filter(pl.col("rank").is_not_null() & pl.col("exc_source_id").is_not_null()).select(
        "rank",
        "host",
        version=pl.col("message").str.extract(r"NCCL version (\d+\.\d+(?:\.\d+)?)"),
        source_id=pl.col("exc_source_id"),
        line_no=pl.col("exc_line_no"),
    )
    # A log may name the build too: 2.21.5+cuda12.4.
    builds = {str(v).partition("+")[0]: v for v in seen["version"].to_list()}
    known = told.filter(pl.col("version").is_not_null() & ~pl.col("rank").is_in(seen["rank"].drop_nulls().to_list()))
    return known.sort("rank").collect().with_columns(pl.col("version").replace(builds))


def _unsaid(nccl_network: pl.LazyFrame, people: pl.LazyFrame, seen: pl.DataFrame, nobodys: pl.DataFrame) -> pl.DataFrame:
    """Host, pid and release of the processes that began, never got a rank and print no release, as those up to 2.21 do but for rank 0.
    Theirs is the one such release that is printed anywhere, and its line is cited."""
    said = pl.concat([seen, nobodys], how="diagonal").select("version", "source_id", "line_no")
    old = [v for v in said["version"].unique().to_list() if not _prints_everywhere(str(v))]
    if len(old) != 1 or said["version"].n_unique() == 1:
        return seen.clear()
    begun = nccl_network.filter((pl.col("item") == "bootstrap") & pl.col("pid").is_not_null()).select("host", "pid").unique()
    silent = begun.join(people, on=["host", "pid"], how="anti").join(seen.lazy().select("host", "pid"), on=["host", "pid"], how="anti")
    return silent.sort("host", "pid").collect().join(said.filter(pl.col("version") == old[0]).head(1), how="cross")


def _prints_everywhere(version: str) -> bool:
    """Whether every process of this release prints its version (NCCL 2.22 and later; before, rank 0 of a communicator alone)."""
    parts = version.split(".")
    return len(parts) < 2 or not parts[1].isdigit() or (int(parts[0]), int(parts[1])) >= (2, 22)


#: What Ray tells of a process that it refuses: its node, and what it and the cluster run on.
_NODE = r"This process on node (\S{1,128}) was started with"
_RUNS_ON = re.compile(r"^\s*(Ray|Python|Cloudpickle): (\S{1,64})$", re.MULTILINE)


@rule(
    name="other-versions",
    code="EN07",
    cause="version-mismatch",
    severity="critical",
    at_most=8,
    explains=("rank-died", "software-crash", "rank-never-joined"),
)
def other_versions(exceptions: pl.LazyFrame) -> Iterator[Finding]:
    """Processes that Ray refused as they run on another Ray or Python than its cluster, by their node."""
    refused = exceptions.filter(pl.col("signature") == "other-versions").sort("source_id", "line_no")
    told = refused.with_columns(node=pl.col("message").str.extract(_NODE, 1)).unique("node", keep="first", maintain_order=True).head(8)
    for row in told.collect().rows(named=True):
        theirs, _, mine = str(row["message"]).partition("This process on node")
        pairs = zip(_RUNS_ON.findall(theirs), _RUNS_ON.findall(mine), strict=False)
        differ = [f"{name} {own[1]}, the cluster {name} {there}" for (name, there), own in pairs if own[1] != there]
        node = row["node"] or "a node whose name is not in the evidence"
        yield Finding(
            title=f"Ray refused a process on {node}: it runs on {'; '.join(differ) or 'other versions than the cluster'}",
            summary="Ray compares the versions of itself and of Python before a process may join its cluster, and the process ends.",
            confidence="high",
            hosts=(row["node"],) if row["node"] else (),
            subject=("ray", *differ),
            evidence=cite([row], "what Ray says of both"),
            remedy="Start this process from the environment with which the cluster was started (one image on all nodes).",
            prevention="Start the head and all workers from one image.",
            would_refute=("the process was started again from the right environment and joined",),
            actions=(Action("change-setting", confidence="high"),),
        )
