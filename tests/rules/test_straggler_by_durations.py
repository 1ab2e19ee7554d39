"""A rank that waits in no collective while the others of its group wait for it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.straggler_by_durations import straggler_by_durations
from nccl_forensics.views.recorded_waits import recorded_waits
from tests.rules.frames import cited
from tests.views.frames import operations

MS = 10**6


def timed(ran: dict[str, dict[int, list[float]]], op: str = "all_reduce") -> pl.LazyFrame:
    """By group and rank how long each collective ran on its GPU; they are 50 ms apart."""
    calls, entries = [], []
    for at, (group, ranks) in enumerate(ran.items()):
        frame = operations({rank: [op] * len(runs) for rank, runs in ranks.items()}, group=group).collect()
        own = frame.with_columns(
            created_ns=pl.col("seq") * 50 * MS, source_id=pl.col("rank").cast(pl.UInt32), record=pl.format("{}[{}]", pl.lit(at), "seq")
        )
        calls.append(own)
        ran_ms = [ranks[rank][seq - 1] for rank, seq in own.select("rank", "seq").iter_rows()]
        entries.append(own.select("source_id", "record", duration_ms=pl.Series(ran_ms, dtype=pl.Float64)))
    return recorded_waits(pl.concat(calls).lazy(), pl.concat(entries).lazy())


def test_the_rank_that_never_waits_is_named_and_a_pair_of_it_at_medium() -> None:
    job = {"pg:0": {r: [1.0 if r == 2 else 21.0] * 12 for r in range(4)}}
    [finding] = straggler_by_durations.check(timed(job), None)
    assert (finding.ranks, finding.confidence, finding.severity) == ((2,), "high", "error")
    assert cited(finding) == [(2, "0[12]")]
    [pair] = straggler_by_durations.check(timed({"pg:0": {r: [1.0 if r == 1 else 21.0] * 12 for r in range(2)}}), None)
    assert (pair.ranks, pair.confidence) == ((1,), "medium")


def test_who_is_late_because_another_group_kept_it_is_not_named() -> None:
    data = {"pg:0": {r: [1.0 if r == 2 else 21.0] * 12 for r in range(4)}}
    kept = data | {"pg:1": {2: [21.0] * 12, 7: [1.0] * 12}}
    assert [f.ranks for f in straggler_by_durations.check(timed(kept), None)] == [(7,)]


def test_chance_one_long_delay_roots_and_ranks_of_a_role_of_their_own_are_quiet() -> None:
    turns = {"pg:0": {r: [1.0 if n % 4 == r else 21.0 for n in range(24)] for r in range(4)}}
    once = {"pg:0": {r: [1.0 if r == 2 or n else 900.0 for n in range(12)] for r in range(4)}}
    late = {"pg:0": {r: [1.0 if r == 2 else 21.0] * 12 for r in range(4)}}
    apart = pl.LazyFrame({"group_key": ["pg:0"], "rank": [2]}, schema={"group_key": pl.String(), "rank": pl.Int32()})
    assert straggler_by_durations.check(timed(turns), None) == []
    assert straggler_by_durations.check(timed(once), None) == []
    assert straggler_by_durations.check(timed(late, "broadcast"), None) == []
    assert straggler_by_durations.check(timed(late), apart) == []
