"""The first operation in which the ranks parted, for verdicts whose rule tells of a rank and not of a collective: a death, a fault of a GPU."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Divergence, Finding, blamed_by

#: Ends of the walk over all waits at which a rank has not entered what the others wait in.
_NOT_IN = ("behind", "unseen")


def parting(
    finding: Finding,
    blockers: pl.LazyFrame | None,
    progress: pl.LazyFrame | None,
    groups: pl.LazyFrame | None,
    endings: pl.LazyFrame | None,
) -> Divergence | None:
    """What the finding itself tells, else the collective that others wait in, or had open at their end, and a culprit of a stop never
    entered."""
    ranks = sorted({culprit.rank for culprit in blamed_by(finding) if culprit.rank is not None})
    if finding.divergence is not None or finding.severity != "critical" or not ranks:
        return finding.divergence
    found = _awaited(blockers, ranks) if blockers is not None else None
    if found is None and progress is not None and groups is not None:
        found = _left_open(progress, groups, endings, ranks)
    return found


def _awaited(blockers: pl.LazyFrame, ranks: list[int]) -> Divergence | None:
    """What most ranks wait in for one of ``ranks``."""
    rows = (
        blockers.filter(pl.col("rank").is_in(ranks) & pl.col("kind").is_in(list(_NOT_IN)) & pl.col("seq").is_not_null())
        .sort(pl.col("waiters").list.len(), "seq", "rank", descending=[True, False, False])
        .select("group_name", "comm_id", "seq", "op")
        .head(1)
        .collect()
    )
    return Divergence(*rows.row(0)) if rows.height else None


def _left_open(progress: pl.LazyFrame, groups: pl.LazyFrame, endings: pl.LazyFrame | None, ranks: list[int]) -> Divergence | None:
    """Of groups with one of ``ranks`` the first collective that recorders of other members hold as not completed, or as the last before they
    failed for the loss of a peer (gloo takes what failed for done), if none of ``ranks`` is known to have entered it; of several groups the
    one in which most ranks stood so."""
    lost = endings.filter(pl.col("kind") == "victim").select("rank").collect()["rank"].to_list() if endings is not None else []
    key = ["domain", "group_key"]
    shared = groups.filter(pl.col("members").list.eval(pl.element().is_in(ranks)).list.any()).select(*key, "group_name", "comm_id")
    mine, failed = pl.col("rank").is_in(ranks), pl.col("rank").is_in(lost)
    rows = (
        progress.filter(pl.col("domain") == "fr")
        .join(shared, on=key, how="inner")
        .with_columns(
            at=pl.when(pl.col("first_pending").is_not_null()).then("first_pending").when(failed).then("last_seq"),
            op=pl.when(pl.col("first_pending").is_not_null()).then("pending_op").otherwise("last_op"),
            entered=pl.col("last_seq").filter(mine).max().over(key),
        )
        .filter(~mine & pl.col("at").is_not_null() & (pl.col("entered").is_null() | (pl.col("entered") < pl.col("at"))))
        .group_by(*key, "group_name", "comm_id", "at")
        .agg(n=pl.len(), op=pl.col("op").drop_nulls().mode().sort().first())
        .sort("n", "at", "group_key", descending=[True, False, False])
        .select("group_name", "comm_id", "at", "op")
        .head(1)
        .collect()
    )
    return Divergence(*rows.row(0)) if rows.height else None
