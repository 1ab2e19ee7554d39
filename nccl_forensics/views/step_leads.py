"""Ranks that have finished one step more than all others, by the lines that their training loops print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.gloo_rings import of_reducer

STEP_LEADS = typed("rank:i32 step:i64 others:list[i32] others_step:i64 source_id:u32 line_no:u32")
#: Steps that all must have told alike before, and latest ones that are compared.
_LEAST, _LATEST = 3, 64


@view(rows="ranks")
def step_leads(training_steps: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> pl.LazyFrame:
    """The ranks whose loops told one step more than those of all ``others``, at ``line_no``; the steps before all told alike.

    Empty unless the ranks are of these two kinds
    alone and those ahead are the fewer, or of two one: ranks that tell other steps than their peers have another program, or lost lines.
    """
    told = _told_once(training_steps, source_ranks)
    last = pl.col("source_id", "line_no").sort_by("step").last()
    of_rank = told.group_by("rank").agg(last, steps=pl.col("step").sort().tail(_LATEST + 1)).sort("rank").collect()
    nothing = pl.LazyFrame(schema=STEP_LEADS)
    ends = of_rank.with_columns(end=pl.col("steps").list.last())
    if ends["end"].n_unique() != 2:
        return nothing
    ahead = ends.filter(pl.col("end") == ends["end"].max())
    others = ends.filter(pl.col("end") < ends["end"].max())
    before = {tuple(steps[-_LATEST:]) for steps in others["steps"]} | {tuple(steps[:-1][-_LATEST:]) for steps in ahead["steps"]}
    if len(before) != 1 or len(next(iter(before))) < _LEAST or (2 * ahead.height >= ends.height > 2):
        return nothing
    peers = pl.lit(others["rank"].to_list(), dtype=pl.List(pl.Int32))
    found = ahead.lazy().with_columns(step="end", others=peers, others_step=pl.lit(others["end"][0]))
    return found.select(pl.col(c).cast(t) for c, t in STEP_LEADS.items())


MISSED_STEPS = typed("rank:i32 missed:list[i64] step:i64 others:list[i32] others_step:i64", read_at(), read_at("peer_"))


@view(rows="ranks")
def missed_steps(training_steps: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> pl.LazyFrame:
    """The few ranks whose loops told no line of steps (``missed``) that those of all ``others`` told, and as many behind the last one of these
    (``others_step``, against their own ``step``): they made as many steps and are further. Lines that were lost leave a rank where it is.

    Cites the line of the step after the first one missed (``source_id`` …) and a peer's line of that one (``peer_…``).
    """
    rows = _told_once(training_steps, source_ranks).select("rank", "step", "source_id", "line_no").collect()
    lines = {(rank, step): place for rank, step, *place in rows.iter_rows()}
    steps: dict[int, set[int]] = {}
    for rank, step in lines:
        steps.setdefault(rank, set()).add(step)
    usual, n_usual = Counter(frozenset(told) for told in steps.values()).most_common(1)[0] if steps else (frozenset[int](), 0)
    others = sorted(rank for rank, told in steps.items() if told == usual)
    found: list[dict[str, object]] = []
    for rank, told in sorted(steps.items()):
        missed, beyond = sorted(usual - told), sorted(told - usual)
        after = [step for step in sorted(told) if missed and step > missed[0]]
        if missed and len(missed) == len(beyond) and min(beyond) > max(usual) and min(told) < missed[0] and max(missed) < max(usual):
            row = {"rank": rank, "missed": missed, "step": max(told), "others": others, "others_step": max(usual)}
            (source, line), (peer, peer_line) = lines[rank, after[0]], lines[others[0], missed[0]]
            found.append(row | {"source_id": source, "line_no": line, "peer_source_id": peer, "peer_line_no": peer_line})
    whole = n_usual + len(found) == len(steps) and n_usual > len(found) and len(usual) >= _LEAST
    return pl.DataFrame(found if whole else [], schema=MISSED_STEPS, infer_schema_length=None).lazy()


def _told_once(training_steps: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> pl.LazyFrame:
    """The last line of each rank and step: a launcher that gathers what its workers print has each line twice."""
    rows = steps_of_ranks(training_steps, source_ranks)
    return rows.sort("source_id", "line_no").unique(["rank", "step"], keep="last", maintain_order=True)


def steps_of_ranks(training_steps: pl.LazyFrame, source_ranks: pl.LazyFrame | None) -> pl.LazyFrame:
    """Lines that tell a step, with the ``rank`` that the line itself names, or a launcher's prefix, else that of the file; without those that
    nothing gives a rank."""
    stated = pl.when(pl.col("hint_scope").is_null() | (pl.col("hint_scope") != "local")).then(pl.col("hint_rank"))
    rows = training_steps.filter(pl.col("step").is_not_null()).with_columns(rank=pl.coalesce("rank", stated))
    if source_ranks is not None:
        known = source_ranks.select("source_id", owner=pl.col("rank")).unique("source_id")
        rows = rows.join(known, on="source_id", how="left").with_columns(rank=pl.coalesce("rank", "owner"))
    return rows.filter(pl.col("rank").is_not_null())


def step_further(
    found: Mapping[int, dict[str, object]],
    leads: pl.LazyFrame,
    stacks: Mapping[int, dict[str, object]],
    missing: Mapping[int, dict[str, object]],
) -> dict[int, dict[str, object]]:
    """``found``, with those marked (``kind`` step-further) whose loops have finished a step in which all that wait for them still are; where
    nobody was found, those whose stacks wait in one place while the stacks of all others wait in another, or who alone are ``missing`` at a
    monitored barrier."""
    ahead = {row["rank"]: row for row in leads.collect().iter_rows(named=True)}
    marked = dict(found)
    for rank, row in found.items():
        lead = ahead.get(rank)
        waits = rank not in stacks or stacks[rank]["place"] in WAITING
        waiters = set(as_ranks(row.get("in_group") or row.get("waiters")))
        if lead is not None and row["kind"] in ("behind", "silent") and waits and waiters and waiters <= set(lead["others"]):
            marked[rank] = row | {"kind": "step-further", "step": lead["step"], "others_step": lead["others_step"]}
    return marked or _by_stacks(ahead, stacks) or _missed(ahead, missing)


def _missed(ahead: Mapping[int, dict[str, object]], missing: Mapping[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    if ahead.keys() != missing.keys():
        return {}
    steps = {
        r: {"waiters": as_ranks(lead["others"]), "step": lead["step"], "others_step": lead["others_step"]} for r, lead in ahead.items()
    }
    return {rank: row | steps[rank] | {"kind": "step-further"} for rank, row in missing.items()}


def reduced_in_backward(found: Mapping[int, dict[str, object]], fr_entries: pl.LazyFrame | FoldedTable) -> dict[int, dict[str, object]]:
    """``found``, where those that wait for who finished one step more do so in a reduction of DDP's own (``by_reducer``)."""
    further = {rank: row for rank, row in found.items() if row["kind"] == "step-further" and row.get("record") is not None}
    if not further:
        return dict(found)
    cited = [{name: row[name] for name in ("source_id", "seq", "record")} for row in further.values()]
    schema = {"source_id": pl.UInt32(), "seq": pl.Int64(), "record": pl.String()}
    reduced = of_reducer(pl.DataFrame(cited, schema=schema, orient="row"), fr_entries).to_list()
    return {**found, **{rank: row | {"by_reducer": own} for (rank, row), own in zip(further.items(), reduced, strict=True)}}


def _by_stacks(ahead: Mapping[int, dict[str, object]], stacks: Mapping[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    if not ahead:
        return {}
    first = next(iter(ahead.values()))
    others = as_ranks(first["others"])
    seen = {rank: stacks[rank] for rank in (*ahead, *others) if rank in stacks and stacks[rank]["witness"] == "stack"}
    where = {rank: s["user_frame"] for rank, s in seen.items() if s["place"] in WAITING and not s["moved"]}
    theirs, ours = {where.get(rank) for rank in others}, {where.get(rank) for rank in ahead}
    if len(theirs) != 1 or None in theirs | ours or theirs & ours or seen[others[0]]["place"] != "collective":
        return {}
    peer = seen[others[0]]
    told = {name: peer[name] for name in ("op", *PLACE)} | {"call_site": peer["user_frame"], "waiters": others, "seen_by": "stacks"}
    return {rank: told | {"kind": "step-further", "step": lead["step"], "others_step": lead["others_step"]} for rank, lead in ahead.items()}
