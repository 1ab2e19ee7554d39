"""Some ranks did not use some parameters, so their gradients never come.

## What it finds
DistributedDataParallel's own message about parameters without gradient, with the ranks and names that it prints; or, where nobody came to
raise it, ranks that ended backward without a bucket that the others reduced, by recorders or by where each rank ended.

## Why it matters
The other ranks wait in backward for buckets that never fill; the error is raised one iteration later, on the ranks that are at fault.

## What would refute it
All ranks print the same list: then the model itself leaves them unused, and find_unused_parameters or static_graph is the answer.

## What to do next
Find the branch of the forward pass that these ranks did not take, or set find_unused_parameters=True knowing its cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.endings import raised_at
from nccl_forensics.words import group_words, operation_words, ranks_words

_EXPLAINS = (
    *("timeout", "closed", "rank-died", "host-stall", "input-stall", "collective-stuck", "collective-skipped", "collective-mismatch"),
    *("shape-mismatch", "software-crash", "connection-failed"),
)


@rule(name="ddp-unused-parameter", code="TO01", cause="ddp-unused-parameter", severity="critical", at_most=4, explains=_EXPLAINS)
def ddp_unused_parameter(
    rank_reports: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    divergences: pl.LazyFrame | None = None,
    exceptions: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """At most one finding, naming every rank that lacked gradients: those that say so, and those that left out the same reduction with
    them. Where processes of unknown rank alone say so, nobody is named."""
    lines = rank_reports.filter(pl.col("kind") == "ddp-unused").sort("source_id", "line_no").collect()
    ranks: set[int] = set()
    for row in lines.iter_rows(named=True):
        rank = row["rank"] if row["rank"] is not None else (row["hint_rank"] if row["hint_scope"] == "global" else None)
        if rank is not None:
            ranks.add(rank)
    evidence = cite(lines, "parameters that received no gradient")
    if endings is not None:
        cited = set(lines.select("source_id", "line_no").iter_rows())
        raised = endings.filter((pl.col("signature") == "ddp-unused") & pl.col("rank").is_not_null()).sort("rank").collect()
        ranks |= set(raised["rank"].to_list())
        places = [raised_at(row) for row in raised.iter_rows(named=True)]
        evidence += cite([p for p in places if (p["source_id"], p["line_no"]) not in cited], "raised by this rank")
    if not ranks:
        said = (
            exceptions.filter(pl.col("signature") == "ddp-unused").sort("source_id", "line_no").collect()
            if exceptions is not None
            else None
        )
        if said is None or not said.height:
            return
        evidence = cite(said, "raised by a process of unknown rank")
    elif divergences is not None:
        # A launcher ends the others as soon as the first of them has raised it.
        apart = divergences.filter((pl.col("kind") == "skipped") & (pl.col("expected_op") == "all_reduce") & pl.col("sure"))
        same = apart.filter(pl.lit(sorted(ranks)).list.set_difference("ranks").list.len() == 0).collect().head(1)
        if same.height and ranks < set(same["ranks"][0]):
            ranks |= set(same["ranks"][0])
            evidence += cite(same, "the reduction that these ranks left out")
    # One line names a parameter, another all of them.
    names = sorted({name.strip() for d in lines["detail"].to_list() if d for name in str(d).split(",")})
    chosen = tuple(sorted(ranks))
    yield Finding(
        title=f"{ranks_words(chosen) if chosen else 'a process of unknown rank'} did not use all parameters: {', '.join(names[:3]) or 'names not printed'}{f' and {len(names) - 3} more' if len(names) > 3 else ''}",
        summary="DistributedDataParallel waits for gradients of these parameters on these ranks; the other ranks are victims.",
        confidence="high" if chosen else "medium",
        ranks=chosen,
        subject=("ddp", *names[:3]),
        evidence=evidence,
        remedy=_REMEDY,
        prevention=_PREVENTION,
        would_refute=("all ranks print the same list",),
        actions=(Action("fix-code", ranks=chosen, confidence="high"),),
    )


@rule(name="ddp-bucket-passed", code="TO03", cause="ddp-unused-parameter", severity="critical", at_most=4, explains=_EXPLAINS)
def ddp_bucket_passed(
    reducer_skips: pl.LazyFrame | None,
    rank_reports: pl.LazyFrame | None = None,
    endings: pl.LazyFrame | None = None,
    past_backward: pl.LazyFrame | None = None,
    divergences: pl.LazyFrame | None = None,
    ring_receivers: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Ranks that left out a reduction of the others' reducer, unless DDP itself says whose gradients did not come; where recorders tell of
    neither, by where the ranks ended."""
    said = has_rows(rank_reports, pl.col("kind") == "ddp-unused")
    if said or has_rows(endings, pl.col("signature") == "ddp-unused"):
        return
    if past_backward is not None and not any(has_rows(recorded) for recorded in (reducer_skips, divergences, ring_receivers)):
        yield from _by_their_ends(past_backward.collect())
    for row in reducer_skips.collect().iter_rows(named=True) if reducer_skips is not None else ():
        ranks, waited = tuple(row["ranks"]), operation_words(row["expected_op"], row["seq"])
        where = f" at {row['call_site']}" if row["call_site"] else ""
        yield Finding(
            title=f"{ranks_words(ranks)} ended backward without {waited} of {group_words(row)}, a bucket of gradients that {ranks_words(row['others'])} reduced",
            summary="DistributedDataParallel reduces a bucket when all of its gradients are there. On these ranks some never came, most likely as they did not "
            f"use some parameters in this step, and they went on to {row['found_op']}{where}.",
            confidence="medium",
            ranks=ranks,
            subject=("ddp", "bucket"),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["expected_op"]),
            evidence=(
                *cite([row], f"what {ranks_words(ranks[:1])} called in its place"),
                *cite([whereabouts(row, "peer_")], "the reduction, made in backward by the reducer itself"),
            ),
            remedy=_REMEDY,
            prevention=_PREVENTION,
            would_refute=(_REFUTED,),
            actions=(Action("fix-code", ranks=ranks, confidence="medium"),),
            alternatives=(("collective-skipped", ranks, _NO_SYNC),),
        )


