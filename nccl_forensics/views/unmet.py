"""Ranks that went on without the other half of a send or receive in which a peer waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import ranks_in, typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.pair_waits import unfinished
from nccl_forensics.views.sibling_stages import batches, last_posted, left_out, posted_as_many, siblings
from nccl_forensics.views.wait_edges import OTHER_HALF

UNMET = typed(
    "rank:i32 waiter:i32 op:str waits_in:str number:i64 group_name:str group_desc:str call_site:str",
    read_at(),
    "beyond_name:str beyond_desc:str beyond_seq:i64 followed:bool siblings:list[i32]",
    read_at("own_"),
)
#: What a half is counted and cited by.
_CITED = ("seq", "order", "source_id", "line_no", "record")
_PAIR = ("group_key", "rank", "op", "peer")
#: Halves under one number on both sides from which on numbers tell of batches.
_AGREED = 2
#: Pairs that are looked at, those that have waited longest first: of a pipeline that stands most stages wait for one that waits.
_PAIRS = 256
#: Ranks whose sends and receives are held beside those of other pipelines.
_BESIDE = 512


class _Sides(NamedTuple):
    """Where a pair stands in the order of each side's entries: the waiter's calls of its half, the other one's of theirs, and of the
    collectives that both entered ``group_key``, ``seq``, ``order`` (the waiter's) and ``order_right`` (the other one's). ``numbers`` are
    those that both sides' calls bear, ``back`` those of the halves the other way, ``kept`` the first number from which on both have kept
    what they posted to whomever; ``cited``: where the other one's stand."""

    mine: pl.Series
    theirs: pl.Series
    both: pl.DataFrame
    numbers: tuple[pl.Series, pl.Series]
    back: tuple[pl.Series, pl.Series]
    kept: int
    cited: pl.DataFrame


