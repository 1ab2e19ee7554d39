"""Who waits for whom: edges between ranks across groups, and the ranks at the end of every walk."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import polars as pl

from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.matching import of_nccl

WAITS = {
    "domain": pl.String(),
    "group_key": pl.String(),
    "group_name": pl.String(),
    "group_desc": pl.String(),
    "comm_id": pl.String(),
    "kind": pl.String(),
    "waiter": pl.Int32(),
    "awaited": pl.Int32(),
    "seq": pl.Int64(),
    "op": pl.String(),
    "behind": pl.Int64(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "record": pl.String(),
    "call_site": pl.String(),
    "timeout_ms": pl.Int64(),
    "created_ns": pl.Int64(),
}


#: Pairs of a group that are all looked at, and how many are for each member of a group that is larger: their number grows with its square.
_EDGES, _EDGES_PER_MEMBER = 1 << 16, 4
#: Ends of walks up to which all that reach them are listed; of more only those that wait for them directly.
_ENDS = 256


@view(rows="ranks x groups")
def waits(
    operations: pl.LazyFrame | Calls | None,
    progress: pl.LazyFrame,
    groups: pl.LazyFrame,
    divergences: pl.LazyFrame | None,
    last_calls: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Edges: ``waiter`` has entered operation ``seq`` of a group that ``awaited`` has not.

    ``kind``: ``behind`` (the awaited rank's own evidence ends before it), ``unseen`` (the awaited member has no evidence in this group),
    ``p2p`` (its send or receive has no partner there), ``gpu`` (the awaited rank enqueued it and its GPU has not finished what the
    peers finished). Positions of a group are compared up to its first divergence only: after it the numbers no longer mean the same.
    Ranks whose recorder was looked at earlier than those of the others neither wait nor are awaited. At most one edge per waiter, awaited rank and group; in groups in which more than 65,536 pairs (and four for each member) wait, an edge or
    more for each waiter and each awaited rank.
    """
    limits: dict[tuple[str, str], int] = {}
    if divergences is not None:
        split = divergences.filter(pl.col("kind").is_in(["skipped", "different", "extra"])).select("domain", "group_key", "seq").collect()
        limits = {(d, g): s for d, g, s in split.iter_rows()}
    state = progress.collect()
    earlier = _looked_at_earlier(state, calls_of(operations)) if operations is not None else set()
    state = state.filter((pl.col("domain") != "fr") | ~pl.col("rank").is_in(sorted(earlier)))
    state = pl.concat([state, never_in(state, groups, dumps)])
    info = {(r["domain"], r["group_key"]): r for r in groups.collect().iter_rows(named=True)}
    rows: list[dict[str, object]] = []
    # Whom a watchdog's line shows in a group, or beyond, of which its recorder is not at hand.
    watched = {(k, r): s for k, r, s in state.filter(pl.col("domain") == "watchdog").select("group_key", "rank", "last_seq").iter_rows()}
    # With evidence of one rank alone nobody can be compared.
    by_group: dict[tuple[str, str], dict[int, tuple[int, int | None, int | None]]] = {}
    for at, (domain, key, rank, seq, over) in enumerate(state.select("domain", "group_key", "rank", "last_seq", "last_done").iter_rows()):
        by_group.setdefault((domain, key), {})[rank] = at, seq, over
    for (domain, key), ranks in by_group.items():
        group = info.get((domain, key))
        if group is None or (domain, key) in limits:
            continue
        last = {r: s for r, (_, s, _) in ranks.items() if s is not None}
        done = {r: s for r, (_, _, s) in ranks.items() if s is not None}
        if not last or (domain == "nccl" and all(done.get(r) == s for r, s in last.items())):
            continue  # nothing is known of it, or it was taken down in order
        if looked_at_while_moving(done):
            continue
        front = max(last.values())
        members = set(group["members"]) | set(last)
        # All have completed the same operations and entered the next: they stand in that one together, however far ahead hosts enqueued.
        together = done.keys() == last.keys() and len(set(done.values())) == 1 and min(last.values()) > min(done.values())
        slow = {} if together else {r: s for r, s in last.items() if s < front}
        reached = max(done.values(), default=None)
        gpu = {
            r: d
            for r, d in done.items()
            if reached is not None and d < reached and last.get(r, d) > d and last.get(r, d) >= min(reached, d + 1)
        }
        late = slow.keys() | gpu.keys()
        unseen = members - last.keys() - (earlier if domain == "fr" else set())
        if not late and not unseen:
            continue  # nobody is waited for
        facts = {r["rank"]: r for r in state[[at for at, _, _ in ranks.values()]].iter_rows(named=True)}
        if domain == "fr" and unseen:
            waits_in = min((int(str(p)) for f in facts.values() if (p := f["first_pending"]) is not None), default=None)
            unseen = {r for r in unseen if waits_in is None or watched.get((key, r), -1) < waits_in}
        # What one member has behind it, all members entered, seen or not.
        entered = max(
            int(str(f["first_pending"])) - 1 if f["first_pending"] is not None else last[r] for r, f in facts.items() if r in last
        )
        hopeful = [r for r in sorted(last) if len(last) > 1 and (p := facts[r]["first_pending"]) is not None and int(str(p)) > entered]
        most = max(_EDGES, _EDGES_PER_MEMBER * len(members))
        allowed = _thinned(
            sorted(last, key=lambda r: (-last[r], r)), sorted(late, key=lambda r: (min(slow.get(r, front), gpu.get(r, front)), r)), most
        )
        hoped = _thinned(hopeful, sorted(unseen), most)
        for waiter in sorted(last):
            fact = facts[waiter]
            base = _edge(group, fact, waiter)
            for awaited in sorted({*allowed(waiter), *hoped(waiter)}):
                if awaited == waiter:
                    continue
                if awaited in slow and last[waiter] > slow[awaited]:
                    seq = slow[awaited] + 1
                    kind = "gpu" if awaited in gpu else "behind"
                    rows.append(base | {"kind": kind, "awaited": awaited, "seq": seq, "behind": last[waiter] - slow[awaited]})
                elif awaited in gpu and done.get(waiter, -1) > gpu[awaited]:
                    rows.append(base | {"kind": "gpu", "awaited": awaited, "seq": gpu[awaited] + 1, "behind": done[waiter] - gpu[awaited]})
                elif awaited in unseen:
                    rows.append(base | {"kind": "unseen", "awaited": awaited, "seq": fact["first_pending"], "behind": None})
    if last_calls is not None:
        rows += _alone(state, info, last_calls, rows)
    if operations is not None:
        calls = calls_of(operations)
        rows += _p2p(calls, info, {(d, r) for d, r in state.select("domain", "rank").iter_rows()})
        rows = _name_operations(rows, calls.every)
        # Whoever sends finishes before those that still wait for the data: that peers are done with it says nothing of a rank's GPU.
        rows = [r for r in rows if r["kind"] != "gpu" or not _ONE_WAY.match(str(r["op"] or ""))]
        rows = [r for r in rows if r["domain"] != "fr" or not earlier.intersection((r["waiter"], r["awaited"]))]
    return pl.DataFrame(rows, schema=WAITS, infer_schema_length=None).lazy()


