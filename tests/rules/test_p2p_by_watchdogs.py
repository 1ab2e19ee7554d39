"""Two ranks whose watchdogs timed out in the same half of a send and receive."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules.p2p_deadlock import p2p_deadlock_by_watchdogs
from nccl_forensics.views.watchdogs import CALLS
from tests.rules.frames import cited, stalls
from tests.views.frames import groups, rows


def found(*halves: tuple[int, str, int], members: list[int], told: pl.LazyFrame | None = None) -> list[Finding]:
    calls = [{"group_key": "pg:6", "rank": r, "op": op, "seq": n, "source_id": r, "line_no": 3} for r, op, n in halves]
    known = groups({"pg:6": members}).with_columns(size=pl.col("members").list.len().cast(pl.Int32))
    return p2p_deadlock_by_watchdogs.check(rows(CALLS, *calls), known, told)


def test_both_of_a_pair_that_send_wait_for_each_other() -> None:
    [finding] = found((3, "SEND", 85), (7, "SEND", 85), members=[3, 7])
    assert (finding.confidence, finding.ranks, [c.rank for c in finding.culprits]) == ("medium", (3, 7), [3, 7])
    assert cited(finding) == [(3, 3), (7, 3)]
    assert len(found((3, "RECV", 4), (7, "RECV", 4), members=[3, 7])) == 1


def test_halves_that_pair_up_other_numbers_and_groups_of_more_tell_nothing() -> None:
    assert found((3, "SEND", 85), (7, "RECV", 85), members=[3, 7]) == []
    assert found((3, "SEND", 85), (7, "SEND", 86), members=[3, 7]) == []
    assert found((3, "SEND", 85), (7, "SEND", 85), members=[3, 5, 7]) == []
    assert found((3, "ALLREDUCE", 85), (7, "ALLREDUCE", 85), members=[3, 7]) == []


def test_what_recorders_say_is_not_said_again() -> None:
    circle = stalls({"rank": 3, "cause": "p2p-deadlock", "partners": [7]})
    assert found((3, "SEND", 85), (7, "SEND", 85), members=[3, 7], told=circle) == []
