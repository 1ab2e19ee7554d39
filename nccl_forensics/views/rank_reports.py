"""What the framework says about ranks, with ranks of the job in place of ranks within a process group.

A comparison of calls under DETAIL, a monitored barrier and DDP's reducer print the rank that their group knows a process by (``getRank()``
in torch 2.13 c10d/ProcessGroupWrapper.cpp, ProcessGroupGloo.cpp and reducer.cpp). In the group of all ranks that is the rank of the job; in
any other group the same number is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from nccl_forensics.values.ranklist import as_ranks, unfold
from nccl_forensics.views import view
from nccl_forensics.words import UNIDENTIFIED

#: What a process says of itself, by the number that its group knows it by.
_OWN = ("fingerprint", "detail-mismatch", "ddp-unused")
#: Lines with a number of a call.
_COMPARED = ("fingerprint", "detail-mismatch")
#: A monitored barrier speaks on the first rank of its group.
_BARRIER = "barrier-missing"
_SAID = ("kind", "rank", "ranks", "seq", "op", "other_op", "detail")


@view(rows="operations")
def rank_reports(
    reports: pl.LazyFrame, source_ranks: pl.LazyFrame | None, fr_groups: pl.LazyFrame | None, raised: pl.LazyFrame | None = None
) -> pl.LazyFrame:
    """``reports`` with ``rank`` and ``ranks`` as ranks of the job, and ``in_subgroup``, whether the line is about a group of some ranks
    only: the rank that its process is otherwise known by is not the one that it prints. ``ranks`` is null where neither the recorders'
    lists of groups nor what the others print says who is meant. Processes that are known by nothing else and compare calls without some
    ranks of the job stand for nobody's rank. ``seq`` is the number that recorders and watchdogs give to the call: the ``SequenceNumber`` of a
    fingerprint counts the calls before it (torch 2.13 c10d/ProcessGroupWrapper.cpp). ``number`` is what the line prints: the number by which
    the group knows its process."""
    reports = _with_who_raised(reports, raised)
    recorded = pl.when(pl.col("kind").is_in(_COMPARED)).then(pl.col("seq") + 1).otherwise("seq")
    plain = _strangers(reports.with_columns(in_subgroup=pl.lit(False), seq=recorded, number="rank"), source_ranks, fr_groups)
    if source_ranks is None:
        return plain
    known = source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", of_source="rank")
    home = pl.when(pl.col("hint_scope") == "global").then("hint_rank").otherwise("of_source")
    placed = plain.join(known, on="source_id", how="left").with_columns(home=home).drop("of_source")
    own, barrier = pl.col("kind").is_in(_OWN), pl.col("kind") == _BARRIER
    own &= pl.col("rank").fill_null(0) < UNIDENTIFIED
    elsewhere = (own & (pl.col("rank") != pl.col("home"))) | (barrier & (pl.col("home") != 0))
    apart = placed.filter(elsewhere).select("source_id").unique().collect()
    if not apart.height:
        return plain
    printed = placed.filter(pl.col("kind") == "fingerprint").with_columns(there=pl.col("source_id").is_in(apart["source_id"].implode()))
    printed = printed.with_columns(
        rank=pl.when("there").then("home").otherwise("rank"), in_subgroup=pl.col("there") & pl.col("home").is_not_null()
    ).drop("there")
    told = placed.filter((own | barrier) & (pl.col("kind") != "fingerprint")).collect()
    lines = placed.filter((pl.col("kind") == "fingerprint") & pl.col("home").is_not_null())
    complete = _all_print(lines, known)
    running, absent = _runners(lines, told) if complete else {}, _absent(lines, told, complete=complete)
    meant = pl.DataFrame(_meant(told.rows(named=True), _groups(fr_groups), running, absent), schema=told.schema)
    rest = placed.filter(~(own | barrier).fill_null(False))
    return pl.concat([rest, printed, meant.lazy()]).drop("home")


def _with_who_raised(reports: pl.LazyFrame, raised: pl.LazyFrame | None) -> pl.LazyFrame:
    """Lines that nothing else places, in an exception of which the launcher says whose it is, are that rank's."""
    if raised is None:
        return reports
    told = raised.filter(pl.col("rank").is_not_null() & (pl.col("hint_scope") == "local")).select("source_id", "line_no", who="rank")
    known = reports.join(told.unique(["source_id", "line_no"]), on=["source_id", "line_no"], how="left")
    unplaced = pl.col("hint_rank").is_null() & pl.col("who").is_not_null()
    return known.with_columns(
        hint_rank=pl.when(unplaced).then("who").otherwise("hint_rank"),
        hint_scope=pl.when(unplaced).then(pl.lit("global")).otherwise("hint_scope"),
    ).drop("who")


