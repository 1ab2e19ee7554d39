"""Collectives of two groups that ranks enqueued in opposite orders, with neither finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import GROUP, read_at
from nccl_forensics.views.orders import reordered
from nccl_forensics.views.turns import comes_first, with_roles

INVERSIONS = typed(
    GROUP,
    "seq:i64 op:str other_key:str other_name:str other_desc:str other_seq:i64 other_op:str ranks:list[i32] others:list[i32] majority:bool",
    "entered:bool",
    read_at(),
    "call_site:str",
    read_at("peer_"),
    "peer_call_site:str",
)
#: Calls of two kinds by turns, before that says which comes first.
_TURNS = 4
_Op = dict[str, object]
_Role = tuple[object, ...]


@view(rows="groups")
def inversions(
    stuck: pl.LazyFrame, operations: pl.LazyFrame | Calls, groups: pl.LazyFrame | None = None, progress: pl.LazyFrame | None = None
) -> pl.LazyFrame:
    """Pairs of groups whose members all entered an operation in each, finished neither, and did not enqueue the two in one order; or all
    entered the one, and only the few that enqueued it after that of the other group ``entered`` both.

    ``ranks`` enqueued the operation of the first group before that of the second, ``others`` the other way round. ``majority``: among all
    ranks that have such a pair (groups of the same description at the same position count as alike) most go with ``others``, so that
    ``ranks`` are the exception; where as many go either way, what all of them called before by turns tells, or what those have behind them who
    wait in the one and are in another group of the other's role. Of NCCL's logs, which do not
    tell what ended, the last step alone is looked at.
    """
    calls = calls_of(operations)
    places = with_roles(progress, groups) if groups is not None and progress is not None else None
    rows = [*_recorded(stuck, calls.every, places), *_logged(calls)]
    if groups is not None and not rows:
        rows += _one_sided(stuck, calls.telling, groups, places)
    return pl.DataFrame(rows, schema=INVERSIONS, infer_schema_length=None).lazy()


def _logged(calls: Calls) -> Iterator[dict[str, object]]:
    for rank, others, early, due in reordered(calls):
        yield {
            "group_key": early["group_key"],
            "seq": early["seq"],
            "op": early["op"],
            "other_key": due["group_key"],
            "other_seq": due["seq"],
            "other_op": due["op"],
            "ranks": [rank],
            "others": others,
            "majority": True,
            "entered": True,
            "source_id": early["source_id"],
            "line_no": early["line_no"],
            "peer_source_id": due["source_id"],
            "peer_line_no": due["line_no"],
        }


def _recorded(stuck: pl.LazyFrame, operations: pl.LazyFrame, places: pl.DataFrame | None) -> list[dict[str, object]]:
    """The same of Flight Recorders, by what is pending in both groups. ``places``: how far all are, which counters tell too."""
    waiting = stuck.filter(pl.col("domain") == "fr").collect().to_dicts()
    if len(waiting) < 2:
        return []
    at = pl.DataFrame(
        {"group_key": [w["group_key"] for w in waiting], "seq": [w["seq"] for w in waiting]}, schema_overrides={"seq": pl.Int64}
    )
    entered = (
        operations.filter((pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("pending"))
        .join(at.lazy(), on=["group_key", "seq"])
        .sort("group_key", "rank", "order")
        .unique(["group_key", "rank"], keep="first", maintain_order=True)
        .collect()
    )
    by_group: dict[str, dict[int, _Op]] = {}
    for row in entered.iter_rows(named=True):
        by_group.setdefault(row["group_key"], {})[row["rank"]] = row
    # How the ranks order operations of these two roles, over all groups that play them.
    habit: Counter[tuple[object, ...]] = Counter()
    pairs = []
    for one, two in combinations(waiting, 2):
        a, b = by_group.get(one["group_key"], {}), by_group.get(two["group_key"], {})
        for rank in set(a) & set(b):
            first, second = (one, two) if _before(a[rank], b[rank]) else (two, one)
            habit[(*_role(first), *_role(second))] += 1
        if set(a) & set(b):
            pairs.append((one, two))
    # Ranks whose own group has passed its operation had it before the one that all still wait in.
    habit.update((*done, *pending) for done, pending in _passed(operations, waiting, by_group))
    rows: list[dict[str, object]] = []
    for one, two in pairs:
        a, b = by_group[one["group_key"]], by_group[two["group_key"]]
        shared = sorted(set(a) & set(b))
        ahead = [r for r in shared if _before(a[r], b[r])]
        behind = [r for r in shared if r not in ahead]
        if not ahead or not behind:
            continue
        usual, unusual = habit[(*_role(two), *_role(one))], habit[(*_role(one), *_role(two))]
        if usual == unusual:
            usual, unusual = _earlier(operations, b, a), _earlier(operations, a, b)
        if usual == unusual:
            kept = _as_before(operations, a, b)
            if all(kept[r] != kept[other] for r in ahead for other in behind) and None not in kept.values():
                usual, unusual = sum(kept[r] is True for r in behind), sum(kept[r] is True for r in ahead)
        if usual == unusual and places is not None:
            here, there = ((group["group_key"], group["seq"]) for group in (one, two))
            usual, unusual = comes_first(places, there, here), comes_first(places, here, there)
        if usual < unusual:
            one, two, a, b, ahead, behind, usual, unusual = two, one, b, a, behind, ahead, unusual, usual
        if _numbers_apart(a, b, ahead, behind):
            continue
        odd, peer = a[ahead[0]], b[behind[0]]
        rows.append(
            {
                **{k: one[k] for k in ("group_key", "group_name", "group_desc", "seq", "op")},
                **{f"other_{k.removeprefix('group_')}": two[k] for k in ("group_key", "group_name", "group_desc", "seq", "op")},
                "ranks": ahead,
                "others": behind,
                "majority": usual > unusual,
                "entered": True,
                "source_id": odd["source_id"],
                "record": odd["record"],
                "call_site": odd["call_site"],
                "peer_source_id": peer["source_id"],
                "peer_record": peer["record"],
                "peer_call_site": peer["call_site"],
            }
        )
    return rows


def _one_sided(stuck: pl.LazyFrame, operations: pl.LazyFrame, groups: pl.LazyFrame, places: pl.DataFrame | None) -> list[dict[str, object]]:
    """Operations that all members of a group stand in, some of them behind one of another group that the others, who are members of both and
    more, have not come to: these hosts wait for the one, and the GPUs of those for the other. Of as many on both sides those are ahead who
    left the order in which others stand, or their own of all steps before."""
    own = pl.col("domain") == "fr"
    waiting = stuck.filter(own & pl.col("held") & (pl.col("ranks").list.len() >= pl.col("size"))).collect()
    if waiting.is_empty():
        return []
    members = dict(groups.filter(own).select("group_key", "members").collect().iter_rows())
    last = operations.filter(own & ~pl.col("is_p2p")).group_by("group_key", "rank").agg(pl.col("seq").max())
    reached = {(key, rank): seq for key, rank, seq in last.collect().iter_rows()}
    held = pl.col("rank").is_in(waiting["ranks"].explode().unique().implode())
    opened: dict[int, list[_Op]] = {}
    for op in operations.filter(own & ~pl.col("is_p2p") & pl.col("pending") & held).sort("rank", "order").collect().iter_rows(named=True):
        opened.setdefault(op["rank"], []).append(op)
    rows: list[dict[str, object]] = []
    for group in waiting.iter_rows(named=True):
        first = {rank: opened[rank][0] for rank in group["ranks"] if rank in opened}
        here = {r: next((o for o in opened[r] if (o["group_key"], o["seq"]) == (group["group_key"], group["seq"])), None) for r in first}
        ahead = [rank for rank, op in first.items() if op["group_key"] != group["group_key"] and here[rank] is not None]
        others = [rank for rank, op in first.items() if op is here[rank]]
        if not ahead or len(ahead) > len(others) or len(ahead) + len(others) < len(group["ranks"]):
            continue
        odd, peer = first[ahead[0]], first[others[0]]
        key, at = str(odd["group_key"]), int(str(odd["seq"]))
        if len(ahead) == len(others) and not (
            (places is not None and comes_first(places, (group["group_key"], group["seq"]), (key, at)))
            or _never_before(operations, {rank: (first[rank], call) for rank in ahead if (call := here[rank]) is not None})
        ):
            continue
        one_call = len({(first[rank]["group_key"], first[rank]["seq"]) for rank in ahead}) == 1
        if one_call and all(rank in (members.get(key) or ()) and reached.get((key, rank), -1) < at for rank in others):
            rows.append(
                {
                    **{k: odd[k] for k in ("group_key", "group_name", "group_desc", "seq", "op")},
                    **{f"other_{k.removeprefix('group_')}": group[k] for k in ("group_key", "group_name", "group_desc", "seq", "op")},
                    "ranks": ahead,
                    "others": others,
                    "majority": True,
                    "entered": False,
                    **{k: odd[k] for k in ("source_id", "record", "call_site")},
                    **{f"peer_{k}": peer[k] for k in ("source_id", "record", "call_site")},
                }
            )
    return rows


def _earlier(operations: pl.LazyFrame, first: dict[int, _Op], then: dict[int, _Op]) -> int:
    """How many ranks, in what they have finished, always called the like of the one before that of the other, by turns; 0 where a rank did
    not."""
    wanted = {r: [(o["group_key"], o["op"], o["shape"]) for o in (first[r], then[r])] for r in first.keys() & then.keys()}
    keys = {key for calls in wanted.values() for key, _, _ in calls}
    over = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("done") & pl.col("group_key").is_in(sorted(map(str, keys)))
    known = operations.filter(over & pl.col("rank").is_in(sorted(wanted))).select("rank", "group_key", "op", "shape", "order").sort("order")
    turns: dict[int, list[int]] = {r: [] for r in wanted}
    for rank, *call, _ in known.collect().iter_rows():
        if tuple(call) in wanted[rank]:
            turns[rank].append(wanted[rank].index(tuple(call)))
    by_turns = all(len(t) >= _TURNS and t[-1] == 1 and all(x != y for x, y in pairwise(t)) for t in turns.values())
    return len(turns) if by_turns else 0


def _as_before(operations: pl.LazyFrame, a: dict[int, _Op], b: dict[int, _Op]) -> dict[int, bool | None]:
    """Of each rank that entered both, whether it made its calls from the one before the first of the two to the second as it had made such
    a line of calls before (true), or never that and only the same with the two in the other order (false); null where it did both or
    neither."""
    ranks = sorted(a.keys() & b.keys())
    own = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("rank").is_in(ranks)
    made = operations.filter(own).sort("rank", "order").select("rank", "order", "group_key", "op").collect()
    told: dict[int, bool | None] = dict.fromkeys(ranks)
    for (rank,), rows in made.group_by("rank", maintain_order=True):
        orders, line = rows["order"].to_list(), rows.select("group_key", "op").rows()
        first, second = sorted(orders.index(calls[rank]["order"]) for calls in (a, b))
        begun, end = line[first - 1 : first], line[second]
        now = [*begun, *line[first : second + 1]]
        other = [*begun, end, *line[first + 1 : second], line[first]]
        before = [line[n : n + len(now)] for n in range(first - len(now) + 1)]
        told[rank] = None if (now in before) == (other in before) or not begun else now in before
    return told


def _never_before(operations: pl.LazyFrame, pairs: dict[int, tuple[_Op, _Op]]) -> bool:
    """Whether each rank made its two calls only in the other order before."""
    kept = _as_before(operations, {rank: one for rank, (one, _) in pairs.items()}, {rank: two for rank, (_, two) in pairs.items()})
    return all(told is False for told in kept.values())


def _numbers_apart(a: dict[int, _Op], b: dict[int, _Op], ahead: list[int], behind: list[int]) -> bool:
    """Whether no rank of the one order made either call at a line at which one of the other order made it: these are other calls under the
    same number, as after one that was left out."""
    lines = [[{calls[rank]["call_site"] for rank in ranks} for ranks in (ahead, behind)] for calls in (a, b)]
    return any(None not in mine | theirs and mine.isdisjoint(theirs) for mine, theirs in lines)


def _before(one: _Op, two: _Op) -> bool:
    return int(str(one["order"])) < int(str(two["order"]))


def _role(group: dict[str, object]) -> _Role:
    return (group["group_desc"] or group["group_key"], group["seq"])


def _passed(
    operations: pl.LazyFrame, waiting: list[dict[str, object]], by_group: dict[str, dict[int, _Op]]
) -> Iterator[tuple[_Role, _Role]]:
    """(role of an operation that a rank finished, role of the one it waits in), where another group of the former role waits in it."""
    roles = {_role(w) for w in waiting}
    alike = pl.DataFrame([(str(d), s) for d, s in roles if d is not None], schema={"group_desc": pl.String, "seq": pl.Int64}, orient="row")
    done = (
        operations.filter((pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("done"))
        .join(alike.lazy(), on=["group_desc", "seq"])
        .select("rank", "group_desc", "seq", "order")
        .collect()
    )
    for rank, desc, seq, order in done.iter_rows():
        for group in waiting:
            own = by_group.get(str(group["group_key"]), {}).get(rank)
            if own is not None and order < own["order"] and _role(group) != (desc, seq):
                yield (desc, seq), _role(group)
