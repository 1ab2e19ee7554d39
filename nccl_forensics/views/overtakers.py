"""Ranks that come to what all others wait in only after work that nobody else has come to: they left out an earlier call of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import read_at

OVERTAKERS = typed(
    "rank:i32 others:list[i32] group_name:str group_desc:str comm_id:str seq:i64 op:str call_site:str",
    read_at(),
    "ahead_name:str ahead_comm:str ahead_desc:str ahead_seq:i64",
    read_at("own_"),
)
#: One rank in so many that is ahead of the rest: then they are the exception.
_FEW = 4
#: Other ranks that are known in a role, at least: of a pair alone either may be the one that errs.
_BESIDE = 2
#: What is open in the group was enqueued behind something else that is open.
_HELD = pl.col("first_open") < pl.col("pending_order")


@view(rows="ranks")
def overtakers(
    stuck: pl.LazyFrame,
    progress: pl.LazyFrame,
    groups: pl.LazyFrame,
    operations: pl.LazyFrame | Calls,
    divergences: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Ranks that enqueued, before the operation ``seq`` of a group in which all others stand, one of another group (``ahead_seq``) that
    none of the others has entered, in that group or in one of its role: the number ``seq`` is that of a later call of theirs.

    A call that is alike in each step (a norm, a loss) meets the next step's of whoever left it out, so that the group itself shows nothing,
    and a ring that holds less than two steps shows no habit either. Groups of one description are of one role; where none of the others is
    in the rank's own, it is the very next position that counts, as the groups of a role may count apart (stages of a pipeline). NCCL's logs do not tell what
    waits: there all others have made ``seq`` calls of the group and no more, and communicators are of one role that each rank came to in
    the same turn. Cites the last operation of a peer in the group (``source_id`` …), and the rank's own in the other (``own_…``).
    """
    calls = calls_of(operations)
    rows = [*_due_later(_recorded(stuck, progress, groups), calls), *_logged(calls, divergences)]
    return (
        pl.DataFrame(rows, schema=OVERTAKERS, infer_schema_length=None)
        .unique("rank", keep="first", maintain_order=True)
        .sort("rank")
        .lazy()
    )


def _recorded(stuck: pl.LazyFrame, progress: pl.LazyFrame, groups: pl.LazyFrame) -> list[dict[str, object]]:
    waited = stuck.filter((pl.col("domain") == "fr") & pl.col("held")).collect()
    state = progress.filter(pl.col("domain") == "fr")
    odd = _with_few_held(waited, state)
    if odd.is_empty():
        return []
    described = groups.filter(pl.col("domain") == "fr").select("group_key", "group_name", "group_desc").unique("group_key")
    role = pl.coalesce(pl.col("group_desc").replace("", None), "group_key")
    places = state.join(described, on="group_key", how="left").with_columns(role=role).sort("rank", "group_key").collect()
    rows: list[dict[str, object]] = []
    for row in odd.iter_rows(named=True):
        here = places.filter(
            (pl.col("group_key") == row["group_key"]) & pl.col("rank").is_in(row["ranks"]) & pl.col("pending_order").is_not_null()
        )
        orders = dict(here.filter(_HELD).select("rank", "pending_order").iter_rows())
        level = here.filter(~_HELD)
        beside = pl.col("rank").is_in(list(set(row["ranks"]) - orders.keys()))
        furthest = dict(places.filter(beside).group_by("role").agg(pl.col("last_seq").max()).drop_nulls().iter_rows())
        shared = set(places.filter(beside)["group_key"].to_list())
        peer = level.row(0, named=True)
        told = {name: row[name] for name in ("group_name", "group_desc", "comm_id", "seq", "op")} | {name: peer[name] for name in PLACE}
        told |= {"others": level["rank"].to_list(), "call_site": peer["last_call_site"]}
        own = places.filter(pl.col("rank").is_in(list(orders)) & pl.col("pending_order").is_not_null())
        for rank, order in sorted(orders.items()):
            before = own.filter((pl.col("rank") == rank) & (pl.col("pending_order") < order)).sort("pending_order", maintain_order=True)
            beyond = ((p, p["first_pending"] - furthest.get(p["role"], p["first_pending"])) for p in before.iter_rows(named=True))
            first = next((p for p, lead in beyond if lead == 1 or (lead > 1 and p["group_key"] in shared)), None)
            if first is not None:
                ahead = {"ahead_name": first["group_name"], "ahead_desc": first["group_desc"], "ahead_seq": first["first_pending"]}
                key = {"group_key": row["group_key"], "ahead_key": first["group_key"]}
                rows.append(told | key | {"rank": rank} | ahead | {f"own_{name}": first[name] for name in PLACE})
    return rows


