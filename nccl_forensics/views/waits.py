"""Who waits for whom: edges between ranks across groups."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.stacks.frames import line_of_code
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.looked_at import job_moves, looked_at_while_moving
from nccl_forensics.views.matching import cut_rings
from nccl_forensics.views.pair_waits import numbered_with_batches, pair_edges
from nccl_forensics.views.wait_edges import JOINED, ONE_WAY, WAITS, Edge, edge, is_pair, members_of

#: Pairs of a group that are all looked at, and how many are for each member of a group that is larger: their number grows with its square.
_EDGES, _EDGES_PER_MEMBER = 1 << 16, 4


@view(rows="ranks x groups")
def waits(
    operations: pl.LazyFrame | Calls | None,
    progress: pl.LazyFrame,
    groups: pl.LazyFrame,
    divergences: pl.LazyFrame | None,
    last_calls: pl.LazyFrame | None,
    looked_at_earlier: pl.LazyFrame | None,
    never_entered: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None = None,
    cut_logs: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Edges: ``waiter`` has entered operation ``seq`` of a group that ``awaited`` has not.

    ``kind``: ``behind`` (the awaited rank's own evidence ends before it), ``unseen`` (the awaited member has no evidence in this group),
    ``p2p`` (its send or receive has no partner there), ``gpu`` (the awaited rank enqueued it and its GPU has not finished what the peers
    finished). Positions of a group are compared up to its first divergence only: after it the numbers no longer mean the same. Ranks whose
    recorder was looked at earlier than those of the others neither wait nor are awaited, and nobody does by recorders that were looked at
    while the job moved; those whose log was cut off with a full buffer are not awaited. At most one edge per waiter, awaited rank and group; in groups in which more than 65,536 pairs (and four for each member)
    wait, an edge or more for each waiter and each awaited rank.
    """
    calls = calls_of(operations) if operations is not None else None
    state = progress.collect()
    moves = any(domain == "fr" and job_moves(places.done) for (domain, _), places in _places(state).items())
    earlier = set(looked_at_earlier.collect().to_series().to_list()) if looked_at_earlier is not None else set()
    state = state.filter((pl.col("domain") != "fr") | ~pl.col("rank").is_in(sorted(earlier)))
    state = pl.concat([state, never_entered.collect()]) if never_entered is not None else state
    state = state.filter(pl.col("domain") != "fr") if moves else state
    info = {(r["domain"], r["group_key"]): r for r in groups.collect().iter_rows(named=True)}
    rows: list[Edge] = []
    parted = _parted(divergences) | (numbered_with_batches(calls) if calls is not None else set())
    # Whom a watchdog's line shows in a group, or beyond, of which its recorder is not at hand.
    watched = {(k, r): s for k, r, s in state.filter(pl.col("domain") == "watchdog").select("group_key", "rank", "last_seq").iter_rows()}
    for key, places in _places(state).items():
        if key in info and key not in parted:
            rows += _edges_in(info[key], places, state, earlier, watched)
    if cut_logs is not None:
        further = set(cut_logs.collect()["rank"].to_list())
        rows = [r for r in rows if r["domain"] != "nccl" or r["awaited"] not in further]
    if last_calls is not None:
        rows += _alone(state, info, last_calls, rows)
    if calls is not None:
        rows = _name_operations(rows, calls.every)
        # Whoever sends finishes before those that still wait for the data: that peers are done with it says nothing of a rank's GPU.
        sent = [r for r in rows if r["kind"] == "gpu" and re.match(ONE_WAY, str(r["op"] or ""))]
        if sent:
            rows = [r for r in rows if r["kind"] != "gpu" or not re.match(ONE_WAY, str(r["op"] or ""))]
            rows += _name_operations(_in_joined(sent, calls.every), calls.every)
        gpus = {int(str(r["awaited"])) for r in rows if r["kind"] == "gpu"}
        rows += pair_edges(calls, info, {(d, r) for d, r in state.select("domain", "rank").iter_rows()}, gpus, cut_rings(dumps))
        rows = [r for r in rows if r["domain"] != "fr" or not earlier.intersection((r["waiter"], r["awaited"]))]
    return pl.DataFrame(rows, schema=WAITS, infer_schema_length=None).lazy()


def _parted(divergences: pl.LazyFrame | None) -> set[tuple[str, str]]:
    """Groups whose calls part, so that their numbers no longer mean the same on all ranks."""
    if divergences is None:
        return set()
    parting = divergences.filter(pl.col("kind").is_in(["skipped", "different", "extra"]))
    return set(parting.select("domain", "group_key").collect().iter_rows())


