"""Who PyTorch's desync report names, and when it names nobody."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.desync_report import gpu_stall_by_desync_report, host_stall_by_desync_report
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from tests.rules.frames import cited, told
from tests.views.frames import rows

TIMEOUT = "\t - [0] Timeout at collective: ALLREDUCE, #42"
BEST = "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
RANK_0 = rows(SOURCE_RANKS_SCHEMA, {"source_id": 0, "rank": 0})


def report(*lines: str, sources: int = 1) -> pl.LazyFrame:
    frame = read_source("\n".join(lines).encode()).frames["watchdog"]
    return pl.concat([frame.with_columns(pl.lit(n, dtype=pl.UInt32()).alias("source_id")) for n in range(sources)]).lazy()


def missing(ranks: str) -> str:
    return f"\t   - [{ranks}] finished collective #41, but didn't join collective #42 (count from 1)"


def stuck(ranks: str, number: int = 41) -> str:
    return f"\t   - [{ranks}] joined but didn't finish collective #{number} (count from 1)"


def test_ranks_that_did_not_join_are_named_once_though_every_rank_prints_the_report():
    [finding] = host_stall_by_desync_report.check(report(TIMEOUT, BEST, missing("5, 6"), sources=4), RANK_0)
    assert told(finding) == ("critical", "medium", (5, 6))
    assert "collective #42" in finding.title
    assert cited(finding) == [(0, 3)]


def test_in_a_group_whose_ranks_may_be_others_it_is_a_guess():
    of_4 = rows(SOURCE_RANKS_SCHEMA, {"source_id": 0, "rank": 4})
    for known in (of_4, None):
        [finding] = host_stall_by_desync_report.check(report(TIMEOUT, BEST, missing("1")), known)
        assert finding.confidence == "low"


def test_ranks_that_never_joined_any_are_named():
    line = "\t - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined any collectives"
    [finding] = host_stall_by_desync_report.check(report(TIMEOUT, line), RANK_0)
    assert finding.ranks == (3,)


def test_a_rank_that_did_not_finish_what_the_others_passed_has_a_gpu_that_stands():
    [finding] = gpu_stall_by_desync_report.check(report(TIMEOUT, BEST, stuck("3")), RANK_0)
    assert told(finding) == ("critical", "medium", (3,))


def test_where_all_wait_in_the_same_collective_nobody_is_named():
    assert gpu_stall_by_desync_report.check(report(TIMEOUT, BEST, stuck("0, 1, 2, 3", 42)), RANK_0) == []
    assert host_stall_by_desync_report.check(report(TIMEOUT, BEST, stuck("0, 1, 2, 3", 42)), RANK_0) == []


def test_most_ranks_are_not_culprits():
    assert host_stall_by_desync_report.check(report(TIMEOUT, BEST, missing("1, 2, 3")), RANK_0) == []
