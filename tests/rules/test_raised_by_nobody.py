"""Exceptions in evidence that names no rank."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.raised_by_nobody import raised_by_nobody_known
from nccl_forensics.views.failures import EXCEPTIONS, FAILURES, TIMEOUTS
from tests.rules.frames import cited, endings
from tests.rules.host_frames import table

RAISED = {
    "kind": "python",
    "type": "KeyError",
    "message": "'x'",
    "signature": "user",
    "frame": "main (a.py:5)",
    "frames": "main (a.py:5)",
    "source_id": 0,
}
RANKS = pl.LazyFrame({"source_id": [0], "rank": [3]}, schema={"source_id": pl.UInt32(), "rank": pl.Int32()})


def raised(*rows: dict[str, object]) -> pl.LazyFrame:
    return table("exceptions", *[RAISED | {"line_no": n} | row for n, row in enumerate(rows, 1)])


def signs(*names: str) -> pl.LazyFrame:
    return pl.LazyFrame([dict.fromkeys(FAILURES) | {"sign": n, "count": 1} for n in names], schema=FAILURES)


def test_a_traceback_alone_tells_that_a_process_ended_and_names_nobody() -> None:
    [finding] = raised_by_nobody_known.check(raised({}), signs(EXCEPTIONS), None, None)
    assert (finding.cause, finding.confidence, finding.culprits) == ("rank-died", "low", ())
    assert finding.title == "a process of unknown rank raised an exception: KeyError: 'x' at main (a.py:5)"
    assert cited(finding) == [(0, 1)]


def test_one_exception_of_two_processes_is_one_of_the_program() -> None:
    [finding] = raised_by_nobody_known.check(raised({}, {}), signs(EXCEPTIONS), None, None)
    assert finding.cause == "software-crash"
    [finding] = raised_by_nobody_known.check(raised({"hint_pid": 7}, {"hint_pid": 7}), signs(EXCEPTIONS), None, None)
    assert finding.cause == "rank-died"


def test_where_a_rank_another_sign_or_an_end_is_known_it_is_for_other_rules() -> None:
    one = raised({})
    assert raised_by_nobody_known.check(one, signs(EXCEPTIONS), None, RANKS) == []
    assert raised_by_nobody_known.check(one, signs(EXCEPTIONS, TIMEOUTS), None, None) == []
    assert raised_by_nobody_known.check(one, signs(EXCEPTIONS), endings({"rank": 0, "kind": "exception"}), None) == []


def test_a_call_of_cuda_that_was_wrong_is_the_programs_and_a_device_that_failed_is_not() -> None:
    asserted = {"type": "RuntimeError", "message": "CUDA error: device-side assert triggered", "signature": "cuda-error"}
    [finding] = raised_by_nobody_known.check(raised(asserted), signs(EXCEPTIONS), None, None)
    assert finding.cause == "rank-died"
    for said in (
        "CUDA error: unspecified launch failure",
        "CUDA error: an illegal memory access was encountered",
        "cuDNN error: CUDNN_STATUS",
    ):
        assert raised_by_nobody_known.check(raised(asserted | {"message": said}), signs(EXCEPTIONS), None, None) == []


def test_the_log_of_a_host_holds_tracebacks_of_any_service() -> None:
    killed = table("oom_kills", {"pid": 48213, "comm": "python"})
    assert raised_by_nobody_known.check(raised({}), signs(EXCEPTIONS), None, None, oom_kills=killed) == []


def test_what_blames_others_or_was_got_over_says_nothing_of_the_program() -> None:
    for said in (
        {"signature": "gloo-closed"},
        {"kind": "survived"},
        {"frames": "barrier (/x/torch/distributed/distributed_c10d.py:7)\nmain (a.py:5)"},
        {"frames": None},
    ):
        assert raised_by_nobody_known.check(raised(said), signs(EXCEPTIONS), None, None) == []


def test_a_librarys_own_text_needs_no_frames() -> None:
    killed = {"signature": "worker-killed", "message": "DataLoader worker (pid 7) is killed by signal: Killed.", "frames": None}
    assert len(raised_by_nobody_known.check(raised(killed), signs(EXCEPTIONS), None, None)) == 1