_REMEDY = "Make the forward pass use the same parameters on every rank, or set find_unused_parameters=True."
_PREVENTION = "Run one step with TORCH_DISTRIBUTED_DEBUG=DETAIL, which prints the names."
_REFUTED = "backward ran under no_sync on these ranks, or raised an exception that was swallowed"
_NO_SYNC = "no bucket is reduced under no_sync either"


def _by_their_ends(past: pl.DataFrame) -> Iterator[Finding]:
    """The ranks that had gone on to a collective of the program, where most others waited in backward."""
    if not past.height:
        return
    ranks, first = tuple(past["rank"].to_list()), past.row(0, named=True)
    others, where = ranks_words(first["in_backward"]), next((str(site) for site in past["call_site"] if site is not None), None)
    yield Finding(
        title=f"{ranks_words(ranks)} ended backward without a bucket of gradients that {others} reduced at {first['backward_at']}",
        summary=f"More bytes came than {ranks_words(ranks)} expected: {others} waited in the reduction that DistributedDataParallel makes in backward when all "
        f"gradients of a bucket are there. On {ranks_words(ranks)} some never came, most likely as some parameters were not used in this step"
        + (f", and {ranks_words(ranks[:1])} went on to {where}." if where else "."),
        confidence="medium",
        ranks=ranks,
        subject=("ddp", "bucket"),
        evidence=(
            *cite(past, "ended in a collective that is not the bucket of the others"),
            *cite([whereabouts(first, "peer_")], "the wait for others in backward came to nothing"),
        ),
        remedy=_REMEDY,
        prevention=_PREVENTION,
        would_refute=(_REFUTED, "these ranks made a call once too often that all make behind backward"),
        actions=(Action("fix-code", ranks=ranks, confidence="medium", where=where),),
        alternatives=(
            ("collective-skipped", ranks, _NO_SYNC),
            ("collective-mismatch", ranks, "a call that these ranks made once too often ends alike"),
        ),
    )