def never_in(state: pl.DataFrame, groups: pl.LazyFrame, dumps: pl.LazyFrame | None = None) -> pl.DataFrame:
    """Rows of ``state`` for ranks with a recorder that holds nothing of a group of theirs in which all others, who are more, wait in one operation
    that ends on nobody before all are in it: it would be open on them as well, so that they stand before it.

    Of a rank that has nothing else open its entry may be lost or the dump old, unless this is the very first operation of the group or the dump
    holds no operation whatever. Few in whom it is open are those whose GPUs stand, where dumps hold only what is open.
    """
    recorded = state.filter((pl.col("domain") == "fr") & pl.col("last_seq").is_not_null())
    at = pl.col("first_pending")
    waiting = recorded.group_by("group_key").agg(
        pl.col("rank"),
        (at.is_not_null().all() & (at.n_unique() == 1)).alias("together"),
        at.min().alias("seq"),
        pl.len().alias("inside"),
        pl.col("pending_op").drop_nulls().first().alias("op"),
    )
    waiting = waiting.filter(pl.col("together") & pl.col("op").str.contains(_JOINED))
    members = groups.filter(pl.col("domain") == "fr").select("group_key", "members").collect()
    known = waiting.join(members, on="group_key", maintain_order="left")
    others = pl.col("members").cast(pl.List(pl.Int32())).list.set_difference("rank").list.sort()
    absent = known.select("group_key", "inside", last_seq=pl.col("seq") - 1, rank=others).explode("rank")
    latest = recorded.sort("last_created_ns", "last_order", nulls_last=False).unique("rank", keep="last", maintain_order=True)
    own = latest.select("rank", "source_id", "record", "first_open", empty=pl.lit(False))
    own = pl.concat([own, _empty(dumps, own)]) if dumps is not None else own
    found = absent.join(own, on="rank", how="inner", maintain_order="left")
    stands = (pl.col("last_seq") == 0) | pl.col("first_open").is_not_null() | pl.col("empty")
    rows = found.filter(stands & (pl.len().over("group_key") < pl.col("inside"))).with_columns(pl.lit("fr").alias("domain"))
    return rows.select(*((pl.col(c) if c in rows.columns else pl.lit(None)).cast(t).alias(c) for c, t in state.schema.items()))


