"""Collectives that every member entered and that do not end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import has_rows, ranks_in, typed
from nccl_forensics.values.ranklist import MOST_RANKS
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.matching import cut_rings
from nccl_forensics.views.silences import scattered
from nccl_forensics.views.wait_edges import OF_GROUP, ONE_WAY
from nccl_forensics.words import UNIDENTIFIED

STUCK = typed(
    OF_GROUP,
    "seq:i64 op:str ranks:list[i32] size:i32 complete:bool hidden:bool stated:bool held:bool begun:bool timeout_ms:i64",
    read_at(),
)


#: Operations that may end on one member before another.
_APART = rf"{ONE_WAY}|_?(?:send|recv|coalesced)"
#: One rank in so many that is not seen: that just this one holds up all others is not likely.
_FEW = 16


@view(rows="groups")
def stuck(
    progress: pl.LazyFrame,
    groups: pl.LazyFrame,
    waits: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    divergences: pl.LazyFrame | None = None,
    dumps: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Groups whose members all wait in one operation: same position, entered by all, completed by none; where their calls are known to
    diverge, one position is not one operation. ``complete``: every member of the stated size is seen (else some members have no evidence,
    and they may be the ones that are missing); of the default group every rank that any evidence names, as all ranks of the job are in it.
    Nor is it known while somebody waits in another group for a rank of which nothing is seen, or a rank has not finished what its peers of
    another group have: the GPUs may not have come to this operation, which is enqueued behind that one, or while a member has something
    unfinished in another group that it enqueued before, or by its counters, in this one, of which its full ring has lost the entry (``held``);
    of GPUs that have all ``begun`` it, it is. ``stated``: some evidence says how many members there are; else all that
    is known is that no number is missing below the highest one seen. ``begun``: recorders mark that the GPUs of all of them have begun it;
    without it a GPU that never came to it looks the same. ``hidden``: whom all wait for may be among those of whom nothing is seen, which
    are half of the members (of the ranks of the job where nothing tells how many members there are) or more, or a few or a block of ranks:
    files that are lost by chance are missing here and there, and leave as many ranks with other files alone."""
    info = {(r["domain"], r["group_key"]): r for r in groups.collect().iter_rows(named=True)}
    world = _world(info.values(), comms, processes)
    told = comms is not None and comms.select(pl.col("nranks").max()).collect().item() is not None
    blocked = _blocked(waits, divergences)
    behind = has_rows(waits, pl.col("kind") == "unseen") or _held_before(progress)
    seen = ranks_in(progress)
    unseen = sorted(set(range(world)) - seen) if world <= MOST_RANKS else []
    gone = bool(unseen) and not scattered(unseen)
    recorded = progress.filter(pl.col("domain") == "fr").group_by("group_key").agg(pl.col("last_done").max())
    finished = dict(recorded.drop_nulls().collect().iter_rows())
    pending = progress.filter(pl.col("first_pending").is_not_null()).sort("domain", "group_key", "rank")
    rows: list[dict[str, object]] = []
    for (domain, key), part in (
        pending.with_columns(lost_more=_lost_more(dumps)).collect().group_by("domain", "group_key", maintain_order=True)
    ):
        group = info.get((str(domain), str(key)))
        if group is None or (str(domain), str(key)) in blocked or part.height < 2:
            continue
        first = part.row(0, named=True)
        at, done = first["first_pending"], part["last_done"].max()
        if part["first_pending"].n_unique() > 1 or (done is not None and int(str(done)) >= at):
            continue
        op = next((o for o in part.select(pl.coalesce("pending_op", "last_op")).to_series() if o), None)
        # What a recorder that was written after the timeout shows as finished went on, if late.
        if domain == "watchdog" and finished.get(key, -1) >= at and not re.match(_APART, str(op)):
            continue
        members, ranks = set(group["members"] or []), part["rank"].to_list()
        size = _size(group, world)
        held = part.filter((pl.col("first_open") < pl.col("pending_order")) | pl.col("lost_more")).height > 0
        begun = bool((part["pending_state"] == "started").all()) and part["pending_state"].null_count() == 0
        complete = (begun or not (behind or held)) and set(ranks) >= members and size is not None and len(ranks) >= size
        # As many that other files tell of as are not seen at all, and these are few: then files were lost.
        lost = len((members & seen).difference(ranks)) >= len(unseen) and len(unseen) * _FEW <= world
        half = 2 * len(ranks) <= size if size is not None else 2 * len(seen) <= world
        rows.append(
            {
                **{k: group[k] for k in OF_GROUP},
                "seq": at,
                "op": op,
                "ranks": ranks,
                "size": size,
                "complete": complete,
                "hidden": not complete and ((gone and not lost) or half),
                "stated": group["size"] is not None or told,
                "held": held,
                "begun": begun,
                **{k: first[k] for k in ("timeout_ms", *PLACE)},
            }
        )
    return pl.DataFrame(rows, schema=STUCK, infer_schema_length=None).lazy()


def _blocked(waits: pl.LazyFrame | None, divergences: pl.LazyFrame | None) -> set[tuple[str, str]]:
    """Groups in which somebody waits for a rank that is behind, or whose calls are surely known to part."""
    told = [
        waits.filter(pl.col("kind") != "unseen") if waits is not None else None,
        divergences.filter(pl.col("sure")) if divergences is not None else None,
    ]
    blocked = {group for rows in told if rows is not None for group in rows.select("domain", "group_key").unique().collect().rows()}
    # Watchdogs tell of some members what recorders tell of all.
    return blocked | {("watchdog", key) for domain, key in blocked if domain == "fr"}


