"""Ranks of one job run with different NCCL settings.

## What it finds
Settings that all ranks must share (algorithm, protocol, channels, transports, buffer sizes) and that some ranks have with another value
or not at all, from NCCL's own lines and from dumps of the processes' environments.

## Why it matters
NCCL does not negotiate these: the ranks plan different rings, algorithms or transports, and wait for each other or fail in odd places.

## What would refute it
The ranks without the line never came to read the setting.

## What to do next
Pass the environment of rank 0 to every rank; look for a profile or an image that differs on the named hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, cite_absence
from nccl_forensics.facts.settings import MUST_AGREE
from nccl_forensics.frames import ranks_in
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words

#: A log without the line must be this much longer than where the others print it. Logs of ranks differ by some lines.
_BEYOND = 1.2


@rule(
    name="environment-mismatch",
    code="EN01",
    cause="environment-mismatch",
    severity="error",
    at_most=8,
    explains=(
        "connection-failed",
        "invalid-usage",
        "rank-never-joined",
        "host-stall",
        "rank-died",
        "collective-stuck",
        "version-mismatch",
        "few-channels",
        "software-crash",
        "collective-skipped",
    ),
)
def environment_mismatch(
    job_settings: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    nccl_tails: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    nccl_comms: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per setting that differs. A line that is missing from a log counts only where the process has a log of its own (in a
    shared one lines get torn and lost) that goes on beyond the place where the others print it, or where several logs without it tell of
    the end of an init before which the others print it. What an environment lacks is not set."""
    host_of, lines_of = _logged(processes, nccl_tails)
    up, over = _came_up(comms, nccl_comms)
    world = int(str(comms.select(pl.col("nranks").max()).collect().item() or 0)) if comms is not None else 0
    differing = job_settings.filter(pl.col("differs") & pl.col("name").is_in(sorted(MUST_AGREE))).sort("name", "processes").collect()
    for (name,), part in differing.group_by("name", maintain_order=True):
        shown = {str(r["value"]): set(r["ranks"]) for r in part.iter_rows(named=True) if r["value"] is not None}
        bare = set().union(*(r["ranks"] for r in part.iter_rows(named=True) if r["value"] is None))
        place = part.filter(pl.col("origin").ne_missing("environment") & pl.col("value").is_not_null())["line_no"].min()
        # What dumps of environments alone tell, no log can be missing: these logs show no settings.
        logged = {} if place is None else lines_of
        silent = {r for r, lines in logged.items() if lines > _BEYOND * int(str(place))} - bare - set().union(*shown.values())
        initialised = (up & set(logged)) - silent - bare - set().union(*shown.values())
        in_init = not silent and len(initialised) > 1
        if (in_init or silent) and _printed_before(part, over):
            silent |= initialised
        else:
            in_init = False
        shared = not silent and not bare and len(shown) == 1
        if shared:
            # One line may be lost in a shared log, those of most ranks are not. A log of one rank that ends early tells nothing of what
            # came after.
            having = set().union(*shown.values())
            full = _told_in_full(job_settings, having, set(host_of)) or _alike_long(job_settings, having, processes, nccl_tails)
            lacking = full - having - set(lines_of)
            silent = lacking if len(having) < len(lacking) else set()
        unset = silent | bare
        classes = {**{f"{name}={v}": r for v, r in shown.items() if r}, **({f"{name} not set": unset} if unset else {})}
        if len(classes) < 2:
            continue
        ordered = sorted(classes.items(), key=lambda c: (len(c[1]), "not set" in c[0]))
        odd_words, odd = ordered[0]
        usual_words, usual = ordered[-1]
        # Ranks whose logs are missing, or end too early to tell, may belong to either side.
        unknown = max(0, max(world, len(host_of)) - len(set().union(*classes.values())))
        tie = len(usual) - len(odd) <= unknown
        # Of two halves the one that sets something is the odd one.
        if tie and "not set" in odd_words:
            odd_words, odd, usual_words, usual = usual_words, usual, odd_words, odd
        told = {r: h[0] for h, rs in part.select("hosts", "ranks").iter_rows() if len(h) == 1 for r in rs}
        hosts = tuple(sorted({h for r in odd if (h := host_of.get(r) or told.get(r))}))
        yield Finding(
            title=f"{ranks_words(odd)} {'has' if len(odd) == 1 else 'have'} {odd_words}, {ranks_words(usual)} {'has' if len(usual) == 1 else 'have'} {usual_words}",
            summary="All ranks of a communicator must share this setting; NCCL does not negotiate it.",
            confidence="medium" if shared or in_init or (tie and unset == usual and unset) else "high",
            ranks=tuple(sorted(odd)),
            hosts=hosts,
            subject=(str(name),),
            evidence=(
                *cite(part.filter(pl.col("value").is_not_null()), f"{name} as this process has it"),
                *cite(part.filter(pl.col("value").is_null()), f"an environment without {name}"),
                *(cite_absence(f"no line sets {name}", (f"NCCL logs of {ranks_words(silent)}",)) if silent else ()),
            ),
            remedy=f"Give every rank the same {name}.",
            prevention="Export the environment from the launcher to all ranks and compare it at start.",
            would_refute=("the other ranks never read the setting (their logs end before it)",),
            actions=(Action("change-setting", ranks=tuple(sorted(odd)), hosts=hosts, confidence="high"),),
        )


