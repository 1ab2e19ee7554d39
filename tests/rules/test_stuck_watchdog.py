"""Whose watchdog stood still by itself, and whose only in the clean-up of a hang."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.stuck_watchdog import host_stall_by_heartbeat
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from tests.rules.frames import cited, told
from tests.rules.host_frames import table
from tests.views.frames import rows

FOUR = rows(SOURCE_RANKS_SCHEMA, *[{"source_id": r, "rank": r} for r in range(4)])


def lines(*what: tuple[int, str]) -> pl.LazyFrame:
    return table("watchdog", *[{"source_id": source, "kind": kind} for source, kind in what])


def test_a_watchdog_that_stands_still_without_a_timeout_is_the_one_that_the_others_wait_for() -> None:
    [finding] = host_stall_by_heartbeat.check(lines((0, "timeout"), (1, "timeout"), (3, "heartbeat-stuck")), FOUR)
    assert told(finding) == ("critical", "medium", (3,))
    assert cited(finding) == [(3, 3)]
    assert finding.alternatives


def test_a_held_gil_is_told_as_such() -> None:
    [finding] = host_stall_by_heartbeat.check(lines((3, "heartbeat-stuck"), (3, "gil")), FOUR)
    assert "GIL" in finding.title
    assert not finding.alternatives


def test_after_a_timeout_of_its_own_it_stands_in_the_clean_up() -> None:
    assert host_stall_by_heartbeat.check(lines((3, "timeout"), (3, "heartbeat-stuck")), FOUR) == []


def test_where_most_of_them_stand_still_none_is_named() -> None:
    assert host_stall_by_heartbeat.check(lines(*[(r, "heartbeat-stuck") for r in range(3)]), FOUR) == []
    assert host_stall_by_heartbeat.check(lines((3, "heartbeat-stuck")), None) == []
