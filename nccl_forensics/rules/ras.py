"""NCCL's RAS service names ranks that are behind, dead, or in error.

## What it finds
In reports of ncclras (text, JSON, monitor): ranks whose count of launched operations trails that of their communicator, processes that RAS
declared dead, and communicators with errors.

## Why it matters
RAS asks the living job: it sees a rank that never launched an operation, and a process that is gone, hours before any timeout.

## What would refute it
A second report a minute later with other counts: then the job moves, and the first caught the ranks between two operations.

## What to do next
Take a stack of the rank that is behind (py-spy dump); for a dead process look at the kernel log and the launcher of its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows, text_of, typed
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import hosts_of
from nccl_forensics.rules.common.hosts import People, people
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.ras import mute_processes
from nccl_forensics.words import natural, ranks_words, verb

_OPS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
#: What an error of a communicator stands for; a remote error only says that somebody else failed.
_ERRORS = {
    "Unhandled CUDA error": "gpu-fault",
    "System error": "connection-failed",
    "Invalid argument": "invalid-usage",
    "Invalid usage": "invalid-usage",
    "Internal error": "software-crash",
}
#: The same by the number of their ncclResult, which the JSON gives.
_RESULTS = {1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument", 5: "Invalid usage"}
_COUNTS = typed(read_at(), "report:str comm_id:str op:str ranks:i64 rank:i32 launched:i64 pid:i64 host:str time_raw_ns:i64")


@rule(
    name="ras-behind",
    code="RA01",
    cause="host-stall",
    severity="critical",
    at_most=16,
    explains=("timeout", "collective-stuck", "connection-failed"),
)
def ras_behind(
    nccl_ras_items: pl.LazyFrame | None,
    nccl_ras_ranks: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    nccl_ras_groups: pl.LazyFrame | None = None,
    sources: pl.LazyFrame | None = None,
    *,
    most: Annotated[float, "share of a communicator's ranks that may be behind; more is no outlier"] = 0.5,
    apart_s: Annotated[
        float, "seconds that two reports must lie apart to show that a rank does not move, where they tell their times"
    ] = 20.0,
) -> Iterator[Finding]:
    """One finding per communicator and operation. A single report of a job without any sign of failure is a warning only: ranks may differ
    by an operation at any moment. Reports without a time are in the order of their names, numbers in them as numbers; where a later one no
    longer says that ranks differ, they went on."""
    known = people(processes)
    counts, order = _counts(nccl_ras_items, nccl_ras_ranks), {}
    if sources is not None:
        # A copy of a report is no second look at the job.
        copies = sources.filter(pl.col("duplicate_of").is_not_null()).select("source_id").collect()["source_id"]
        counts = counts.filter(~pl.col("source_id").is_in(copies.implode()))
        order = _in_order(sources)
    places = pl.Series("place", [order.get(s, s) for s in counts["source_id"]], dtype=pl.Int64)
    counts = counts.with_columns(places).sort("time_raw_ns", "place", nulls_last=True, maintain_order=True)
    world, alike = _world(nccl_ras_ranks), _alike(nccl_ras_groups)
    failed = has_rows(failures)
    for (comm, op), part in counts.group_by("comm_id", "op", maintain_order=True):
        reports = part["report"].unique(maintain_order=True).to_list()
        last = part.filter(pl.col("report") == reports[-1])
        usual = (
            last.group_by("launched").agg(pl.col("ranks").sum()).sort("ranks", "launched", descending=True)["launched"][0]
            if last.height
            else None
        )
        behind = last.filter(pl.col("launched") < usual)
        size = int(last["ranks"].sum())
        if not behind.height or int(behind["ranks"].sum()) > most * size or _agreed_later(last, nccl_ras_groups, order):
            continue
        stuck = len(reports) > 1 and _same(part, reports[-2:], behind) and _apart(part, reports[-2:], apart_s)
        severity: Severity = "critical" if stuck or failed else "warning"
        confidence: Confidence = "high" if stuck else "medium"
        culprits = tuple(_who(row, known, alike or world.get(str(comm), False)) for row in behind.iter_rows(named=True))
        ranks = tuple(sorted({c.rank for c in culprits if c.rank is not None}))
        listed = behind["rank"].drop_nulls().to_list()
        who = ranks_words(ranks) if ranks else f"rank {', '.join(map(str, listed))} of communicator {comm}"
        yield Finding(
            title=f"{who} {verb(ranks or listed, 'has', 'have')} launched up to {op or 'operation'} {behind['launched'][0]}, the others up to {usual}",
            summary="RAS counts operations as they are launched: this rank has not come to the operation that the others wait in."
            + (" A second report shows the same counts: it does not move." if stuck else ""),
            severity=severity,
            confidence=confidence,
            ranks=ranks,
            hosts=hosts_of(behind),
            culprits=culprits,
            subject=("ras", str(comm), str(op)),
            evidence=(*cite(behind, "behind"), *cite(last.filter(pl.col("launched") == usual).head(1), "the others")),
            remedy="Look at what this rank does instead: a stack tells a data loader, a lock or a branch that skips the call.",
            prevention="Take two RAS reports a minute apart before restarting a hung job.",
            would_refute=("a later report with other counts",),
            alternatives=(("collective-skipped", ranks, "RAS does not say whether the rank waits in another operation"),),
            actions=(Action("collect-more", ranks=ranks, command="py-spy dump --pid <pid of the rank>", confidence=confidence),),
        )


@rule(
    name="ras-dead",
    code="RA02",
    cause="rank-died",
    severity="critical",
    at_most=16,
    explains=("timeout", "closed", "collective-stuck", "connection-failed", "host-stall", "rank-never-joined"),
)
def ras_dead(
    nccl_ras_items: pl.LazyFrame | None,
    nccl_ras_ranks: pl.LazyFrame | None,
    nccl_ras_events: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    nccl_ras_groups: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Processes that RAS declared dead, and communicators that it says are in error."""
    known = people(processes)
    if nccl_ras_items is not None:
        rows = nccl_ras_items.filter((pl.col("kind") == "DEAD") & pl.col("pid").is_not_null()).sort("source_id", "line_no").collect()
        yield from _dead(rows, known, {})
        wrong = nccl_ras_items.filter((pl.col("kind") == "ERROR") & pl.col("error").is_not_null())
        yield from _errors(wrong.sort("source_id", "line_no").collect(), known, _alike(nccl_ras_groups))
        mute = mute_processes(nccl_ras_items).sort("source_id", "line_no").collect()
        mute = mute.join(rows, on=["host", "pid"], how="anti").unique(["host", "pid"], keep="first", maintain_order=True)
        yield from _dead(mute, known, {}, dead=False)
    if nccl_ras_ranks is not None:
        gone = nccl_ras_ranks.filter(pl.col("considered_dead").fill_null(False)).sort("source_id", "record").collect()
        world = _world(nccl_ras_ranks)
        yield from _dead(gone.unique(["host", "pid"], keep="first", maintain_order=True), known, world)
        failed = nccl_ras_ranks.with_columns(
            error=pl.col("async_error").replace_strict(_RESULTS, default=None, return_dtype=pl.String), ranks=pl.lit(1, dtype=pl.Int64)
        )
        yield from _errors(failed.filter(pl.col("error").is_not_null()).sort("source_id", "record").collect(), known, all(world.values()))
    if nccl_ras_events is not None:
        events = nccl_ras_events.filter(pl.col("event").is_in(["PEER_DEAD", "PEER_TIMEOUT_DEAD"])).sort("source_id", "line_no").collect()
        if events.height:
            yield Finding(
                title=f"the RAS monitor lost {events.height} peer{'s' if events.height > 1 else ''}: {events['detail'][0]}",
                summary="The monitor reports a peer as dead when its process ends, also at the regular end of a job.",
                severity="warning",
                confidence="low",
                subject=("ras-events",),
                evidence=cite(events, "peer declared dead"),
                evidence_total=events.height,
                remedy="Compare the time with the end of the job; before it, look at that process's host.",
                would_refute=("the job had ended by then",),
                actions=(Action("collect-more"),),
            )


