"""Which rank a local rank stands for, on the host that a line is of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import polars as pl

from nccl_forensics.words import first_label


class LocalRanks:
    """Ranks of the job by local rank: those of the ``processes`` view, else those of the folders that a launcher keeps for its workers if
    these are of all ranks, else those that one parent started, all of them, by its exit lines."""

    def __init__(
        self,
        processes: pl.LazyFrame | None,
        worker_exits: pl.LazyFrame | None,
        written: Collection[int],
        folders: Iterable[tuple[int, int]] = (),
    ) -> None:
        """``written``: ranks that some source is of; ``folders``: local rank and rank of sources in a launcher's folder of a worker."""
        self._ranks: dict[int, set[int]] = defaultdict(set)
        self._at_home: dict[tuple[int, str | None], set[int]] = defaultdict(set)
        known: set[int] = set(written)
        if processes is not None:
            for rank, local, host in (
                processes.filter(pl.col("rank").is_not_null()).select("rank", "local_rank", "host").collect().iter_rows()
            ):
                known.add(rank)
                if local is not None:
                    self._ranks[local].add(rank)
                    self._at_home[local, first_label(host)].add(rank)
        kept = list(folders)
        if not self._ranks and known <= {rank for _, rank in kept}:
            for local, rank in kept:
                self._ranks[local].add(rank)
        if not self._ranks and worker_exits is not None:
            self._ranks.update({rank: {rank} for rank in _spawned(worker_exits.collect(), known)})

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def rank(self, local: int | None, host: str | None = None) -> int | None:
        """The only rank of this number, or the only one on this host; None where several may be meant."""
        ranks = self._ranks.get(local, set()) if local is not None else set()
        if len(ranks) > 1 and local is not None and host is not None:
            ranks = self._at_home.get((local, first_label(host)), set())
        return next(iter(ranks)) if len(ranks) == 1 else None


def _spawned(rows: pl.DataFrame, ranks: Collection[int]) -> range:
    """Local ranks that are ranks, where one parent started them all: those that it found failed and those that it ended, or those up to the
    number of one that failed, are at least as many as the ranks that the evidence tells of, as few ranks may have left a file. Of processes
    that had ended before it says nothing."""
    failed = rows.filter((pl.col("kind") == "failed") & pl.col("pid").is_null() & pl.col("local_rank").is_not_null())
    if failed["source_id"].n_unique() != 1:
        return range(0)
    ended = rows.filter((pl.col("kind") == "closing-signal") & pl.col("pid").is_not_null())
    started, numbers = failed["local_rank"].n_unique() + ended["pid"].n_unique(), failed["local_rank"].to_list()
    if ranks:
        started = max(started, max(numbers) + 1)
    return range(started if max([*ranks, *numbers]) < started else 0)
