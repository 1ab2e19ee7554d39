"""Process groups and communicators: who is in them, by every kind of evidence that tells."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from nccl_forensics.frames import ranks_in, text_of, typed, values_in
from nccl_forensics.values.claims import WORD
from nccl_forensics.values.ranklist import MOST_RANKS, unfold
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.layouts import Group, unlisted_members
from nccl_forensics.views.shared_names import part_key
from nccl_forensics.views.wait_edges import OF_GROUP
from nccl_forensics.views.watchdogs import watchdog_lines, watchdog_progress

GROUPS = typed(OF_GROUP, "members:list[i32] size:i32")

#: Groups by domain and key.
Found = dict[tuple[str, str], Group]


@view(rows="groups")
def groups(
    operations: pl.LazyFrame | Calls | None,
    fr_groups: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    shared_names: pl.LazyFrame | None = None,
    trace_ranks: pl.LazyFrame | None = None,
    source_ranks: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Process groups and communicators: ``domain``, ``group_key``, ``group_name``, ``group_desc``, ``comm_id``, ``members`` (global ranks
    that evidence names, or that the layout of the groups beside it leaves over), ``size`` (as stated; null where nothing states it)."""
    found: Found = {}
    if operations is not None:
        _add_callers(found, calls_of(operations))
    if comms is not None:
        _add_communicators(found, comms.collect(), processes)
    if fr_groups is not None:
        _add_listed(found, fr_groups, shared_names)
    if watchdog is not None:
        _add_watched(found, watchdog)
    if dumps is not None:
        _add_unseen(found, _everyone(dumps, processes, trace_ranks, source_ranks))
    rows = [found[key] for key in sorted(found)]
    for row in rows:
        row.members.sort()
    return pl.DataFrame([pl.Series(c, [getattr(row, c) for row in rows], dtype=t) for c, t in GROUPS.items()]).lazy()


def _add_callers(found: Found, calls: Calls) -> None:
    """Whoever has called an operation of a group is in it."""
    callers = (
        calls.telling.filter(pl.col("rank").is_not_null())
        .group_by("domain", "group_key")
        .agg(
            pl.col("group_name").first(),
            pl.col("group_desc").drop_nulls().first(),
            pl.col("comm_id").first(),
            pl.col("rank").unique().sort().alias("members"),
            pl.col("nranks").max().alias("size"),
        )
        .collect()
    )
    for row in callers.iter_rows(named=True):
        found[row["domain"], row["group_key"]] = Group(**row)


def _add_communicators(found: Found, comms: pl.DataFrame, processes: pl.LazyFrame | None) -> None:
    """Ranks of NCCL's communicators: those of the widest are ranks of the job, those of others are so by their process and GPU."""
    world = int(str(comms["nranks"].max() or 0))
    rank_of = _ranks_by_gpu(processes)
    told: dict[tuple[str, str], dict[int, None]] = {}
    for row in comms.iter_rows(named=True):
        key = ("nccl", row["comm_key"])
        group = found.setdefault(key, Group(*key))
        group.size = row["nranks"] if row["nranks"] is not None else group.size
        group.comm_id = group.comm_id or row["comm_id"]
        rank = row["rank"] if row["nranks"] == world else rank_of.get((row["host"], row["pid"], row["bus_id"]))
        if rank is not None:
            told.setdefault(key, {}).setdefault(rank)
    for key, ranks in told.items():
        known = set(found[key].members)
        found[key].members += [rank for rank in ranks if rank not in known]


def _ranks_by_gpu(processes: pl.LazyFrame | None) -> dict[tuple[object, object, object], int]:
    if processes is None:
        return {}
    known = processes.filter(pl.col("rank").is_not_null()).select("host", "pid", "bus_id", "rank").collect()
    return {(host, pid, bus): rank for host, pid, bus, rank in known.iter_rows()}


