"""Sends and receives of NCCL's logs that do not pair up: what one member sends to another, that one receives, as often and of one size."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of

UNPAIRED = typed(
    "group_key:str kind:str sender:i32 receiver:i32 sends:i64 receives:i64 sent:str received:str odd:i32 beyond:i64 source_id:u32",
    "line_no:u32 peer_source_id:u32 peer_line_no:u32",
)
_PAIR = ["group_key", "src", "dst"]
_WHAT = ["shape", "dtype"]
_Row = dict[str, object]
#: Pairs that are looked at in one of which somebody is behind: of a job that stands these may be all.
_PAIRS = 256


@view(rows="pairs of ranks")
def unpaired(operations: pl.LazyFrame | Calls, comms: pl.LazyFrame | None) -> pl.LazyFrame:
    """Pairs of members with ``sends`` of the one and ``receives`` of the other that do not agree: in number (``kind`` is calls), in size
    (shape) or in type (dtype). ``sent`` and ``received``: elements and type that the other side lacks. ``odd``: the one of the two that
    does otherwise than it does with others, or others do; null where nothing tells. The lines are the last of each side in the pair.

    Communicators that were taken down in order have none. Numbers count where the logs of both hold all calls from the making of the
    communicator on, and were different before the last collective of both as well: a log that was copied while its job worked ends
    anywhere. Or the one has made its last call, and the other had made fewer when it went on to a collective of both (``beyond``, its
    number) to which that one never came. Several pairs that have no rank in common that did less, or more, in all of them look like lines
    that were lost: then there are no rows.
    """
    calls = calls_of(operations)
    if comms is None:
        return pl.LazyFrame(schema=UNPAIRED)
    known = pl.col("rank").is_not_null() & pl.col("member").is_not_null() & pl.col("peer").is_not_null()
    sent = calls.sent.filter((pl.col("domain") == "nccl") & known & ~pl.col("done").fill_null(False)).collect()
    if sent.is_empty():
        return pl.LazyFrame(schema=UNPAIRED)
    send = pl.col("op") == "send"
    ends = sent.with_columns(
        src=pl.when(send).then("member").otherwise("peer"),
        dst=pl.when(send).then("peer").otherwise("member"),
        sends=pl.when(send).then("calls").otherwise(0),
        receives=pl.when(send).then(0).otherwise("calls"),
    )
    people = {(g, m): r for g, m, r in sent.select("group_key", "member", "rank").unique().iter_rows()}
    begun = set(comms.select("comm_key", "rank", "source_id").collect().rows())
    # Of pairs that differ in number it is not known which call belongs to which.
    in_number = [*_in_number(calls, ends, people, begun)]
    rows = _misdirected(in_number, ends, people) or _named(in_number or [*_in_size(ends, people)], ends)
    _cite(rows, calls)
    return pl.DataFrame(rows, schema=UNPAIRED, infer_schema_length=None).lazy()


def held(unpaired: pl.LazyFrame, calls: Calls | None) -> set[int]:
    """Ranks that wait in a send or receive whose other half a peer left out, and those whose last call is a send or receive with one of
    them: what that one enqueued behind the call in which it waits has not begun."""
    fewer = pl.when(pl.col("sends") < pl.col("receives")).then("sender").otherwise("receiver")
    waiting = pl.when(fewer == pl.col("sender")).then("receiver").otherwise("sender")
    found = unpaired.filter((pl.col("kind") == "calls") & (pl.col("odd") == fewer)).select(waiting.alias("rank")).collect()["rank"]
    waits = set(found.to_list())
    if not waits or calls is None:
        return waits
    lines = calls.recent().filter((pl.col("domain") == "nccl") & pl.col("rank").is_not_null()).sort("rank", "source_id", "order")
    people = lines.select("group_key", "rank", peer="member").unique().rename({"rank": "other"})
    last = lines.group_by("rank").last().filter("is_p2p").join(people, on=["group_key", "peer"]).select("rank", "other").collect().rows()
    while more := {rank for rank, other in last if other in waits} - waits:
        waits |= more
    return waits


def _unlike(ends: pl.DataFrame, people: dict[tuple[str, int], int]) -> Iterator[_Row]:
    counts = ends.group_by(*_PAIR, *_WHAT).agg(pl.col("sends", "receives").sum()).filter(pl.col("sends") != pl.col("receives"))
    for row in counts.sort(*_PAIR, *_WHAT).iter_rows(named=True):
        sender, receiver = people.get((row["group_key"], row["src"])), people.get((row["group_key"], row["dst"]))
        if sender is not None and receiver is not None:
            yield row | {"sender": sender, "receiver": receiver, "odd": None}


def _in_number(calls: Calls, ends: pl.DataFrame, people: dict[tuple[str, int], int], begun: set[tuple[str, int, int]]) -> Iterator[_Row]:
    counts = ends.group_by(_PAIR).agg(pl.col("sends", "receives").sum()).sort(_PAIR)
    known = [(row, people.get((row["group_key"], row["src"])), people.get((row["group_key"], row["dst"]))) for row in counts.to_dicts()]
    placed = (pl.col("domain") == "nccl") & ~pl.col("is_p2p") & pl.col("seq").is_not_null()
    reached: dict[int, dict[str, int]] = defaultdict(dict)
    for key, rank, last in calls.every.filter(placed).group_by("group_key", "rank").agg(pl.col("seq").max()).collect().iter_rows():
        reached[rank][key] = last
    unlike = [(r, one, two) for r, one, two in known if one is not None and two is not None and r["sends"] != r["receives"]]
    apart = [
        (r, one, two)
        for r, one, two in known
        if one is not None and two is not None and r["sends"] == r["receives"] and _apart(reached[one], reached[two])
    ]
    pairs = [*unlike, *apart[:_PAIRS]]
    ranks = sorted({rank for _, one, two in pairs for rank in (one, two)})
    if not ranks:
        return
    every = calls.every.filter((pl.col("domain") == "nccl") & pl.col("rank").is_in(ranks))
    # A few texts of many lines: as numbers they take a quarter. And each pair looks at the lines of its two ranks alone.
    texts = (pl.col(c).cast(pl.Categorical) for c in ("group_key", "op"))
    lines = every.select("rank", *texts, "is_p2p", "peer", "seq", "source_id", "order").collect()
    of_rank = {int(str(rank)): own for (rank,), own in lines.partition_by("rank", as_dict=True).items()}
    files = {rank: own["source_id"].unique().to_list() for rank, own in of_rank.items()}
    marks = {
        rank: own.filter(~pl.col("is_p2p") & pl.col("seq").is_not_null()).select("group_key", "seq", "order")
        for rank, own in of_rank.items()
    }
    for pair, one, two in pairs:
        members = ((one, pair["src"]), (two, pair["dst"]))
        if not all(len(files[r]) == 1 and (pair["group_key"], m, files[r][0]) in begun for r, m in members):
            continue
        before = pl.col("is_p2p") & (pl.col("group_key") == pair["group_key"])
        sends = of_rank[one].filter(before & (pl.col("op") == "send") & (pl.col("peer") == pair["dst"]))["order"]
        receives = of_rank[two].filter(before & (pl.col("op") == "recv") & (pl.col("peer") == pair["src"]))["order"]
        found: _Row = pair | {"kind": "calls", "sender": one, "receiver": two, "odd": None}
        last = marks[one].join(marks[two], on=["group_key", "seq"]).sort("order").tail(1).to_dicts()
        if last:
            lead = int((sends < last[0]["order"]).sum()) - int((receives < last[0]["order_right"]).sum())
            if lead * (int(pair["sends"]) - int(pair["receives"])) > 0:
                yield found
                continue
        # What either of them has called, the other one called before it went on to where that one never came.
        for mine, theirs, own, other, halves in (
            (sends, receives, one, two, ("sends", "receives")),
            (receives, sends, two, one, ("receives", "sends")),
        ):
            past = _first_beyond(marks[other], reached[own])
            if past is None or (made := int((theirs < past["order"]).sum())) >= mine.len():
                continue
            if _in_step(marks[own], marks[other], past["group_key"], mine, theirs):
                yield found | {halves[0]: mine.len(), halves[1]: made, "beyond": past["seq"]}
                break


def _misdirected(rows: list[_Row], ends: pl.DataFrame, people: dict[tuple[str, int], int]) -> list[_Row]:
    """The one pair that differs in number with the one that has in turn too little of what it has too much: a rank that in one of them called
    a peer that never calls it addressed the one for the other."""
    if len(rows) != 1:
        return []
    [row] = rows
    lead = int(str(row["sends"])) - int(str(row["receives"]))
    counts = ends.filter(pl.col("group_key") == row["group_key"]).group_by(_PAIR).agg(pl.col("sends", "receives").sum())
    found: list[_Row] = []
    for other in counts.filter((pl.col("sends") - pl.col("receives")) == -lead).sort(_PAIR).to_dicts():
        sender, receiver = (people.get((other["group_key"], other[end])) for end in ("src", "dst"))
        for pair in (row, other):
            end, none = ("src", "receives") if int(str(pair["sends"])) > int(str(pair["receives"])) else ("dst", "sends")
            if pair[none] == 0 and row[end] == other[end] and sender is not None and receiver is not None:
                odd = sender if end == "src" else receiver
                found += [row | {"odd": odd}, other | {"kind": "calls", "sender": sender, "receiver": receiver, "odd": odd}]
    return found if len(found) == 2 else []


def _apart(one: dict[str, int], two: dict[str, int]) -> bool:
    """Whether two ranks have not come equally far in a group of both."""
    return any(one[key] != two[key] for key in one.keys() & two.keys())


def _in_step(one: pl.DataFrame, two: pl.DataFrame, key: object, mine: pl.Series, theirs: pl.Series) -> bool:
    """Whether both had made as many of their halves at each collective of the group: where they may take sends and collectives in another
    order, as on several streams, numbers there tell nothing."""
    group = pl.col("group_key").cast(pl.String) == key
    both = one.filter(group).join(two.filter(group), on="seq")
    numbers = [orders.sort().search_sorted(both[at]).to_list() for orders, at in ((mine, "order"), (theirs, "order_right"))]
    return both.height > 0 and numbers[0] == numbers[1]


def _first_beyond(marks: pl.DataFrame, reached: dict[str, int]) -> _Row | None:
    """The first collective of a rank in a group of both that another one, who has ``reached`` so far, has not come to."""
    limits = pl.DataFrame(list(reached.items()), schema={"group_key": pl.String, "limit": pl.Int64}, orient="row")
    past = marks.with_columns(pl.col("group_key").cast(pl.String)).join(limits, on="group_key").filter(pl.col("seq") > pl.col("limit"))
    return past.sort("order").row(0, named=True) if past.height else None


def _in_size(ends: pl.DataFrame, people: dict[tuple[str, int], int]) -> Iterator[_Row]:
    by_pair: dict[tuple[object, ...], list[_Row]] = {}
    for row in _unlike(ends, people):
        by_pair.setdefault((row["group_key"], row["src"], row["dst"]), []).append(row)
    for rows in by_pair.values():
        ahead = next((r for r in rows if int(str(r["sends"])) > int(str(r["receives"]))), None)
        lacking = next((r for r in rows if int(str(r["sends"])) < int(str(r["receives"]))), None)
        uneven = sum(int(str(r["sends"])) - int(str(r["receives"])) for r in rows) != 0
        if ahead is None or lacking is None or uneven:
            continue
        kind = "shape" if ahead["dtype"] == lacking["dtype"] else "dtype"
        yield ahead | {"kind": kind, "sent": _words(ahead), "received": _words(lacking)}


def _words(row: _Row) -> str:
    return f"{row['shape']} {row['dtype']}"


def _named(rows: list[_Row], ends: pl.DataFrame) -> list[_Row]:
    """The rows with who is odd: the one rank that did less, or more, in all of them; of one pair alone the side whose number, or whose
    size, is that of fewer others. None where there are several and no such rank."""
    if len(rows) > 1:
        sides: list[set[object]] = [{row["sender"], row["receiver"]} for row in rows]
        if rows[0]["kind"] == "calls":
            fewer = {row["sender"] if int(str(row["sends"])) < int(str(row["receives"])) else row["receiver"] for row in rows}
            more = {row["receiver"] if int(str(row["sends"])) < int(str(row["receives"])) else row["sender"] for row in rows}
            sides = [fewer] if len(fewer) == 1 else [more] if len(more) == 1 else [set()]
        common = set.intersection(*sides)
        return [row | {"odd": next(iter(common))} for row in rows] if len(common) == 1 else []
    totals = ends.group_by(_PAIR).agg(pl.col("sends", "receives").sum()).filter(pl.col("sends") == pl.col("receives"))
    numbers = Counter(totals["sends"].to_list())
    sizes = {f"{shape} {dtype}": n for shape, dtype, n in ends.group_by(_WHAT).agg(pl.col("calls").sum()).iter_rows()}
    for row in rows:
        by_calls = row["kind"] == "calls"
        sending = numbers[row["sends"]] if by_calls else sizes.get(str(row["sent"]), 0)
        receiving = numbers[row["receives"]] if by_calls else sizes.get(str(row["received"]), 0)
        if sending != receiving:
            row["odd"] = row["sender"] if sending < receiving else row["receiver"]
    return rows


def _cite(rows: list[_Row], calls: Calls) -> None:
    """The last line of each side of each pair."""
    ranks = sorted({int(str(row[side])) for row in rows for side in ("sender", "receiver")})
    if not ranks:
        return
    own = calls.every.filter((pl.col("domain") == "nccl") & pl.col("rank").is_in(ranks) & pl.col("is_p2p"))
    last = own.sort("source_id", "order").group_by("group_key", "rank", "op", "peer").agg(pl.col("source_id", "line_no").last()).collect()
    at = {row[:4]: row[4:] for row in last.iter_rows()}
    for row in rows:
        row["source_id"], row["line_no"] = at.get((row["group_key"], row["sender"], "send", row["dst"]), (None, None))
        row["peer_source_id"], row["peer_line_no"] = at.get((row["group_key"], row["receiver"], "recv", row["src"]), (None, None))
