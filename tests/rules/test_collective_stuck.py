"""Everyone is in and nobody is out."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.collective_stuck import collective_stuck, collective_stuck_downstream
from nccl_forensics.views.deaths import DEATHS
from nccl_forensics.views.failures import FAILURES, LONGER, STANDSTILL
from nccl_forensics.views.looks import LOOKS
from nccl_forensics.views.stuck import DOWNSTREAM, STUCK
from tests.rules.frames import cited
from tests.rules.host_frames import table
from tests.views.frames import rows


def stuck(complete: bool = True, begun: bool = True) -> pl.LazyFrame:
    group = {"domain": "fr", "group_key": "pg:0", "group_name": "0", "group_desc": "default_pg", "seq": 5, "op": "all_reduce"}
    return rows(
        STUCK,
        group | {"ranks": [0, 1, 2], "complete": complete, "begun": begun, "timeout_ms": 600_000, "source_id": 0, "record": "entries[4]"},
    )


def sign(words: str) -> pl.LazyFrame:
    return rows(FAILURES, {"sign": words, "count": 1})


def test_a_collective_that_all_entered_and_none_left_blames_the_transport_and_no_rank() -> None:
    watchdog = table("watchdog", {"kind": "timeout", "line_no": 30})
    [finding] = collective_stuck.check(stuck(), watchdog, sign("watchdog timeouts"), None)
    assert (finding.severity, finding.confidence, finding.ranks, finding.culprits) == ("critical", "high", (), ())
    assert cited(finding) == [(0, 30), (0, "entries[4]")]
    assert finding.title == "all 3 ranks entered all_reduce #5 of process group default_pg (0) and none finished after 600 s"


def test_members_that_all_raised_an_exception_of_their_own_waited_for_nothing() -> None:
    def found(*raised: int) -> int:
        own = rows(DEATHS, *({"rank": r, "own": True, "kind": "exception", "signature": "user"} for r in raised))
        return len(collective_stuck.check(stuck(), None, sign("exceptions"), None, own))

    assert (found(0, 1, 2), found(0, 1)) == (0, 1)


def test_a_job_that_its_scheduler_ended_need_not_have_waited_as_long_as_its_timeout() -> None:
    [finding] = collective_stuck.check(stuck(), None, sign("tasks that failed"), None)
    assert finding.title.endswith("and none finished")


def test_where_nothing_marks_that_the_gpus_have_begun_it_a_gpu_may_stand_before_it() -> None:
    [finding] = collective_stuck.check(stuck(begun=False), None, sign("watchdog timeouts"), None)
    assert finding.confidence == "medium"
    assert finding.alternatives[0][0] == "gpu-stall"
    assert "one that stands before it looks the same" in finding.summary


def test_where_nothing_states_how_many_members_there_are_that_is_said_and_it_is_less_sure() -> None:
    told = [collective_stuck.check(stuck().with_columns(stated=pl.lit(s)), None, sign("watchdog timeouts"), None)[0] for s in (True, False)]
    assert [f.confidence for f in told] == ["high", "medium"]
    assert ["Nothing states how many members it has." in str(f.summary) for f in told] == [False, True]


def test_watchdogs_count_the_calls_of_their_own_ranks() -> None:
    watched = stuck(begun=False).with_columns(domain=pl.lit("watchdog"))
    [finding] = collective_stuck.check(watched, None, sign("watchdog timeouts"), None)
    assert (finding.confidence, [cause for cause, _, _ in finding.alternatives]) == ("medium", ["gpu-stall", "collective-skipped"])
    assert "Each rank counts its own calls" in finding.summary
    # Before the first call there is none to leave out, and none in which a GPU may stand.
    [finding] = collective_stuck.check(watched.with_columns(seq=pl.lit(1, pl.Int64)), None, sign("watchdog timeouts"), None)
    assert (finding.confidence, [cause for cause, _, _ in finding.alternatives]) == ("high", ["host-stall"])


def test_where_the_recorder_of_a_member_is_missing_watchdogs_do_not_tell_what_it_called() -> None:
    watched = stuck(begun=False).with_columns(domain=pl.lit("watchdog"))
    found = collective_stuck.check(pl.concat([stuck(complete=False), watched]), None, sign("watchdog timeouts"), None)
    assert [finding.confidence for finding in found] == ["low", "low"]


def test_where_members_are_missing_from_the_evidence_it_is_less_sure() -> None:
    [finding] = collective_stuck.check(stuck(complete=False), None, sign("watchdog timeouts"), None)
    assert finding.confidence == "low"
    assert finding.title.startswith("3 ranks entered all_reduce #5"), "not all ranks: some have no evidence"
    assert finding.title.endswith("; whether every member came is not in the evidence")
    [finding] = collective_stuck.check(stuck(complete=False).with_columns(size=pl.lit(4096)), None, sign("watchdog timeouts"), None)
    assert finding.title.endswith("; whether the other 4,093 came is not in the evidence")
    assert finding.severity == "critical"


def test_where_most_members_are_missing_it_is_no_cause() -> None:
    [finding] = collective_stuck.check(stuck(complete=False).with_columns(hidden=pl.lit(True)), None, sign("watchdog timeouts"), None)
    assert (finding.severity, finding.confidence) == ("warning", "low")


def test_ranks_that_wait_without_any_failure_may_just_be_working() -> None:
    assert collective_stuck.check(stuck(), None, sign("ranks that wait for others"), None) == []
    assert collective_stuck.check(stuck(), None, sign("processes that were told to end"), None) == []


def test_only_lines_of_the_stuck_group_are_quoted() -> None:
    watchdog = table(
        "watchdog",
        {"kind": "timeout", "source_id": 1, "line_no": 3},
        {"kind": "timeout", "source_id": 1, "line_no": 4, "pg_name": "7"},
        {"kind": "timeout", "source_id": 2, "line_no": 5},
        {"kind": "timeout", "source_id": 2, "line_no": 6, "pg_name": "0"},
        {"kind": "timeout", "source_id": 3, "line_no": 7},
    )
    [finding] = collective_stuck.check(stuck(), watchdog, sign("watchdog timeouts"), None)
    assert cited(finding) == [(2, 5), (2, 6), (3, 7), (0, "entries[4]")]


def test_of_a_hang_in_which_nothing_has_timed_out_yet_it_tells_how_long_it_lasted_when_somebody_looked() -> None:
    seen = rows(LOOKS, *({"rank": r, "age_ms": 300e3 + r, "look_source_id": 9, "look_line_no": r + 2} for r in (0, 1, 2, 7)))
    [finding] = collective_stuck.check(stuck(), None, sign(LONGER), seen)
    assert finding.confidence == "medium"
    assert finding.title.endswith("none finished after 300 s")
    assert cited(finding) == [(0, "entries[4]"), (9, 2), (9, 3), (9, 4)]
    [finding] = collective_stuck.check(stuck(), None, sign(STANDSTILL), None)
    assert finding.title.endswith("none finished")


def test_what_stands_behind_something_unfinished_of_another_group_is_not_what_is_stuck() -> None:
    held = stuck(complete=False).with_columns(held=pl.lit(True))
    assert not list(collective_stuck.check(held, None, sign("watchdog timeouts"), None))
    assert list(collective_stuck.check(held.with_columns(held=pl.lit(False)), None, sign("watchdog timeouts"), None))


def test_a_broadcast_that_some_have_left_blames_nobody() -> None:
    group = {"domain": "watchdog", "group_key": "pg:0", "group_name": "0", "group_desc": "default_pg", "seq": 5, "op": "BROADCAST"}
    waiting = rows(DOWNSTREAM, group | {"ranks": [1], "entered": [0, 1, 2], "size": 3, "source_id": 0, "line_no": 30})
    [finding] = collective_stuck_downstream.check(waiting, None, sign("watchdog timeouts"))
    assert (finding.severity, finding.confidence, finding.culprits) == ("critical", "low", ())
    assert finding.alternatives[0][:2] == ("gpu-stall", (1,))
    assert finding.title.startswith("all 3 ranks entered BROADCAST #5")
    [part] = collective_stuck_downstream.check(waiting.with_columns(size=pl.lit(5, pl.Int32)), None, sign("watchdog timeouts"))
    assert part.title.startswith("3 ranks that are seen entered BROADCAST #5")
    lines = table("watchdog", *({"kind": "timeout", "pg_name": name, "line_no": n} for n, name in ((7, "0"), (8, "1"))))
    [quoted] = collective_stuck_downstream.check(waiting, lines, sign("watchdog timeouts"))
    assert cited(quoted) == [(0, 7), (0, 30)]
    # A dump of a job that goes on shows the same, as long as nothing has timed out.
    assert collective_stuck_downstream.check(waiting, None, sign(STANDSTILL)) == []