def _empty(dumps: pl.LazyFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The same columns for ranks of which nothing is ``known``, as their dumps hold no operation at all."""
    empty = dumps.filter((pl.col("use") == "chosen") & of_nccl() & (pl.col("entries") == 0) & pl.col("rank").is_not_null()).collect()
    told = empty.select(
        pl.col("rank").cast(pl.Int32()),
        "source_id",
        record=pl.lit("entries"),
        first_open=pl.lit(None, dtype=pl.Int64()),
        empty=pl.lit(True),
    )
    return told.join(known, on="rank", how="anti")


def _looked_at_earlier(state: pl.DataFrame, calls: Calls) -> set[int]:
    """Ranks that by their recorder never entered what a peer has finished, of operations that end on no rank before all are in them: that
    recorder was written before the peer's, and tells nothing of what came after."""
    recorded = state.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null() & pl.col("last_seq").is_not_null())
    reached = recorded.group_by("group_key").agg(pl.col("last_done").max().alias("seq"))
    behind = recorded.join(reached, on="group_key").filter(pl.col("last_seq") < pl.col("seq"))
    if not behind.height:
        return set()
    ends = calls.telling.filter((pl.col("domain") == "fr") & pl.col("done") & ~pl.col("is_p2p") & pl.col("op").str.contains(_JOINED))
    joined = ends.select("group_key", "seq").unique().collect()
    return set(behind.join(joined, on=["group_key", "seq"])["rank"].to_list())


#: Ranks from which on their finished operations tell a job that moves from one that stands.
_LEAST_MOVING = 4


def looked_at_while_moving(done: dict[int, int]) -> bool:
    """Whether what the ranks of a group have finished differs in three ways and more, none of them that of two thirds: a group that stands has finished
    the same on all ranks but those whose GPU or watchdog stands too, while dumps asked for one after the other show a job that goes on."""
    counted = Counter(done.values())
    return len(done) >= _LEAST_MOVING and len(counted) >= 3 and counted.most_common(1)[0][1] * 3 <= 2 * len(done)


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


def _edge(group: dict[str, object], fact: dict[str, object], waiter: int) -> dict[str, object]:
    return {
        "domain": group["domain"],
        "group_key": group["group_key"],
        "group_name": group["group_name"],
        "group_desc": group["group_desc"],
        "comm_id": group["comm_id"],
        "waiter": waiter,
        "op": fact["last_op"],
        "source_id": fact["source_id"],
        "line_no": fact["line_no"],
        "record": fact["record"],
        "call_site": fact["last_call_site"],
        "timeout_ms": fact["timeout_ms"],
        "created_ns": fact["last_created_ns"],
    }


