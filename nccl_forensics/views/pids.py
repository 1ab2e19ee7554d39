"""Which rank a process id stands for."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from nccl_forensics.words import first_label


class Pids:
    """Ranks of the ``processes`` view by process id.

    Containers count pids anew on each host, and large jobs have the same pid on several of them: there a pid tells a rank only together
    with its host.
    """

    def __init__(self, processes: pl.LazyFrame | None) -> None:
        self._ranks: dict[int, dict[str | None, int]] = defaultdict(dict)
        if processes is None:
            return
        known = processes.filter(pl.col("rank").is_not_null() & pl.col("pid").is_not_null()).select("pid", "host", "rank").collect()
        for pid, host, rank in known.iter_rows():
            self._ranks[pid][first_label(host)] = rank

    def rank(self, pid: object, host: object = None) -> int | None:
        """The rank of a pid: on this host, or wherever it is where only one process has it (evidence may name one host in two ways)."""
        if not isinstance(pid, int):
            return None
        same = self._ranks.get(pid, {})
        if host is not None and (name := first_label(host)) in same:
            return same[name]
        return next(iter(same.values())) if len(same) == 1 else None