def _strangers(reports: pl.LazyFrame, source_ranks: pl.LazyFrame | None, fr_groups: pl.LazyFrame | None) -> pl.LazyFrame:
    """Comparisons in which no speaker is known by more than what it prints, and not all ranks of the job take part: that may be a group of
    some."""
    known = pl.LazyFrame(schema={"source_id": pl.UInt32()}) if source_ranks is None else source_ranks.filter(pl.col("rank").is_not_null())
    compared = (pl.col("kind") == "detail-mismatch") & pl.col("seq").is_not_null() & pl.col("rank").is_not_null()
    named = pl.col("hint_scope").eq_missing("global") & pl.col("hint_rank").is_not_null()
    told = reports.with_columns(named=named | pl.col("source_id").is_in(known.select("source_id").collect()["source_id"].implode()))
    lines = told.filter(compared).select("source_id", "seq", "rank", "ranks", "named").collect()
    if not lines.height or lines["named"].all():
        return reports
    # The numbers of the comparison itself do not tell how many ranks the job has: a few lines of a log may be all there is.
    others = reports.filter(~compared.fill_null(False)).select("rank", "hint_rank", pl.col("ranks").list.max()).max().collect()
    highest = [-1, *(int(str(n)) for n in others.row(0) if n is not None)]
    if source_ranks is not None:
        highest += known.select("rank").collect()["rank"].to_list()
    if fr_groups is not None:
        highest += [max(unfold(text)) for text in fr_groups.select("ranks").drop_nulls().unique().collect()["ranks"].to_list() if text]
    apart = []
    for (seq,), part in lines.group_by("seq", maintain_order=True):
        taking = {*part["rank"], *(r for others in part["ranks"].drop_nulls().to_list() for r in others)}
        if not part["named"].any() and len(taking) <= max(highest):
            apart.append(seq)
    here = compared & pl.col("seq").is_in(apart)
    number = (UNIDENTIFIED + pl.col("source_id").cast(pl.Int32)).cast(pl.Int32)
    return reports.with_columns(
        rank=pl.when(here).then(number).otherwise("rank"),
        ranks=pl.when(~here.fill_null(False)).then("ranks"),
        in_subgroup=pl.col("in_subgroup") | here.fill_null(False),
    )


#: Rank within a group and rank of the job -> the members of the groups in which both are one process, in the order of their ranks within
#: the group.
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


#: In one call, by the number that a group knows a speaker by, who it is. Several groups may make calls of one number.
_Speakers = Mapping[object, set[object]]


def _all_print(lines: pl.LazyFrame, known: pl.LazyFrame) -> bool:
    """Whether every rank of the job prints its calls: one that does not may be whoever is meant."""
    homes = lines.select(pl.col("home").unique()).collect()["home"]
    return homes.len() > int(max([-1, *known.select("of_source").collect()["of_source"].to_list()]))


def _absent(lines: pl.LazyFrame, told: pl.DataFrame, *, complete: bool) -> Mapping[tuple[object, object], Sequence[int] | None]:
    """Whom a barrier misses that DETAIL holds before a call of some ranks, by source and line; None where that may be several, or where
    not every rank prints its calls.

    The first rank of the group printed that call just before. Whoever else printed it came, and where none of these is known there by its
    rank of the job, the number that is missed is not such a rank either: it is one of those that were known by it before and did not come.
    """
    found: dict[tuple[object, object], Sequence[int] | None] = {}
    missed = told.filter((pl.col("kind") == _BARRIER) & pl.col("home").is_not_null())
    if missed.is_empty():
        return found
    rows = lines.select("source_id", "line_no", "home", "rank", "seq", "op", "detail").collect()
    by_number = rows.group_by("rank").agg(pl.col("home").unique())
    known_by = {number: set(homes) for number, homes in by_number.iter_rows()}
    for row in missed.iter_rows(named=True):
        own = rows.filter((pl.col("source_id") == row["source_id"]) & (pl.col("line_no") < row["line_no"])).sort("line_no").tail(1)
        came = rows.join(own, on=["seq", "op", "detail"], how="semi", nulls_equal=True).filter(pl.col("home") != row["home"])
        if own.is_empty() or (came["rank"] == came["home"]).any():
            continue
        meant = [known_by.get(number, set()) - {row["home"], *came["home"]} for number in as_ranks(row["ranks"])]
        if all(meant):
            found[row["source_id"], row["line_no"]] = (
                [next(iter(one)) for one in meant] if complete and all(len(one) == 1 for one in meant) else None
            )
    return found


