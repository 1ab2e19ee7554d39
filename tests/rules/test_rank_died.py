"""Ranks that ended by a fault of their own, against consequences and crashes of all."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.facts.signatures import UNTHROWN
from nccl_forensics.rules.rank_died import rank_died
from nccl_forensics.views.last_calls import LAST_CALLS
from tests.rules.frames import cited, endings, stalls, told
from tests.views.frames import rows

VICTIMS = [{"rank": r, "kind": "victim", "own": False, "signature": "gloo-closed"} for r in (0, 1, 3)]


def test_the_killed_rank_is_named_and_its_victims_are_not() -> None:
    [finding] = rank_died.check(endings({"rank": 2, "kind": "killed", "signal": "SIGKILL", "host": "node1", "pid": 77}, *VICTIMS), None)
    assert told(finding) == ("critical", "high", (2,))
    assert (finding.culprits[0].host, finding.culprits[0].pid) == ("node1", 77)
    assert cited(finding) == [(0, 12)]
    assert "was killed (SIGKILL)" in finding.title


def test_an_exception_is_quoted_with_its_place_and_cited_before_the_launchers_line() -> None:
    raised = {"type": "ValueError", "message": "bad batch\nmore", "signature": "user", "frame": "step (train.py:9)"}
    [finding] = rank_died.check(endings({"rank": 2, "kind": "exception", "exc_source_id": 5, "exc_line_no": 80} | raised, *VICTIMS), None)
    assert told(finding) == ("critical", "high", (2,))
    assert finding.title == "rank 2 raised an exception: ValueError: bad batch at step (train.py:9)"
    assert cited(finding) == [(5, 80), (0, 12)]
    assert (finding.actions[0].action, finding.actions[0].where) == ("fix-code", "step (train.py:9)")


@pytest.mark.parametrize("kind", ["vanished", "exit", "abort"])
def test_endings_that_say_little_are_medium(kind: str) -> None:
    [finding] = rank_died.check(endings({"rank": 2, "kind": kind}, *VICTIMS), None)
    assert told(finding) == ("critical", "medium", (2,))
    assert finding.alternatives == ((("host-stall", (2,), None),) if kind == "vanished" else ())


def test_deaths_of_different_kinds_are_findings_of_their_own_earliest_first() -> None:
    first = {"rank": 3, "kind": "segfault", "signal": "SIGSEGV", "time_raw_ns": 1}
    second = {"rank": 1, "kind": "killed", "signal": "SIGKILL", "time_raw_ns": 2}
    assert [f.ranks for f in rank_died.check(endings(second, first), None)] == [(3,), (1,)]


def test_consequences_and_terminations_alone_stay_quiet() -> None:
    assert rank_died.check(endings(*VICTIMS, {"rank": 2, "kind": "terminated", "own": False, "signal": "SIGTERM"}), None) == []


def test_ranks_that_all_died_alike_are_left_to_the_crash_of_the_software() -> None:
    assert rank_died.check(endings(*[{"rank": r, "kind": "segfault", "signal": "SIGSEGV"} for r in range(4)]), None) == []


def test_a_crash_of_a_rank_that_stood_in_a_collective_with_all_the_others_is_the_end_of_a_hang() -> None:
    def stood(*places: str) -> pl.LazyFrame:
        seen = [{"rank": r, "place": p, "witness": "stack", "moved": False} for r, p in enumerate(places)]
        return rows(LAST_CALLS, *seen)

    crashed = endings({"rank": 2, "kind": "segfault", "signal": "SIGSEGV"}, *VICTIMS)
    [finding] = rank_died.check(crashed, stood("collective", "collective", "collective"))
    assert told(finding) == ("critical", "low", (2,))
    [finding] = rank_died.check(crashed, stood("collective", "collective", "user-code"))
    assert told(finding) == ("critical", "high", (2,))
    # It waited as all do but the one for whom all wait.
    places = stood("collective", "collective", "collective", "lock")
    [finding] = rank_died.check(crashed, places, stalls({"rank": 3, "cause": "host-stall"}))
    assert told(finding) == ("critical", "low", (2,))
    [finding] = rank_died.check(crashed, places, stalls({"rank": 3, "cause": "host-stall", "confidence": "medium"}))
    assert told(finding) == ("critical", "high", (2,))


def test_a_thread_that_nobody_joined_is_no_sure_beginning() -> None:
    said = {"rank": 2, "kind": "exception", "type": UNTHROWN, "signal": "SIGABRT"}
    [finding] = rank_died.check(endings(said, *VICTIMS), None)
    assert told(finding) == ("critical", "medium", (2,))


def test_a_traceback_that_nobody_missed_the_rank_for_is_no_sure_death() -> None:
    raised = {"rank": 2, "kind": "exception", "type": "ValueError", "message": "bad", "signature": "user", "frame": "step (train.py:9)"}
    ranks = pl.LazyFrame({"rank": [0, 1, 2]})
    [alone] = rank_died.check(endings(raised | {"over": False}), None, None, ranks)
    assert told(alone) == ("critical", "low", (2,))
    assert "Nobody missed it" in alone.summary
    signs = pl.LazyFrame({"sign": ["exceptions", "processes ended badly", "ranks that wait for others"]})
    [waited_for] = rank_died.check(endings(raised | {"over": False}), None, None, ranks, signs)
    assert told(waited_for) == ("critical", "medium", (2,))
    [no_other_sign] = rank_died.check(endings(raised | {"over": False}), None, None, ranks, signs.head(2))
    assert told(no_other_sign) == ("critical", "low", (2,))
    [missed] = rank_died.check(endings(raised | {"over": False}, *VICTIMS), None, None, ranks)
    assert told(missed) == ("critical", "medium", (2,))
    [over] = rank_died.check(endings(raised | {"over": True}), None, None, ranks)
    assert told(over) == ("critical", "high", (2,))


def test_a_rank_that_was_killed_where_all_stood_for_another_was_killed_to_end_the_hang() -> None:
    def seen(moved: bool | None) -> pl.LazyFrame:
        places = enumerate(("collective", "collective", "collective", "lock"))
        return rows(LAST_CALLS, *({"rank": r, "place": p, "witness": "stack", "moved": moved} for r, p in places))

    killed, held = endings({"rank": 2, "kind": "killed", "signal": "SIGKILL"}, *VICTIMS), stalls({"rank": 3, "cause": "host-stall"})
    [finding] = rank_died.check(killed, seen(moved=False), held)
    assert told(finding) == ("critical", "low", (2,))
    # One look tells nothing of what came after it.
    [finding] = rank_died.check(killed, seen(moved=None), held)
    assert told(finding) == ("critical", "high", (2,))


def test_a_process_of_unknown_rank_whom_nobody_misses_was_a_helper() -> None:
    killed = endings({"pid": 4411, "kind": "killed", "signal": "SIGKILL"})
    heard = pl.LazyFrame({"rank": [0, 1]}, schema={"rank": pl.Int32()})

    def judged(*signs: str) -> tuple[str | None, str]:
        [finding] = rank_died.check(killed, None, None, heard, pl.LazyFrame({"sign": ["processes ended badly", *signs]}))
        return finding.severity, finding.confidence

    assert judged() == ("warning", "low")
    assert judged("watchdog timeouts") == ("critical", "medium")