def _dead(rows: pl.DataFrame, known: People, world: dict[str, bool], *, dead: bool = True) -> Iterator[Finding]:
    """Processes that RAS considers dead, or (not ``dead``) that did not answer it in time."""
    if not rows.height:
        return
    culprits = tuple(_who(row, known, world.get(str(row.get("comm_id")), False)) for row in rows.iter_rows(named=True))
    ranks = tuple(sorted({c.rank for c in culprits if c.rank is not None}))
    named = ", ".join(f"process {p} on {h}" for p, h in rows.select("pid", "host").head(4).iter_rows())
    yield Finding(
        title=f"RAS {'considers' if dead else 'has no answer of'} {ranks_words(ranks) + ' (' + named + ')' if ranks else named}"
        + (" dead" if dead else ""),
        summary="The process no longer answers on the RAS network: it is gone, or its host cannot be reached."
        if dead
        else "A thread of its own answers RAS in a process that hangs too: this one is gone, stopped, or its host cannot be reached.",
        confidence="medium" if dead else "low",
        ranks=ranks,
        hosts=hosts_of(rows),
        culprits=culprits,
        subject=("ras-dead" if dead else "ras-mute", *sorted(str(h) for h in rows["host"].to_list() if h)),
        evidence=cite(rows, "considered dead" if dead else "no answer of this process"),
        evidence_total=rows.height,
        remedy="Look at the kernel log and the launcher of that host for what ended the process.",
        prevention="Ask RAS (ncclras) from time to time while jobs run, and keep its answers.",
        would_refute=("the process still runs: then its network is cut off",),
        alternatives=(("connection-failed", ranks, "RAS cannot tell a dead process from one that cannot be reached"),),
        actions=(Action("collect-more", hosts=hosts_of(rows), command="dmesg -T"),),
    )