def _came_up(comms: pl.LazyFrame | None, nccl_comms: pl.LazyFrame | None) -> tuple[set[int], dict[int, int]]:
    """Ranks with a communicator that came up, and by source the line that says so first."""
    if comms is None or nccl_comms is None:
        return set(), {}
    ranks = comms.filter(pl.col("completed") & pl.col("rank").is_not_null() & (pl.col("nranks") == pl.col("nranks").max()))
    lines = nccl_comms.filter(pl.col("event") == "init-complete").group_by("source_id").agg(pl.col("line_no").min())
    return ranks_in(ranks), dict(lines.collect().iter_rows())


def _printed_before(part: pl.DataFrame, over: dict[int, int]) -> bool:
    """Whether the setting is printed before the end of an init wherever it is cited."""
    rows = part.filter(pl.col("value").is_not_null()).select("source_id", "line_no").rows()
    return bool(rows) and all(line < over.get(source, 0) for source, line in rows)


def _told_in_full(settings: pl.LazyFrame, having: set[int], ranks: set[int]) -> set[int]:
    """All ranks, where each setting that NCCL's logs show is shown by all of them, or by the very ones that have this one: then no line is
    lost, though ranks share a log."""
    told = settings.filter(pl.col("origin") == "nccl").select("name", "ranks").collect()
    shown = [set().union(*part["ranks"].to_list()) for _, part in told.group_by("name", maintain_order=True)]
    return ranks if ranks in shown and len(ranks) > 2 and all(r in (ranks, having) for r in shown) else set()


def _alike_long(settings: pl.LazyFrame, having: set[int], processes: pl.LazyFrame | None, nccl_tails: pl.LazyFrame | None) -> set[int]:
    """All ranks, where these alone show any setting in NCCL's logs, several of them, and the others wrote as much as they did: so many lines
    are not lost, and none were taken for repeats."""
    told = settings.filter((pl.col("origin") == "nccl") & pl.col("value").is_not_null()).select("name", "ranks").collect()
    if (
        processes is None
        or nccl_tails is None
        or told["name"].n_unique() < 2
        or any(set(ranks) != having for ranks in told["ranks"].to_list())
    ):
        return set()
    ranked = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank")
    wrote = nccl_tails.join(ranked, on=["host", "pid"]).group_by("rank").agg(pl.col("lines").sum()).collect()
    long = wrote.filter(pl.col("lines") * 2 >= wrote.filter(pl.col("rank").is_in(sorted(having)))["lines"].min())["rank"].to_list()
    return set(long) if len(long) == wrote.height > 2 else set()