def _runners(lines: pl.LazyFrame, told: pl.DataFrame) -> Mapping[tuple[object, ...], int]:
    """The only process that says of itself what a comparison says of the other: its number within the group, the number of the call, and the
    call."""
    calls = told.filter(pl.col("kind") == "detail-mismatch")["seq"].drop_nulls().unique()
    if not calls.len():
        return {}
    same = ("rank", "seq", "op", "detail")
    rows = (
        lines.filter(pl.col("seq").is_in(calls.implode()))
        .group_by(same)
        .agg(pl.col("home").unique())
        .filter(pl.col("home").list.len() == 1)
    )
    return {(row["rank"], row["seq"], row["op"], row["detail"]): row["home"][0] for row in rows.collect().iter_rows(named=True)}


def _meant(
    rows: Sequence[Mapping[str, object]],
    groups: _Groups,
    running: Mapping[tuple[object, ...], int],
    absent: Mapping[tuple[object, object], Sequence[int] | None],
) -> list[dict[str, object]]:
    """These lines with ranks of the job. A copy of a line in a file of no rank says the same as the line."""
    calls: dict[object, dict[object, set[object]]] = {}
    for row in rows:
        if row["kind"] == "detail-mismatch" and row["home"] is not None:
            calls.setdefault(row["seq"], {}).setdefault(row["rank"], set()).add(row["home"])
    found: dict[tuple[object, ...], dict[str, object]] = {}
    out: list[dict[str, object]] = []
    for row in sorted(rows, key=lambda row: row["home"] is None):
        # The logger's prefix is not in every copy.
        said = tuple(str(row[name]) for name in _SAID if name != "rank" or row["kind"] != _BARRIER)
        speakers = calls.get(row["seq"], {}) if row["kind"] == "detail-mismatch" else {}
        if row["home"] is None:
            new = found.get(said, dict(_NOBODY) if _apart(speakers) else {})
        else:
            new = _told(row, groups, speakers)
            alone = running.get((next(iter(as_ranks(row["ranks"])), None), row["seq"], row["other_op"], row["other_detail"]))
            if new and new["ranks"] is None and alone is not None and len(as_ranks(row["ranks"])) == 1:
                new |= {"ranks": [alone]}
            if (at := (row["source_id"], row["line_no"])) in absent:
                new = {"ranks": absent[at], "in_subgroup": True}
            if new:
                # Several groups may say the same: then a copy tells of none of them.
                found[said] = new if found.get(said, new) == new else dict(_NOBODY)
        out.append({**row, **new})
    return out


_NOBODY = {"rank": None, "ranks": None, "in_subgroup": True}


def _apart(speakers: _Speakers) -> bool:
    """Whether somebody speaks in this call under another number than its rank: then it is one of a group of some ranks."""
    return any(homes != {number} for number, homes in speakers.items())


def _told(row: Mapping[str, object], groups: _Groups, speakers: _Speakers) -> dict[str, object]:
    """What is otherwise in one line, if it is about a group of some ranks."""
    at = 0 if row["kind"] == _BARRIER else row["rank"]
    others = as_ranks(row["ranks"])
    if at is None:
        return {}
    if row["kind"] == "ddp-unused":
        return {"rank": row["home"], "ranks": [row["home"]], "in_subgroup": True} if at != row["home"] else {}
    if at == row["home"] and not _apart(speakers):
        return {}
    certain = {number: next(iter(homes)) for number, homes in speakers.items() if len(homes) == 1}
    if at in certain and others and all(other in certain for other in others):
        meant = {tuple(int(str(certain[other])) for other in others)}
    else:
        meant = {
            tuple(g[r] for r in others)
            for g in groups.get((at, row["home"]), ())
            if len(g) > max(others, default=0) and _agrees(g, certain)
        }
    own = {"rank": row["home"]} if row["kind"] != _BARRIER else {}
    return {**own, "ranks": list(meant.pop()) if len(meant) == 1 else None, "in_subgroup": True}


def _agrees(members: Sequence[int], certain: Mapping[object, object]) -> bool:
    """Whether a group knows all speakers by the numbers that they speak under."""
    return all(isinstance(number, int) and number < len(members) and members[number] == home for number, home in certain.items())
