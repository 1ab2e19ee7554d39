"""What several argument rules say alike, from the ``divergences`` view."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Culprit, Divergence, Finding
from nccl_forensics.words import group_words, operation_words, ranks_words


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
                *cite([row], f"{ranks_words(ranks[:1])}: {row['found_detail']}"),
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