@dataclass(slots=True)
class _Places:
    """How far the ranks of a group are: the row of the progress of each, its last operation, and the last that it has finished."""

    row: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)

    @property
    def slow(self) -> dict[int, int]:
        """Ranks that have not entered what others have, with the last that they have.

        Where all have completed the same and entered the next, they stand in that one together, however far ahead hosts enqueued.
        """
        together = self.done.keys() == self.last.keys() and len(set(self.done.values())) == 1
        if together and min(self.last.values()) > min(self.done.values()):
            return {}
        front = max(self.last.values())
        return {r: s for r, s in self.last.items() if s < front}

    @property
    def gpu(self) -> dict[int, int]:
        """Ranks that have enqueued what others have finished and not finished it, with the last that they have finished."""
        if not self.done:
            return {}
        reached, last = max(self.done.values()), self.last
        return {r: d for r, d in self.done.items() if d < reached and last.get(r, d) > d and last.get(r, d) >= min(reached, d + 1)}


def _places(state: pl.DataFrame) -> dict[tuple[str, str], _Places]:
    found: dict[tuple[str, str], _Places] = {}
    reached = state.select("domain", "group_key", "rank", "last_seq", "last_done")
    for at, (domain, key, rank, seq, over) in enumerate(reached.iter_rows()):
        places = found.setdefault((domain, key), _Places())
        places.row[rank] = at
        if seq is not None:
            places.last[rank] = seq
        if over is not None:
            places.done[rank] = over
    return found


def _edges_in(
    group: dict[str, object], places: _Places, state: pl.DataFrame, earlier: set[int], watched: dict[tuple[str, int], int]
) -> list[Edge]:
    """Who waits for whom in one group, by how far its ranks are."""
    last, done = places.last, places.done
    if not last or (group["domain"] == "nccl" and all(done.get(r) == s for r, s in last.items())):
        return []  # nothing is known of it, or it was taken down in order
    if looked_at_while_moving(done):
        return []
    recorded = group["domain"] == "fr"
    members = {*members_of(group), *last}
    slow, gpu = places.slow, places.gpu
    unseen = members - last.keys() - (earlier if recorded else set())
    if not slow and not gpu and not unseen:
        return []
    facts = {r["rank"]: r for r in state[list(places.row.values())].iter_rows(named=True)}
    waits_in = {r: int(str(f["first_pending"])) for r, f in facts.items() if f["first_pending"] is not None}
    if recorded and waits_in:
        unseen = {r for r in unseen if watched.get((str(group["group_key"]), r), -1) < min(waits_in.values())}
    # What one member has behind it, all members entered, seen or not.
    entered = max(waits_in[r] - 1 if r in waits_in else seq for r, seq in last.items())
    hopeful = [r for r in sorted(last) if len(last) > 1 and waits_in.get(r, entered) > entered and not _held_up(facts[r])]
    front, most = max(last.values()), max(_EDGES, _EDGES_PER_MEMBER * len(members))
    late = sorted(slow.keys() | gpu.keys(), key=lambda r: (min(slow.get(r, front), gpu.get(r, front)), r))
    allowed = _thinned(sorted(last, key=lambda r: (-last[r], r)), late, most)
    hoped = _thinned(hopeful, sorted(unseen), most)
    rows: list[Edge] = []
    for waiter in sorted(last):
        base = edge(group, facts[waiter], waiter)
        for awaited in sorted({*allowed(waiter), *hoped(waiter)} - {waiter}):
            if awaited in gpu and done.get(waiter, -1) > gpu[awaited]:
                rows.append(base | {"kind": "gpu", "awaited": awaited, "seq": gpu[awaited] + 1, "behind": done[waiter] - gpu[awaited]})
            elif awaited in slow and last[waiter] > slow[awaited]:
                kind = "gpu" if awaited in gpu else "behind"
                rows.append(base | {"kind": kind, "awaited": awaited, "seq": slow[awaited] + 1, "behind": last[waiter] - slow[awaited]})
            elif awaited in unseen:
                rows.append(base | {"kind": "unseen", "awaited": awaited, "seq": facts[waiter]["first_pending"], "behind": None})
    return rows


def _held_up(fact: dict[str, object]) -> bool:
    """Whether a rank has something open in another group that it enqueued before what it has open in this one: it waits in that, and what
    this one would wait for nobody knows."""
    first, here = fact.get("first_open"), fact.get("pending_order")
    return first is not None and here is not None and int(str(first)) < int(str(here))


