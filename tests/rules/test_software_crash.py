"""All ranks fall over alike."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.rank_died import rank_died
from nccl_forensics.rules.software_crash import software_crash
from nccl_forensics.store import Store
from tests.rules.frames import cited, endings
from tests.rules.host_frames import table


def crashed(*ranks: int) -> list[dict[str, object]]:
    return [{"rank": r, "kind": "segfault", "signal": "SIGSEGV"} for r in ranks]


def test_ranks_that_all_crash_alike_blame_no_rank() -> None:
    [finding] = software_crash.check(endings(*crashed(0, 1, 2, 3)), None)
    assert (finding.severity, finding.confidence, finding.ranks, finding.culprits) == ("critical", "high", (), ())
    assert cited(finding) == [(0, 10), (0, 11), (0, 12), (0, 13)]
    assert finding.title == "all 4 ranks fell over alike: SIGSEGV"


def test_a_crash_is_the_same_one_whether_or_not_a_rank_left_its_stack() -> None:
    said = [row | {"type": "Fatal Python error"} for row in crashed(0, 1)]
    assert len(software_crash.check(endings(*said, *crashed(2, 3)), None)) == 1


def test_one_victim_among_many_lowers_the_confidence() -> None:
    [finding] = software_crash.check(endings(*crashed(0, 1, 2, 3), {"rank": 4, "kind": "victim", "own": False}), None)
    assert finding.confidence == "medium"


def test_two_of_six_ranks_that_are_known_are_not_all() -> None:
    of = {n: pl.LazyFrame({"rank": range(n)}, schema={"rank": pl.Int32()}) for n in (2, 6)}
    two = endings(*crashed(0, 1))
    assert software_crash.check(two, None, of[6]) == []
    [finding] = software_crash.check(two, None, of[2])
    assert (finding.title, finding.confidence) == ("all 2 ranks fell over alike: SIGSEGV", "high")
    # Nor are they where nothing but files is there of the others.
    assert software_crash.check(two, None, of[2], of[6]) == []


def test_two_of_sixteen_that_the_launcher_started_last_are_not_all_and_died_of_their_own() -> None:
    two = endings(*crashed(8, 12))
    started = [table("launches", *({"nranks": n, "line_no": 5 + i} for i, n in enumerate(counts))) for counts in ((4, 16), (16, 2))]
    assert software_crash.check(two, None, launches=started[0]) == []
    assert [f.ranks for f in rank_died.check(two, None, launches=started[0])] == [(8, 12)]
    assert len(software_crash.check(two, None, launches=started[1])) == 1


def test_who_waits_until_its_watchdog_ends_it_is_one_of_the_ranks() -> None:
    waiting = pl.LazyFrame({"rank": [0, 4]}, schema={"rank": pl.Int32()})
    assert software_crash.check(endings(*crashed(8, 12)), None, watchdog_calls=waiting) == []


def test_an_abort_without_a_word_may_be_a_watchdogs() -> None:
    mute = [{"rank": r, "kind": "abort", "signal": "SIGABRT"} for r in (0, 1)]
    [finding] = software_crash.check(endings(*mute), None)
    assert (finding.title, finding.confidence) == ("all 2 ranks fell over alike: SIGABRT", "medium")
    [finding] = software_crash.check(endings(*[row | {"message": "free(): invalid pointer"} for row in mute]), None)
    assert finding.confidence == "high"


def test_a_system_call_that_failed_for_all_ranks_is_no_fault_of_the_program() -> None:
    def raised(word: str) -> pl.LazyFrame:
        told = {"kind": "exception", "type": "DistBackendError", "signature": "nccl-error", "message": f"NCCL error in: a.cpp:7\n{word}"}
        return endings(*[{"rank": r} | told for r in range(4)])

    assert software_crash.check(raised("ncclSystemError: System call (e.g. socket, malloc) or external library call failed"), None) == []
    left = [{"kind": "abort", "signature": "nccl-error", "message": "ncclSystemError: x", "signal": "SIGABRT", "rank": r} for r in range(3)]
    assert software_crash.check(endings(*left), None) == []
    # What NCCL hands on of its own may be the program's, and may be what all ranks stand on.
    [finding] = software_crash.check(raised("ncclInternalError: Internal check failed."), None)
    assert (finding.title, finding.confidence) == ("all 4 ranks fell over alike: DistBackendError", "medium")


def test_a_signal_that_only_others_send_is_no_crash() -> None:
    def ended(signal: str) -> pl.LazyFrame:
        return endings(*[{"rank": r, "kind": "exit", "signal": signal, "exit_code": -10} for r in range(4)])

    assert software_crash.check(ended("SIGUSR1"), None) == []
    assert len(software_crash.check(ended("SIGSYS"), None)) == 1


def test_the_share_that_must_end_alike_can_be_set() -> None:
    some = endings(*crashed(0, 1, 2), *[{"rank": r, "kind": "victim", "own": False} for r in (3, 4, 5)])
    assert software_crash.check(some, None) == []
    assert len(software_crash.check(some, None, share=0.5)) == 1


def test_one_dead_rank_of_four_is_no_crash_of_the_software() -> None:
    assert software_crash.check(endings(*crashed(2), *[{"rank": r, "kind": "victim", "own": False} for r in (0, 1, 3)]), None) == []


def test_ranks_that_ended_in_different_ways_are_not_alike() -> None:
    assert software_crash.check(endings(*crashed(0, 1), *[{"rank": r, "kind": "killed", "signal": "SIGKILL"} for r in (2, 3)]), None) == []


@pytest.mark.parametrize("others", ["victim", "terminated"])
def test_more_than_half_that_crashed_before_a_launcher_stopped_the_others_are_alike(others: str) -> None:
    ended = endings(*crashed(0, 2, 3), *[{"rank": r, "kind": others, "own": False} for r in (1, 4)])
    [finding] = software_crash.check(ended, None)
    assert (finding.title, finding.confidence, finding.culprits) == ("3 ranks fell over alike: SIGSEGV", "medium", ())
    assert rank_died.check(ended, None) == []


def test_two_of_five_that_crash_together_are_named_but_not_for_sure() -> None:
    ended = endings(*crashed(0, 2), *[{"rank": r, "kind": "terminated", "own": False} for r in (1, 3, 4)])
    assert software_crash.check(ended, None) == []
    [finding] = rank_died.check(ended, None)
    assert (finding.ranks, finding.confidence) == ((0, 2), "medium")
    assert [cause for cause, _, _ in finding.alternatives] == ["software-crash"]


def test_two_that_somebody_killed_are_no_crash_of_the_software() -> None:
    killed = [{"rank": r, "kind": "killed", "signal": "SIGKILL"} for r in (0, 1)]
    ended = endings(*killed, {"rank": 2, "kind": "terminated", "own": False})
    assert software_crash.check(ended, None) == []
    [finding] = rank_died.check(ended, None)
    assert (finding.ranks, finding.confidence) == ((0, 1), "high")


def native(rank: int, frames: str) -> pl.LazyFrame:
    row = {"source_id": 0, "line_no": 7, "rank": rank, "kind": "fatal-signal", "frames": frames}
    return Store.from_frames({"exceptions": pl.DataFrame([row])}).scan("exceptions")


def test_a_crash_whose_innermost_frames_are_in_a_communication_library_is_the_librarys() -> None:
    frames = "uct_rkey_release (libuct.so.0)\nucp_rkey_destroy (libucp.so.0)\nmain (job)"
    [finding] = software_crash.check(endings({"rank": 0, "own": True, "kind": "segfault", "signal": "SIGSEGV"}), native(0, frames))
    assert (finding.cause, finding.ranks, finding.confidence) == ("software-crash", (), "medium")


def test_a_crash_in_the_program_is_not_blamed_on_a_library_far_out() -> None:
    frames = "\n".join([*(f"own_{i} (job)" for i in range(8)), "ncclAllReduce (libnccl.so.2)"])
    assert software_crash.check(endings({"rank": 0, "own": True, "kind": "segfault"}), native(0, frames)) == []


def test_an_exception_that_all_raised_is_the_same_one_whomever_the_launcher_signalled_on_its_way_out() -> None:
    ended = [{"rank": r, "kind": "exception", "type": "AssertionError", "signal": "SIGTERM" if r else None} for r in range(4)]
    [finding] = software_crash.check(endings(*ended), None)
    assert (finding.title, finding.confidence) == ("all 4 ranks fell over alike: AssertionError", "high")
    assert rank_died.check(endings(*ended), None) == []
    apart = [row | {"type": "KeyError" if row["rank"] == 2 else "AssertionError"} for row in ended]
    assert software_crash.check(endings(*apart), None) == []


def test_exit_codes_without_a_word_are_what_a_job_that_was_ended_leaves_too() -> None:
    bare = [{"rank": r, "kind": "exit", "exit_code": 1} for r in range(4)]
    [finding] = software_crash.check(endings(*bare), None)
    assert (finding.title, finding.confidence) == ("all 4 ranks fell over alike: exit code 1", "medium")
    [said] = software_crash.check(endings(*(row | {"type": "ImportError"} for row in bare)), None)
    assert said.confidence == "high"


def test_ranks_that_were_all_killed_were_killed_by_somebody():
    assert software_crash.check(endings(*({"rank": r, "kind": "killed", "signal": "SIGKILL"} for r in range(4))), None) == []
