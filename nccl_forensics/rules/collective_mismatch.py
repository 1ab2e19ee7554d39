"""At the same position of a group, ranks called different collectives.

## What it finds
A rank that calls another operation than its peers at the same sequence number, and is not merely ahead of them.

## Why it matters
The ranks wait for each other in operations that cannot meet: a hang, or wrong data where sizes happen to fit.

## What would refute it
The rank's later operations are those of its peers some positions later: then it skipped one. Whoever stands behind the last line of its
steps is told as one that left the loop; it may have made one call more at the end of a step.

## What to do next
Compare the two lines of user code. Look for a condition that differs between ranks or for two collectives in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.frames import has_rows, ranks_in
from nccl_forensics.model import Action, Confidence, Culprit, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import AGREE_ON_STEPS, COMPARE_CALLS
from nccl_forensics.rules.common.arguments import apart, certain, doubt_words
from nccl_forensics.rules.common.stalls import stall_findings
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.habits import by_company
from nccl_forensics.words import group_words, ranks_words


@rule(
    name="collective-mismatch",
    code="CO02",
    cause="collective-mismatch",
    severity="critical",
    at_most=16,
    explains=("timeout", "closed", "host-stall", "collective-stuck", "rank-died", "connection-failed", "group-deadlock"),
)
def collective_mismatch(
    divergences: pl.LazyFrame,
    last_calls: pl.LazyFrame | None = None,
    overtakers: pl.LazyFrame | None = None,
    left_loops: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Findings of differing operations, one per group. What DETAIL's exceptions tell of one position alone is a call left out, if their
    tracebacks stand in other functions, or what recorders tell of a first step; so is what a rank called only after work of another group
    to which no other has come, or behind the loop in which the others are."""
    ahead = ranks_in(overtakers)
    gone = {row["rank"]: row for row in left_loops.collect().iter_rows(named=True)} if left_loops is not None else {}
    odd = divergences.filter(pl.col("kind").is_in(["different", "extra"])).sort("domain", "group_key").collect()
    lines = _lines(last_calls)
    for found in odd.iter_rows(named=True):
        row = by_company(found, lines) if found["domain"] == "detail" else found
        ranks, group = tuple(as_ranks(row["ranks"])), group_words(row)
        either = bool(row.get("either"))
        left = not either and row["domain"] == "fr" and set(ranks) <= gone.keys()
        # Of as many on both sides nothing else tells who is right.
        either |= row["domain"] == "fr" and not (row["sure"] or left or set(ranks) <= ahead) and len(ranks) == len(as_ranks(row["others"]))
        confidence: Confidence = "low" if either else "high" if certain(row) and not left else "medium"
        frames = _frames(row, lines)
        own, theirs = row["call_site"] or _only(frames[0]), row["peer_call_site"] or _only(frames[1])
        places = [f"{who} at {site}" for who, site in ((ranks_words(ranks), own), ("peers", theirs)) if site]
        why = "Different functions: most likely it left the others' call out" + (
            "; DETAIL ended the job before its next." if row["domain"] == "detail" else ", and what comes after that is on nobody's record."
        )
        if left:
            passed, why = (
                True,
                f"It stands behind all lines of its steps in {gone[ranks[0]]['loop']}: most likely it left that loop before the others.",
            )
        elif confidence == "high" or either:
            passed = False
        elif set(ranks) <= ahead:
            passed, why = (
                True,
                "It came to this call after work of another group to which none of its peers has come: most likely it left theirs out.",
            )
        else:
            passed = (row["domain"] == "detail" or not row["sure"]) and apart(*frames)
        yield Finding(
            cause="collective-skipped" if passed else None,
            title=f"{ranks_words(ranks)} called {row['found_op']} where {ranks_words(row['others'])} called {row['expected_op']} "
            f"(#{row['seq']} of {group})",
            summary=f"Position {row['seq']} of {group}: {row['found_op']} against {row['expected_op']}{'' if passed else '; ' + row['why']}."
            + (f" ({'; '.join(places)})" if places else "")
            + (f" {why}" if passed else "")
            + (" As many called the one as the other, and nothing tells which is right." if either else "")
            + doubt_words(row),
            confidence=confidence,
            ranks=ranks,
            culprits=() if either else tuple(Culprit(rank=r) for r in ranks),
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["found_op"]), str(row["call_site"] or "")),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["expected_op"]),
            evidence=(
                *cite([whereabouts(row)], f"{ranks_words(ranks[:1])} calls {row['found_op']}"),
                *cite([whereabouts(row, "peer_")], f"{ranks_words(row['others'][:1])} calls {row['expected_op']} at the same position"),
            ),
            remedy=f"Make every rank of {group} call {row['expected_op']}{f' at {theirs}' if theirs else ''}, or none."
            if passed
            else f"Make all ranks of the group call the same operation in the same order{' at the two lines quoted' if own and theirs else ''}.",
            prevention=COMPARE_CALLS,
            would_refute=("the rank's next operations turn out to be those that its peers do later (then it skipped one)",),
            actions=(Action("fix-code", ranks=ranks, confidence=confidence, where=theirs if passed else own),),
            alternatives=(
                ("collective-mismatch", ranks, "it may have called that in place of the others' call")
                if passed
                else ("collective-skipped", ranks, "its next operations are not those that its peers do later"),
            ),
            metrics={"position": row["seq"]},
        )


