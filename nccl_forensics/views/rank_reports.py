"""What the framework says about ranks, with ranks of the job in place of ranks within a process group.

A comparison of calls under DETAIL, a monitored barrier and DDP's reducer print the rank that their group knows a process by (``getRank()`` in torch 2.13
c10d/ProcessGroupWrapper.cpp, ProcessGroupGloo.cpp and reducer.cpp). In the group of all ranks that is the rank of the job; in any other group
the same number is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from nccl_forensics.ranklist import as_ranks, unfold
from nccl_forensics.views import view

#: What a process says of itself, by the number that its group knows it by.
_OWN = ("fingerprint", "detail-mismatch", "ddp-unused")
#: A monitored barrier speaks on the first rank of its group.
_BARRIER = "barrier-missing"
_SAID = ("kind", "rank", "ranks", "seq", "op", "other_op", "detail")


@view(rows="operations")
def rank_reports(reports: pl.LazyFrame, source_ranks: pl.LazyFrame | None, fr_groups: pl.LazyFrame | None) -> pl.LazyFrame:
    """``reports`` with ``rank`` and ``ranks`` as ranks of the job, and ``in_subgroup``, whether the line is about a group of some ranks only: the rank that its
    process is otherwise known by is not the one that it prints. ``ranks`` is null where neither the recorders' lists of groups nor what the others
    print says who is meant."""
    plain = reports.with_columns(in_subgroup=pl.lit(False))
    if source_ranks is None:
        return plain
    known = source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", of_source="rank")
    home = pl.when(pl.col("hint_scope") == "global").then("hint_rank").otherwise("of_source")
    placed = plain.join(known, on="source_id", how="left").with_columns(home=home).drop("of_source")
    own, barrier = pl.col("kind").is_in(_OWN), pl.col("kind") == _BARRIER
    elsewhere = (own & (pl.col("rank") != pl.col("home"))) | (barrier & (pl.col("home") != 0))
    apart = placed.filter(elsewhere).select("source_id").unique().collect()
    if not apart.height:
        return plain
    printed = placed.filter(pl.col("kind") == "fingerprint").with_columns(there=pl.col("source_id").is_in(apart["source_id"].implode()))
    printed = printed.with_columns(
        rank=pl.when("there").then("home").otherwise("rank"), in_subgroup=pl.col("there") & pl.col("home").is_not_null()
    ).drop("there")
    told = placed.filter((own | barrier) & (pl.col("kind") != "fingerprint")).collect()
    meant = pl.DataFrame(_meant(told.rows(named=True), _groups(fr_groups)), schema=told.schema)
    rest = placed.filter(~(own | barrier).fill_null(False))
    return pl.concat([rest, printed, meant.lazy()]).drop("home")


#: Rank within a group and rank of the job -> the members of the groups in which both are one process, in the order of their ranks within the group.
_Groups = Mapping[tuple[object, object], Sequence[Sequence[int]]]


def _groups(fr_groups: pl.LazyFrame | None) -> _Groups:
    """The groups that recorders list."""
    found: dict[tuple[object, object], list[list[int]]] = {}
    if fr_groups is not None:
        for text in fr_groups.select("ranks").drop_nulls().unique().sort("ranks").collect()["ranks"].to_list():
            members = unfold(text)
            for place, rank in enumerate(members):
                found.setdefault((place, rank), []).append(members)
    return found


def _meant(rows: Sequence[Mapping[str, object]], groups: _Groups) -> list[dict[str, object]]:
    """These lines with ranks of the job. A copy of a line in a file of no rank says the same as the line."""
    speakers: dict[tuple[object, object], set[object]] = {}
    for row in rows:
        if row["kind"] == "detail-mismatch" and row["home"] is not None:
            speakers.setdefault((row["seq"], row["rank"]), set()).add(row["home"])
    found: dict[tuple[object, ...], dict[str, object]] = {}
    out: list[dict[str, object]] = []
    for row in sorted(rows, key=lambda row: row["home"] is None):
        said = tuple(str(row[name]) for name in _SAID)
        new = found.get(said, {}) if row["home"] is None else _told(row, groups, speakers)
        if new and row["home"] is not None:
            # Several groups may say the same: then a copy tells of none of them.
            found[said] = new if found.get(said, new) == new else {"rank": None, "ranks": None, "in_subgroup": True}
        out.append({**row, **new})
    return out


def _told(row: Mapping[str, object], groups: _Groups, speakers: Mapping[tuple[object, object], set[object]]) -> dict[str, object]:
    """What is otherwise in one line, if it is about a group of some ranks."""
    at = 0 if row["kind"] == _BARRIER else row["rank"]
    others = as_ranks(row["ranks"])
    if at is None:
        return {}
    if row["kind"] == "ddp-unused":
        return {"rank": row["home"], "ranks": [row["home"]], "in_subgroup": True} if at != row["home"] else {}
    homes = [speakers.get((row["seq"], other), set()) for other in others] if row["kind"] == "detail-mismatch" else []
    if at == row["home"] and all(known <= {other} for known, other in zip(homes, others, strict=False)):
        return {}
    fitting = {tuple(g[r] for r in others) for g in groups.get((at, row["home"]), ()) if len(g) > max(others, default=0)}
    if homes and all(len(known) == 1 for known in homes):
        fitting = {tuple(int(str(next(iter(known)))) for known in homes)}
    own = {"rank": row["home"]} if row["kind"] != _BARRIER else {}
    return {**own, "ranks": list(fitting.pop()) if len(fitting) == 1 else None, "in_subgroup": True}
