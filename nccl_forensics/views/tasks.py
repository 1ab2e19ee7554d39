"""Whether the tasks that a scheduler numbers are ranks, or launchers with several of them."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from nccl_forensics.words import first_label

#: What a launcher that starts several workers says of them.
OF_LAUNCHERS = frozenset({"closing-signal", "launcher-signal", "failed", "failure", "root-cause"})


def rank_of_task(exits: pl.DataFrame, processes: pl.LazyFrame | None) -> Callable[[int, str | None], int | None]:
    """Gives the rank of a task that ended on a host, where it is one.

    Tasks are ranks where several ran on one host and no launcher speaks (torchrun is started once a host). Of a lone task, number n is the rank
    where another source has rank n on that host: the n-th launcher would be on the n-th host. Number 0 is the first of both.
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
    return lambda task, host: task if task > 0 and host is not None and home.get(task) == first_label(host) else None
