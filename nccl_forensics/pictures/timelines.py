"""Groups around their first divergence, and who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from nccl_forensics.extras import Cell, CellState, GroupTimeline, Motion, TimelineRow, Wait
from nccl_forensics.views import Resolver
from nccl_forensics.views.calls import UNEVEN
from nccl_forensics.words import UNIDENTIFIED, group_words

_AROUND, _ROWS, _GROUPS, _WAITS = 4, 48, 4, 200
_NO_EVIDENCE: CellState = "unknown"


def timelines(resolver: Resolver, paths: Mapping[int, str], verdict: Mapping[str, object] | None = None) -> tuple[GroupTimeline, ...]:
    """The group in which the verdict sees the culprits part, then the others that part; else those in which somebody is waited for."""
    operations = resolver.get("operations")
    if operations is None:
        return ()
    focus: list[dict[str, object]] = []
    divergences = resolver.get("divergences")
    if divergences is not None:
        focus += list(divergences.collect().head(_GROUPS).iter_rows(named=True))
    blockers = resolver.get("blockers")
    if blockers is not None and not focus:
        rows = blockers.filter(pl.col("seq").is_not_null() & ~pl.col("op").is_in(["send", "recv"])).collect()
        focus += list(rows.unique("group_key", keep="first", maintain_order=True).head(_GROUPS).iter_rows(named=True))
    members_of = _members(resolver)
    named = _of_the_verdict(resolver, verdict or {}, members_of)
    if named is not None:
        drawn = _timeline(named, operations, members_of, paths, _who_went_on(verdict or {}))
        if drawn is not None and _parted(drawn):
            others = [r for r in focus if (r["domain"], r["group_key"]) != (named["domain"], named["group_key"])]
            return (drawn, *_all_of(others[: _GROUPS - 1], operations, members_of, paths))
    return _all_of(focus, operations, members_of, paths)


def _all_of(
    focus: Sequence[Mapping[str, object]],
    operations: pl.LazyFrame,
    members_of: Mapping[tuple[str, str], list[int]],
    paths: Mapping[int, str],
) -> tuple[GroupTimeline, ...]:
    return tuple(t for row in focus if (t := _timeline(row, operations, members_of, paths)) is not None)


def _of_the_verdict(resolver: Resolver, verdict: Mapping[str, object], groups: Iterable[tuple[str, str]]) -> dict[str, object] | None:
    """Where a rank that the verdict blames is seen to part at the collective that the verdict names."""
    at = verdict.get("first_divergence")
    stalls = resolver.get("stalls")
    if stalls is None or not isinstance(at, Mapping) or at.get("seq") is None:
        return None
    found = stalls.filter(
        pl.col("rank").is_in(_blamed(verdict)),
        pl.col("seq") == at["seq"],
        pl.col("op").eq_missing(at["op"]),
        pl.col("group_name").eq_missing(at["process_group"]),
        pl.col("comm_id").eq_missing(at["comm_id"]),
    ).head(1)
    # Operations are not asked for the domain: there may be millions of them.
    known = pl.LazyFrame(list(groups), schema={"domain": pl.String, "group_key": pl.String}, orient="row")
    return next(found.join(known, on="group_key").head(1).collect().iter_rows(named=True), None)


def _blamed(verdict: Mapping[str, object]) -> list[int]:
    culprits = verdict.get("culprits")
    return [c["rank"] for c in culprits if c["rank"] is not None] if isinstance(culprits, list) else []


def _who_went_on(verdict: Mapping[str, object]) -> list[int]:
    """Ranks whose later calls bear the number of the one that they left out: each process counts its own calls."""
    return _blamed(verdict) if verdict.get("cause") == "collective-skipped" else []


def _parted(drawn: GroupTimeline) -> bool:
    """Whether ranks differ at the place of the divergence."""
    at = drawn.columns.index(drawn.first_divergence) if drawn.first_divergence in drawn.columns else None
    return at is not None and len({row.cells[at].state for row in drawn.rows} - {_NO_EVIDENCE}) > 1


def _members(resolver: Resolver) -> dict[tuple[str, str], list[int]]:
    groups = resolver.get("groups")
    if groups is None:
        return {}
    rows = groups.select("domain", "group_key", "members").collect()
    return {(d, k): list(m or []) for d, k, m in rows.iter_rows()}


def _timeline(
    row: Mapping[str, object],
    operations: pl.LazyFrame,
    members_of: Mapping[tuple[str, str], list[int]],
    paths: Mapping[int, str],
    went_on: Sequence[int] = (),
) -> GroupTimeline | None:
    at = int(str(row["seq"]))
    key = (str(row["domain"]), str(row["group_key"]))
    near = (
        operations.filter((pl.col("domain") == key[0]) & (pl.col("group_key") == key[1]) & ~pl.col("is_p2p") & pl.col("rank").is_not_null())
        .filter(pl.col("seq").is_between(at - _AROUND, at + _AROUND))
        .select("rank", "seq", "op", "shape", "dtype", "call_site", "done", "source_id", "line_no", "record")
        .with_columns(
            text=pl.concat_str([pl.when(pl.col(c) != "").then(c) for c in ("op", "shape", "dtype")], separator=" ", ignore_nulls=True)
        )
        .sort("rank", "seq")
        .collect()
    )
    if not (near["rank"] < UNIDENTIFIED).any():
        return None
    # An entry with that number which is not done is the call behind the one that was left out.
    later = set(near.filter(pl.col("rank").is_in(list(went_on)) & (pl.col("seq") == at) & ~pl.col("done").fill_null(value=False))["rank"])
    cells: dict[int, dict[int, dict[str, object]]] = {}
    for r in near.iter_rows(named=True):
        place = r["seq"] + (r["rank"] in later and r["seq"] >= at)
        cells.setdefault(r["rank"], {})[place] = r
    columns = tuple(sorted(set().union(*cells.values())))
    usual: dict[int, str] = {}
    for column in columns:
        _without_sizes([own[column] for own in cells.values() if column in own], everywhere=column != at)
        counts = Counter(str(own[column]["text"]) for own in cells.values() if column in own)
        usual[column] = max(counts, key=lambda t: (counts[t], t))
    folded: dict[tuple[tuple[str, str | None, CellState], ...], list[int]] = {}
    for rank in sorted(r for r in set(cells) | set(members_of.get(key, [])) if r < UNIDENTIFIED):
        own = cells.get(rank, {})
        # What a rank entered before the first entry that is kept of it is not known.
        kept = min(own, default=None)
        signature = tuple(("", None, _NO_EVIDENCE) if kept is None or c < kept else _state(own.get(c), usual[c], c, at) for c in columns)
        folded.setdefault(signature, []).append(rank)
    rows = []
    for signature, ranks in sorted(folded.items(), key=lambda item: item[1][0]):
        own = cells.get(ranks[0], {})
        line = []
        for column, (text, site, state) in zip(columns, signature, strict=True):
            cite = own.get(column, {})
            source, number, record = cite.get("source_id"), cite.get("line_no"), cite.get("record")
            path = paths.get(int(str(source))) if source is not None else None
            line.append(
                Cell(text, state, path, int(str(number)) if number is not None else None, str(record) if record is not None else None, site)
            )
        rows.append(TimelineRow(tuple(ranks), tuple(line)))
    return GroupTimeline(
        group=group_words(row),
        columns=columns,
        rows=tuple(rows[:_ROWS]),
        desc=str(row["group_desc"]) if row.get("group_desc") else None,
        comm_id=str(row["comm_id"]) if row.get("comm_id") else None,
        size=len(members_of.get(key, [])) or None,
        first_divergence=at,
        moved=tuple(sorted(later)),
    )


def _without_sizes(same: Sequence[dict[str, object]], *, everywhere: bool) -> None:
    """One operation whose sizes may rightly differ between ranks (all-to-all, gathers) is one and the same, and ``everywhere`` each other
    one too."""
    ops = {str(r["op"]) for r in same}
    if len(ops) == 1 and (everywhere or ops <= set(UNEVEN)) and len({r["text"] for r in same}) > 1:
        for r in same:
            r["text"] = str(r["op"])


def _state(own: Mapping[str, object] | None, usual: str, column: int, at: int) -> tuple[str, str | None, CellState]:
    """(operation, line of code, state); the line of code at the divergence alone, where it tells most and cannot split classes apart."""
    if own is None:
        return "", None, "missing"
    text = str(own["text"])
    site = str(own["call_site"]) if own["call_site"] and column == at else None
    if text != usual and column >= at:
        return text, site, "diverged"
    if own["done"] is True or (column < at and own["done"] is not False):
        return text, site, "completed"
    return text, site, "waiting"


_WHY = {
    "behind": "its own evidence ends before this operation",
    "unseen": "no evidence of it in this group",
    "p2p": "no matching send or receive was posted",
    "gpu": "its GPU has not finished what the peers finished",
}


def waits(resolver: Resolver) -> tuple[Wait, ...]:
    """Edges between ranks, those alike folded."""
    frame = resolver.get("waits")
    if frame is None:
        return ()
    folded = (
        frame.group_by("group_key", "group_name", "group_desc", "comm_id", "kind", "awaited", "seq", "op")
        .agg(pl.col("waiter").unique().sort())
        .group_by("group_key", "group_name", "group_desc", "comm_id", "kind", "seq", "op", "waiter")
        .agg(pl.col("awaited").unique().sort())
        .sort("group_key", "seq", pl.col("awaited").list.first(), "kind", "op", pl.col("waiter").list.first(), nulls_last=True)
        .collect()
    )
    return tuple(
        Wait(tuple(r["waiter"]), tuple(r["awaited"]), group_words(r), r["op"], r["seq"], _WHY.get(r["kind"], str(r["kind"])))
        for r in folded.head(_WAITS).iter_rows(named=True)
    )


def motions(resolver: Resolver, paths: Mapping[int, str]) -> tuple[Motion, ...]:
    """Ranks that move or stand for the same reason are one row; those that stand longest first."""
    frame = resolver.get("motion")
    if frame is None:
        return ()
    folded = (
        frame.sort("rank")
        .group_by("motion", "why", "timeout_ms", maintain_order=True)
        .agg(
            pl.col("rank"),
            pl.col("since_ns").min().alias("since"),
            pl.col("since_ns").max().alias("until"),
            pl.col("waited_ms").max(),
            pl.col("source_id", "line_no", "record").first(),
        )
        .sort(pl.col("motion").replace_strict({"stuck": 0, "moving": 1}, default=2), "since", "why", nulls_last=True)
        .collect()
    )
    return tuple(
        Motion(
            tuple(r["rank"]), r["motion"], r["why"], r["since"], r["until"], r["timeout_ms"], r["waited_ms"],
            paths.get(r["source_id"]), r["line_no"], r["record"],
        )
        for r in folded.head(_WAITS).iter_rows(named=True)
    )  # fmt: skip