def _thinned(waiters: Sequence[int], awaited: Sequence[int], most: int) -> Callable[[int], Sequence[int]]:
    """Whom each waiter is held against: everybody, unless that makes more than ``most`` pairs.

    Then the first waiters are held against all awaited ranks, and all waiters against the first of these, so that whoever is awaited has a
    waiter and whoever waits an edge; both come in the order in which they tell most.
    """
    everybody = frozenset(waiters)
    if len(waiters) * len(awaited) <= most:
        return lambda waiter: awaited if waiter in everybody else ()
    heralds = frozenset(waiters[: max(1, most // (2 * len(awaited)))])
    first = awaited[: max(1, most // (2 * len(waiters)))]
    return lambda waiter: awaited if waiter in heralds else (first if waiter in everybody else ())


def _alone(state: pl.DataFrame, info: dict[tuple[str, str], dict[str, object]], last_calls: pl.LazyFrame, known: list[Edge]) -> list[Edge]:
    """Ranks whose stacks stand in the last operation they enqueued, all that have evidence of its group, before members that have none.
    Recorders of gloo mark an operation that failed as one that is over."""
    calls = last_calls.filter((pl.col("witness") == "stack") & (pl.col("place") == "collective") & pl.col("user_frame").is_not_null())
    standing = {rank: line_of_code(frame) for rank, frame in calls.select("rank", "user_frame").collect().iter_rows()}
    latest = state.filter(pl.col("last_created_ns").is_not_null()).sort("last_created_ns").unique(["domain", "rank"], keep="last")
    here = [f for f in latest.sort("domain", "rank").iter_rows(named=True) if standing.get(f["rank"]) == line_of_code(f["last_call_site"])]
    stand = {(f["domain"], f["group_key"], f["rank"], f["last_seq"]) for f in here}
    present = {(d, g): set(r) for d, g, r in state.group_by("domain", "group_key").agg("rank").iter_rows()}
    have = {(e["domain"], e["group_key"], e["waiter"]) for e in known}
    rows = []
    for fact in here:
        key = (fact["domain"], fact["group_key"])
        group = info.get(key)
        if group is None or (*key, fact["rank"]) in have or any((*key, r, fact["last_seq"]) not in stand for r in present[key]):
            continue
        base = edge(group, fact, fact["rank"]) | {"kind": "unseen", "seq": fact["last_seq"], "behind": None}
        rows += [base | {"awaited": r} for r in members_of(group) if r not in present[key]]
    return rows


def _in_joined(rows: list[Edge], operations: pl.LazyFrame) -> list[Edge]:
    """The same by the first operation, of those that the waiter has finished and the awaited rank has not, that ends on nobody before all
    are in it, by the record of either; without those of which there is none."""
    columns = ["domain", "group_key", "rank", "done"]
    asked = pl.DataFrame(
        sorted({(str(r["domain"]), str(r["group_key"]), int(str(r[who])), who == "waiter") for r in rows for who in ("waiter", "awaited")}),
        schema=dict(zip(columns, (pl.String(), pl.String(), pl.Int32(), pl.Boolean()), strict=True)),
        orient="row",
    )
    joined = operations.filter(~pl.col("is_p2p") & pl.col("seq").is_not_null() & pl.col("op").str.contains(JOINED))
    ended = joined.join(asked.lazy(), on=columns).sort("seq", "order", "record").group_by(columns).agg("seq", "op").collect()
    ends = {(domain, key, rank, done): (seqs, ops) for domain, key, rank, done, seqs, ops in ended.iter_rows()}
    found: list[Edge] = []
    for row in rows:
        first, behind = int(str(row["seq"])), int(str(row["behind"]))
        told = []
        for who, done in (("waiter", True), ("awaited", False)):
            seqs, ops = ends.get((row["domain"], row["group_key"], row[who], done), ([], []))
            at = bisect_left(seqs, first)
            told += [(seqs[at], ops[at])] if at < len(seqs) and seqs[at] < first + behind else []
        if told:
            seq, op = min(told)
            found.append(row | {"seq": seq, "op": op, "behind": first + behind - seq})
    return found


def _name_operations(rows: list[Edge], operations: pl.LazyFrame) -> list[Edge]:
    """The operation that each waiter waits in (its own record of ``seq``), instead of its last one. What a waiter is done with it may have
    no record of: then whoever still has it open tells which one it is."""
    named = [r for r in rows if not is_pair(r) and r["seq"] is not None]
    wanted = {(r["domain"], r["group_key"], r["waiter"], r["seq"]) for r in named}
    wanted |= {(r["domain"], r["group_key"], r["awaited"], r["seq"]) for r in named if r["kind"] == "gpu"}
    if not wanted:
        return rows
    keys = pl.DataFrame(
        sorted(wanted, key=str),
        schema={"domain": pl.String(), "group_key": pl.String(), "rank": pl.Int32(), "seq": pl.Int64()},
        orient="row",
    )
    columns = ("op", "source_id", "line_no", "record", "call_site", "timeout_ms", "created_ns")
    found = (
        operations.filter(~pl.col("is_p2p") & pl.col("seq").is_in(keys["seq"].unique().implode()))  # a scan of all operations knows these
        .join(keys.lazy(), on=["domain", "group_key", "rank", "seq"])
        .select(*keys.columns, *columns, "order")
        .collect()
        .sort("order", "record", nulls_last=False, descending=True)  # of calls that share a number, as in a batch, the first
    )
    by_key = {(r["domain"], r["group_key"], r["rank"], r["seq"]): r for r in found.iter_rows(named=True)}
    out = []
    for row in rows:
        match, theirs = (by_key.get((row["domain"], row["group_key"], row[who], row["seq"])) for who in ("waiter", "awaited"))
        if is_pair(row):
            out.append(row)
        elif match:
            out.append(row | {c: match[c] for c in columns})
        else:
            out.append(row | {"op": theirs["op"]} if theirs and row["kind"] == "gpu" else row)
    return out
