"""Exceptions, with the rank of the job that raised each."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.facts.signatures import SURVIVED
from nccl_forensics.views import view
from nccl_forensics.views.local_ranks import LocalRanks
from nccl_forensics.views.pids import Pids
from nccl_forensics.views.tasks import rank_of_task

#: What tells the process that wrote a line.
_WRITER = ("source_id", "pid", "hint_rank", "hint_scope", "hint_host")


def lived_on() -> pl.Expr:
    """Of rows of ``exceptions``: whether the process went on after it."""
    return pl.col("kind").fill_null("").is_in(list(SURVIVED))


@view(rows="exceptions")
def raised(
    exceptions: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
) -> pl.LazyFrame:
    """``exceptions`` with ``rank`` filled in where the text itself does not state it: by what a launcher set before the line (a rank; a
    local rank, of its host where it tells one; a task of the scheduler, which is a rank where NCCL's lines or the ends of tasks say so), by
    the pid, and at last by the source. Null where none of these tells."""
    rows = exceptions.sort("source_id", "line_no").collect()
    unstated = rows.filter(pl.col("rank").is_null()).select(_WRITER).unique(maintain_order=True)
    if not unstated.height:
        return rows.lazy()
    of_source: dict[int, int] = {}
    if source_ranks is not None:
        of_source = dict(source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
        # A launcher's own output holds words of several processes, though one alone may bear its rank.
        launchers = _launchers(worker_exits)
        of_source = {source: rank for source, rank in of_source.items() if source not in launchers}
    host_of: dict[int, str] = {}
    if source_hosts is not None:
        host_of = dict(source_hosts.select("source_id", "host").collect().iter_rows())
    by_pid, local_ranks, of_task = Pids(processes), LocalRanks(processes, worker_exits, set(of_source.values())), _of_task(comms)
    ended = worker_exits.collect() if worker_exits is not None else None
    by_end = rank_of_task(ended, processes) if ended is not None else None

    def rank_of(writer: Mapping[str, object]) -> int | None:
        source, scope, hint, host = (writer[name] for name in ("source_id", "hint_scope", "hint_rank", "hint_host"))
        number = int(str(hint)) if hint is not None else None
        if scope == "global" and number is not None:
            return number
        rank = by_pid.rank(writer["pid"], host)
        if rank is None and scope == "local":
            rank = local_ranks.rank(number, str(host) if host is not None else host_of.get(int(str(source))))
        if rank is None and scope == "task" and number is not None:
            rank = of_task.get(number)
            if rank is None and by_end is not None:
                rank = by_end(number, str(host) if host is not None else None)
        return rank if rank is not None else of_source.get(int(str(source)))

    told = unstated.with_columns(pl.Series("told", [rank_of(w) for w in unstated.iter_rows(named=True)], dtype=pl.Int32))
    with_told = rows.join(told, on=_WRITER, how="left", nulls_equal=True, maintain_order="left")
    return with_told.with_columns(rank=pl.coalesce("rank", "told")).drop("told").lazy()


def _launchers(worker_exits: pl.LazyFrame | None) -> set[int]:
    """Sources that tell how several processes ended."""
    if worker_exits is None:
        return set()
    told = worker_exits.group_by("source_id").agg(pl.col("pid").drop_nulls().n_unique().alias("n")).filter(pl.col("n") > 1)
    return set(told.select("source_id").collect()["source_id"].to_list())


def _of_task(comms: pl.LazyFrame | None) -> dict[int, int]:
    """The rank whose NCCL lines bear the number of a scheduler's task, where one process alone does: a task may be a launcher with
    several."""
    if comms is None:
        return {}
    told = comms.filter((pl.col("hint_scope") == "task") & pl.col("rank").is_not_null() & (pl.col("nranks") == pl.col("nranks").max()))
    ranks = told.group_by("hint_rank").agg(pl.col("rank").first(), n=pl.struct("host", "pid", "rank").n_unique()).filter(pl.col("n") == 1)
    return dict(ranks.select("hint_rank", "rank").collect().iter_rows())
