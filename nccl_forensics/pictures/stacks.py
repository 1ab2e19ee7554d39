"""Ranks by the stack of their main thread."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.extras import StackClass
from nccl_forensics.frames import ranks_in
from nccl_forensics.views import Resolver

_CLASSES = 40


def stacks(resolver: Resolver, paths: Mapping[int, str]) -> tuple[StackClass, ...]:
    """Equal stacks folded, the smallest class first. Which stand apart is what the view of odd stacks says."""
    states = resolver.get("thread_states")
    if states is None:
        return ()
    frame = states.filter(pl.col("rank").is_not_null()).sort("rank", "source_id").collect()
    odd = ranks_in(resolver.get("odd_stacks"))
    classes: dict[tuple[str, ...], tuple[set[int], dict[str, object]]] = {}
    for row in frame.iter_rows(named=True):
        classes.setdefault(tuple(row["frames"] or []), (set(), row))[0].add(row["rank"])
    out = []
    for frames, (ranks, row) in sorted(classes.items(), key=lambda item: (len(item[1][0]), min(item[1][0]))):
        line = row["line_no"]
        source = paths.get(int(str(row["source_id"])))
        out.append(StackClass(tuple(sorted(ranks)), frames, ranks <= odd, source, int(str(line)) if line is not None else None))
    return tuple(out[:_CLASSES])