def _alone(
    state: pl.DataFrame, info: dict[tuple[object, object], dict[str, object]], last_calls: pl.LazyFrame, known: list[dict[str, object]]
) -> list[dict[str, object]]:
    """Ranks whose stack stands in the last operation they enqueued, in a group of which no other member has evidence."""
    calls = last_calls.filter((pl.col("witness") == "stack") & (pl.col("place") == "collective") & pl.col("user_frame").is_not_null())
    standing = dict(calls.select("rank", "user_frame").collect().iter_rows())
    latest = state.filter(pl.col("last_created_ns").is_not_null()).sort("last_created_ns").unique(["domain", "rank"], keep="last")
    present = {(d, g): set(r) for d, g, r in state.group_by("domain", "group_key").agg("rank").iter_rows()}
    have = {(e["domain"], e["group_key"], e["waiter"]) for e in known}
    rows = []
    for fact in latest.sort("domain", "rank").iter_rows(named=True):
        key = (fact["domain"], fact["group_key"])
        group = info.get(key)
        if group is None or standing.get(fact["rank"]) != fact["last_call_site"] or (*key, fact["rank"]) in have:
            continue
        members = group["members"]
        assert isinstance(members, list)
        if present[key] == {fact["rank"]}:
            base = _edge(group, fact, fact["rank"])
            rows += [base | {"kind": "unseen", "awaited": r, "seq": fact["last_seq"], "behind": None} for r in members if r != fact["rank"]]
    return rows


def unfinished(calls: Calls) -> pl.LazyFrame | None:
    """Entries of recorders that are not completed, of the ranks that have such a send or receive; None where nothing is sent from one to one."""
    every = (pl.col("domain") == "fr") & ~pl.col("done").fill_null(False)
    recorded = calls.recorded
    if recorded is None:
        return _of_open_batches(calls.every.filter(every), ["group_key", "rank", "seq"], _OF_BATCH, pl.col("op") == "coalesced")
    facts = recorded.facts
    if not facts.get_column("is_p2p").any():
        return None
    found = [pl.DataFrame(schema={"row": pl.UInt32(), "rank": pl.Int32(), "is_p2p": pl.Boolean()})]
    for numbers in recorded.numbers():
        left = numbers.filter(~facts.get_column("done").gather(numbers.get_column("word")))
        kinds = (facts.get_column(c).gather(left.get_column("word")) for c in ("batched", "batch"))
        left = _of_open_batches(left.with_columns(kinds).lazy(), ["life", "seq"], pl.col("batched"), pl.col("batch")).collect()
        found.append(left.select("row", *(facts.get_column(c).gather(left.get_column("word")) for c in ("rank", "is_p2p"))))
    left = pl.concat(found)
    sending = left.filter("is_p2p").get_column("rank").unique()
    return recorded.named(left.filter(pl.col("rank").is_in(sending.implode())).get_column("row"))


#: A send or receive of which its entry does not tell whether it is done.
_OF_BATCH = pl.col("is_p2p") & pl.col("done").is_null() & pl.col("pending").is_null()


def _of_open_batches(left: pl.LazyFrame, key: list[str], of_batch: pl.Expr, batch: pl.Expr) -> pl.LazyFrame:
    """Of what is not known to be done, the sends and receives of a batch only where the entry that ends the batch is there, and open as well."""
    opened = left.filter(batch & pl.col("seq").is_not_null()).select(key).unique()
    members = left.filter(of_batch).join(opened, on=key, how="semi", maintain_order="left")
    return pl.concat([left.filter(~of_batch), members])


def _left_open(calls: Calls) -> set[int]:
    """Ranks whose recorder has entries that it says are not completed, sends and receives among them."""
    recorded = calls.recorded
    # Entries that are not kept as numbers are all among those that ``apart`` has; the lines of NCCL's logs, which may be millions, are not.
    every = calls.apart.filter(pl.col("domain") == "fr") if recorded is None else recorded.words.lazy()
    # Where completion is never marked (gloo), nothing is known to be open.
    left = every.filter(pl.col("pending") & pl.col("done").is_not_null()).select("rank").unique().collect()
    return set(left["rank"].to_list())