def _logged(processes: pl.LazyFrame | None, nccl_tails: pl.LazyFrame | None) -> tuple[dict[int, str], dict[int, int]]:
    """Hosts by rank, and how many NCCL lines each rank has whose lines stand in a log of their own, so that a missing line means
    something."""
    if processes is None or nccl_tails is None:
        return {}, {}
    shared = nccl_tails.group_by("source_id").agg(pl.col("pid").n_unique().alias("n")).filter(pl.col("n") > 1).select("source_id")
    crowded = nccl_tails.join(shared, on="source_id").select("host", "pid").unique()
    ranked = processes.filter(pl.col("rank").is_not_null())
    unsure = ranks_in(ranked.join(crowded, on=["host", "pid"]))
    known = dict(ranked.filter(pl.col("pid").is_not_null()).select("rank", "host").collect().iter_rows())
    lines = nccl_tails.join(ranked.select("host", "pid", "rank"), on=["host", "pid"]).group_by("rank").agg(pl.col("lines").max())
    return known, {r: n or 0 for r, n in lines.collect().iter_rows() if r not in unsure}


@rule(
    name="channels-differ",
    code="EN06",
    cause="environment-mismatch",
    severity="error",
    at_most=4,
    explains=("connection-failed", "invalid-usage", "rank-never-joined", "host-stall", "rank-died", "collective-stuck", "version-mismatch"),
)
def channels_differ(comm_channels: pl.LazyFrame) -> Iterator[Finding]:
    """Few ranks that came out of the init of a communicator with another number of channels than all others: NCCL brings all ranks to one
    number, so that these read a setting of it (channels, CTAs, NVLS) that the others did not, whether their logs show settings or not."""
    lines = (
        comm_channels.filter((pl.col("coll") > 0) & pl.col("rank").is_not_null() & (pl.col("nranks") > 2))
        # What several processes claim one rank of are several communicators.
        .filter(pl.struct("host", "pid").n_unique().over("comm_key", "rank").max().over("comm_key") == 1)
        .sort("comm_key", "rank", "source_id", "line_no")
        .unique(["comm_key", "rank"], keep="first", maintain_order=True)
        .filter(pl.col("coll").n_unique().over("comm_key") > 1)
        .collect()
    )
    for _, part in lines.group_by("comm_key", maintain_order=True):
        usual = part["coll"].mode().sort().to_list()
        few, most = part.filter(~pl.col("coll").is_in(usual)), part.filter(pl.col("coll").is_in(usual))
        # A rank of which no line is there may have either number.
        if len(usual) != 1 or most.height - few.height <= int(part["nranks"][0]) - part.height:
            continue
        odd, others = tuple(few["rank"].to_list()), most["rank"].to_list()
        hosts = tuple(sorted(set(few["host"].drop_nulls().to_list())))
        counts = ", ".join(str(n) for n in sorted(set(few["coll"].to_list())))
        yield Finding(
            title=f"{ranks_words(odd)} {'has' if len(odd) == 1 else 'have'} {counts} channels, {ranks_words(others)} {usual[0]}, in one communicator",
            summary="NCCL brings all ranks of a communicator to one number of channels; a setting that only some ranks have changes it afterwards, and the "
            "ranks then exchange tables of different lengths.",
            confidence="medium",
            ranks=odd,
            hosts=hosts,
            subject=("channels",),
            evidence=(*cite(few, "another number of channels"), *cite(most.head(1), "the number of the others")),
            evidence_total=few.height + 1,
            remedy="Give every rank the same NCCL_MAX_NCHANNELS, NCCL_MIN_NCHANNELS, NCCL_MAX_CTAS and NCCL_MIN_CTAS.",
            prevention="Export the environment from the launcher to all ranks and compare it at start.",
            would_refute=("the same NCCL_* settings on all ranks",),
            actions=(
                Action(
                    "collect-more",
                    ranks=odd,
                    hosts=hosts,
                    command="NCCL_DEBUG_SUBSYS=INIT,ENV; tr '\\0' '\\n' < /proc/<pid>/environ | grep NCCL_",
                ),
            ),
        )
