"""torch's own analyzer of Flight Recorder dumps (torchfrtrace) says which ranks do not fit.

## What it finds
In the text that ``torchfrtrace`` prints: ranks whose recorders do not hold a collective that others of their group wait in, and ranks that
called something else there, with other sizes or data types, or have not finished what the others have. Only the first call of each group
counts: what comes behind it is shifted. Ranks that are missing are named where they are the fewer of a group and wait in no other call; of two halves only where the
text tells of the group of all ranks alone.

## Why it matters
Its text is often pasted where the dumps themselves are gone.

## What would refute it
The analyzer takes the first rank as right and calls the others culprits: where they are the majority it is the other way round. A rank
that is missing may have skipped an earlier call and ended, or wait in a group of which no dump tells.

## What to do next
Hand in the dumps of all ranks: they hold what each rank called before and where in the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.views.calls import op_word
from nccl_forensics.words import operation_words, ranks_words

_EXPLAINS = ("timeout", "closed", "collective-stuck", "rank-died", "connection-failed", "straggler")
_DIFFERENT = (*_EXPLAINS, "host-stall", "gpu-stall", "software-crash")
_SHIFTED = (*_DIFFERENT, "collective-mismatch", "shape-mismatch", "dtype-mismatch")
_PAIR = re.compile(r"Expected [a-z ]{1,40}: '(.*)' does not match found [a-z ]{1,40}: '(.*)'")
_NO_COLLECTIVE = ("send", "recv", "coalesced")
#: How torch calls the group of all ranks.
_ALL = "default_pg"
#: Operations that end on all ranks together.
_TOGETHER = ("all_reduce", "barrier", "all_gather", "all_gather_base", "reduce_scatter", "reduce_scatter_base")


@rule(name="host-stall-by-analysis", code="ST25", cause="host-stall", severity="critical", at_most=1, explains=_EXPLAINS)
def host_stall_by_analysis(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> Iterator[Finding]:
    """Ranks that are missing in a call and wait in no other."""
    rows = _first(reports, dumps).filter(pl.col("differs") == "missing")
    told = [(row, set(row["ranks"]), set(row["members"] or range(max(row["ranks"]) + 1))) for row in rows.iter_rows(named=True)]
    waiting = {rank for _, missing, members in told for rank in members - missing}
    fewer = {rank for _, missing, members in told if len(missing) * 2 < len(members) for rank in missing}
    halves = {rank for _, missing, members in told if len(missing) * 2 == len(members) for rank in missing} if len(told) == 1 else set()
    whole = _ALL in str(told[0][0]["detail"] or _ALL) if told else False
    ranks = tuple(sorted((fewer or (halves if whole else set())) - waiting))
    if ranks:
        row = next(row for row, missing, _ in told if missing & set(ranks))
        title = f"{ranks_words(ranks)} never came to {_position(row)}, which others of the group wait in"
        skipped = ("collective-skipped", ranks, "the analyzer does not say whether they left out an earlier call of the group")
        yield replace(_finding(rows.to_dicts(), ranks, title, "medium" if fewer else "low"), alternatives=(skipped,))


@rule(name="collective-skipped-by-analysis", code="CO23", cause="collective-skipped", severity="critical", at_most=8, explains=_SHIFTED)
def collective_skipped_by_analysis(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> Iterator[Finding]:
    """One finding per group in which what some ranks called is what the others call one position later: they run ahead by what they left
    out."""
    for row, odd, behind in _apart(reports, dumps):
        if behind:
            ranks = tuple(sorted(odd))
            yield _finding([row], ranks, f"{ranks_words(ranks)} skipped {_position(row)}: they called what the others call next", "medium")


@rule(name="collective-mismatch-by-analysis", code="CO20", cause="collective-mismatch", severity="critical", at_most=8, explains=_DIFFERENT)
def collective_mismatch_by_analysis(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> Iterator[Finding]:
    """One finding per group whose ranks called different collectives."""
    yield from _differing(reports, dumps, "op", "called another collective")


@rule(name="shape-mismatch-by-analysis", code="CO21", cause="shape-mismatch", severity="critical", at_most=8, explains=_DIFFERENT)
def shape_mismatch_by_analysis(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> Iterator[Finding]:
    """One finding per group whose ranks called a collective with other sizes."""
    yield from _differing(reports, dumps, "shape", "called it with other sizes")


@rule(name="dtype-mismatch-by-analysis", code="CO22", cause="dtype-mismatch", severity="critical", at_most=8, explains=_DIFFERENT)
def dtype_mismatch_by_analysis(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> Iterator[Finding]:
    """One finding per group whose ranks called a collective with other data types."""
    yield from _differing(reports, dumps, "dtype", "called it with another data type")


@rule(name="gpu-stall-by-analysis", code="GP10", cause="gpu-stall", severity="critical", at_most=8, explains=_EXPLAINS)
def gpu_stall_by_analysis(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> Iterator[Finding]:
    """Ranks that have not finished what the others of the group have, in an operation that ends on all together."""
    for row in _first(reports, dumps).filter((pl.col("differs") == "state") & pl.col("op").is_in(_TOGETHER)).iter_rows(named=True):
        _, completed, found = str(row["other_detail"] or "").partition("Expected state: 'completed' does not match found state: ")
        named = set(row["ranks"]) if completed and "completed" not in found else set()
        if named and len(named) * 2 < len(row["members"] or ()):
            ranks = tuple(sorted(named))
            yield _finding(
                [row],
                ranks,
                f"{ranks_words(ranks)} did not finish {_position(row)}, which the others of the group have finished",
                "medium",
            )


def _first(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> pl.DataFrame:
    """What the analyzer says of the first call of each group; nothing where dumps themselves are at hand."""
    said = reports.filter((pl.col("kind") == "recorder-analysis") & pl.col("ranks").list.len().gt(0)).sort("source_id", "line_no")
    if has_rows(dumps):
        said = said.head(0)
    plain = said.with_columns(op=op_word(pl.col("op"))).filter(~pl.col("op").str.split(" ").list.first().is_in(_NO_COLLECTIVE))
    once = plain.unique(["detail", "seq", "op", "ranks", "differs"], keep="first", maintain_order=True)
    return once.filter(pl.col("seq") == pl.col("seq").first().over("detail")).collect()


def _apart(reports: pl.LazyFrame, dumps: pl.LazyFrame | None) -> Iterator[tuple[dict[str, object], set[int], bool]]:
    """The first call of each group in which ranks did otherwise, with the fewer: those that the analyzer calls culprits, or else those that
    it took as right; none where they are as many. And whether the same ranks differ in the next call as well, in which the others do what
    they did here."""
    everything = reports.filter(pl.col("kind") == "recorder-analysis").collect()
    for row in _first(reports, dumps).filter(pl.col("differs").is_in(["op", "shape", "dtype"])).iter_rows(named=True):
        named, members = set(row["ranks"]), set(row["members"] or ())
        others = members - named
        following = everything.filter(pl.col("detail").eq_missing(row["detail"]) & (pl.col("seq") == row["seq"] + 1))
        pair = _PAIR.search(str(row["other_detail"] or ""))
        nexts = [_PAIR.search(str(r["other_detail"] or "")) for r in following.iter_rows(named=True) if set(r["ranks"] or ()) == named]
        odd = named if len(named) < len(others) else others if len(others) < len(named) else set()
        yield row, odd, odd == named and pair is not None and any(n is not None and n[1] == pair[2] for n in nexts)


def _differing(reports: pl.LazyFrame, dumps: pl.LazyFrame | None, differs: str, what: str) -> Iterator[Finding]:
    for row, odd, _ in _apart(reports, dumps):
        if row["differs"] == differs:
            ranks = tuple(sorted(odd))
            title = (
                f"{ranks_words(ranks)} {what} at {_position(row)}" if ranks else f"the ranks of a group do not agree at {_position(row)}"
            )
            words = f" ({row['other_detail']})" if row["other_detail"] else ""
            yield _finding([row], ranks, title + words, "medium" if ranks else "low")


def _position(row: dict[str, object]) -> str:
    group = f" of group {row['detail']}" if row["detail"] else ""
    return operation_words(row["op"], row["seq"]) + group


def _finding(rows: list[dict[str, Any]], ranks: tuple[int, ...], title: str, confidence: Confidence) -> Finding:
    first = rows[0]
    name, _, description = str(first["detail"] or "").partition(":")
    return Finding(
        title=title,
        summary="Said by torch's analyzer of Flight Recorder dumps; the dumps themselves were not handed in.",
        confidence=confidence,
        ranks=ranks,
        subject=(description or name, str(first["op"]), *map(str, ranks)),
        divergence=Divergence(name or None, None, first["seq"], first["op"]),
        evidence=cite(rows, "the analyzer's words"),
        evidence_total=len(rows),
        remedy="Look at what these ranks do there: the analyzer prints the stack of the call on a rank that came.",
        prevention="Keep the Flight Recorder dumps of all ranks (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1).",
        would_refute=("dumps in which these ranks hold the same call", "an earlier call that these ranks left out"),
        actions=(Action("collect-more", ranks=ranks),),
    )