def _due_later(rows: list[dict[str, object]], calls: Calls) -> Iterator[dict[str, object]]:
    """Those of them whose own call at that number may be what is due after the one in which the others stand."""
    for row in rows:
        late, ahead = (row.pop("group_key"), row["seq"]), (row.pop("ahead_key"), row["ahead_seq"])
        made = _own_calls(calls, row["rank"])
        if not (_too_soon(made, late, ahead) or _turned(made, late, ahead)) and _may_follow(made, *late):
            yield row


def _own_calls(calls: Calls, rank: object) -> pl.DataFrame:
    """All that a rank called, in its order: ``group_key``, ``seq`` and what makes calls of one group alike."""
    own = (pl.col("domain") == "fr") & (pl.col("rank") == rank) & ~pl.col("is_p2p") & pl.col("seq").is_not_null()
    return calls.every.filter(own).sort("order").select("group_key", "seq", call=pl.struct("group_key", "op", "shape", "dtype")).collect()


def _may_follow(made: pl.DataFrame, group: object, seq: object) -> bool:
    """Whether the rank's call ``seq`` of the group may be what its program calls after the one before it: earlier ones like it were not
    all followed by another."""
    line = made.filter((pl.col("group_key") == group) & (pl.col("seq") <= int(str(seq)))).sort("seq")
    if line.is_empty() or line["seq"][-1] != seq:
        return True
    last = line["call"][-1]
    followed = line.with_columns(after=pl.col("call").shift(-1), next=pl.col("seq").shift(-1)).filter(
        (pl.col("call") == last) & (pl.col("next") == pl.col("seq") + 1)
    )
    return followed.is_empty() or bool((followed["after"] == followed["call"]).any())


def _too_soon(made: pl.DataFrame, late: tuple[object, object], ahead: tuple[object, object]) -> bool:
    """Whether the rank made the call ``late`` (group and number) sooner after ``ahead`` than it ever made one like it after one like that:
    then it is not what is due after it, and the two are in the other order."""
    at = {place: n for n, place in enumerate(made.select("group_key", "seq").iter_rows())}
    if late not in at or ahead not in at or at[ahead] > at[late]:
        return False
    first, second = (made["call"][at[place]] for place in (ahead, late))
    line = made["call"].to_list()
    begins = [n for n, call in enumerate(line[: at[ahead]]) if call == first]
    after = [next((n for n in range(begin + 1, at[ahead]) if line[n] == second), None) for begin in begins]
    known = [end - begin for begin, end in zip(begins, after, strict=True) if end is not None]
    return bool(known) and min(known) > at[late] - at[ahead]


def _turned(made: pl.DataFrame, late: tuple[object, object], ahead: tuple[object, object]) -> bool:
    """Whether the rank made such a line of calls, from the one before ``ahead`` to ``late``, only with these two in the other order before:
    however little its ring holds, it left out neither."""
    at = {place: n for n, place in enumerate(made.select("group_key", "seq").iter_rows())}
    first, second = at.get(ahead, 0), at.get(late, 0)
    if not 0 < first < second:
        return False
    line = made["call"].to_list()
    now = line[first - 1 : second + 1]
    other = [now[0], now[-1], *now[2:-1], now[1]]
    before = [line[n : n + len(now)] for n in range(first - len(now) + 1)]
    return other in before and now not in before


