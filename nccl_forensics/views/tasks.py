"""Whether the tasks that a scheduler numbers are ranks, or launchers with several of them."""

from __future__ import annotations

from collections.abc import Callable, Set

import polars as pl

from nccl_forensics.facts.signals import ASKS_TO_END
from nccl_forensics.frames import ranks_in
from nccl_forensics.words import first_label

#: What a launcher that starts several workers says of them.
OF_LAUNCHERS = frozenset({"closing-signal", "launcher-signal", "failed", "failure", "root-cause"})


def rank_of_task(
    exits: pl.DataFrame, processes: pl.LazyFrame | None, progress: pl.LazyFrame | None = None
) -> Callable[[int, str | None], int | None]:
    """Gives the rank of a task that ended on a host, where it is one.

    Tasks are ranks where several ran on one host and no launcher speaks (torchrun is started once a host). Of a lone task, number n is the
    rank where another source has rank n on that host: the n-th launcher would be on the n-th host. Number 0 is the first of both. So is it
    where of the ranks whose recorder left a dump this one is missing between its neighbours: a launcher of several takes a block of them
    along, of which none has its own number but the first.
    """
    if exits["kind"].is_in(list(OF_LAUNCHERS)).any():
        return lambda task, host: None
    tasks = exits.filter((pl.col("kind") == "task") & pl.col("rank").is_not_null())
    beside = tasks.filter(pl.col("host").is_not_null() & (pl.col("rank").n_unique().over("source_id", "host") > 1))
    if beside.height or (tasks["tasks_per_host"] > 1).any():
        return lambda task, host: task
    home: dict[int, str | None] = {}
    if processes is not None:
        known = processes.filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null()).select("rank", "host").collect()
        home = {rank: first_label(host) for rank, host in known.iter_rows()}

    recorded = ranks_in(progress, pl.col("domain") == "fr")

    def rank(task: int, host: str | None) -> int | None:
        if task > 0 and host is not None and home.get(task) == first_label(host):
            return task
        return task if _gap(task, recorded) else None

    return rank


def killed_with_the_step(exits: pl.DataFrame, of_task: Callable[[int, str | None], int | None]) -> set[int]:
    """Ranks of tasks that were killed behind the end of their step, before which another task had ended badly by itself: srun and
    slurmstepd kill what is left."""
    ends = exits.filter(pl.col("kind").is_in(["scheduler", "scheduler-note"])).group_by("source_id").agg(end=pl.col("line_no").min())
    tasks = exits.filter((pl.col("kind") == "task") & pl.col("rank").is_not_null()).join(ends, on="source_id")
    badly = (pl.col("exit_code").fill_null(0) != 0) & ~pl.col("signal").fill_null("").is_in(ASKS_TO_END)
    first = tasks.filter((pl.col("line_no") < pl.col("end")) & badly).select("source_id").unique()
    killed = tasks.join(first, on="source_id").filter((pl.col("line_no") > pl.col("end")) & (pl.col("signal") == "SIGKILL"))
    return {rank for task, host in killed.select("rank", "host").iter_rows() if (rank := of_task(task, host)) is not None}


def _gap(task: int, recorded: Set[int]) -> bool:
    """Whether all ranks but this one are seen around it: the one before and the one after, if it is not the last."""
    alone = task > 0 and task not in recorded and task - 1 in recorded
    return alone and len(recorded) >= _SEEN and (task + 1 in recorded or task > max(recorded))


#: Fewer ranks with a record tell nothing of a gap between them.
_SEEN = 4