def _errors(rows: pl.DataFrame, known: People, alike: bool) -> Iterator[Finding]:
    for error, cause in _ERRORS.items():
        part = rows.filter(pl.col("error").str.starts_with(error))
        if not part.height:
            continue
        culprits = tuple(c for row in part.iter_rows(named=True) if (c := _who(row, known, alike)).rank is not None or c.pid is not None)
        ranks = tuple(sorted({c.rank for c in culprits if c.rank is not None}))
        many = int(part["ranks"].fill_null(1).sum())
        yield Finding(
            title=f"RAS: {many} {'rank reports' if many == 1 else 'ranks report'} '{error}'",
            summary="The communicator is in error on these ranks; ranks with 'Remote process error' only follow.",
            cause=cause,
            confidence="medium",
            ranks=ranks,
            culprits=culprits,
            subject=("ras-error", error),
            evidence=cite(part, "communicator in error"),
            evidence_total=part.height,
            remedy="Read NCCL's WARN lines of these ranks.",
            prevention="Ask RAS (ncclras) from time to time while jobs run, and keep its answers.",
            would_refute=("the error came while the job was being stopped",),
            actions=(Action("collect-more", ranks=ranks, command="NCCL_DEBUG=INFO"),),
        )


def _counts(items: pl.LazyFrame | None, ranks: pl.LazyFrame | None) -> pl.DataFrame:
    """Launched operations by rank or number of ranks: one row per statement, in the order of the reports."""
    parts: list[pl.DataFrame] = []
    if items is not None:
        found = items.filter((pl.col("kind") == "MISMATCH") & pl.col("launched").is_not_null() & pl.col("op").is_not_null()).collect()
        # A report is told from the next one in the same file by a count of the same communicator, operation and place that comes again.
        again = found.with_columns(
            nth=pl.int_range(pl.len()).over("source_id", "comm_id", "op", "rank", pl.col("rank").is_null() & (pl.col("ranks") > 0))
        )
        parts.append(
            again.with_columns(report=text_of("{}/{}", "source_id", "nth"), record=pl.lit(None, dtype=pl.String()), time_raw_ns=None)
        )
    if ranks is not None:
        own = ranks.filter(~pl.col("missing").fill_null(False)).collect()
        long = own.unpivot(
            list(_OPS),
            index=["source_id", "record", "comm_id", "rank", "pid", "host", "time_raw_ns"],
            variable_name="op",
            value_name="launched",
        )
        whole = long.filter(pl.col("launched").is_not_null()).with_columns(
            ranks=pl.lit(1, dtype=pl.Int64), report=text_of("{}", "source_id"), line_no=pl.lit(None, dtype=pl.UInt32)
        )
        parts.append(whole)
    if not parts:
        return pl.DataFrame(schema=_COUNTS)
    return pl.concat([p.select([pl.col(c).cast(t) for c, t in _COUNTS.items()]) for p in parts])