def _add_listed(found: Found, fr_groups: pl.LazyFrame, shared_names: pl.LazyFrame | None) -> None:
    """Members as the recorders list them, where all that tell of a group list the same; names that several groups bear are told apart."""
    stated = fr_groups.filter(pl.col("ranks").is_not_null() & pl.col("pg_name").is_not_null())
    seen = stated.group_by("pg_name").agg(pl.col("pg_desc").first(), pl.col("ranks").unique()).collect()
    shared = set() if shared_names is None else set(shared_names.select("pg_name").collect().to_series().to_list())
    for name, desc, lists in seen.iter_rows():
        keys = {part_key(name, part): [part] for part in lists if part} if name in shared else {f"pg:{name}": lists}
        for key, told in keys.items():
            group = found.setdefault(("fr", key), Group("fr", key, group_name=name))
            if len(told) == 1:
                group.members = sorted(set(unfold(told[0])))
                group.size = len(group.members)
            group.group_desc = group.group_desc or desc


def _add_watched(found: Found, watchdog: pl.LazyFrame) -> None:
    """Ranks whose watchdogs tell of a group."""
    watched = watchdog_progress(watchdog).group_by("group_key").agg(pl.col("rank").unique().sort()).collect()
    named = watchdog.filter(pl.col("pg_name").is_not_null()).group_by(text_of("pg:{}", pl.col("pg_name"))).agg(pl.col("pg_desc").first())
    desc = dict(named.collect().iter_rows())
    sizes = _by_elements(watchdog)
    for key, ranks in watched.iter_rows():
        described = desc.get(key) or ("default_pg" if key == "pg:0" else None)
        group = Group("watchdog", key, group_name=key.removeprefix("pg:"), group_desc=described, members=list(ranks))
        group.size = size if (size := sizes.get(key, 0)) >= len(ranks) else None
        found["watchdog", key] = group


def _by_elements(watchdog: pl.LazyFrame) -> dict[str, int]:
    """Members of groups by the elements that watchdogs print of a call which gathers or scatters equal parts (``NumelIn``, ``NumelOut``): one
    side of it is as many times the other; only where all ranks that timed out in one agree."""
    gathers, scatters = pl.col("op") == "_ALLGATHER_BASE", pl.col("op") == "_REDUCE_SCATTER_BASE"
    whole = pl.when(gathers).then("numel_out").otherwise("numel_in")
    part = pl.when(gathers).then("numel_in").otherwise("numel_out")
    lines = watchdog_lines(watchdog).filter((gathers | scatters) & (pl.col("numel_in") > 0) & (pl.col("numel_out") > 0))
    times = lines.with_columns(whole=whole, part=part).with_columns(
        times=pl.when(pl.col("whole") % pl.col("part") == 0).then(pl.col("whole") // pl.col("part"))
    )
    agreed = times.group_by("group_key").agg(pl.col("times").first(), one=pl.col("times").n_unique() == 1).filter("one")
    return {key: int(n) for key, n in agreed.select("group_key", "times").collect().iter_rows() if n is not None and 1 < n <= MOST_RANKS}


def _everyone(
    dumps: pl.LazyFrame, processes: pl.LazyFrame | None, trace_ranks: pl.LazyFrame | None, source_ranks: pl.LazyFrame | None
) -> Iterable[int]:
    """Ranks of the job: they are numbered without holes, so that a missing number is a rank without evidence; traces state how many there
    are, and a log that bears a rank's name is of one, whatever it holds."""
    known = ranks_in(dumps, pl.col("use") == "chosen") | ranks_in(processes) | ranks_in(source_ranks, pl.col("strength") >= WORD)
    known |= {int(n) - 1 for n in values_in(trace_ranks, "world_size")}
    return range(max(known) + 1) if known and max(known) < MOST_RANKS else sorted(known)


def _add_unseen(found: Found, everyone: Iterable[int]) -> None:
    """Members of which nothing is seen: every rank of the job is in the default group, before its first operation too, and in one group of
    each parallel dimension."""
    recorded = [group for group in found.values() if group.domain == "fr"]
    for group in recorded:
        if (group.group_desc == "default_pg" or group.group_key == "pg:0") and group.size is None:
            group.members = sorted({*group.members, *everyone})
    for key, more in unlisted_members(recorded, everyone).items():
        found[key].members += more
