"""Whether ranks are level with each other, told by how far they got in their groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from nccl_forensics.frames import has_rows, ranks_in, text_of
from nccl_forensics.stacks.places import WAITING_ON_GPU
from nccl_forensics.views.looked_at import looked_at_while_moving

#: Calls of torch.distributed that no recorder holds (torch 2.13: gloo's monitored barrier, sends and receives of gloo).
_UNRECORDED = frozenset({"monitored_barrier", "send", "recv", "isend", "irecv", "batch_isend_irecv"})


def came_after_all(rank: int, waiters: Iterable[int], op: object, progress: pl.LazyFrame, place: object = None) -> bool:
    """Whether recorders of this rank and of all who were seen waiting for it in ``op`` are level and it has nothing unfinished itself: it
    came, and finished what they waited in. A recorder that was written in its last operation, which is another one than they waited in and
    which these have finished, says so too, unless it was seen in its data loader (``place``): of a job that goes on, that is what slows it.
    False where a recorder is missing, or where recorders do not hold such calls."""
    if op is None or str(op) in _UNRECORDED:
        return False
    ranks = {rank, *waiters}
    seen = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_in(sorted(ranks))).collect()
    if not ranks <= set(seen["rank"].to_list()):
        return False
    others = seen.filter((pl.col("rank") != rank) & pl.col("first_pending").is_null())
    left = [(key, last) for key, last in others.select("group_key", "last_seq").iter_rows()]
    own = seen.filter((pl.col("rank") == rank) & pl.col("first_pending").is_not_null())
    beyond = all(
        place != "data-loader" and pending == last and str(word) not in str(op) and str(op) not in str(word) and (key, last) in left
        for key, pending, last, word in own.select("group_key", "first_pending", "last_seq", "last_op").iter_rows()
    )
    words = others["last_op"].drop_nulls().unique().to_list()
    held = own.height > 0 or op in WAITING_ON_GPU or any(_same_call(str(word), str(op)) for word in words)
    return beyond and held and seen.group_by("group_key").agg(pl.col("last_seq").n_unique())["last_seq"].max() == 1


def _same_call(recorded: str, called: str) -> bool:
    """Whether a recorder may hold a call of torch.distributed by this name. Gloo has no reduce_scatter of its own (torch 2.13)."""
    return recorded in called or called in recorded or (recorded == "all_reduce" and "reduce_scatter" in called)


def entered_all(progress: pl.LazyFrame) -> set[int]:
    """Ranks whose recorders have an operation open and have entered whatever is open in any of their groups, where all that are recorded
    have something open: what recorders hold is what all of them wait in, and it is not for these that they wait."""
    seen = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null())
    opened = seen.with_columns(furthest=pl.col("first_pending").max().over("group_key"))
    ranks = opened.group_by("rank").agg(
        pl.col("first_pending").is_not_null().any().alias("open"),
        (pl.col("last_seq") >= pl.col("furthest")).fill_null(True).all().alias("entered"),
    )
    told = ranks.collect()
    return set(told.filter("entered")["rank"].to_list()) if told["open"].all() else set()


def held_together(stuck: pl.LazyFrame, progress: pl.LazyFrame) -> set[int]:
    """Ranks whose recorders end in an operation that all members of its group entered and none finished: all that it is known to have, or,
    where that is not known (gloo's recorder lists no members), all ranks that used the group before while no rank's recorder is missing."""
    seen = progress.filter(pl.col("domain") == "fr").collect()
    ranks = seen["rank"].unique().sort().to_list()
    everybody = ranks == list(range(len(ranks)))
    users = {key: set(who) for key, who in seen.group_by("group_key").agg("rank").iter_rows()}
    latest = (
        seen.filter(pl.col("last_created_ns").is_not_null())
        .sort("last_created_ns", "last_order", nulls_last=False)
        .unique("rank", keep="last", maintain_order=True)
    )
    where = {r: (key, last) for r, key, last in latest.select("rank", "group_key", "last_seq").iter_rows()}
    out: set[int] = set()
    for key, at, inside, size in stuck.filter(pl.col("domain") == "fr").select("group_key", "seq", "ranks", "size").collect().iter_rows():
        whole = len(inside) >= size if size is not None else everybody and set(inside) >= users[key]
        out |= {r for r in inside if where.get(r) == (key, at)} if whole else set()
    return out


def stand_by_themselves(stuck: pl.LazyFrame) -> bool:
    """Whether a group whose members are all seen stands in an operation that all of them entered, none finished, and none has anything open
    before: a rank of which nothing is seen does not hold it up, nor those who wait for this group."""
    whole = (pl.col("domain") == "fr") & ~pl.col("held") & pl.col("size").is_not_null() & (pl.col("ranks").list.len() >= pl.col("size"))
    return has_rows(stuck, whole)


#: Calls in which some members are done before others: whoever only sends, or only receives, waits for nobody else.
ROOTED = frozenset({"broadcast", "reduce", "scatter", "gather"})


def in_a_rooted_call(stood: Mapping[int, object], progress: pl.LazyFrame) -> set[int]:
    """Of ranks and the operations that their stacks stand in, those in a call with a root that another member of its group entered too, and
    has left: they did not take it in another order than the rest. What is wrong with it (two roots, a count, a member that does not come)
    no place tells."""
    standing = {r for r, op in stood.items() if op in ROOTED}
    if not standing:
        return set()
    seen = progress.filter(pl.col("domain") == "fr").sort("last_order", nulls_last=False).collect()
    ends = seen.unique("rank", keep="last", maintain_order=True)
    latest = {r: (key, at, op) for r, key, at, op in ends.select("rank", "group_key", "last_seq", "last_op").iter_rows()}
    entered: dict[tuple[object, object], set[int]] = {}
    for r, key, at in seen.select("rank", "group_key", "last_seq").iter_rows():
        entered.setdefault((key, at), set()).add(r)
    mine = {r: latest[r][:2] for r in standing if r in latest and latest[r][2] == stood[r]}
    return {r for r, here in mine.items() if any(latest[other][:2] != here for other in entered[here] - {r})}


def alone_in_group(progress: pl.LazyFrame) -> pl.DataFrame:
    """Progress of ranks in their latest operation, where that is in a group of which no other rank has evidence; one row per rank."""
    present = progress.group_by("domain", "group_key").agg(pl.col("rank").n_unique().alias("present"))
    return (
        progress.filter(pl.col("last_created_ns").is_not_null())
        .sort("last_created_ns")
        .unique(["domain", "rank"], keep="last", maintain_order=True)
        .join(present, on=["domain", "group_key"])
        .filter(pl.col("present") == 1)
        .sort("domain", "rank")
        .collect()
    )


def alike_in_another(progress: pl.LazyFrame, awaited: Mapping[int, str]) -> set[int]:
    """Those of the ranks that others wait for in a group (``awaited``) whose latest operation is one and the same of another group, not
    known to have ended."""
    latest = (
        progress.filter(pl.col("rank").is_in(sorted(awaited)) & pl.col("last_order").is_not_null())
        .sort("last_order")
        .unique("rank", keep="last", maintain_order=True)
        .filter(pl.col("last_done").is_null() | (pl.col("last_done") < pl.col("last_seq")))
        .select("rank", "group_key", "last_seq")
        .collect()
    )
    elsewhere = latest.filter([awaited[rank] != key for rank, key, _ in latest.iter_rows()])
    level = elsewhere.filter(pl.len().over("group_key", "last_seq") > 1)
    return set(level["rank"].to_list())


def without_a_role(progress: pl.LazyFrame, groups: pl.LazyFrame, ranks: set[int]) -> bool:
    """Whether recorders have kept all that these ranks called since they began, and all other ranks have called in some role of groups in
    which none of these has: a communicator is made at the first call of a group, in which its members wait for each other before there is
    any record. Groups of one description are of one role."""
    described = groups.filter(pl.col("domain") == "fr").select("group_key", "group_desc").unique("group_key")
    seen = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null()).join(described, on="group_key", how="left")
    called = seen.filter(pl.col("group_desc").fill_null("") != "").select("rank", "group_desc", "first_seq").collect()
    mine = pl.col("rank").is_in(sorted(ranks))
    own, others = called.filter(mine), called.filter(~mine)
    if set(own["rank"].to_list()) != ranks or (own["first_seq"].fill_null(0) != 1).any():
        return False
    roles = others.group_by("group_desc").agg(pl.col("rank").n_unique().alias("ranks"))
    everyone = roles.filter(pl.col("ranks") == others["rank"].n_unique())["group_desc"].to_list()
    return bool(set(everyone) - set(own["group_desc"].to_list()))


def awaited_alone(
    waiting: pl.DataFrame, groups: pl.LazyFrame, progress: pl.LazyFrame, on_host: Iterable[int]
) -> dict[int, dict[str, object]]:
    """Whom ranks wait for in a group of which nothing else is known (``waiting``: rows of ``alone_in_group``): those of its members that
    stand outside of any call that waits (``on_host``), each with the operation that is waited in. Where nothing lists the members (gloo's
    recorder does not), the only rank that stands so and of which there is no recorder.
    """
    members = {(d, g): set(m) for d, g, m in groups.select("domain", "group_key", "members").collect().iter_rows()}
    recorded = ranks_in(progress, pl.col("domain") == "fr")
    stand = set(on_host)
    silent = stand - recorded
    found: dict[int, dict[str, object]] = {}
    for row in waiting.iter_rows(named=True):
        listed = members.get((row["domain"], row["group_key"]), set()) - {row["rank"]}
        awaited = listed & stand if listed else silent if len(silent) == 1 else set()
        place = {k: row[k] for k in ("domain", "group_key", "source_id", "line_no", "record", "timeout_ms")}
        fact = place | {"kind": "unseen", "waiters": [row["rank"]], "seq": row["last_seq"], "op": row["last_op"]}
        for rank in sorted(awaited):
            found.setdefault(rank, fact | {"call_site": row["last_call_site"], "seen_by": "stacks"})
    return found


#: One host in so many that is not where those are that have finished the same: then hosts were at work when recorders were looked at.
_AT_WORK = 3


def still_enqueuing(progress: pl.LazyFrame, groups: pl.LazyFrame, named: int) -> tuple[bool, bool]:
    """Whether hosts of ranks that wait, and have finished the same operations, have not come equally far: in a job that stands they stop at
    one place of the program, and at another each while it goes on. Groups of one description are alike. More of them than the ranks that
    are ``named`` as what the rest waits for are no exception, few as they may be; nor does a job stand of which fewer ranks wait, in sends
    and receives too, than are named. Then: whether it may be so, as there is any such host.
    """
    described = groups.filter(pl.col("domain") == "fr").select("group_key", "group_desc").unique("group_key")
    over = pl.coalesce("last_done", pl.col("first_pending") - 1)  # of dumps that hold only what is open
    waiting = (
        progress.filter((pl.col("domain") == "fr") & pl.col("last_seq").is_not_null())
        .join(described, on="group_key", how="left")
        .with_columns(role=pl.coalesce("group_desc", "group_key"))
        .sort("rank", "role", "last_seq")
        .group_by("rank")
        .agg(
            pl.col("first_pending").is_not_null().any().alias("waits"),
            (pl.col("first_pending").is_not_null() | pl.col("first_open").is_not_null()).any().alias("stands"),
            text_of("{}:{}", "role", over.cast(pl.String()).fill_null("none")).str.join(" ").alias("done"),
            text_of("{}:{}", "role", "last_seq").str.join(" ").alias("enqueued"),
        )
        .collect()
    )
    standing = int(waiting["stands"].sum()) if waiting["waits"].any() else 0
    waiting = (
        waiting.filter("waits")
        .group_by("done", "enqueued")
        .len()
        .group_by("done")
        .agg(pl.col("len").sum().alias("ranks"), (pl.col("len").sum() - pl.col("len").max()).alias("elsewhere"))
    )
    compared = waiting.filter(pl.col("ranks") > 1)
    elsewhere = int(compared["elsewhere"].sum())
    goes_on = elsewhere > min(int(compared["ranks"].sum()) // _AT_WORK, named) or 0 < standing < named
    return goes_on, elsewhere > 0


def mostly_idle(progress: pl.LazyFrame, named: set[int]) -> bool:
    """Whether more than half of the ranks that are recorded have nothing open and are not ``named``: those of a job that hangs wait, soon
    all of them."""
    recorded = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null()).group_by("rank")
    opened = dict(
        recorded.agg(pl.col("first_open").is_not_null().any() | pl.col("first_pending").is_not_null().any()).collect().iter_rows()
    )
    return sum(not waits and rank not in named for rank, waits in opened.items()) * 2 > len(opened)


def finished_apart(progress: pl.LazyFrame) -> bool:
    """Whether recorders show a group whose ranks have not finished the same, as dumps do that are asked for one after the other while a job
    goes on."""
    recorded = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null() & pl.col("last_seq").is_not_null())
    finished = recorded.select("group_key", "rank", pl.col("last_done").fill_null(-1)).collect()
    return any(looked_at_while_moving(dict(part.select("rank", "last_done").iter_rows())) for _, part in finished.group_by("group_key"))
