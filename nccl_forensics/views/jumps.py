"""Ranks that left an operation out and went on in another group, told by progress and by the order of their own operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

import polars as pl

from nccl_forensics.alignment import REACH, candidates, expect, foretold_from, opens_in_a_run, read_divergence
from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import typed
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.calls import AT_ONCE, ENDS, UNEVEN, Calls, calls_of
from nccl_forensics.views.pair_waits import numbered_with_batches
from nccl_forensics.views.wait_edges import JOINED


def jumped_groups(progress: pl.LazyFrame, operations: pl.LazyFrame | None) -> dict[int, tuple[dict[str, object], str]]:
    """Ranks that are behind their peers in one group and at the same time ahead of these very peers in another: they left an operation of
    the first group out and went on to the second. In a plain chain of waits nobody is ahead of those who wait for it. Of a rank with a dump
    only the dump is read: it knows lines of code and the order of calls over all groups.

    Those who wait for such a rank look alike: they stand in the operation that it left out, and never came to the one it went on to. Of
    ranks that accuse each other so, those remain that made fewer of the missed calls since their last operation of the other group than
    their peers there, or than they themselves made before.
    """
    state = progress.filter(pl.col("last_seq").is_not_null() & pl.col("rank").is_not_null()).collect()
    last: dict[_Group, dict[int, int]] = {}
    rows: dict[tuple[_Group, int], int] = {}  # of the state
    groups_of: dict[tuple[str, int], list[_Group]] = {}
    for at, (domain, group, rank, seq) in enumerate(state.select("domain", "group_key", "rank", "last_seq").iter_rows()):
        last.setdefault((domain, group), {})[rank] = seq
        rows[(domain, group), rank] = at
    for group, ranks in last.items():
        for rank in ranks:
            groups_of.setdefault((group[0], rank), []).append(group)
    recorded = {rank for (domain, _), ranks in last.items() if domain == "fr" for rank in ranks}
    out: dict[int, _Jump] = {}
    # What several peers tell is said rather than what the other one of a pair does.
    for group, ranks in sorted(last.items(), key=lambda known: len(known[1]) > 2):
        front = max(ranks.values())
        behind = [r for r, s in ranks.items() if s < front]
        peers = [r for r, s in ranks.items() if s == front]
        pair = len(behind) == len(peers) == 1
        if not behind or (len(behind) >= len(peers) and not (pair and operations is not None)):
            continue
        reached = _Reached(last, behind, frozenset(peers))
        for rank in behind:
            if group[0] != "fr" and rank in recorded:
                continue
            for other in groups_of[group[0], rank]:
                if other == group:
                    continue
                shared, few = reached(other)
                if shared is not None and last[other][rank] > shared:
                    peer, mine = (state.row(rows[group, r], named=True) for r in (peers[0], rank))
                    waiters = sorted(set(peers) | {r for r in last[other] if r != rank})
                    fact = _left_out(group, peer, mine) | {"waiters": waiters, "seq": ranks[rank] + 1, "beyond": shared + 1}
                    out[rank] = _Jump(fact, other[1], few=few and (rank not in out or out[rank].few))
                    break
    if out and operations is not None:
        fewer = _fewer_calls(out, last, operations)
        missed = {r: jump for r, jump in out.items() if fewer[r]}
        # Of two alone in a group either may be the one that went on: only calls that are missing tell.
        some = {r: jump for r, jump in out.items() if fewer[r] is None and len(last[jump.domain, str(jump.fact["group_key"])]) > 2}
        out = missed or {r: jump for r, jump in some.items() if jump.few}
    return {rank: (jump.fact, jump.ahead) for rank, jump in out.items()}


#: Domain and key of a group.
_Group = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Jump:
    """What a rank left out, the group that it went on to, and whether only ``few`` of those in both groups ever went that way: where more of
    them did than did not, it is no exception, and they may wait for one that never came to a group of theirs."""

    fact: dict[str, object]
    ahead: str
    few: bool

    @property
    def domain(self) -> str:
        return str(self.fact["domain"])


@dataclass(frozen=True, slots=True)
class _Reached:
    """How far the members of a group came in other groups: those that are ``behind`` in it, and their ``peers``. Each group is looked at
    once, whatever the number of ranks."""

    last: Mapping[_Group, Mapping[int, int]]
    behind: Sequence[int]
    peers: Set[int]
    known: dict[_Group, tuple[int | None, bool]] = field(default_factory=dict)

    def __call__(self, other: _Group) -> tuple[int | None, bool]:
        """The furthest that peers came there, None if none of them is in that group; and whether no more of those behind went further than
        there are peers in both."""
        if other not in self.known:
            theirs = self.last[other]
            both = [p for p in self.peers if p in theirs] if len(self.peers) < len(theirs) else [r for r in theirs if r in self.peers]
            furthest = max((theirs[p] for p in both), default=None)
            further = sum(theirs.get(r, -1) > (-1 if furthest is None else furthest) for r in self.behind)
            self.known[other] = furthest, further <= len(both)
        return self.known[other]


def _left_out(group: _Group, peer: Mapping[str, object], mine: Mapping[str, object]) -> dict[str, object]:
    """The operation that a peer is in, and where the rank itself stands in its group."""
    there = {"op": peer["last_op"], "call_site": peer["last_call_site"]} | {name: peer[name] for name in PLACE}
    return {"domain": group[0], "group_key": group[1]} | there | {f"own_{name}": mine[name] for name in PLACE}


def _fewer_calls(jumps: Mapping[int, _Jump], last: Mapping[_Group, Mapping[int, int]], operations: pl.LazyFrame) -> dict[int, bool | None]:
    """Which of the ranks made fewer calls like the missed one right before the first operation of the group they went on to that their
    peers never came to (``beyond``), back to the one before it, than any peer did between the same two, or without such peers than they
    themselves did between two like these; None where that cannot be counted.

    Calls are alike by operation and line of code, in whatever group: other ranks make them in groups of their own. Where gradients go in
    several buckets, what lies between two operations of a group depends on which two they are.
    """
    asked: list[tuple[object, ...]] = []
    for rank, gone in jumps.items():
        like = (gone.fact["op"], gone.fact["call_site"], gone.fact["beyond"])
        asked += [(rank, gone.domain, gone.ahead, member, *like) for member in last[gone.domain, gone.ahead]]
    spans = pl.DataFrame(asked, schema=_SPANS, orient="row")
    own = operations.filter(
        pl.col("domain").is_in(spans["domain"].unique().implode())
        & pl.col("rank").is_in(spans["rank"].unique().implode())
        & ~pl.col("is_p2p")
    )
    # Of several dumps of one rank the one with the most operations counts the calls.
    most = own.group_by("domain", "rank", "source_id").agg(pl.len().alias("calls")).collect(engine="streaming")
    most = most.sort("calls", "source_id", descending=[True, False]).unique(["domain", "rank"], keep="first", maintain_order=True)
    counts = _between(spans, own, most.drop("calls"))
    # Members of the group it went on to that have no such call in their program at all (no leaders of their hosts, say) tell nothing.
    none = {pair for pair, count in counts.items() if not count and pair[0] != pair[1]}
    never = none - _ever(spans, own, none) if none else none
    theirs: dict[int, list[int]] = {}
    for (jump, member), count in counts.items():
        # What others made that may have left the same out tells nothing either: then the rank's own earlier calls do.
        if jump != member and member not in jumps and (jump, member) not in never:
            theirs.setdefault(jump, []).append(count)
    alone = spans.filter(
        (pl.col("jump") == pl.col("rank")) & pl.col("rank").is_in([r for r in jumps if (r, r) in counts and r not in theirs])
    )
    earlier = _earlier(alone, own, most) if alone.height else {}
    out: dict[int, bool | None] = dict.fromkeys(jumps)
    for rank in jumps:
        mine = counts.get((rank, rank))
        if mine is None:
            continue
        if rank in theirs:
            out[rank] = mine < _usual(theirs[rank])
        elif rank in earlier and not mine == earlier[rank][1] == 0 and (mine < earlier[rank][0] or mine >= earlier[rank][1]):
            # What it never made there, such as a barrier before a checkpoint, its own calls do not foretell.
            out[rank] = mine < earlier[rank][1]
    return out


def _usual(counts: list[int]) -> int:
    """The count that most have, of several such the greatest: a peer that left a call out between the two has those of two steps."""
    return max(counts, key=lambda count: (counts.count(count), count))


#: A rank that went on to a group at ``end``, and one of its members, or itself, whose calls like ``op`` and ``call_site`` are counted.
_SPANS = typed("jump:i32 domain:str group_key:str rank:i32 op:str call_site:str end:i64")
_ALIKE = ["domain", "rank", "op", "call_site"]


def _between(spans: pl.DataFrame, own: pl.LazyFrame, chosen: pl.DataFrame) -> dict[tuple[int, int], int]:
    """By ``jump`` and ``rank``: how many calls alike the rank made between the operation before ``end`` and that of the group, in its own
    order; nothing where one of these is not there. All operations are scanned, few of them held. ``chosen``: sources that count."""
    ends = pl.concat([spans["end"], spans["end"] - 1]).unique()
    places = (
        own.filter(pl.col("group_key").is_in(spans["group_key"].unique().implode()) & pl.col("seq").is_in(ends.implode()))
        .join(chosen.lazy(), on=chosen.columns)
        .group_by("domain", "group_key", "rank", "seq")
        .agg(pl.col("order").max())
        .collect(engine="streaming")
    )
    key = ["domain", "group_key", "rank", "end"]
    first = places.select(*key[:3], (pl.col("seq") + 1).alias("end"), pl.col("order").alias("from"))
    second = places.select(*key[:3], pl.col("seq").alias("end"), pl.col("order").alias("to"))
    found = spans.join(first, on=key).join(second, on=key)
    whole = found.group_by("domain", "rank").agg(pl.col("from").min().alias("least"), pl.col("to").max().alias("greatest"))
    calls = (
        own.select("domain", "rank", "source_id", "op", "call_site", "order")
        .join(chosen.join(whole, on=["domain", "rank"]).lazy(), on=chosen.columns)
        .filter((pl.col("order") > pl.col("least")) & (pl.col("order") < pl.col("greatest")))
        .join(found.select("jump", "from", "to", *_ALIKE).lazy(), on=_ALIKE, nulls_equal=True)
        .filter((pl.col("order") > pl.col("from")) & (pl.col("order") < pl.col("to")))
        .group_by("jump", "rank")
        .len()
        .collect(engine="streaming")
    )
    counts = {(jump, rank): int(n) for jump, rank, n in calls.iter_rows()}
    return {(jump, rank): counts.get((jump, rank), 0) for jump, rank in found.select("jump", "rank").iter_rows()}


def _ever(spans: pl.DataFrame, own: pl.LazyFrame, pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these pairs (``jump``, ``rank``) whose rank made a call alike at all."""
    asked = spans.join(pl.DataFrame(sorted(pairs), schema={"jump": pl.Int32(), "rank": pl.Int32()}, orient="row"), on=["jump", "rank"])
    made = own.join(asked.select(_ALIKE).unique().lazy(), on=_ALIKE, how="semi", nulls_equal=True).select(_ALIKE).unique()
    found = asked.join(made.collect(engine="streaming"), on=_ALIKE, how="semi", nulls_equal=True)
    return set(found.select("jump", "rank").iter_rows())