def _lines(last_calls: pl.LazyFrame | None) -> dict[int, str]:
    """The line of the program in which each rank stood last."""
    if last_calls is None:
        return {}
    known = last_calls.filter(pl.col("rank").is_not_null() & pl.col("user_frame").is_not_null())
    return dict(known.select("rank", "user_frame").collect().iter_rows())


def _frames(row: Mapping[str, object], lines: Mapping[int, str]) -> tuple[set[str], set[str]]:
    """The lines of the program in which the odd ranks stood last, and those of the others, where the calls were compared by DETAIL; those of
    their calls where recorders hold them."""
    if row["domain"] == "fr":
        own, others = ({str(row[name])} if row[name] else set() for name in ("call_site", "peer_call_site"))
        return own, others
    if row["domain"] != "detail":
        return set(), set()
    own, others = ({lines[rank] for rank in as_ranks(row[side]) if rank in lines} for side in ("ranks", "others"))
    return own, others


def _only(frames: set[str]) -> str | None:
    return next(iter(frames)) if len(frames) == 1 else None


@rule(
    name="collective-mismatch-by-line",
    code="CO18",
    cause="collective-mismatch",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "collective-stuck", "connection-failed", "p2p-deadlock", "group-deadlock"),
)
def collective_mismatch_by_line(
    new_lines: pl.LazyFrame, divergences: pl.LazyFrame | None = None, stalls: pl.LazyFrame | None = None
) -> Iterator[Finding]:
    """Few ranks that stand where nobody has called before, while all others stand in calls of the steps before, and recorders show no group
    that parts, nor that the call is one of each step in a branch of its own."""
    if has_rows(divergences):
        return
    branched = (pl.col("cause") == "group-deadlock") & (pl.col("alternative") == "collective-skipped")
    other_order = stalls.filter(branched).select("rank").collect()["rank"].to_list() if stalls is not None else []
    for row in new_lines.filter(~pl.col("rank").is_in(other_order)).collect().iter_rows(named=True):
        ranks, others = (row["rank"],), row["others"]
        confidence: Confidence = "low" if row["in_pairs"] else "medium"
        yield Finding(
            title=f"{ranks_words(ranks)} went on to {row['op']} at {row['call_site']}, where no rank had been before; {ranks_words(others)} wait in calls of their steps",
            summary=f"{ranks_words(others[:1])} waits in {row['waits_in']} at {row['waits_at']}, as in the steps before. {ranks_words(ranks)} left its steps (less "
            "data, a break), or made a call that the others do not make.",
            confidence=confidence,
            ranks=ranks,
            subject=("line", str(row["op"]), str(row["call_site"])),
            evidence=(
                *cite([whereabouts(row, "own_")], f"{ranks_words(ranks)} stands here"),
                *cite([row], f"{ranks_words(others[:1])} waits here"),
            ),
            remedy=f"Look for what brings {ranks_words(ranks)} to {row['call_site']} before the others: the length of its data, a branch on the rank.",
            prevention=AGREE_ON_STEPS,
            would_refute=("the others were to come to that line next, and something else holds them up",),
            actions=(Action("fix-code", ranks=ranks, confidence=confidence, where=row["call_site"]),),
            alternatives=(("collective-skipped", ranks, "it would have left out what the others wait in"),),
        )


@rule(
    name="collective-mismatch-by-traceback",
    code="CO09",
    cause="collective-mismatch",
    severity="critical",
    at_most=4,
    explains=("timeout", "closed", "host-stall", "collective-stuck", "rank-died", "connection-failed", "group-deadlock"),
)
def collective_mismatch_by_traceback(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks whose stack or traceback stands in another collective than that of all others, where no recorder tells the order."""
    yield from stall_findings(
        stalls,
        "collective-mismatch",
        ("stands in another collective than its peers", "stand in another collective than their peers"),
        remedy="Make all ranks call the same operation in the same order at the two lines quoted.",
        prevention="Keep the Flight Recorder on and dump it on a timeout: it tells a skipped call from another one.",
        action="fix-code",
    )