def _p2p(calls: Calls, info: dict[tuple[object, object], dict[str, object]], seen: set[tuple[object, object]]) -> list[dict[str, object]]:
    """Recorder entries of send/recv that are not completed and have no partner among the pending ones of the peer; ``seen`` holds the
    (domain, rank) of which there is evidence at all: of others it is not known what they posted."""
    left = unfinished(calls)
    if left is None:
        return []
    # Of whoever has work open there is evidence, though it be sends and receives alone.
    seen = seen | {("fr", rank) for rank in _left_open(calls)}
    # Calls of one batch share a number and run together; and what stands behind other unfinished work tells nothing by itself.
    alone = left.with_columns(
        single=(pl.len().over("group_key", "rank", "seq", "is_p2p") == 1)
        & ~((pl.col("op") == "coalesced").any().over("group_key", "rank"))
        & (pl.col("created_ns") == pl.col("created_ns").min().over("rank"))
    )
    pending = (
        alone.filter(pl.col("is_p2p") & pl.col("peer").is_not_null())
        .filter(pl.col("op").is_in(["send", "recv"]))
        .group_by("domain", "group_key", "rank", "op", "peer")
        .agg(
            pl.len().alias("n"),
            *[
                pl.col(c).sort_by("order").first()
                for c in ("seq", "source_id", "line_no", "record", "call_site", "timeout_ms", "created_ns", "single")
            ],
        )
        .sort("domain", "group_key", "rank", "op", "peer")
        .collect()
    )
    posted: dict[tuple[object, ...], int] = {}
    # Where ranks stand in a single send or receive, before all else that they have open: the other half of what a peer waits in comes after it.
    stands: dict[tuple[object, ...], tuple[object, ...]] = {}
    edges: list[tuple[dict[str, object], dict[str, object], int]] = []
    for row in pending.iter_rows(named=True):
        group = info.get((row["domain"], row["group_key"]))
        members = group["members"] if group else None
        if group is None or not isinstance(members, list) or not 0 <= row["peer"] < len(members):
            continue
        peer = members[row["peer"]]
        posted[(row["group_key"], row["rank"], row["op"], peer)] = row["n"]
        if row["single"]:
            stands[(row["group_key"], row["rank"])] = row["op"], peer
        edges.append((group, row, peer))
    rows: list[dict[str, object]] = []
    # Calls of a pair run in order: where the first unfinished one is a send on both sides, or a receive, neither ever ends.
    first: dict[tuple[object, ...], dict[str, object]] = {}
    for _, row, peer in edges:
        key = (row["domain"], row["group_key"], row["rank"], peer)
        if key not in first or int(str(row["seq"])) < int(str(first[key]["seq"])):
            first[key] = row
    alike = {
        key
        for key, row in first.items()
        if (back := first.get((*key[:2], key[3], key[2]))) is not None and back["op"] == row["op"] and row["single"] and back["single"]
    }
    for group, row, peer in edges:
        key = (row["domain"], row["group_key"], row["rank"], peer)
        if key in alike and first[key] is row:
            base = _edge(
                group,
                row | {"last_op": row["op"], "last_call_site": row["call_site"], "last_created_ns": row["created_ns"]},
                int(str(row["rank"])),
            )
            rows.append(base | {"kind": "p2p", "awaited": peer, "seq": row["seq"], "behind": None})
            continue
        partner = "recv" if row["op"] == "send" else "send"
        elsewhere = row["single"] and stands.get((row["group_key"], peer), (partner, row["rank"])) != (partner, row["rank"])
        if posted.get((row["group_key"], peer, partner, row["rank"]), 0) >= int(str(row["n"])) and not elsewhere:
            continue
        rows.append(
            _edge(
                group,
                row | {"last_op": row["op"], "last_call_site": row["call_site"], "last_created_ns": row["created_ns"]},
                int(str(row["rank"])),
            )
            | {"kind": "p2p" if (row["domain"], peer) in seen else "unseen", "awaited": peer, "seq": row["seq"], "behind": None}
        )
    return rows


