"""Signs that the job failed at all, and lines that healthy jobs print too."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.deaths import DEATHS
from nccl_forensics.views.failures import ENDED, HARMLESS, LONGER, failures
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.looks import LOOKS
from nccl_forensics.views.motion import MOTION
from nccl_forensics.views.wait_edges import WAITS
from tests.rules.host_frames import table
from tests.views.frames import rows

ORDER = (
    "endings",
    "watchdog",
    "raised",
    "nccl_errors",
    "comms",
    "waits",
    "reports",
    "last_calls",
    "worker_exits",
    "bandwidth_tests",
    "looks",
    "overwritten",
    "motion",
    "gpu_bandwidth",
    "cut_ends",
    "ras",
    "training_ends",
    "moved_between",
)


def signs(**evidence: pl.LazyFrame) -> list[tuple[str, int]]:
    return failures(*(evidence.get(n) for n in ORDER)).select("sign", "count").collect().rows()


@pytest.mark.parametrize(
    ("evidence", "sign"),
    [
        ({"endings": rows(DEATHS, {"rank": 2, "kind": "victim"})}, "processes ended badly"),
        ({"endings": rows(DEATHS, {"rank": 2, "kind": "terminated"})}, ENDED),
        ({"watchdog": table("watchdog", {"kind": "timeout"})}, "watchdog timeouts"),
        ({"watchdog": table("watchdog", {"kind": "error"})}, "watchdog timeouts"),
        ({"watchdog": table("watchdog", {"kind": "store-timeout"})}, "watchdog timeouts"),
        ({"watchdog": table("watchdog", {"kind": "dump-signal"})}, "watchdog timeouts"),
        ({"bandwidth_tests": table("bandwidth_tests", {"error": "unhandled system error"})}, "tests that failed"),
        ({"ras": table("nccl_ras_items", {"kind": "ERROR", "error": "Remote process error"})}, "errors that RAS reports"),
        ({"ras": table("nccl_ras_items", {"kind": "DEAD", "pid": 7})}, "errors that RAS reports"),
        ({"gpu_bandwidth": table("gpu_bandwidth", {"status": "error"})}, "copies between GPUs that failed"),
        ({"raised": table("exceptions", {"signature": "user"})}, "exceptions"),
        ({"reports": table("reports", {"kind": "barrier-missing"})}, "mismatches and missed barriers"),
        ({"reports": table("reports", {"kind": "barrier-ok", "rank": 3})}, "mismatches and missed barriers"),
        ({"worker_exits": table("worker_exits", {"kind": "task", "exit_code": 1})}, "tasks that failed"),
        ({"nccl_errors": table("nccl_errors", {"level": "WARN", "kind": "cuda-failure"})}, "NCCL errors"),
        (
            {"nccl_errors": table("nccl_errors", {"level": "INFO", "kind": "propagation", "file": "enqueue.cc", "code": 6})},
            "collectives that NCCL failed",
        ),
        (
            {
                "nccl_errors": table(
                    "nccl_errors",
                    {
                        "level": "INFO",
                        "kind": "propagation",
                        "file": "proxy.cc",
                        "code": 6,
                        "message": "proxy.cc:983 -> 6 [Progress Thread]",
                    },
                )
            },
            "transfers that broke off",
        ),
        ({"comms": rows(COMMS_SCHEMA, {"started": True, "completed": False, "rank": 1})}, "communicators that never came up"),
        ({"waits": rows(WAITS, {"kind": "behind", "waiter": 0, "awaited": 2})}, "ranks that wait for others"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_sign_is_counted(evidence: dict[str, pl.LazyFrame], sign: str) -> None:
    assert signs(**evidence) == [(sign, 1)]


@pytest.mark.parametrize("code", [None, 0, 129, 130, 143, -15])
def test_a_task_that_was_told_to_end_is_no_sign(code: int | None) -> None:
    assert signs(worker_exits=table("worker_exits", {"kind": "task", "exit_code": code})) == []
    assert signs(worker_exits=table("worker_exits", {"kind": "scheduler-note", "exit_code": 1})) == []


def test_a_job_that_ended_well_shows_no_sign() -> None:
    assert (
        signs(
            endings=rows(DEATHS, {"rank": 2, "kind": "clean"}),
            watchdog=table("watchdog", {"kind": "dump-observed"}),
            raised=table("exceptions"),
            nccl_errors=table("nccl_errors", {"level": "INFO", "kind": "cuda-failure"}),
            comms=rows(COMMS_SCHEMA, {"started": True, "completed": True}),
            waits=rows(WAITS),
            reports=table("reports", {"kind": "ddp-init"}),
        )
        == []
    )


@pytest.mark.parametrize("kind", HARMLESS)
def test_warnings_of_healthy_jobs_are_no_sign(kind: str) -> None:
    assert signs(nccl_errors=table("nccl_errors", {"level": "WARN", "kind": kind})) == []


@pytest.mark.parametrize(
    ("kind", "goes_on", "ends"),
    [
        ("no-interface", "no device found matching NCCL_OOB_NET_IFNAME=eth9, ignoring", "Bootstrap : no socket interface found"),
        (
            "mixed-devices",
            "CollNet currently only supports up to 8 GPUs per node, disabling CollNet",
            "Detected mixed local Net device counts",
        ),
        ("gdrcopy", "Failed to open libgdrapi.so", "gdr_pin_buffer(addr 7f00, size 65536) failed: 22"),
        (
            "driver",
            "Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='') : libcuda.so: cannot open shared object file",
            "Retrieve cuMemCreate version 10020 failed with 500 status 1",
        ),
        ("ib-incompatible", "NET/IB : Local mergedDev=mlx5_0 has a different number of devices=1", "NET/IB : Can't merge net devices with"),
        (
            "ibv-call",
            "Call to ibv_open_device failed with error No such file or directory",
            "Call to ibv_reg_mr failed with error Bad address",
        ),
        ("handshake-mismatch", "socketFinalizeAccept: wrong magic 0 != 1f", "socketFinalizeAccept: wrong type 3 != 4"),
    ],
)
def test_what_nccl_goes_on_after_is_no_sign_and_what_ends_it_is(kind: str, goes_on: str, ends: str) -> None:
    assert signs(nccl_errors=table("nccl_errors", {"level": "WARN", "kind": kind, "message": goes_on})) == []
    assert signs(nccl_errors=table("nccl_errors", {"level": "WARN", "kind": kind, "message": ends})) == [("NCCL errors", 1)]


CLOSING = (
    "[Service thread] Accept failed Resource temporarily unavailable",
    "[Service thread] Could not receive type from localRank 1, res=3, closed=0",
    "[Proxy Service 1] Failed to execute operation Close from rank 1, retcode 3",
)


@pytest.mark.parametrize("message", CLOSING)
def test_what_a_proxy_says_before_its_own_process_is_done_aborting_is_no_sign(message: str) -> None:
    warned = {"level": "WARN", "kind": "proxy", "source_id": 0, "host": "node1", "pid": 7, "message": message, "line_no": 50}
    done = {"started": True, "completed": True, "source_id": 0, "host": "node1", "pid": 7, "ended": "abort-complete", "end_line_no": 53}
    assert signs(nccl_errors=table("nccl_errors", warned), comms=rows(COMMS_SCHEMA, done)) == []
    failed = [("NCCL errors", 1)]
    assert signs(nccl_errors=table("nccl_errors", warned), comms=rows(COMMS_SCHEMA, done | {"pid": 8})) == failed
    assert signs(nccl_errors=table("nccl_errors", warned), comms=rows(COMMS_SCHEMA, done | {"ended": None, "end_line_no": None})) == failed
    assert signs(nccl_errors=table("nccl_errors", warned | {"line_no": 60}), comms=rows(COMMS_SCHEMA, done)) == failed


def test_a_communicator_that_came_up_without_nvml_was_not_stopped_by_it() -> None:
    said = "nvmlInit_v2() failed: Driver/library version mismatch"
    warned = {"level": "WARN", "kind": "nvml", "source_id": 0, "host": "node1", "pid": 7, "message": said, "line_no": 5}
    up = {"started": True, "completed": True, "source_id": 0, "host": "node1", "pid": 7, "line_no": 9, "end_line_no": 9}
    assert signs(nccl_errors=table("nccl_errors", warned), comms=rows(COMMS_SCHEMA, up)) == []
    failed = [("NCCL errors", 1)]
    for other in ({"pid": 8}, {"line_no": 2, "end_line_no": 3}):
        assert signs(nccl_errors=table("nccl_errors", warned), comms=rows(COMMS_SCHEMA, up | other)) == failed
    lost = warned | {"message": "nvmlDeviceGetHandleByIndex(3) failed: GPU is lost"}
    assert signs(nccl_errors=table("nccl_errors", lost), comms=rows(COMMS_SCHEMA, up)) == failed


def test_a_sign_knows_its_ranks_and_its_first_line() -> None:
    bad = rows(DEATHS, *[{"rank": r, "kind": "killed", "source_id": 3, "line_no": 10 + r} for r in (1, 2)])
    [row] = failures(bad, *[None] * (len(ORDER) - 1)).collect().to_dicts()
    assert (row["count"], row["ranks"], row["source_id"], row["line_no"]) == (2, [1, 2], 3, 11)


def calls(place: str, *moved: bool | None) -> pl.LazyFrame:
    """Ranks whose stacks stand at this place, and whether two samples of each differ."""
    return rows(LAST_CALLS, *({"rank": r, "place": place, "witness": "stack", "moved": m} for r, m in enumerate(moved)))


def moves(*moved: bool | None) -> pl.LazyFrame:
    """Ranks of which two samples differ or agree, or of which one was taken."""
    words = {True: "moving", False: "stuck", None: "unknown"}
    return rows(MOTION, *({"rank": r, "motion": words[m]} for r, m in enumerate(moved)))


def test_ranks_that_wait_while_half_of_them_or_more_move_are_no_sign() -> None:
    waiting = rows(WAITS, {"kind": "behind", "waiter": 0, "awaited": 2})
    assert signs(waits=waiting, motion=moves(True, True, False)) == []
    assert signs(waits=waiting, motion=moves(True, True, False, False)) == []
    # Of which one sample was taken, nothing is known.
    assert signs(waits=waiting, motion=moves(True, True, None, None, None)) == []
    for still in ((True, False, False), (True, True, False, False, False), (True, None), (None, None, None)):
        assert signs(waits=waiting, motion=moves(*still)) != []


def test_logs_that_end_an_operation_apart_on_a_third_of_the_ranks_are_no_sign() -> None:
    def edges(behind: list[int], steps: int, **more: object) -> pl.LazyFrame:
        apart = [{"waiter": w, "awaited": a, "behind": steps} for w in range(10, 16) for a in behind]
        return rows(WAITS, *({"domain": "nccl", "group_key": "c", "kind": "behind"} | e | more for e in apart))

    assert signs(waits=edges([1, 2, 3, 4], 1)) == []
    waiting = "ranks that wait for others"
    assert signs(waits=edges([1], 1)) == [(waiting, 6)], "one rank alone"
    assert signs(waits=edges([1, 2, 3, 4], 9)) == [(waiting, 24)], "far behind"
    assert signs(waits=edges([1, 2, 3, 4], 1, domain="fr")) == [(waiting, 24)], "a recorder tells what is finished"
    two = pl.concat([edges([1, 2, 3, 4], 1), edges([5], 1, group_key="d")])
    assert signs(waits=two) == [(waiting, 30)], "another group waits too"


def test_a_job_that_stood_still_when_somebody_ended_it_had_failed() -> None:
    told = table("worker_exits", {"kind": "launcher-signal", "signal": "SIGTERM"})
    assert signs(worker_exits=told, last_calls=calls("collective", False, False, False)) == [("a standstill that somebody ended", 1)]
    assert signs(worker_exits=told, last_calls=calls("collective", False, True, False)) == []
    assert signs(worker_exits=told, last_calls=calls("user-code", False, False, False)) == []
    assert signs(last_calls=calls("collective", False, False, False)) == []


def test_a_code_that_is_handed_up_elsewhere_or_is_no_error_is_no_sign() -> None:
    row = {"level": "INFO", "kind": "propagation", "file": "enqueue.cc", "code": 6}
    for other in ({"file": "misc/socket.cc"}, {"code": 7}, {"code": 0}):
        assert signs(nccl_errors=table("nccl_errors", row | other)) == []


def looked(*ranks: tuple[float, float, int]) -> pl.LazyFrame:
    """Ranks whose oldest operation had been in flight for some seconds, those of the longest before, and how many had ended."""
    told = ({"rank": r, "age_ms": a * 1e3, "longest_ms": b * 1e3, "finished": n} for r, (a, b, n) in enumerate(ranks))
    return rows(LOOKS, *told)


def test_operations_in_flight_for_much_longer_than_any_before_are_a_sign_of_a_hang() -> None:
    assert signs(looks=looked((300, 20, 500), (300, 20, 500), (1, 20, 500))) == [(LONGER, 2)]


@pytest.mark.parametrize(
    "ranks",
    [
        [(300.0, 20.0, 500), (1.0, 20.0, 500), (1.0, 20.0, 500)],
        [(50.0, 1.0, 500)] * 3,
        [(300.0, 120.0, 500)] * 3,
        [(300.0, 20.0, 3)] * 3,
    ],
    ids=["one of three", "under a minute", "steps are as long", "too few before"],
)
def test_operations_that_may_just_take_their_time_are_none(ranks: list[tuple[float, float, int]]) -> None:
    assert signs(looks=looked(*ranks)) == []


def test_a_job_that_moves_is_no_hang_however_long_an_operation_takes() -> None:
    assert signs(looks=looked(*[(300.0, 20.0, 500)] * 3), motion=moves(True, True, True)) == []


def test_ranks_that_wait_for_no_longer_than_usual_are_no_sign() -> None:
    waiting = rows(WAITS, *({"waiter": r, "awaited": 3, "kind": "behind", "domain": "fr", "group_key": "pg:0"} for r in range(3)))
    assert signs(waits=waiting, looks=looked(*[(2.0, 20.0, 500)] * 3)) == []
    assert signs(waits=waiting, looks=looked(*[(90.0, 20.0, 500)] * 3)) != []


def test_ranks_that_wait_while_their_recorders_show_that_the_job_moved_between_two_looks_are_no_sign() -> None:
    waiting = rows(WAITS, {"kind": "behind", "waiter": 0, "awaited": 2})
    assert signs(waits=waiting, moved_between=pl.LazyFrame({"rank": [3]})) == []
    assert signs(waits=waiting, moved_between=pl.LazyFrame(schema={"rank": pl.Int32()})) != []


OVER = table("training_ends", {"message": "training is done", "line_no": 50})


def test_a_task_that_failed_before_the_training_came_to_its_end_is_of_another_step() -> None:
    task = {"kind": "task", "exit_code": 1}
    assert signs(worker_exits=table("worker_exits", task | {"line_no": 6}), training_ends=OVER) == []
    assert signs(worker_exits=table("worker_exits", task | {"line_no": 60}), training_ends=OVER) == [("tasks that failed", 1)]
    elsewhere = table("worker_exits", task | {"line_no": 6, "source_id": 3})
    assert signs(worker_exits=elsewhere, training_ends=OVER) == [("tasks that failed", 1)]


def test_what_nccl_prints_as_it_is_taken_down_behind_the_end_of_the_training_is_no_sign() -> None:
    said = {"level": "WARN", "kind": "proxy", "message": "[Service thread] Accept failed Success"}
    assert signs(nccl_errors=table("nccl_errors", said | {"line_no": 60}), training_ends=OVER) == []
    assert signs(nccl_errors=table("nccl_errors", said | {"line_no": 40}), training_ends=OVER) == [("NCCL errors", 1)]
    other = said | {"message": "Cuda failure 'unspecified launch failure'"}
    assert signs(nccl_errors=table("nccl_errors", other | {"line_no": 60}), training_ends=OVER) == [("NCCL errors", 1)]