def _lost_more(dumps: pl.LazyFrame | None) -> pl.Expr:
    """Whether a rank's full ring has lost entries of what it has not finished, by its counters; where nothing tells what is over, a ring that
    begins with what is open may have."""
    kept_from = pl.col("rank").replace_strict(cut_rings(dumps), default=None, return_dtype=pl.Int64())
    fell_out = (
        pl.when(pl.col("last_done").is_null())
        .then(pl.col("first_open") == kept_from)
        .otherwise(pl.col("last_done") + 1 < pl.col("first_pending"))
    )
    return (kept_from.is_not_null() & fell_out).fill_null(value=False)


DOWNSTREAM = typed(OF_GROUP, "seq:i64 op:str ranks:list[i32] entered:list[i32] size:i32 timeout_ms:i64", read_at())


@view(rows="groups")
def stuck_downstream(
    progress: pl.LazyFrame,
    groups: pl.LazyFrame,
    waits: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    divergences: pl.LazyFrame | None,
) -> pl.LazyFrame:
    """Groups whose members have all ``entered`` a broadcast, or another operation whose data flow one way, that some have left and
    ``ranks`` have not: who sends is done with it before who receives, and waits further on. The members are more than half of those that
    the group is known to have, and nobody in it waits for one that is behind."""
    info = {(r["domain"], r["group_key"]): r for r in groups.collect().iter_rows(named=True)}
    world = _world(info.values(), comms, processes)
    blocked = set() if waits is None else set(waits.select("domain", "group_key").unique().collect().rows())
    if divergences is not None:
        blocked |= set(divergences.select("domain", "group_key").unique().collect().rows())
    # Of thousands of groups those are looked at that some have left and in whose first open operation some stand.
    first = pl.col("first_pending").min()
    left = (pl.col("last_done") >= first) | (pl.col("first_pending") > first)
    op = pl.coalesce("pending_op", "last_op").filter(pl.col("first_pending") == first).drop_nulls()
    groups_left = (
        progress.filter(pl.col("domain") != "nccl")
        .group_by("domain", "group_key")
        .agg(left.any().alias("left"), (op.str.contains(ONE_WAY).all() & (op.len() > 0)).alias("one_way"), op.min().alias("op"))
        .filter(pl.col("left") & pl.col("one_way"))
    )
    state = progress.join(groups_left.select("domain", "group_key", "op"), on=["domain", "group_key"]).sort("domain", "group_key", "rank")
    rows: list[dict[str, object]] = []
    for (domain, key), part in state.collect().group_by("domain", "group_key", maintain_order=True):
        group = info.get((str(domain), str(key)))
        if group is None or (domain, key) in blocked:
            continue
        at = part["first_pending"].min()
        waiting = part.filter(pl.col("first_pending") == at)
        size = _size(group, world)
        if (part["last_seq"] < at).any() or part["last_seq"].null_count() or 2 * part.height <= max(size or 0, len(group["members"] or ())):
            continue
        rows.append(
            {
                **{k: group[k] for k in OF_GROUP},
                "seq": at,
                "op": part["op"][0],
                "ranks": waiting["rank"].to_list(),
                "entered": part["rank"].to_list(),
                "size": size,
                **waiting.select("timeout_ms", "source_id", "line_no", "record").row(0, named=True),
            }
        )
    return pl.DataFrame(rows, schema=DOWNSTREAM, infer_schema_length=None).lazy()


def _held_before(progress: pl.LazyFrame) -> bool:
    """Whether a rank has not finished what a peer of the same group has: on its GPU, all that it enqueued later in other groups waits
    behind that."""
    done = progress.filter(pl.col("last_done").is_not_null() & pl.col("first_pending").is_not_null())
    peers = progress.group_by("domain", "group_key").agg(pl.col("last_done").max().alias("furthest"))
    return has_rows(done.join(peers, on=["domain", "group_key"]), pl.col("first_pending") <= pl.col("furthest"))


def _size(group: dict[str, Any], world: int) -> int | None:
    """Members as stated; every rank of the job is in the default group."""
    return max(group["size"] or 0, world) if group["group_desc"] == "default_pg" else group["size"]


def _world(groups: Iterable[dict[str, object]], comms: pl.LazyFrame | None, processes: pl.LazyFrame | None) -> int:
    """The least size of the job: of its largest communicator, of its default group, and up to the highest rank that evidence names."""
    least = 0
    if comms is not None:
        least = comms.select(pl.col("nranks").max()).collect().item() or 0
    least = max(least, ranks_named(processes))
    for group in groups:
        members = group["members"]
        if group["group_desc"] == "default_pg" and isinstance(members, list):
            least = max(least, len(members), max(members, default=-1) + 1)  # ranks are numbered without holes
    return least


def ranks_named(processes: pl.LazyFrame | None) -> int:
    """How many ranks there are up to the highest that evidence names; 0 where none is named."""
    if processes is None:
        return 0
    highest = processes.filter(pl.col("rank") < UNIDENTIFIED).select(pl.col("rank").max()).collect().item()
    return 0 if highest is None else int(highest) + 1
