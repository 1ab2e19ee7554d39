"""DETAIL compared the calls of the ranks and found them to differ, and what it prints does not place them.

## What it finds
The words of ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` where they cannot be laid beside each other by rank and number: torch before 2.0 prints no number, before
1.13 only the call of the rank that speaks; where the numbers of tensors differ, the other's call is read with the layout of the speaker's own; and in a
group of some ranks the number of the other is that of the group.

## Why it matters
The program is at fault, not the network, even where nobody can be named: all that times out later is a symptom.

## What would refute it
The other rank's own words, or the tracebacks of all ranks, name the same call with equal arguments.

## What to do next
Look at the lines that the tracebacks of these ranks name: all ranks must make this call alike. Where a rank's output was not collected, ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words, verb


@rule(
    name="collective-mismatch-unreadable",
    code="CO14",
    cause="collective-mismatch",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "rank-died", "host-stall", "software-crash"),
)
def collective_mismatch_unreadable(rank_reports: pl.LazyFrame, divergences: pl.LazyFrame | None) -> Iterator[Finding]:
    """At most one finding: DETAIL found ranks in different calls, and what it prints of the other cannot be read, or whose call that is is
    not known, or it prints no number of the call."""
    if has_rows(divergences):
        return
    rows = rank_reports.filter((pl.col("kind") == "detail-mismatch") & pl.col("rank").is_not_null()).sort("source_id", "line_no").collect()
    differs = pl.col("differs").fill_null("").str.split(",")
    odd = rows.filter(pl.col("seq").is_null() | differs.list.contains("sequence"))
    if not odd.height:
        unknown = rows.filter(pl.col("ranks").is_null() & pl.col("in_subgroup") & pl.col("other_detail").is_not_null())
        if unknown.height:
            yield _of_nobody_known(unknown)
        return
    first = odd.row(0, named=True)
    ranks = tuple(sorted({*odd["rank"].to_list(), *(r for others in odd["ranks"].drop_nulls().to_list() for r in others)}))
    if first["seq"] is None:
        yield _unnumbered(odd, ranks)
        return
    yield Finding(
        title=f"{ranks_words(ranks)} met in different calls: {ranks_words((first['rank'],))} in {first['op'] or 'a collective'} #{first['seq']}",
        summary="torch compares the calls of all ranks before each collective and found these to differ. It reads the other rank's call with the layout of "
        "its own, so that what it prints of it is noise where they have different numbers of tensors.",
        confidence="low",
        culprits=(),
        subject=("unreadable", str(first["op"])),
        evidence=cite(odd, "DETAIL compared the calls"),
        evidence_total=odd.height,
        remedy="Look at what the other rank calls there: its own traceback names the line.",
        prevention="One small run with TORCH_DISTRIBUTED_DEBUG=DETAIL on all ranks, with all their output kept.",
        would_refute=("the other rank's own words name the same call",),
        actions=(Action("collect-more", ranks=ranks),),
    )


#: What differs between two calls, deepest first, and the cause of it.
_DIFFERS = (("op", "collective-mismatch"), ("dtype", "dtype-mismatch"), ("shape", "shape-mismatch"))


def _of_nobody_known(rows: pl.DataFrame) -> Finding:
    """Within a group of some ranks a number is that of the group: the other's call is printed, and nothing handed in tells which rank of
    the job it is."""
    first = rows.row(0, named=True)
    differing = set((first["differs"] or "").split(","))
    cause = next((cause for word, cause in _DIFFERS if word in differing), "collective-mismatch")
    ranks = tuple(sorted(set(rows["rank"].to_list())))
    own, other = f"{first['op']} of {first['detail']}", f"{first['other_op']} of {first['other_detail']}"
    return Finding(
        title=f"{ranks_words(ranks)} met another call than {verb(ranks, 'its', 'their')} own at #{first['seq']} of a group of some ranks: {own} against {other}",
        summary="torch compares the calls of a group before each collective and found these to differ. It prints the number that the group knows the other rank "
        "by, and nothing handed in tells which rank of the job that is.",
        cause=cause,
        culprits=(),
        subject=("whose", str(first["op"])),
        evidence=cite(rows, "DETAIL compared the calls"),
        evidence_total=rows.height,
        remedy="Ask the other ranks of this group for their output: the one whose call is another one says so itself.",
        prevention="Keep the output of all ranks.",
        would_refute=("the other rank's own words name the same call",),
        actions=(Action("collect-more"),),
    )


def _unnumbered(rows: pl.DataFrame, ranks: tuple[int, ...]) -> Finding:
    """torch before 2.0 prints calls without a number, and before 1.13 only the call of the rank that speaks: what all of these say is
    compared here."""
    calls = {(r["op"], r["detail"]): r["rank"] for r in rows.iter_rows(named=True) if r["op"]}
    calls |= {(r["other_op"], r["other_detail"]): r["ranks"][0] for r in rows.iter_rows(named=True) if r["other_op"] and r["ranks"]}
    by_op = len({op for op, _ in calls}) > 1
    types = len({(detail or "").rsplit("] ", 1)[-1] for _, detail in calls}) > 1
    cause = "collective-mismatch" if by_op or len(calls) < 2 else "dtype-mismatch" if types else "shape-mismatch"
    confidence: Confidence = "medium" if len(calls) > 1 else "low"
    said = "; ".join(f"rank {rank} in {op}" + (f" of {detail}" if detail and not by_op else "") for (op, detail), rank in calls.items())
    others = f"{ranks_words(ranks)} met others in another call" if len(ranks) == 1 else f"{ranks_words(ranks)} met in different calls"
    return Finding(
        title=f"{others}: {said}" if said else others,
        summary="torch compares the calls of all ranks before each collective and found these to differ. Which of them is the right one it does not say.",
        cause=cause,
        confidence=confidence,
        culprits=(),
        subject=("unnumbered", cause),
        evidence=cite(rows, "DETAIL compared the calls"),
        evidence_total=rows.height,
        remedy="Look at the lines that the tracebacks of these ranks name: all ranks must make this call alike.",
        prevention="torch 2.1 or later names the number of the call and what differs; keep the output of all ranks.",
        would_refute=("the tracebacks of all ranks name one line with equal arguments",),
        actions=(Action("collect-more", ranks=ranks),),
        alternatives=tuple((other, (), "the call of the other rank is not printed") for other in ("shape-mismatch", "dtype-mismatch"))
        if confidence == "low"
        else (),
    )
