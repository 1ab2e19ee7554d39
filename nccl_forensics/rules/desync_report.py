"""PyTorch's own desync report says which ranks did not come, or did not finish.

## What it finds
The report that ProcessGroupNCCL prints at a timeout under TORCH_NCCL_DESYNC_DEBUG=1: ranks that finished one collective and never joined the
next, ranks that joined one and did not finish it while others did, ranks that never joined any.

## Why it matters
It comes from what every rank wrote into the store, so it names ranks whose own logs and dumps are not in the evidence.

## What would refute it
The report counts collectives of one process group by its own numbers, and its ranks are ranks of that group: in another group than that of all
ranks they are other processes. A rank that could not write to the store any more looks as if it had not come.

## What to do next
Take stacks of the named ranks at the next hang (py-spy dump), and Flight Recorder dumps of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words

_EXPLAINS = ("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler")
_KINDS = ("desync-missing", "desync-lagging", "desync-stuck")


@rule(name="host-stall-by-desync-report", code="ST17", cause="host-stall", severity="critical", at_most=8, explains=_EXPLAINS)
def host_stall_by_desync_report(watchdog: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> Iterator[Finding]:
    """Ranks that never joined the collective that the others wait in."""
    for whole, rows, said in _reports(watchdog, source_ranks):
        absent = rows.filter(pl.col("kind").is_in(["desync-missing", "desync-lagging"]))
        ranks = _named(absent)
        if ranks and len(ranks) * 2 <= said:
            last = _latest(absent)
            waits = f"collective #{last + 1} of the group" if last is not None else "a collective"
            yield _finding(ranks, f"{ranks_words(ranks)} did not join {waits}, which the others wait in", absent, whole)


@rule(name="gpu-stall-by-desync-report", code="GP09", cause="gpu-stall", severity="critical", at_most=8, explains=_EXPLAINS)
def gpu_stall_by_desync_report(watchdog: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> Iterator[Finding]:
    """Ranks that joined a collective and did not finish it, while others finished it or wait in a later one."""
    for whole, rows, said in _reports(watchdog, source_ranks):
        stuck = rows.filter(pl.col("kind") == "desync-stuck")
        waits, last = _latest(rows.filter(pl.col("kind") == "desync-timeout")), _latest(stuck)
        if last is None or waits is None or last >= waits:
            continue  # all wait in the same one: nobody diverged
        ranks = _named(stuck)
        if ranks and len(ranks) * 2 <= said:
            title = f"{ranks_words(ranks)} joined collective #{last} of the group and did not finish it; the others are in #{waits}"
            yield _finding(ranks, title, stuck, whole)


def _reports(watchdog: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> Iterator[tuple[bool, pl.DataFrame, int]]:
    """Reports by source: whether their ranks are those of the job, their rows, and how many ranks they speak of at least."""
    rows = watchdog.filter(pl.col("kind").is_in([*_KINDS, "desync-timeout"])).sort("source_id", "line_no").collect()
    of_source: dict[object, int] = {}
    if source_ranks is not None:
        of_source = dict(source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
    seen: Counter[tuple[tuple[object, ...], ...]] = Counter()
    for (source,), part in rows.group_by("source_id", maintain_order=True):
        told = tuple(
            part.filter(pl.col("kind") != "desync-timeout").select("kind", "seq", pl.col("message")).unique().sort("message").iter_rows()
        )
        seen[told] += 1
        if not told or seen[told] > 1:
            continue  # the report of one moment in the log of each rank
        writer = of_source.get(source)
        own = part.filter(pl.col("kind") == "desync-timeout")["pg_rank"].drop_nulls().to_list()
        named = {int(r) for ranks in part["blamed_ranks"].to_list() for r in ranks or ()}
        speakers = named | set(own)
        yield writer is not None and writer in own, part, max(len(speakers), max(speakers, default=0) + 1)


def _latest(rows: pl.DataFrame) -> int | None:
    """The highest number of a collective in the rows."""
    return max((int(n) for n in rows["seq"].drop_nulls().to_list()), default=None)


def _named(rows: pl.DataFrame) -> tuple[int, ...]:
    return tuple(sorted({int(r) for ranks in rows["blamed_ranks"].to_list() for r in ranks or ()}))


def _finding(ranks: tuple[int, ...], title: str, rows: pl.DataFrame, whole: bool) -> Finding:
    return Finding(
        title=title,
        summary="Said by PyTorch's desync report, from what each rank wrote into the store."
        + (
            ""
            if whole
            else " The writer's rank in the group is not known to be its rank in the job: the numbers may be those of a smaller group."
        ),
        confidence="medium" if whole else "low",
        ranks=ranks,
        subject=("desync", *map(str, ranks)),
        evidence=cite(rows, "line of the desync report"),
        evidence_total=rows.height,
        remedy="Take the stacks of these ranks twice at the next hang; compare the program's paths between them and the others.",
        prevention="Keep Flight Recorder dumps of all ranks (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1).",
        would_refute=("a dump or a stack that shows these ranks in the collective", "the report is of a smaller group than the job"),
        actions=(Action("collect-more", ranks=ranks, command="py-spy dump --pid <pid>"),),
    )