@view(rows="ranks")
def unmet(operations: pl.LazyFrame | Calls, dumps: pl.LazyFrame, progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks that have called fewer sends to a peer than that one waits for (or receives), the ``number``-th of the pair that is kept, and
    went past it: they have enqueued an operation of a group of both (``beyond_seq``) that the peer enqueued after it (``followed``), or
    that it has not come to, with fewer halves before it than in the step before; or, where ``followed`` is null, the half of the same
    number in their group after it, while all others before and after are there. One row per rank and waiter. ``siblings``: those at the
    same place of other pipelines, which all posted it under ``number``.

    The two halves of a pair meet in order, so they are counted: from the start where recorders have kept all entries of both, else from the
    collectives that both entered, where the count of one side leads that of the other by the same number at each of them, or from where the
    calls of both bear the same numbers. Two that each lack a half of the other are left out, and whoever posted as many as all at its place
    of other pipelines. Cites the waiter's call (``source_id`` …) and
    the rank's own operation beyond it (``own_…``).
    """
    calls = calls_of(operations)
    left = unfinished(calls)
    if left is None:
        return pl.LazyFrame(schema=UNMET)
    info = {str(g["group_key"]): g for g in groups.filter(pl.col("domain") == "fr").collect().iter_rows(named=True)}
    first = _first_waits(left)
    number_of = {key: {rank: n for n, rank in enumerate(info[key]["members"])} for key in first["group_key"].unique() if key in info}
    pairs = _pairs(first, number_of, ranks_in(dumps, pl.col("use") == "chosen"))
    if not pairs:
        return pl.LazyFrame(schema=UNMET)
    whole = ranks_in(dumps, pl.col("use") == "chosen", pl.col("first_record_id") == 0)
    reached: dict[int, dict[str, dict[str, object]]] = {}
    for place in progress.filter(pl.col("domain") == "fr").collect().iter_rows(named=True):
        reached.setdefault(place["rank"], {})[place["group_key"]] = place
    rows: list[dict[str, object]] = []
    keys: list[str] = []
    for row, peer, own, sides in _sides(calls, pairs, number_of):
        lacks = _lacking(row, sides, reached.get(own, {}), reached.get(peer, {}), whole={own, peer} <= whole)
        if lacks is not None:
            number, followed, (key, seq), cited = lacks
            told = {"number": number, "followed": followed, "beyond_seq": seq}
            rows.append(_told(row, peer, info[str(row["group_key"])], info[key], cited) | told)
            keys.append(str(row["group_key"]))
    posted = last_posted(calls.every) if rows else {}
    rows = [r for r, key in zip(rows, keys, strict=True) if not posted_as_many(posted, key, _number(r, "rank"), info)]
    rows = _beside_siblings(calls, pairs, info, number_of) or rows
    accused = {(r["rank"], r["waiter"]) for r in rows}
    rows = [r for r in rows if (r["waiter"], r["rank"]) not in accused]
    return (
        pl.DataFrame(rows, schema=UNMET, infer_schema_length=None)
        .unique(["rank", "waiter"], keep="first", maintain_order=True)
        .sort("rank", "waiter")
        .lazy()
    )


def _first_waits(left: pl.LazyFrame) -> pl.DataFrame:
    """The first send, and the first receive, of each pair that a rank waits in, and how many it has open."""
    waiting = left.filter(pl.col("is_p2p") & pl.col("op").is_in(list(OTHER_HALF)) & pl.col("peer").is_not_null()).sort("order")
    at = ("order", "created_ns", "call_site", *PLACE)
    return waiting.group_by(_PAIR, maintain_order=True).agg(pl.len().alias("open"), *(pl.col(c).first() for c in at)).collect()


def _pairs(first: pl.DataFrame, number_of: Mapping[str, dict[int, int]], known: set[int]) -> list[tuple[dict[str, object], int]]:
    """Whoever waits and the rank that it waits for, where recorders of both are known: the earliest ones."""
    members = {key: list(numbers) for key, numbers in number_of.items()}
    pairs: list[tuple[dict[str, object], int]] = []
    for row in first.sort("created_ns", maintain_order=True, nulls_last=True).iter_rows(named=True):
        group = row["group_key"]
        if row["rank"] in number_of.get(group, {}) and 0 <= row["peer"] < len(members[group]):
            peer = members[group][row["peer"]]
            if {row["rank"], peer} <= known and len(pairs) < _PAIRS:
                pairs.append((row, peer))
    return pairs


def _lacking(
    row: dict[str, object], sides: _Sides, mine: dict[str, dict[str, object]], theirs: dict[str, dict[str, object]], *, whole: bool
) -> tuple[int, bool | None, tuple[str, object], dict[str, object]] | None:
    """Which half the other one has not called, if it went past it: its number, whether it was followed, the group and the number of what the
    other one went on to, and where that is told. ``whole``: recorders have kept all entries of both."""
    lead = 0 if whole else _lead(sides, _number(row, "order"))
    number = sides.mine.len() - _number(row, "open") + 1
    passed = _beyond(row, mine, theirs) or _both_beyond(row, sides)
    if lead is not None and _called(sides, passed) + lead < number:
        beyond = passed or _not_followed(sides, number, mine, theirs, whole_too=whole)
        if beyond is not None:
            key = str(beyond["group_key"])
            return number, beyond is passed, (key, beyond["first_pending"]), theirs[key]
    # Of as many halves on both sides none is missing, whatever their numbers are: the waiter itself may be a batch behind.
    if lead is not None and sides.theirs.len() + lead >= sides.mine.len():
        return None
    left_out_one = _left_out_of_a_batch(sides)
    if left_out_one is None:
        return None
    number, cited = left_out_one
    return number, None, (str(row["group_key"]), cited["seq"]), cited


def _told(
    row: Mapping[str, object], peer: int, group: Mapping[str, object], beyond: Mapping[str, object], cited: Mapping[str, object]
) -> dict[str, object]:
    """What a row of the view says in any case: of the call that the waiter is in, of its group, of the group of what ``peer`` went on to, and
    where that is told."""
    return (
        {c: row[c] for c in ("call_site", *PLACE)}
        | {c: group[c] for c in ("group_name", "group_desc")}
        | {f"beyond_{c}": beyond[f"group_{c}"] for c in ("name", "desc")}
        | {"rank": peer, "waiter": row["rank"], "op": OTHER_HALF[str(row["op"])], "waits_in": row["op"]}
        | {f"own_{c}": cited[c] for c in PLACE}
    )


def _beside_siblings(
    calls: Calls,
    pairs: list[tuple[dict[str, object], int]],
    info: dict[str, dict[str, object]],
    number_of: dict[str, dict[int, int]],
) -> list[dict[str, object]]:
    """Ranks that lack a half which those at their place of the other pipelines have posted, and a peer waits for."""
    alike: dict[tuple[str, int], list[tuple[str, int]]] = {}
    looked_at: set[int] = set()
    for key, peer in dict.fromkeys((str(row["group_key"]), peer) for row, peer in pairs):
        if len(looked_at) < _BESIDE:
            alike[key, peer] = siblings(key, peer, info)
            looked_at |= {peer, *(r for _, r in alike[key, peer])}
    own = (pl.col("domain") == "fr") & pl.col("is_p2p") & pl.col("peer").is_not_null() & pl.col("rank").is_in(sorted(looked_at))
    halves = calls.every.filter(own).select(*_PAIR, *_CITED).sort("order").collect()
    posted = batches(halves)
    rows = []
    for row, peer in pairs:
        key, rank = str(row["group_key"]), _number(row, "rank")
        others = [posted[who] for who in alike.get((key, peer), ()) if who in posted]
        told = left_out(posted.get((key, peer), {}), others)
        if told is None or (OTHER_HALF[str(row["op"])], number_of[key][rank]) not in told[1]:
            continue
        number = told[0]
        # What it posted in place of that batch, or with the halves that it did post.
        instead = halves.filter((pl.col("group_key") == key) & (pl.col("rank") == peer) & (pl.col("seq") >= number)).row(0, named=True)
        told_too = {
            "number": number,
            "followed": None,
            "beyond_seq": number,
            "siblings": sorted(r for k, r in alike[key, peer] if (k, r) in posted),
        }
        rows.append(_told(row, peer, info[key], info[key], instead) | told_too)
    return rows


def _sides(
    calls: Calls, pairs: list[tuple[dict[str, object], int]], number_of: dict[str, dict[int, int]]
) -> Iterator[tuple[dict[str, object], int, int, _Sides]]:
    """Each pair with the rank that waits, and what both sides called."""
    ranks = sorted({r for row, peer in pairs for r in (_number(row, "rank"), peer)})
    own = (pl.col("domain") == "fr") & pl.col("rank").is_in(ranks) & pl.col("order").is_not_null()
    entries = calls.every.filter(own).select(*_PAIR, "is_p2p", *_CITED).sort("order").collect()
    halves = entries.filter(pl.col("is_p2p") & pl.col("peer").is_not_null())
    called = halves.partition_by(_PAIR, as_dict=True, maintain_order=True)
    joined = entries.filter(~pl.col("is_p2p") & pl.col("seq").is_not_null()).unique(["group_key", "rank", "seq"], maintain_order=True)
    placed = {key[0]: part for key, part in joined.select("rank", "group_key", "seq", "order").partition_by("rank", as_dict=True).items()}
    begins = {(key, rank): seq for key, rank, seq in halves.group_by("group_key", "rank").agg(pl.col("seq").min()).iter_rows()}
    none, nobody = halves.clear(), joined.select("rank", "group_key", "seq", "order").clear()
    for row, peer in pairs:
        rank, key, op = _number(row, "rank"), str(row["group_key"]), str(row["op"])
        mine = called.get((key, rank, op, row["peer"]), none)
        theirs = called.get((key, peer, OTHER_HALF[op], number_of[key][rank]), none)
        both = placed.get(rank, nobody).join(placed.get(peer, nobody), on=["group_key", "seq"], maintain_order="left")
        met = both.select("group_key", "seq", "order", "order_right")
        back = (
            called.get((key, r, o, p), none)["seq"] for r, o, p in ((rank, OTHER_HALF[op], row["peer"]), (peer, op, number_of[key][rank]))
        )
        kept = max(int(begins.get((key, r)) or 0) for r in (rank, peer))
        numbers = (mine["seq"], theirs["seq"])
        yield row, peer, rank, _Sides(mine["order"], theirs["order"], met, numbers, (next(back), next(back)), kept, theirs)


def _lead(sides: _Sides, until: int) -> int | None:
    """By how much the waiter's count leads the other's at each of the collectives that both entered before it waits; None where that is not
    always the same, or no call lies between them and numbers do not tell either."""
    before = sides.both.filter(pl.col("order") < until)
    mine = sides.mine.search_sorted(before["order"])
    if mine.n_unique() < 2:
        return _lead_by_numbers(sides, until)
    leads = (mine.cast(pl.Int64) - sides.theirs.search_sorted(before["order_right"]).cast(pl.Int64)).unique()
    return int(leads[0]) if leads.len() == 1 else None


def _lead_by_numbers(sides: _Sides, until: int) -> int | None:
    """The same by the numbers of both sides' calls, where every one that both could have kept, before the one that is waited in, has its
    other half under the same number: so it is with two alone in a group, and where all have as many batches."""
    mine, theirs = sides.numbers
    at = sides.mine.search_sorted(until)
    if not at or not theirs.len() or mine.null_count() or theirs.null_count():
        return None
    first, end = max(int(mine[0]), int(theirs[0])), int(mine[at])
    here, there = (numbers.filter((numbers >= first) & (numbers < end)) for numbers in (mine.head(at), theirs))
    return at - int((theirs < end).sum()) if here.n_unique() > 1 and here.equals(there) else None


def _left_out_of_a_batch(sides: _Sides) -> tuple[int, dict[str, object]] | None:
    """Which of the waiter's halves has none under its number where all others have, before it and after it, and the other one's next: its
    batch lacks it, though later ones end with the half that was meant for the next."""
    mine, theirs = sides.numbers
    if not mine.len() or not theirs.len() or mine.null_count() or theirs.null_count():
        return None
    here = mine.filter(mine.is_between(sides.kept, int(theirs[-1])))
    there = theirs.filter(theirs.is_between(sides.kept, int(mine[-1])))
    lacking = here.filter(~here.is_in(there.implode()))
    if lacking.len() != 1 or here.n_unique() != here.len() or there.len() != here.len() - 1 or not there.is_in(here.implode()).all():
        return None
    number = int(lacking[0])
    if int((here < number).sum()) < _AGREED or not _numbered_alike(sides, number):
        return None
    return int((mine <= number).sum()), sides.cited.row(int((theirs < number).sum()), named=True)


def _numbered_alike(sides: _Sides, until: int) -> bool:
    """Whether the halves the other way bear the same numbers on both sides, as far as both have kept theirs: else stages make batches of
    their own, and where numbers agree it is by chance."""
    kept = [[int(n) for n in (*own, *back) if n is not None] for own, back in zip(sides.numbers, sides.back, strict=True)]
    first = max(min(numbers) for numbers in kept)
    here, there = ({int(n) for n in numbers if n is not None and first <= n < until} for numbers in sides.back)
    return here == there


def _beyond(row: dict[str, object], mine: dict[str, dict[str, object]], theirs: dict[str, dict[str, object]]) -> dict[str, object] | None:
    """What the waiter enqueued after it and the other one has entered."""
    after = sorted((p for p in mine.values() if _number(p, "pending_order") > _number(row, "order")), key=_by_order)
    entered = (p for p in after if _number(theirs.get(str(p["group_key"]), {}), "last_seq") >= _number(p, "first_pending"))
    return next(entered, None)


def _both_beyond(row: dict[str, object], sides: _Sides) -> dict[str, object] | None:
    """The first of what both entered that the waiter enqueued after it, whatever became of it."""
    after = sides.both.filter(pl.col("order") > _number(row, "order")).sort("order").head(1)
    return {"group_key": after["group_key"][0], "first_pending": after["seq"][0]} if after.height else None


def _called(sides: _Sides, passed: dict[str, object] | None) -> int:
    """How many of its halves the other one called before what it went on to: those after it come too late for who waits before it."""
    if passed is None:
        return sides.theirs.len()
    place = (pl.col("group_key") == passed["group_key"]) & (pl.col("seq") == passed["first_pending"])
    entered = sides.both.filter(place)["order_right"]
    return int(sides.theirs.search_sorted(int(entered[0]))) if entered.len() else sides.theirs.len()


def _not_followed(
    sides: _Sides, number: int, mine: dict[str, dict[str, object]], theirs: dict[str, dict[str, object]], *, whole_too: bool
) -> dict[str, object] | None:
    """What the other one waits in and the waiter has not come to, where the other one called fewer halves since the operation before it
    than it did from the one before that on, and the waiter no more."""
    for place in sorted(theirs.values(), key=_by_order):
        key, seq = str(place["group_key"]), _number(place, "first_pending")
        if seq < 0 or key not in mine or _number(mine[key], "last_seq") != seq - 1:
            continue
        steps = sides.both.filter((pl.col("group_key") == key) & (pl.col("seq") < seq)).sort("seq").tail(2)
        if steps.height < (1 if whole_too else 2):
            continue
        own = [0] * (2 - steps.height) + sides.mine.search_sorted(steps["order"]).to_list()
        other = [0] * (2 - steps.height) + sides.theirs.search_sorted(steps["order_right"]).to_list()
        called = int(sides.theirs.search_sorted(_number(place, "pending_order")))
        if number - own[1] <= own[1] - own[0] and called - other[1] < other[1] - other[0]:
            return place
    return None


def _number(place: dict[str, object], name: str) -> int:
    """A number of a rank's progress in a group; -1 where it is not known."""
    value = place.get(name)
    return -1 if value is None else int(str(value))


def _by_order(place: dict[str, object]) -> int:
    return _number(place, "pending_order")
