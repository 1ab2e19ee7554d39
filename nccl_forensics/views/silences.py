"""Ranks that only their silence singles out: the others timed out, and they did not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from nccl_forensics.views.deaths import told_at
from nccl_forensics.views.step_leads import steps_of_ranks

#: Ranks without evidence that may all be what the others wait for, whatever their numbers.
FEW_UNSEEN = 2


def scattered(ranks: Sequence[int]) -> bool:
    """Whether more ranks are alike, here and there, than have a fault by chance: those of a host, whose faults they share, go together."""
    return len(ranks) > FEW_UNSEEN and max(ranks) - min(ranks) >= len(ranks)


_TIMED_OUT = ("gloo-timeout", "nccl-timeout")


def in_one_half(found: Collection[int], stacks: Mapping[int, Mapping[str, object]]) -> bool:
    """Whether several ranks that others wait for all stand in a receive, or all in a send: each may wait for a rank that is not seen."""
    halves = [(stacks[rank]["place"], stacks[rank]["op"]) if rank in stacks else None for rank in found]
    return len(halves) > 1 and len(set(halves)) == 1 and halves[0] in (("p2p", "recv"), ("p2p", "send"))


def silent(
    endings: pl.LazyFrame, progress: pl.LazyFrame | None, looked_at: Collection[int] = (), written: Collection[int] = ()
) -> dict[int, dict[str, object]]:
    """Ranks that were alive to the end without a timeout of their own while most others timed out: they were not in what those waited for.

    Only a rank of which nothing else is known: a recorder or a stack (of those ``looked_at``) tells better where it was. Of three ranks
    the one that its launcher had to kill is told as well: it stood when it was asked to end, too. Where nothing tells who was stopped, one
    or two that have ``written`` files without a word of a failure are meant.
    """
    ends = endings.filter(pl.col("rank").is_not_null()).sort("rank").collect()
    late = ends.filter(pl.col("signature").is_in(_TIMED_OUT))
    alive = ends.filter((pl.col("kind") == "terminated") & pl.col("signature").is_null())
    quiet = sorted(set(written) - set(ends["rank"].to_list()))
    if alive.is_empty() and 0 < len(quiet) <= FEW_UNSEEN:
        alive = pl.DataFrame({"rank": quiet}, schema=pl.Schema({"rank": pl.Int32()})).join(ends.clear(), on="rank", how="left")
        ends = pl.concat([ends, alive], how="diagonal_relaxed")
    stood = alive.height > 0 and bool((alive["signal"] == "SIGKILL").fill_null(False).all())
    few = alive.height * 2 < late.height + stood
    if late.height < 2 or not few or late.height + alive.height < ends.height or alive["rank"].is_in(list(looked_at)).any():
        return {}
    last: dict[str, object] = {"domain": None, "group_key": None, "op": None, "seq": None}
    if progress is not None:
        seen = progress.collect()
        if set(alive["rank"].to_list()) & set(seen["rank"].to_list()):
            return {}
        pending = seen.filter(pl.col("rank").is_in(late["rank"].to_list()) & pl.col("first_pending").is_not_null())
        if pending.height:
            row = pending.row(0, named=True)
            last = {k: row[k] for k in ("domain", "group_key")} | {"op": row["last_op"], "seq": row["first_pending"]}
    first = late.row(0, named=True)
    return {
        row["rank"]: last
        | {
            "kind": "silent",
            "waiters": late["rank"].to_list(),
            **told_at(first),
            "own_source_id": row["source_id"],
            "own_line_no": row["line_no"],
            "seen_by": "endings",
        }
        for row in alive.iter_rows(named=True)
    }


def silent_watchdogs(
    training_steps: pl.LazyFrame,
    source_ranks: pl.LazyFrame | None,
    watchdog: pl.LazyFrame,
    progress: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    groups: pl.LazyFrame,
    job: frozenset[int],
) -> dict[int, dict[str, object]]:
    """The one or two ranks whose logs hold the steps of their loops and no timeout, where the watchdogs of all others timed out in one and the
    same operation of the default group: whoever is in it times out with them.

    The logs must be of one kind: those of others hold steps and timeouts, so that a watchdog's line would be in theirs. Only a rank of which
    nothing else is known: neither how far its operations came nor how it ended.
    """
    default = (pl.col("domain") == "watchdog") & (pl.col("group_key") == "pg:0")
    seen = progress.select("domain", "group_key", "rank", "first_pending", "last_op", "source_id", "line_no").sort("rank").collect()
    late = seen.filter(default & pl.col("first_pending").is_not_null())
    group = groups.filter(default).select("domain", "group_key", "group_name", "group_desc", "comm_id").collect()
    if late.height < 2 or late["first_pending"].n_unique() != 1 or not group.height:
        return {}
    told = steps_of_ranks(training_steps, source_ranks)
    last = told.sort("source_id", "line_no").group_by("rank").agg(pl.col("source_id", "line_no").last()).sort("rank").collect()
    warned = set(watchdog.select(pl.col("source_id").unique()).collect()["source_id"].to_list())
    both = last.filter(pl.col("rank").is_in(late["rank"].to_list()) & pl.col("source_id").is_in(sorted(warned)))
    ended = [] if endings is None else endings.select(pl.col("rank").drop_nulls()).collect()["rank"].to_list()
    quiet = last.filter(~pl.col("rank").is_in([*seen["rank"].to_list(), *ended]))
    everyone = {*quiet["rank"].to_list(), *late["rank"].to_list()}
    if not 0 < quiet.height <= min(FEW_UNSEEN, late.height - 1) or both.height < late.height:
        return {}
    if not job <= everyone or len(everyone) <= max(everyone):
        return {}  # some rank's log is not there
    first = late.row(0, named=True)
    waiting = group.row(0, named=True) | {"op": first["last_op"], "seq": first["first_pending"]}
    waiting |= {"source_id": first["source_id"], "line_no": first["line_no"], "waiters": late["rank"].to_list()}
    return {
        r: waiting | {"kind": "silent", "own_source_id": source, "own_line_no": line, "seen_by": "endings", "by_steps": True}
        for r, source, line in quiet.select("rank", "source_id", "line_no").iter_rows()
    }


def unheard_of(endings: pl.LazyFrame, progress: pl.LazyFrame, groups: pl.LazyFrame) -> dict[int, dict[str, object]]:
    """The one or two members of a group that nothing is heard of, where all others timed out in one and the same operation of it.

    gloo's recorders do not say what is completed, so that who waits shows in the timeouts only.
    """
    ends = endings.filter(pl.col("rank").is_not_null()).select("rank", "signature").collect()
    late = set(ends.filter(pl.col("signature").is_in(_TIMED_OUT))["rank"].to_list())
    state = progress.filter(pl.col("last_created_ns").is_not_null()).sort("last_created_ns").collect()
    latest = state.unique("rank", keep="last", maintain_order=True)
    if len(late) < 2 or set(ends["rank"].to_list()) != late or set(latest["rank"].to_list()) != late:
        return {}
    first = latest.row(0, named=True)
    if latest.select("domain", "group_key", "last_seq").n_unique() != 1:
        return {}
    mine = groups.filter((pl.col("domain") == first["domain"]) & (pl.col("group_key") == first["group_key"])).collect()
    unheard = sorted(set(mine["members"][0].to_list()) - late) if mine.height else []
    if not 0 < len(unheard) <= min(FEW_UNSEEN, (len(late) - 1)):
        return {}
    waiting = {k: first[k] for k in ("domain", "group_key", "source_id", "line_no", "record")} | {
        k: mine[k][0] for k in ("group_name", "group_desc", "comm_id")
    }
    told = {
        "kind": "unseen",
        "waiters": sorted(late),
        "in_group": sorted(late),
        "op": first["last_op"],
        "seq": first["last_seq"],
        "seen_by": "progress",
    }
    return {rank: waiting | told | {"call_site": first["last_call_site"]} for rank in unheard}