def _logged(calls: Calls, divergences: pl.LazyFrame | None) -> Iterator[dict[str, object]]:
    """The same of NCCL's logs, of ranks whose calls of no group differ for sure from those of its other members."""
    own = (pl.col("domain") == "nccl") & ~pl.col("is_p2p") & pl.col("rank").is_not_null() & pl.col("seq").is_not_null()
    line = calls.recent().filter(own & ~pl.col("done").fill_null(False).any().over("rank")).sort("rank", "source_id", "order")
    told = line.select("rank", "group_key", "comm_id", "seq", "op", "nranks", "source_id", "line_no", "record").collect()
    told = told.with_columns(at=pl.int_range(pl.len()).over("rank")).filter((pl.col("group_key").n_unique() > 1).over("rank"))
    if told.is_empty():
        return
    # Communicators by the order of their first calls: of ranks in different groups of one kind these are alike, their keys are not.
    first = pl.col("at").min().over("rank", "group_key")
    told = told.with_columns(first=first).with_columns(role=pl.struct(pl.col("first").rank("dense").over("rank"), "nranks").rank("dense"))
    known = set() if divergences is None else set(divergences.filter("sure").select(pl.col("ranks").explode()).collect()["ranks"].to_list())
    furthest: dict[int, dict[int, int]] = defaultdict(dict)
    for role, rank, last in told.group_by("role", "rank").agg(pl.col("seq").max()).iter_rows():
        furthest[role][rank] = last
    for (key,), part in told.group_by("group_key", maintain_order=True):
        ends = dict(part.group_by("rank").agg(pl.col("seq").max()).iter_rows())
        level = min(ends.values())
        places = {row["rank"]: row for row in part.filter(pl.col("seq") == level).iter_rows(named=True)}
        ahead = {rank: place for rank in ends if (place := _beyond(told, rank, places.get(rank), furthest)) is not None}
        others = sorted(set(ends) - set(ahead))
        if not ahead or len(ahead) * _FEW > len(ends) or known & set(ahead) or any(ends[rank] != level for rank in others):
            continue
        peer = places[others[0]]
        said = {"comm_id": peer["comm_id"] or key, "seq": level, "op": peer["op"], "others": others} | {name: peer[name] for name in PLACE}
        for rank, place in sorted(ahead.items()):
            beyond = {"ahead_comm": place["comm_id"] or place["group_key"], "ahead_seq": place["seq"]}
            yield said | {"rank": rank} | beyond | {f"own_{name}": place[name] for name in PLACE}


def _beyond(
    told: pl.DataFrame, rank: int, place: dict[str, object] | None, furthest: dict[int, dict[int, int]]
) -> dict[str, object] | None:
    """What the rank called of another communicator, before the call at ``place``, to which no other rank has come in one of its role; at
    least two have any."""
    if place is None:
        return None
    before = told.filter((pl.col("rank") == rank) & (pl.col("at") < int(str(place["at"]))) & (pl.col("role") != place["role"]))
    for row in before.unique("role", keep="last", maintain_order=True).iter_rows(named=True):
        others = [last for other, last in furthest[row["role"]].items() if other != rank]
        if len(others) >= _BESIDE and row["seq"] > max(others):
            return row
    return None


def _with_few_held(waited: pl.DataFrame, state: pl.LazyFrame) -> pl.DataFrame:
    """Those of the groups in which some of the ranks that stand there have earlier work of another group open, and few of them."""
    inside = waited.lazy().with_row_index("at").select("at", "group_key", rank="ranks").explode("rank")
    here = state.filter(pl.col("pending_order").is_not_null()).join(inside, on=["group_key", "rank"])
    found = here.group_by("at").agg(few=_HELD.any() & (_HELD.sum() * _FEW <= pl.len())).filter("few").sort("at").collect()
    return waited[found.get_column("at").to_list()]
