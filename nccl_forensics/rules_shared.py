"""What several argument rules say alike, from the ``divergences`` view."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Culprit, Divergence, Finding
from nccl_forensics.words import group_words, operation_words, ranks_words, verb


def argument_findings(divergences: pl.LazyFrame, kind: str, prevention: str) -> Iterator[Finding]:
    """One finding per group whose first divergence is in an argument of this kind (shape, dtype, argument)."""
    word = {"shape": "size", "dtype": "data type", "argument": "argument"}[kind]
    for row in divergences.filter(pl.col("kind") == kind).sort("domain", "group_key").collect().iter_rows(named=True):
        ranks, group = tuple(row["ranks"]), group_words(row)
        confidence: Confidence = "high" if row["sure"] else "low"
        site = row["call_site"] or row["peer_call_site"]
        yield Finding(
            title=f"{ranks_words(ranks)} called {operation_words(row['expected_op'], row['seq'])} of {group} with another {word}: "
            f"{row['found_detail']} against {row['expected_detail']}",
            summary=f"{row['why']}; {ranks_words(row['others'])} agree with each other." + (f" Called at {site}." if site else ""),
            confidence=confidence,
            ranks=ranks,
            culprits=tuple(Culprit(rank=r) for r in ranks),
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["expected_op"]), str(site or "")),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["expected_op"]),
            evidence=(
                *cite(
                    [{"source_id": row["source_id"], "line_no": row["line_no"], "record": row["record"]}],
                    f"{ranks_words(ranks[:1])}: {row['found_detail']}",
                ),
                *cite(
                    [{"source_id": row["peer_source_id"], "line_no": row["peer_line_no"], "record": row["peer_record"]}],
                    f"{ranks_words(row['others'][:1])}: {row['expected_detail']} at the same position",
                ),
            ),
            remedy=f"Give {row['expected_op']} the same {word} on every rank" + (f" at {site}." if site else "."),
            prevention=prevention,
            would_refute=("the majority is wrong and the named rank right (compare with an earlier step)",),
            actions=(Action("fix-code", ranks=ranks, confidence="high" if row["sure"] else "low"),),
            metrics={"position": row["seq"], "positions_that_differ": row["later_seqs"]},
        )


def stall_findings(
    stalls: pl.LazyFrame, cause: str, words: tuple[str, str], *, remedy: str, prevention: str, action: str
) -> Iterator[Finding]:
    """One finding for all ranks whose stall has this cause and these reasons alike, the surest first; ``words``: for one and for several."""
    rows = stalls.filter(pl.col("cause") == cause).sort("rank").collect()
    order: list[Confidence] = ["high", "medium", "low"]
    for confidence in order:
        part = rows.filter(pl.col("confidence") == confidence)
        if not part.height:
            continue
        ranks = tuple(part["rank"].to_list())
        first = part.row(0, named=True)
        waiters = sorted({w for ws in part["waiters"].to_list() for w in (ws or [])} - set(ranks))
        said = verb(ranks, *words)
        if part["own_source_id"].null_count() == part.height == part["stack_source_id"].null_count() and first["seen_by"] == "progress":
            said = "never came, and nothing in the evidence is " + verb(ranks, "its own", "their own")
        where = f" at {first['user_frame']}" if first["user_frame"] else ""
        waited = operation_words(first["op"], first["seq"]) if first["op"] else "them"
        group = f" of {group_words(first)}" if first["group_key"] else ""
        peers = (
            f"; {ranks_words(waiters)} {'waits' if len(waiters) == 1 else 'wait'} in {waited}{group}"
            if waiters
            else f" (missing in {waited}{group})"
        )
        evidence = [
            *cite(
                [
                    {"source_id": r["stack_source_id"], "line_no": r["stack_line_no"], "record": r["stack_record"]}
                    for r in part.iter_rows(named=True)
                ],
                f"stack of the stalled rank: {first['place']}",
            ),
            *cite(part.drop("why"), f"a waiting rank's {first['op']}" if waiters else "what names the rank"),
            *cite(
                [
                    {"source_id": r["own_source_id"], "line_no": r["own_line_no"], "record": r["own_record"]}
                    for r in part.iter_rows(named=True)
                ],
                "the stalled rank's own last operation in that group",
            ),
        ]
        yield Finding(
            title=f"{ranks_words(ranks)} {said}{where}{peers}",
            summary=f"{first['why']}." + (f" The others wait at {first['call_site']}." if first["call_site"] else ""),
            confidence=confidence,
            ranks=ranks,
            culprits=tuple(Culprit(rank=r) for r in ranks),
            subject=(
                str(first["user_frame"] or first["place"] or ""),
                str(first["group_desc"] or first["group_name"] or ""),
                str(first["op"] or ""),
            ),
            divergence=Divergence(first["group_name"], first["comm_id"], first["seq"], first["op"]) if first["group_key"] else None,
            evidence=tuple(evidence),
            remedy=remedy,
            prevention=prevention,
            would_refute=("two samples of this rank's stack that differ: then it moves",),
            actions=(Action(action, ranks=ranks, confidence=confidence),),
            metrics={"waiting_ranks": len(waiters)},
        )


def where_reported(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame) -> pl.DataFrame:
    """Error lines with the global ``rank`` of the process that wrote them, in the order of source and line."""
    people = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    joined = nccl_errors.join(people, on=["host", "pid"], how="left", nulls_equal=True)
    return (
        joined.with_columns(rank=pl.coalesce("rank", pl.when(pl.col("hint_scope") == "global").then(pl.col("hint_rank"))))
        .sort("source_id", "line_no")
        .collect()
    )


def hosts_of(rows: pl.DataFrame) -> tuple[str, ...]:
    """Distinct hosts, sorted."""
    return tuple(sorted({str(h) for h in rows["host"].to_list() if h}))


def ranks_of(rows: pl.DataFrame) -> tuple[int, ...]:
    """Distinct known ranks, sorted."""
    return tuple(sorted({int(r) for r in rows["rank"].to_list() if r is not None}))