def _name_operations(rows: list[dict[str, object]], operations: pl.LazyFrame) -> list[dict[str, object]]:
    """The operation that each waiter waits in (its own record of ``seq``), instead of its last one."""
    wanted = {(r["domain"], r["group_key"], r["waiter"], r["seq"]) for r in rows if not _is_p2p(r) and r["seq"] is not None}
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
        .select(*keys.columns, *columns)
        .collect()
    )
    by_key = {(r["domain"], r["group_key"], r["rank"], r["seq"]): r for r in found.iter_rows(named=True)}
    out = []
    for row in rows:
        match = by_key.get((row["domain"], row["group_key"], row["waiter"], row["seq"]))
        out.append(row | {c: match[c] for c in columns} if match and not _is_p2p(row) else row)
    return out


def _is_p2p(row: dict[str, object]) -> bool:
    return row["op"] in ("send", "recv")


BLOCKERS = {
    "rank": pl.Int32(),
    "kind": pl.String(),
    "waiters": pl.List(pl.Int32()),
    "direct_waiters": pl.List(pl.Int32()),
    "in_group": pl.List(pl.Int32()),
    "domain": pl.String(),
    "group_key": pl.String(),
    "group_name": pl.String(),
    "group_desc": pl.String(),
    "comm_id": pl.String(),
    "seq": pl.Int64(),
    "op": pl.String(),
    "behind": pl.Int64(),
    "cycle": pl.List(pl.Int32()),
    "walked": pl.Boolean(),
    "pending": pl.Boolean(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "record": pl.String(),
    "call_site": pl.String(),
    "own_source_id": pl.UInt32(),
    "own_line_no": pl.UInt32(),
    "own_record": pl.String(),
    "own_last_op": pl.String(),
    "own_last_seq": pl.Int64(),
    "own_call_site": pl.String(),
}


#: Operations whose data flow one way only: members upstream are done with them, and with the next ones, before those downstream are.
_ONE_WAY = re.compile(r"(?i)_?(?:broadcast|bcast|reduce|gather|scatter)(?:_oop)?$")
#: Operations that end on no rank before all have begun them.
_JOINED = r"^(all_reduce|_?all_gather|all_gather|_?reduce_scatter|reduce_scatter|all_to_all|barrier)"


@view(rows="ranks")
def blockers(waits: pl.LazyFrame, progress: pl.LazyFrame, operations: pl.LazyFrame | Calls | None) -> pl.LazyFrame:
    """The ranks at the end of the walk: everyone waits for them, directly or through others, and they wait for nobody.

    ``kind``: ``behind``, ``gpu``, ``unseen`` or ``cycle`` (no rank is free: ``cycle`` lists the ranks that wait in a circle); ``passed`` is no end:
    others wait for it, and it hopes for a rank of which nothing is seen.
    ``direct_waiters``: those who wait for this rank itself; ``in_group``: those of them who do so in the group that is cited.
    ``walked``: the walk led to an ``unseen`` rank through others that themselves wait for it, or from several groups.
    ``pending``: the rank has enqueued work that is not known to be completed. Cites a waiter's operation (``source_id`` …) and the
    blocker's own last one (``own_…``).
    """
    edges = waits.collect()
    rows: list[dict[str, object]] = []
    if not edges.height:
        return pl.DataFrame(rows, schema=BLOCKERS).lazy()
    strong = edges.filter(pl.col("kind") != "unseen")
    out: dict[int, set[int]] = defaultdict(set)
    into: dict[int, set[int]] = defaultdict(set)
    for waiter, awaited in strong.select("waiter", "awaited").iter_rows():
        out[waiter].add(awaited)
        into[awaited].add(waiter)
    gpu = set(strong.filter(pl.col("kind") == "gpu")["awaited"].to_list())
    weak = edges.filter(pl.col("kind") == "unseen").select("waiter", "awaited").unique(maintain_order=True).rows()
    unseen = {awaited for _, awaited in weak} - set(out) - set(into)
    sinks = sorted(r for r in into if not out[r])
    # A rank that others wait for and that itself waits for somebody of whom nothing is known is not the end of the walk.
    hoping = {w for w, a in weak if a in unseen}
    passed = {s for s in sinks if s not in gpu and s in hoping}
    walked = sorted({a for w, a in weak if w in passed and a in unseen} | (_awaited_in_many(edges, unseen) if not strong.height else set()))
    sinks = [s for s in sinks if s not in passed]
    cycles: list[list[int]] = []
    if not sinks and not walked:
        sinks, cycles = _circle(out, into, gpu)
    chosen: list[tuple[int, str]] = [(r, "gpu" if r in gpu else "behind") for r in sinks]
    # What all members must have joined and several have finished keeps nobody waiting: whose GPU has not finished it is stuck by itself.
    joined = strong.filter((pl.col("kind") == "gpu") & pl.col("op").str.contains(_JOINED))
    several = joined.group_by("awaited", "group_key").agg(pl.col("waiter").n_unique().alias("n")).filter(pl.col("n") > 1)
    chosen += [(r, "gpu") for r in sorted(set(several["awaited"].to_list()) - set(sinks))] if set(sinks) <= gpu else []
    covered = {r for r, _ in chosen}
    for cycle in cycles:
        chosen += [(r, "cycle") for r in cycle if r not in covered]
    if walked or not chosen:
        for waiter, awaited in weak:
            if awaited in unseen:
                into[awaited].add(waiter)
        chosen += [(r, "unseen") for r in (walked if walked else sorted(unseen))]
    few = len({rank for rank, _ in chosen}) <= _ENDS
    chosen += [(r, "passed") for r in sorted(passed - {r for r, _ in chosen})]
    ends = sorted({rank for rank, _ in chosen})
    own = progress.filter(pl.col("rank").is_in(ends)).sort("last_created_ns", "last_order", nulls_last=False).collect()
    latest = {r["rank"]: r for r in own.iter_rows(named=True) if r["source_id"] is not None}
    in_group = {(r["rank"], r["group_key"]): r for r in reversed(own.rows(named=True))}
    pending = set(own.filter((pl.col("last_done") < pl.col("last_seq")) | pl.col("first_pending").is_not_null())["rank"].to_list())
    left = set() if operations is None else _left_open(calls_of(operations))
    pending |= left
    # Whether work is completed is known only where completion is ever marked (not for gloo, nor in NCCL's log lines).
    # An operation in which a rank's own watchdog timed out is open, whatever else is known of it.
    timed_out = (pl.col("domain") == "watchdog") & pl.col("first_pending").is_not_null()
    marked = set(own.filter(pl.col("last_done").is_not_null() | timed_out)["rank"].to_list())
    marked |= left
    direct = edges.filter(pl.col("awaited").is_in(ends)).sort("created_ns", "seq", "waiter", nulls_last=True)
    # Of each the first edge of a rank that is seen, else the first.
    first_of = {r["awaited"]: r for r in direct.unique("awaited", keep="first", maintain_order=True).iter_rows(named=True)}
    preferred = direct.filter(pl.col("kind") != "unseen").unique("awaited", keep="first", maintain_order=True)
    first_of |= {r["awaited"]: r for r in preferred.iter_rows(named=True)}
    # Of a GPU that stands, what its peers have finished shows it, and not that others wait for it too.
    stands = direct.filter((pl.col("kind") == "gpu") & pl.col("awaited").is_in(sorted(gpu))).unique(
        "awaited", keep="first", maintain_order=True
    )
    first_of |= {r["awaited"]: r for r in stands.iter_rows(named=True)}
    # What closes a circle is what its ranks wait in for each other, not what others wait in for them.
    circle = pl.DataFrame(
        [(r, n) for n, c in enumerate(cycles) for r in c], schema={"rank": pl.Int32(), "circle": pl.Int64()}, orient="row"
    )
    waiting = direct.join(circle.rename({"rank": "waiter"}), on="waiter", how="inner", maintain_order="left")
    within = waiting.join(circle.rename({"rank": "awaited"}), on=["awaited", "circle"], how="inner", maintain_order="left")
    first_of |= {r["awaited"]: r for r in within.unique("awaited", keep="first", maintain_order=True).iter_rows(named=True)}
    waiters = {a: sorted(w) for a, w in direct.group_by("awaited").agg(pl.col("waiter").unique()).iter_rows()}
    together = {
        (r["awaited"], r["group_key"]): r["waiter"] for r in direct.group_by("awaited", "group_key").agg("waiter").iter_rows(named=True)
    }
    for rank, kind in chosen:
        edge = first_of[rank]
        mine = latest.get(rank, {})
        place = in_group.get((rank, edge["group_key"]), mine)
        rows.append(
            {name: edge.get(name) for name in BLOCKERS if name in edge}
            | {
                "rank": rank,
                "kind": kind,
                "waiters": sorted(_reach(into, rank) - {rank}) if few and kind != "passed" else waiters[rank],
                "direct_waiters": waiters[rank],
                "in_group": sorted(set(together[rank, edge["group_key"]])),
                "cycle": next((c for c in cycles if rank in c), None),
                "walked": rank in walked,
                "pending": rank in pending if rank in marked else None,
                "own_source_id": place.get("source_id"),
                "own_line_no": place.get("line_no"),
                "own_record": place.get("record"),
                "own_last_op": place.get("last_op"),
                "own_last_seq": place.get("last_seq"),
                "own_call_site": mine.get("last_call_site"),
            }
        )
    return pl.DataFrame(rows, schema=BLOCKERS, infer_schema_length=None).lazy()


def _awaited_in_many(edges: pl.DataFrame, unseen: set[int]) -> set[int]:
    """Ranks without evidence for which different ranks wait in different groups, by the first operation that each of them waits in."""
    first = edges.filter(pl.col("awaited").is_in(sorted(unseen)) & pl.col("created_ns").is_not_null())
    first = first.filter(pl.col("created_ns") == pl.col("created_ns").min().over("domain", "waiter"))
    many = first.group_by("awaited").agg(pl.col("group_key").n_unique().alias("groups"), pl.col("waiter").n_unique().alias("waiters"))
    return set(many.filter((pl.col("groups") > 1) & (pl.col("waiters") > 1))["awaited"].to_list())


def _reach(into: dict[int, set[int]], rank: int) -> set[int]:
    seen: set[int] = set()
    todo = [rank]
    while todo:
        for waiter in into.get(todo.pop(), ()):
            if waiter not in seen:
                seen.add(waiter)
                todo.append(waiter)
    return seen


def _circle(out: dict[int, set[int]], into: dict[int, set[int]], gpu: set[int]) -> tuple[list[int], list[list[int]]]:
    """Where nobody is free: ranks whose GPU stands still break the circle; else the circles themselves (closed components)."""
    if gpu:
        return sorted(gpu), []
    components = _components(out)
    closed = [c for c in components if len(c) > 1 and all(target in c for r in c for target in out[r])]
    return [], [sorted(c) for c in closed]


def _components(out: dict[int, set[int]]) -> list[set[int]]:
    """Strongly connected components (Tarjan, iterative)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on: set[int] = set()
    found: list[set[int]] = []
    for root in sorted(out):
        if root in index:
            continue
        work = [(root, iter(sorted(out[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            node, targets = work[-1]
            step = next((t for t in targets if t not in index or t in on), None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: set[int] = set()
                    while True:
                        member = stack.pop()
                        on.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    found.append(component)
            elif step in index:
                low[node] = min(low[node], index[step])
            else:
                index[step] = low[step] = len(index)
                stack.append(step)
                on.add(step)
                work.append((step, iter(sorted(out[step]))))
    return found