def _earlier(spans: pl.DataFrame, own: pl.LazyFrame, most: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """By rank: the least and the greatest number of calls alike between earlier pairs of operations of the group that are like the pair
    that ends with ``end``; nothing where there is none. ``most``: sources that count, with their ``calls``; so many are held at a time."""
    asked = spans.select("domain", "rank", "group_key", "end", pl.col("op").alias("wanted"), pl.col("call_site").alias("site"))
    sized = asked.join(most, on=["domain", "rank"], maintain_order="left").with_columns(batch=pl.col("calls").cum_sum() // AT_ONCE)
    kind = ["op", "shape", "call_site"]
    out: dict[int, tuple[int, int]] = {}
    for batch in sized.partition_by("batch", maintain_order=True):
        line = (
            own.join(batch.rename({"group_key": "group"}).lazy(), on=["domain", "rank", "source_id"])
            .select(
                *("rank", "seq", "order", "end", *kind),
                mine=pl.col("group_key") == pl.col("group"),
                alike=(pl.col("op").eq_missing(pl.col("wanted")) & pl.col("call_site").eq_missing(pl.col("site"))).cast(pl.Int64),
            )
            .collect(engine="streaming")
            .sort("rank", "order")
            .with_columns(calls=pl.col("alike").cum_sum().over("rank"), at=pl.int_range(pl.len()).over("rank"))
        )
        places = line.filter("mine").unique(["rank", "seq"], keep="last")
        before = places.select("rank", pl.col("seq") + 1, "at", "calls", *kind)
        pairs = places.join(before, on=["rank", "seq"], suffix="_before").with_columns(
            between=pl.when(pl.col("at") > pl.col("at_before"))
            .then(pl.col("calls") - pl.col("alike") - pl.col("calls_before"))
            .otherwise(0)
        )
        both = ["rank", *kind, *(f"{name}_before" for name in kind)]
        like = pairs.filter(pl.col("seq") < pl.col("end")).join(
            pairs.filter(pl.col("seq") == pl.col("end")).select(both), on=both, how="semi", nulls_equal=True
        )
        told = like.group_by("rank").agg(pl.col("between").min().alias("least"), pl.col("between").max().alias("greatest"))
        out |= {rank: (least, greatest) for rank, least, greatest in told.iter_rows()}
    return out


def passed_over(behind: list[dict[str, object]], operations: pl.LazyFrame | Calls) -> dict[int, tuple[dict[str, object], str]]:
    """Ranks that are behind in one group and have enqueued, in another, an operation that those who wait for them called only after the
    missing one: they went past it. ``behind``: rows of ``blockers``.

    Operations of two ranks are alike by the description of their group, their position in it and their name: each rank has its own group of
    a role, such as data parallelism. Of NCCL's lines, which may be millions, the last of each rank are looked at. Where batches of
    sends and receives take numbers of collectives nothing is compared.
    """
    calls = calls_of(operations)
    if any(r["domain"] == "fr" for r in behind):
        batched = numbered_with_batches(calls)
        behind = [r for r in behind if (r["domain"], r["group_key"]) not in batched]
    wanted = {int(str(r["rank"])) for r in behind} | {w for r in behind for w in as_ranks(r["waiters"])}
    if not wanted:
        return {}
    domains = {str(r["domain"]) for r in behind}
    parts = [
        every.filter((pl.col("domain") == domain) & ~pl.col("is_p2p") & pl.col("rank").is_in(sorted(wanted)) & pl.col("seq").is_not_null())
        for domain, every in (("fr", calls.every), ("nccl", calls.recent()))
        if domain in domains
    ]
    if not parts:
        return {}
    frame = (
        pl.concat(
            [p.select("domain", "rank", "group_key", "group_desc", "seq", "op", "order", "source_id", "line_no", "record") for p in parts]
        )
        .sort("domain", "rank", "order")
        .collect()
    )
    lines = {
        (str(domain), int(str(rank))): part.to_dicts() for (domain, rank), part in frame.group_by("domain", "rank", maintain_order=True)
    }
    out: dict[int, tuple[dict[str, object], str]] = {}
    tellers: dict[int, set[int]] = {}
    for row in behind:
        domain, rank, missed = str(row["domain"]), int(str(row["rank"])), (row["group_key"], row["seq"])
        own = lines.get((domain, rank), [])
        last = max((i for i, call in enumerate(own) if call["group_key"] == row["group_key"]), default=-1)
        # Of a rank whose record keeps nothing of the group it is behind in (a dump of what is open alone), only what its waiters called
        # with it is held against them: positions in groups of a role may differ.
        same = _alike if last >= 0 else _itself
        votes: list[bool] = []
        for waiter in as_ranks(row["waiters"]):
            theirs = lines.get((domain, waiter), [])
            at = next((i for i, call in enumerate(theirs) if (call["group_key"], call["seq"]) == missed), None)
            if at is not None:
                known = {same(call): i for i, call in enumerate(theirs)}
                found = [known[same(call)] > at for call in own[last + 1 :] if same(call) in known]
                # Whoever stands in the missing call has not come to what the rank went on to, and does not tell when it would.
                silent = at == len(theirs) - 1 and len(found) < len(own) - last - 1
                if found and not silent:
                    votes.append(any(found))
                    tellers.setdefault(rank, set()).add(waiter)
        if votes and all(votes):
            fact: dict[str, object] = {str(k): v for k, v in row.items() if k in _FACTS}
            mine = own[max(last, 0)]
            fact |= {f"own_{k}": mine[k] for k in PLACE}
            out[rank] = (fact, str(own[last + 1]["group_key"]))
    # One that left a call out itself is a number ahead in the other group: to it, all the others seem to have gone past what it waits in.
    witnesses = {w for row in behind for w in as_ranks(row["waiters"])} - set(out)
    # One that alone made the two in an order against which several went is the exception itself.
    alone = len(out) > 1 and len(set().union(*(tellers[rank] for rank in out))) == 1
    return out if len(out) <= len(witnesses) and not alone else {}


_FACTS = frozenset({"domain", "group_key", "seq", "op", "call_site", "source_id", "line_no", "record", "waiters"})


def _itself(call: dict[str, object]) -> tuple[object, ...]:
    return (call["group_key"], call["seq"], call["op"])


def _alike(call: dict[str, object]) -> tuple[object, ...]:
    return (call["group_desc"] or call["group_key"], call["seq"], call["op"])


_STEPS_BACK, _TAIL = ENDS, 24
#: What makes an operation of a group the same, and where a call of it stands. ``site``: the line of code of one whose size may change from
#: call to call and differ between ranks by right, in place of its ``shape``.
_OPERATION = ("group_key", "op", "shape", "dtype", "site")
_PLACE, _KIND = ["domain", "group_key", "seq"], ["op", "shape", "dtype", "site"]
#: The same where each rank has its own group of a role, such as data parallelism.
_ROLE = ["domain", "role", "seq"]


def broken_steps(operations: pl.LazyFrame | Calls) -> dict[int, tuple[dict[str, object], str]]:
    """Ranks whose operations over all groups, in their own order, leave out one that their own earlier steps foretell.

    Only the end of each sequence is looked at, and only a minority of the ranks may break its habit: a habit that many break is a new
    phase of the program. Where peers called the same two operations one after the other too, nothing was left out between them; nor where
    what the rank went on with met its peers' calls in the very group, or it sent or received something else between the two than along what
    it seems to have left out, as at the start of a pipeline.
    """
    calls, uneven = calls_of(operations), pl.col("op").is_in(UNEVEN)
    told = {"shape": pl.when(~uneven).then("shape"), "site": pl.when(uneven).then("call_site")}
    texts = ("group_key", "op", "shape", "dtype", "site", "group_name", "group_desc", "comm_id", "call_site")
    recent = (
        calls.recent()
        .filter(pl.col("rank").is_not_null() & ~pl.col("is_p2p") & pl.col("domain").is_in(["fr", "nccl"]))
        # A few texts of many rows: as numbers they take a quarter.
        .select(
            *[pl.col(c) for c in ("domain", "rank", "seq", "source_id", "order", "line_no", "record", "done")],
            *(told.get(c, pl.col(c)).cast(pl.Categorical).alias(c) for c in texts),
        )
        .sort("domain", "rank", "source_id", "order")
        .group_by("domain", "rank", maintain_order=True)
        .tail(_STEPS_BACK)
        .collect()
    )
    breaks: list[_Break] = []
    members: Counter[str] = Counter()
    for domain, rank, found in _all_breaks(recent):
        members[domain] += 1
        breaks += (_Break(domain, rank, *places) for places in found)
    # A habit that many break at the same place is a new phase of the program, or was no habit yet.
    ops, seqs = recent["op"], recent["seq"]
    ats, befores = [b.at for b in breaks], [b.before for b in breaks]
    places = list(zip([b.domain for b in breaks], ops[ats].to_list(), seqs[ats].to_list(), ops[befores].to_list(), strict=True))
    alike = Counter(places)
    few = [b for b, place in zip(breaks, places, strict=True) if alike[place] * 4 <= members[b.domain]]
    few = [b for b in few if not _numbered_after(recent, b.at, b.before) and not _met(recent, b)]
    few = _as_sent(few, recent, calls.every) if few else few
    if not few:
        return {}
    # Of a group that no other rank is seen in, nor in one of its role, nobody waits in what is missing.
    recent = _with_roles(recent)
    seen = recent.select("group_key", "role", "rank")
    common = [seen.group_by(c).agg(pl.col("rank").n_unique()).filter(pl.col("rank") > 1)[c].to_list() for c in ("group_key", "role")]
    groups_of, roles = set(common[0]), set(common[1]) - {None}
    named = seen[[b.before for b in few]]
    few = [b for b, key, role in zip(few, named["group_key"], named["role"], strict=True) if key in groups_of or role in roles]
    peers = _Peers(recent, few)
    out: dict[int, tuple[dict[str, object], str]] = {}
    for one in few:
        if one.rank not in out and not peers.did_alike(one.rank, one.at, one.before):
            out[one.rank] = _fact(recent, one.domain, one.at, one.before)
    ranks = max(members.values(), default=0)
    return out if len(out) * 4 <= ranks else {}


@dataclass(frozen=True, slots=True)
class _Break:
    """A call of a rank that its own habit does not foretell: the row of it (``at``), of the last call of what was left out (``before``), and
    those of the calls between which the habit did what was left out (``since``, ``until``)."""

    domain: str
    rank: int
    at: int
    before: int
    since: int
    until: int


def _met(recent: pl.DataFrame, one: _Break) -> bool:
    """Whether the rank went on in the very group with another operation that ends on nobody before all are in it, and that is over: there
    the others called as many as it did."""
    found, missed = recent.row(one.at, named=True), recent.row(one.before, named=True)
    alike = found["group_key"] != missed["group_key"] or found["op"] == missed["op"]
    return not alike and bool(found["done"]) and re.match(JOINED, str(found["op"])) is not None


def _as_sent(breaks: list[_Break], recent: pl.DataFrame, operations: pl.LazyFrame) -> list[_Break]:
    """Those of the breaks before which the rank sent and received nothing, or the same as along what it seems to have left out."""
    ranks = sorted({b.rank for b in breaks})
    halves = operations.filter(pl.col("is_p2p") & pl.col("rank").is_in(ranks) & pl.col("op").is_in(["send", "recv"]))
    told = halves.select("domain", "rank", "source_id", "order", "group_key", "op", "peer").sort("domain", "rank", "source_id", "order")
    sent = {(domain, rank): part for (domain, rank), part in told.collect().group_by("domain", "rank", maintain_order=True)}
    if not sent:
        return breaks
    sources, orders = recent["source_id"], recent["order"]

    def between(one: _Break, first: int, last: int) -> list[tuple[object, ...]]:
        own = sent[one.domain, one.rank].filter(
            (pl.col("source_id") == sources[first]) & pl.col("order").is_between(orders[first], orders[last])
        )
        return own.select("group_key", "op", "peer").rows()

    def alike(one: _Break) -> bool:
        if (one.domain, one.rank) not in sent or not (made := between(one, one.at - 1, one.at)):
            return True
        return made == between(one, one.since, one.until)

    return [b for b in breaks if alike(b)]


def _with_roles(recent: pl.DataFrame) -> pl.DataFrame:
    """The same, with what a group is for: its description without the number that tells groups of a role apart (island0, tp_1), or, where
    all that a process calls its groups by is a number, that number: each made its second group in the same line of the program, as a
    rule."""
    described = pl.col("group_desc").cast(pl.String).str.replace(r"[ _-]?[0-9]+$", "")
    numbered = pl.col("group_key").cast(pl.String).str.extract(r"^(.+) of rank \d+$")
    roles = (
        recent.select("group_key", "group_desc").unique().with_columns(pl.coalesce(described, numbered).cast(pl.Categorical).alias("role"))
    )
    return recent.join(roles, on=["group_key", "group_desc"], how="left", nulls_equal=True, maintain_order="left")


#: So many rows are looked at one by one at a time.
_ROWS = 1 << 16


def _all_breaks(recent: pl.DataFrame) -> Iterator[tuple[str, int, list[tuple[int, ...]]]]:
    """Each rank of each domain, with the rows of its breaks as ``_breaks`` tells them."""
    operations = recent.select(_OPERATION).unique(maintain_order=True).with_row_index("code")
    codes = recent.select(_OPERATION).join(operations, on=_OPERATION, how="left", nulls_equal=True, maintain_order="left")["code"]
    # Ranks of one program run the same pattern in groups of other names: what matters is which operations are equal.
    ids = recent.select(line=pl.struct("domain", "rank").rle_id(), code=codes, row=pl.int_range(pl.len(), dtype=pl.UInt32()))
    patterns = ids.select(pl.col("row").first().over("line", "code") - pl.col("row").first().over("line")).to_series()
    spans = recent.select(pl.struct("domain", "rank").rle()).unnest("domain").unnest("value")
    begins = spans["len"].cum_sum() - spans["len"]
    cut = (recent["seq"].gather(begins).fill_null(0) > 1).to_list()
    known: dict[tuple[tuple[int, ...], bool], tuple[tuple[int, ...], ...]] = {}
    held: list[int] = []
    base = 0
    for (length, domain, rank), start, amid in zip(spans.iter_rows(), begins, cut, strict=True):
        if start + length > base + len(held):
            base, held = start, patterns.slice(start, max(length, _ROWS)).to_list()
        key = tuple(held[start - base : start - base + length]), amid
        if key not in known:
            known[key] = tuple(_breaks(*key))
        yield domain, rank, [tuple(start + at for at in places) for places in known[key]]


def _breaks(line: tuple[int, ...], cut: bool) -> Iterator[tuple[int, int, int, int]]:
    """Where the end of a line leaves out what the steps before it foretell, where the operation left out was called last, and the calls
    between which it came when the line went on as foretold; ``cut``: the line begins amid the calls of its rank."""
    late = 0
    for at in range(max(2, len(line) - _TAIL), len(line)):
        # What came after the same calls before is no break, though something else came after them later: a checkpoint in some steps, say.
        if line[at] in candidates(line[:at]) or not (future := expect(line[:at], REACH)):
            continue
        if cut and opens_in_a_run(line[:at]):
            continue
        delay = _delayed(line[:at], future, line[at:])
        if delay is not None:
            late = max(late, at + delay)
            continue
        if at <= late:
            continue  # up to the call that comes late, the order is another one
        reading = read_divergence(line[:at], future, line[at:])
        if reading.kind == "skipped":
            since = foretold_from(line[:at]) - 1
            # What is foretold beyond the end of the line begins anew at the same place.
            until = min(since + 1 + reading.skipped, at)
            yield at, max(i for i in range(at) if line[i] == future[0]), since, until


def _numbered_after(recent: pl.DataFrame, at: int, before: int) -> bool:
    """Whether the rank's next operation in the group bears a number that counts the one that seems left out: then its record was lost, not
    the call. ``at`` and ``before``: rows of the break and of the last call of what seems left out."""
    keys, seqs, ranks = recent.select("group_key", "seq", "rank").slice(before, at - before + _STEPS_BACK).to_dict(as_series=False).values()
    last = max(row for row in range(at - before) if keys[row] == keys[0])
    for row in range(at - before, len(keys)):
        if ranks[row] != ranks[0]:
            return False
        if keys[row] == keys[0]:
            # A record without a number (a batch) tells nothing.
            return seqs[row] is not None and seqs[last] is not None and bool(seqs[row] > seqs[last] + 1)
    return False


def _delayed(before: Sequence[Hashable], foretold: Sequence[Hashable], rest: Sequence[Hashable]) -> int | None:
    """How far on what should have come first comes, if that is before its next turn: it was called in another order, not left out.

    Its next turn is where it is foretold again, or as far ahead as its calls most often lay apart: what comes in some steps only, such as a
    barrier, may be foretold a step too early.
    """
    due = foretold[0]
    turn = next((i for i, operation in enumerate(foretold) if i and operation == due), len(foretold))
    apart = Counter(later - earlier for earlier, later in pairwise(i for i, operation in enumerate(before) if operation == due))
    usual = min((gap for gap, n in apart.items() if n == max(apart.values())), default=turn)
    until = (min(turn, usual) if usual > 1 else turn) - 1
    return next((n for n, operation in enumerate(rest[:until]) if operation == due), None)


def _fact(recent: pl.DataFrame, domain: str, at: int, before: int) -> tuple[dict[str, object], str]:
    """The operation left out, as its last call tells it, and the group in which the rank went on."""
    own, earlier = recent.row(at, named=True), recent.row(before, named=True)
    told = ("group_key", "group_name", "group_desc", "comm_id", "op", "call_site", "source_id", "line_no", "record")
    fact: dict[str, object] = {"domain": domain} | {k: earlier[k] for k in told}
    # Other operations of its group may have come between its last call and the place where it is missing.
    group = recent[before:at].filter(pl.col("group_key") == earlier["group_key"])
    fact |= {
        "seq": int(str(group["seq"].max())) + 1,
        "own_source_id": own["source_id"],
        "own_line_no": own["line_no"],
        "own_record": own["record"],
        "waiters": [],
    }
    return fact, str(own["group_key"])


#: Rank -> row and kind of its call at one place.
_Calls = dict[int, tuple[int, tuple[object, ...]]]


class _Peers:
    """What the others called between two operations that a rank called one after the other.

    Operations of two ranks are the same by group and position. Where no other rank is in both groups, as in a mesh of groups, they are
    alike by the description of their group, their position in it and their kind; where groups of a role count apart, what the peers in the
    first one called next is held against the second. Each pair of operations is looked up once, whatever the number of ranks that called
    both.
    """

    def __init__(self, recent: pl.DataFrame, breaks: Sequence[_Break]) -> None:
        self._rows = sorted({row for b in breaks for row in (b.at - 1, b.at)})
        self._kinds = dict(zip(self._rows, recent[self._rows].select(_KIND).rows(), strict=True))
        self._recent = recent
        self._by_group = self._calls(_PLACE)
        self._by_role = self._calls(_ROLE)
        self._told: dict[tuple[object, ...], tuple[int, frozenset[int]]] = {}
        self._next: dict[tuple[object, ...], tuple[int, frozenset[int]]] = {}
        self._before: dict[tuple[object, ...], tuple[int, frozenset[int]]] = {}
        rows = [b.before for b in breaks]
        self._left_out = dict(zip(rows, recent["group_key"].gather(rows), strict=True))
        asked = recent.lazy().select(group=pl.col("group_key").cast(pl.String), rank="rank").unique()
        ranks = asked.filter(pl.col("group").is_in(sorted(set(self._left_out.values())))).group_by("group").agg("rank").collect()
        self._members = {group: frozenset(members) for group, members in ranks.iter_rows()}

    def _calls(self, names: Sequence[str]) -> tuple[dict[int, tuple[object, ...]], dict[tuple[object, ...], _Calls]]:
        """The places of the rows in question, and place -> rank -> row and kind of its call; places without a name are left out."""
        known = self._recent.lazy().with_row_index("row").select("row", "rank", *dict.fromkeys((*names, *_KIND))).drop_nulls(names)
        asked = known.filter(pl.col("row").is_in(self._rows)).select("row", *names).collect()
        places: dict[int, tuple[object, ...]] = {row[0]: tuple(row[1:]) for row in asked.iter_rows()}
        called = known.join(asked.lazy().select(names).unique(), on=names, how="semi").collect()
        out: dict[tuple[object, ...], _Calls] = {}
        for row, *values in called.select("row", *names, "rank", *_KIND).iter_rows():
            place, rank, kind = tuple(values[:3]), values[3], tuple(values[4:])
            out.setdefault(place, {})[rank] = row, kind
        return places, out

    def did_alike(self, rank: int, at: int, before: int) -> bool:
        """Whether of the other ranks that called both operations at least half called nothing between the two: of those that call what
        seems left out (last in row ``before``) at all, such as leaders of hosts, if any of them did, else of all. Where nobody called both,
        whether at least half of those that called the first went on with one like the second."""
        left_out = self._left_out[before]
        for group, who in ((left_out, self._members[left_out]), (None, None)):
            for places, calls in (self._by_group, self._by_role):
                if at - 1 not in places or at not in places:
                    continue
                one, two, kind = places[at - 1], places[at], self._kinds[at]
                key = (one, two, kind, group)
                if key not in self._told:
                    first, second = calls[one], calls[two]
                    both = [
                        r
                        for r in (first if len(first) < len(second) else second)
                        if r in first and r in second and (who is None or r in who)
                    ]
                    self._told[key] = len(both), frozenset(r for r in both if second[r][1] != kind or second[r][0] != first[r][0] + 1)
                count, apart = self._told[key]
                others = count - 1  # the rank itself is among them
                if others > 0:
                    return (len(apart) - (rank in apart)) * 2 <= others
        return self._went_on_alike(rank, at) or self._came_alike(rank, at)

    def _came_alike(self, rank: int, at: int) -> bool:
        """Whether of the other ranks that called the second operation at least half came to it from one like the first, where nobody else
        called the first itself: of a pair, say, whose other half stopped before."""
        places, calls = self._by_group
        if at - 1 not in places or at not in places or len(calls[places[at - 1]]) > 1:
            return False
        two, kind = places[at], self._kinds[at - 1]
        if (two, kind) not in self._before:
            before = {member: row - 1 for member, (row, _) in calls[two].items() if row}
            rows = self._recent[list(before.values())].select("rank", *_KIND).rows()
            came = [(member, row[1:] == kind) for member, row in zip(before, rows, strict=True) if row[0] == member]
            self._before[two, kind] = len(came), frozenset(member for member, alike in came if not alike)
        count, apart = self._before[two, kind]
        return count > 2 and (len(apart) - (rank in apart)) * 2 <= count - 1

    def _went_on_alike(self, rank: int, at: int) -> bool:
        places, calls = self._by_group
        if at - 1 not in places or at not in places:
            return False
        one, kind = places[at - 1], (self._recent["role"][at], *self._kinds[at])
        if (one, kind) not in self._next:
            then = {member: row + 1 for member, (row, _) in calls[one].items() if row + 1 < self._recent.height}
            after = self._recent[list(then.values())].select("rank", "role", *_KIND).rows()
            went_on = [(member, row[1:] == kind) for member, row in zip(then, after, strict=True) if row[0] == member]
            self._next[one, kind] = len(went_on), frozenset(member for member, alike in went_on if not alike)
        count, apart = self._next[one, kind]
        return count > 1 and (len(apart) - (rank in apart)) * 2 <= count - 1