def _in_order(sources: pl.LazyFrame) -> dict[int, int]:
    """The place of each source in the order of the names, in which numbers count as such: ``ras-10.txt`` comes after ``ras-9.txt``."""
    paths = sources.select("source_id", "path").collect().rows()
    ordered = sorted(paths, key=lambda row: natural(str(row[1])))
    return {source: n for n, (source, _) in enumerate(ordered)}


def _agreed_later(last: pl.DataFrame, groups: pl.LazyFrame | None, order: Mapping[int, int]) -> bool:
    """Whether a report was made after the last one in which ranks differ: a table of communicators of this size, and no count under it."""
    if groups is None or not last["line_no"].is_not_null().any():
        return False
    source, line, size = last["source_id"][0], last["line_no"].max(), int(last["ranks"].sum())
    tables = groups.filter(pl.col("nranks") == size).select("source_id", "line_no").collect().rows()
    at = (order.get(source, source), line)
    return any((order.get(other, other), row) > at for other, row in tables)


def _apart(part: pl.DataFrame, reports: list[str], seconds: float) -> bool:
    """Whether two reports lie that far apart, or do not both tell their times."""
    times = [part.filter(pl.col("report") == report)["time_raw_ns"].min() for report in reports]
    return None in times or (int(str(times[1])) - int(str(times[0]))) >= seconds * 1e9


def _same(part: pl.DataFrame, reports: list[str], behind: pl.DataFrame) -> bool:
    """Whether the ranks behind had the same counts in the report before."""
    before = part.filter(pl.col("report") == reports[0]).select("rank", "launched")
    now = behind.select("rank", "launched")
    return now.height > 0 and now.join(before, on=["rank", "launched"], how="anti", nulls_equal=True).height == 0


def _world(ranks: pl.LazyFrame | None) -> dict[str, bool]:
    """Whether a communicator of the JSON is the largest one: then its ranks are those of the job."""
    if ranks is None:
        return {}
    sizes = ranks.group_by("comm_id").agg(pl.col("nranks").max()).collect()
    largest = sizes["nranks"].max()
    return {str(c): n is not None and n == largest for c, n in sizes.iter_rows()}


def _alike(groups: pl.LazyFrame | None) -> bool:
    """Whether all communicators of a text report have the same number of ranks: then their ranks are those of the job."""
    sizes = [] if groups is None else groups.select(pl.col("nranks").drop_nulls().unique()).collect()["nranks"].to_list()
    return len(sizes) == 1


def _who(row: dict[str, object], known: People, is_world: bool) -> Culprit:
    pid, host = row.get("pid"), row.get("host")
    rank = known.of_pid(host, pid)
    rank = known.of_pid(None, pid) if rank is None else rank
    if rank is None and is_world and row.get("rank") is not None:
        rank = int(str(row["rank"]))
    return Culprit(rank=rank, host=name_of(host), pid=int(str(pid)) if pid is not None else None)
