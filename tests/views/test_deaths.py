"""How each rank ended: by its own fault, as a consequence, or without a word."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.deaths import endings
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.matching import PROGRESS
from nccl_forensics.views.process_groups import GROUPS
from nccl_forensics.views.raised import raised as raised_by
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from tests.rules.host_frames import table
from tests.views.frames import progress, rows


def left(code: int | None, rank: int | None = 2, **more: object) -> pl.LazyFrame:
    """What a launcher says of one worker."""
    return table("worker_exits", {"kind": "failure", "rank": rank, "exit_code": code, "line_no": 30} | more)


def raised(signature: str, rank: int | None = 2, line: int = 10, **more: object) -> dict[str, object]:
    kind = {"type": "RuntimeError", "message": "text", "frame": "step (train.py:9)", "frames": "step (train.py:9)"}
    return {"signature": signature, "rank": rank, "line_no": line, "source_id": 5} | kind | more


def ended(
    exits: pl.LazyFrame | None = None,
    *exceptions: dict[str, object],
    processes: pl.LazyFrame | None = None,
    sources: pl.LazyFrame | None = None,
    comms: pl.LazyFrame | None = None,
    hints: pl.LazyFrame | None = None,
    files: pl.LazyFrame | None = None,
    kernel: pl.LazyFrame | None = None,
    progress: pl.LazyFrame | None = None,
    notes: pl.LazyFrame | None = None,
    errors: pl.LazyFrame | None = None,
    looks: pl.LazyFrame | None = None,
    done: pl.LazyFrame | None = None,
    groups: pl.LazyFrame | None = None,
) -> list[dict[str, object]]:
    told = raised_by(table("exceptions", *exceptions), processes, sources, None, comms, exits) if exceptions else None
    found = endings(exits, told, processes, sources, comms, hints, files, kernel, None, None, progress, notes, errors, looks, done, groups)
    return found.collect().to_dicts()


# ---- exit codes and signals ----


@pytest.mark.parametrize(
    ("code", "kind", "own", "signal"),
    [
        (-9, "killed", True, "SIGKILL"),
        (-11, "segfault", True, "SIGSEGV"),
        (-7, "bus-error", True, "SIGBUS"),
        (-8, "fpe", True, "SIGFPE"),
        (-4, "illegal", True, "SIGILL"),
        (-6, "abort", True, "SIGABRT"),
        (-15, "terminated", False, "SIGTERM"),
        (-2, "terminated", False, "SIGINT"),
        (-1, "terminated", False, "SIGHUP"),
        (3, "exit", True, None),
        (0, "clean", False, None),
    ],
)
def test_an_exit_code_alone_tells_faults_from_terminations(code: int, kind: str, own: bool, signal: str | None) -> None:
    [one] = ended(left(code))
    assert (one["rank"], one["kind"], one["own"], one["signal"]) == (2, kind, own, signal)
    assert (one["source_id"], one["line_no"]) == (0, 30)


def test_a_forked_worker_that_its_agents_handler_told_to_end_is_no_culprit() -> None:
    [one] = ended(left(1), raised("launcher", type="SignalException", message="Process 71 got signal: 15"))
    assert (one["kind"], one["own"]) == ("terminated", False)
    [one] = ended(left(1), raised("launcher", type="ChildFailedError", message="train.py FAILED"))
    assert one["own"]


def failed_in_nccl(*pids: int, warning: str = "plugin", line: int = 640, code: int = 2) -> pl.LazyFrame:
    """NCCL's warning in each process, and the line that hands the error up."""
    at = {"source_id": 0, "host": "a"}
    told: list[dict[str, object]] = []
    for pid in pids:
        who = at | {"pid": pid, "tid": pid + 1, "line_no": len(told)}
        told.append(who | {"level": "WARN", "kind": warning, "file": "net.cc", "file_line": line})
        told.append(who | {"level": "INFO", "kind": "propagation", "file": "init.cc", "file_line": 9, "code": code, "line_no": len(told)})
    return table("nccl_errors", *told)


@pytest.mark.parametrize(
    ("errors", "own"),
    [
        (failed_in_nccl(70, 71, 72), False),
        (failed_in_nccl(72), True),
        (failed_in_nccl(70, 71), True),
        (failed_in_nccl(70, 71, 72, warning="recv-failed"), True),
        (failed_in_nccl(70, 71, 72, code=6), True),
        (pl.concat([failed_in_nccl(70, 71, code=6, warning="peer-closed"), failed_in_nccl(72)]), True),
        (pl.concat([failed_in_nccl(70, 71, line=12), failed_in_nccl(72)]), True),
    ],
    ids=["all alike", "it alone", "only others", "a peer is gone", "of a peer", "the others lost it", "elsewhere"],
)
def test_whose_exit_was_seen_first_is_chance_where_nccl_failed_in_others_alike(errors: pl.LazyFrame, own: bool) -> None:
    processes = rows(PROCESSES_SCHEMA, *({"rank": r, "host": "a", "pid": 70 + r, "source_id": 0} for r in range(3)))
    [who] = ended(left(3), processes=processes, errors=errors)
    assert (who["rank"], who["own"], who["kind"]) == (2, own, "exit" if own else "victim")


def test_an_exit_code_of_a_rank_whose_output_is_missing_while_others_is_there_blames_nobody() -> None:
    def heard(*ranks: int) -> pl.LazyFrame:
        return rows(SOURCE_RANKS_SCHEMA, *({"source_id": 50 + r, "rank": r} for r in ranks))

    [who] = ended(left(1), sources=heard(0, 1))
    assert (who["kind"], who["own"]) == ("unheard", False)
    [who] = ended(left(1), sources=heard(0, 1, 2))
    assert (who["kind"], who["own"]) == ("exit", True)
    [who] = ended(left(-9), sources=heard(0, 1))
    assert (who["kind"], who["own"]) == ("killed", True)


def test_a_rank_that_the_launchers_report_leaves_out_had_ended_without_an_error() -> None:
    hints = pl.LazyFrame({"source_id": [50, 51, 52], "attempt_local_rank": [0, 1, 2]})
    sources = rows(SOURCE_RANKS_SCHEMA, *({"source_id": 50 + r, "rank": r} for r in range(3)))
    report = table(
        "worker_exits", *({"kind": k, "rank": r, "exit_code": c, "line_no": 30} for k, r, c in (("root-cause", 0, 1), ("failure", 1, -15)))
    )
    lost = [raised("gloo-closed", rank=r) for r in (0, 1)]
    found = ended(report, *lost, sources=sources, hints=hints)
    assert [(e["rank"], e["kind"], e["own"], e["line_no"]) for e in found if e["own"]] == [(2, "left", True, 30)]
    # Where the others timed out nobody needs to have gone, and where one has a fault of its own that is the word.
    assert not [e for e in ended(report, raised("gloo-timeout", rank=0), sources=sources, hints=hints) if e["own"]]
    assert [e["rank"] for e in ended(report, *lost, raised("user", rank=1, line=99), sources=sources, hints=hints) if e["own"]] == [1]


def test_a_gap_between_the_ranks_of_a_launchers_report_had_ended_without_an_error() -> None:
    nowhere = pl.LazyFrame(schema={"source_id": pl.UInt32(), "attempt_local_rank": pl.Int32()})

    def report(*ranks: int, shift: int = 0) -> pl.LazyFrame:
        kinds = ("root-cause", *("failure" for _ in ranks[1:]))
        lines = ({"kind": k, "rank": r, "local_rank": r - shift, "exit_code": 1, "line_no": 30} for k, r in zip(kinds, ranks, strict=True))
        return table("worker_exits", *lines)

    lost = [raised("gloo-closed", rank=r) for r in (0, 1, 3)]
    found = ended(report(1, 0, 3), *lost, hints=nowhere)
    assert [(e["rank"], e["kind"]) for e in found if e["own"]] == [(2, "left")]
    # The last one may be any number, and with launchers of several hosts a gap is another launcher's.
    assert not [e for e in ended(report(1, 0), *lost[:2], hints=nowhere) if e["own"]]
    assert not [
        e for e in ended(report(9, 8, 11, shift=8), *(raised("gloo-closed", rank=r) for r in (8, 9, 11)), hints=nowhere) if e["own"]
    ]


def test_a_schedulers_task_is_a_rank_only_where_no_launcher_speaks_of_workers() -> None:
    task = {"kind": "task", "rank": 0, "exit_code": 1, "source_id": 1, "host": "a"}
    assert [e["rank"] for e in ended(table("worker_exits", task, task | {"rank": 1}))] == [0, 1]
    worker = {"kind": "failed", "rank": 4, "exit_code": -9}
    assert [e["rank"] for e in ended(table("worker_exits", task, worker))] == [4]


def test_a_crash_that_only_a_signals_own_report_tells_is_one_of_an_unknown_rank() -> None:
    crash = raised("signal", rank=None, type="SIGBUS", kind="fatal-signal")
    assert [(e["rank"], e["kind"], e["own"]) for e in ended(None, crash)] == [(None, "bus-error", True)]
    # What the program says itself comes first, and an abort follows from it.
    assert ended(None, crash, raised("user", rank=None)) == []
    assert ended(None, raised("signal", rank=None, type="SIGABRT", kind="fatal-signal")) == []


def test_processes_that_rays_raylet_lost_left_no_word_unless_they_did() -> None:
    def lost(*pids: int | None) -> pl.LazyFrame:
        return table("worker_exits", *({"kind": "lost", "host": "h", "pid": p, "line_no": 30 + i} for i, p in enumerate(pids)))

    assert [(e["pid"], e["kind"], e["own"]) for e in ended(lost(7, 7, None))] == [(7, "vanished", True)]
    assert [(e["pid"], e["kind"]) for e in ended(lost(None, None))] == [(None, "vanished")]
    # One of the two says itself what happened.
    assert [e["pid"] for e in ended(lost(7, 8), raised("user", rank=None) | {"pid": 8})] == [7]


@pytest.mark.parametrize("kind", ["closing-signal", "launcher-signal", "scheduler"])
def test_what_a_launcher_does_to_a_worker_is_no_ending_of_its_own(kind: str) -> None:
    assert ended(left(-9, kind=kind)) == []


def test_of_a_parent_that_started_all_ranks_the_number_of_a_process_is_its_rank() -> None:
    stopped = [{"kind": "closing-signal", "pid": 70 + n, "signal": "SIGTERM", "line_no": 10 + n} for n in range(3)]
    failed = {"kind": "failed", "local_rank": 2, "exit_code": -11, "signal": "SIGSEGV", "line_no": 20}
    known = rows(SOURCE_RANKS_SCHEMA, *[{"source_id": 1 + r, "rank": r} for r in (0, 1, 3)])
    assert [(row["rank"], row["kind"]) for row in ended(table("worker_exits", *stopped, failed), sources=known)] == [(2, "segfault")]
    # Where nothing else tells of a rank, these are all.
    assert [row["rank"] for row in ended(table("worker_exits", *stopped, failed))] == [2]
    assert [row["rank"] for row in ended(table("worker_exits", *stopped[:1], failed))] == [None]
    # Files of few ranks do not make the job smaller.
    assert [row["rank"] for row in ended(table("worker_exits", *stopped, failed), sources=known.head(1))] == [2]
    # Some had ended before: the number of the one that failed is as high as any rank.
    last = failed | {"local_rank": 3}
    assert [row["rank"] for row in ended(table("worker_exits", stopped[0], last), sources=known)] == [3]
    # Fewer than the job has: the others are elsewhere, with numbers of their own.
    assert [row["rank"] for row in ended(table("worker_exits", *stopped[:2], failed), sources=known)] == [None]


def test_a_local_rank_whose_launcher_keeps_a_folder_for_every_rank_is_the_rank_of_that_folder() -> None:
    failed = table("worker_exits", {"kind": "failed", "local_rank": 3, "pid": 104, "exit_code": -11, "line_no": 20})
    of = {n: rows(SOURCE_RANKS_SCHEMA, *[{"source_id": 20 + r, "rank": r} for r in range(n)]) for n in (4, 5)}
    assert [row["rank"] for row in ended(failed, sources=of[4], hints=FOLDERS)] == [3]
    # A rank without a folder has its own elsewhere, where local ranks begin anew.
    assert [row["rank"] for row in ended(failed, sources=of[5], hints=FOLDERS)] == [None]


def test_an_exit_code_of_a_rank_that_stood_in_a_wait_is_how_that_wait_ended() -> None:
    def after(**look: object) -> tuple[object, object]:
        seen = {"rank": 2, "witness": "stack", "place": "collective", "moved": False} | look
        [row] = ended(left(1), looks=rows(LAST_CALLS, seen))
        return row["kind"], row["own"]

    assert after() == ("victim", False)
    assert after(place="p2p") == ("victim", False)
    assert after(moved=True) == after(moved=None) == after(place="user-code") == after(rank=1) == ("exit", True)


def test_the_one_traceback_beside_a_process_that_its_parent_found_failed_is_its_own() -> None:
    failed = {"kind": "failed", "local_rank": 2, "exit_code": 1, "line_no": 20, "source_id": 5}
    [row] = ended(table("worker_exits", failed), raised("gloo-timeout", None))
    assert (row["rank"], row["kind"], row["own"]) == (None, "victim", False)
    [row] = ended(table("worker_exits", failed), raised("gloo-timeout", None) | {"source_id": 6})
    assert (row["kind"], row["own"]) == ("exit", True)


def test_what_one_process_threw_belongs_to_the_one_that_aborted() -> None:
    failed = [{"kind": "failed", "rank": r, "exit_code": -6, "signal": "SIGABRT", "line_no": 20 + r, "source_id": 5} for r in (1, 2)]
    thrown = raised("gloo-size-mismatch", None) | {"kind": "cpp-terminate"}
    [row] = ended(table("worker_exits", failed[0]), thrown)
    assert (row["rank"], row["kind"], row["own"]) == (1, "victim", False)
    assert [row["signature"] for row in ended(table("worker_exits", *failed), thrown)] == [None, None]


def test_one_that_its_launcher_kills_as_it_does_not_end_died_of_no_fault_of_its_own() -> None:
    report = [{"kind": "failure", "rank": r, "pid": 40 + r, "exit_code": -9, "line_no": 30 + r} for r in (1, 2)]
    asked = [{"kind": "closing-signal", "signal": "SIGTERM", "pid": 40 + r, "line_no": r} for r in (1, 2)]
    forced = {"kind": "closing-signal", "signal": "SIGKILL", "pid": 42, "line_no": 4}
    told = ended(table("worker_exits", *asked, forced, *report))
    # Rank 1 was killed by somebody else, whom its launcher would have asked to end only.
    assert [(e["rank"], e["kind"], e["own"]) for e in told] == [(1, "killed", True), (2, "terminated", False)]
    # What it says itself comes first.
    [_, raises] = ended(table("worker_exits", *asked, forced, *report), raised("user"))
    assert (raises["kind"], raises["own"]) == ("exception", True)
    # The same pid on another node is another process.
    elsewhere = ended(table("worker_exits", forced | {"source_id": 1}, *report))
    assert [e["kind"] for e in elsewhere] == ["killed", "killed"]


def test_one_that_is_killed_after_another_waited_until_its_timeout_is_not_whom_that_one_waited_for_in_vain() -> None:
    report = [
        {"kind": "root-cause", "rank": 1, "pid": 41, "exit_code": 1, "line_no": 31},
        {"kind": "failure", "rank": 2, "pid": 42, "exit_code": -9, "line_no": 32},
    ]
    asked = {"kind": "closing-signal", "signal": "SIGTERM", "pid": 42, "line_no": 1}
    [gave_up, killed] = ended(table("worker_exits", asked, *report), raised("gloo-timeout", 1))
    assert (gave_up["kind"], killed["kind"], killed["own"]) == ("victim", "terminated", False)
    # One that lost its connection may have lost it to the one that was killed; and one that was not told to end was gone before.
    [_, killed] = ended(table("worker_exits", asked, *report), raised("gloo-closed", 1))
    assert (killed["kind"], killed["own"]) == ("killed", True)
    [_, killed] = ended(table("worker_exits", *report), raised("gloo-timeout", 1))
    assert (killed["kind"], killed["own"]) == ("killed", True)


def test_a_signal_that_the_launcher_did_not_send_ended_the_one_that_it_saw_fail_first() -> None:
    report = [{"kind": k, "rank": r, "pid": 40 + r, "exit_code": -15, "line_no": 30 + r} for k, r in (("failure", 1), ("root-cause", 2))]
    asked = {"kind": "closing-signal", "signal": "SIGTERM", "pid": 41, "line_no": 1}
    [other, first] = ended(table("worker_exits", asked, *report))
    assert [(e["rank"], e["kind"], e["own"]) for e in (other, first)] == [(1, "terminated", False), (2, "killed", True)]
    assert first["signal"] == "SIGTERM"
    # It stopped that one too; it was told to end itself; it does not tell whom it stopped.
    told = {"kind": "launcher-signal", "signal": "SIGTERM", "line_no": 0}
    for lines in ((asked, asked | {"pid": 42}), (told, asked), ()):
        assert [e["own"] for e in ended(table("worker_exits", *lines, *report))] == [False, False]


def test_a_signal_ended_the_one_rank_that_lost_no_peer() -> None:
    codes = table("worker_exits", *({"kind": "failure", "rank": r, "exit_code": -15 if r == 2 else 1, "line_no": 30 + r} for r in range(4)))
    assert [e["kind"] for e in ended(codes, *(raised("gloo-closed", r) for r in (0, 1, 3)))] == ["victim", "victim", "killed", "victim"]
    # One of them gave up waiting; of one nothing is known.
    waited = ended(codes, *(raised("gloo-closed" if r else "gloo-timeout", r) for r in (0, 1, 3)))
    fewer = ended(codes.filter(pl.col("rank") != 1), *(raised("gloo-closed", r) for r in (0, 3)))
    assert "killed" not in [e["kind"] for e in (*waited, *fewer)]


def test_a_system_call_that_broke_off_at_the_launchers_signal_is_no_fault_of_its_own() -> None:
    asked = {"kind": "closing-signal", "signal": "SIGTERM", "pid": 42, "line_no": 4}
    report = {"kind": "failure", "rank": 2, "pid": 42, "exit_code": 1, "line_no": 30}
    text = "open file failed with strerror: Interrupted system call"
    [one] = ended(table("worker_exits", asked, report), raised("user", message=text))
    assert (one["rank"], one["kind"], one["own"]) == (2, "terminated", False)
    # Nobody had asked it to end; or it says something else.
    [alone] = ended(table("worker_exits", report), raised("user", message=text))
    [other] = ended(table("worker_exits", asked, report), raised("user", message="open file failed with strerror: No space left on device"))
    assert (alone["own"], other["own"]) == (True, True)


def test_the_launchers_report_at_the_end_is_cited_before_its_first_word() -> None:
    lines = [{"kind": k, "rank": 2, "exit_code": -9, "line_no": n} for k, n in (("failed", 5), ("root-cause", 40))]
    [one] = ended(table("worker_exits", *lines))
    assert (one["kind"], one["line_no"]) == ("killed", 40)


# ---- exceptions ----


def test_an_exception_of_its_own_beats_the_launchers_signal_and_both_are_cited() -> None:
    [one] = ended(left(-6), raised("user"))
    assert (one["kind"], one["own"], one["type"], one["frame"]) == ("exception", True, "RuntimeError", "step (train.py:9)")
    assert (one["line_no"], one["exc_source_id"], one["exc_line_no"]) == (30, 5, 10)


@pytest.mark.parametrize("signature", ["gloo-closed", "nccl-timeout", "monitored-barrier", "store-timeout", "nccl-remote"])
@pytest.mark.parametrize("code", [1, -6, -9])
def test_who_says_that_another_rank_went_away_is_a_victim_however_it_ended(signature: str, code: int) -> None:
    [one] = ended(left(code), raised(signature))
    assert (one["kind"], one["own"]) == ("victim", False)


def test_a_segfault_after_a_closed_connection_is_still_a_fault_of_its_own() -> None:
    [one] = ended(left(-11), raised("gloo-closed"))
    assert (one["kind"], one["own"]) == ("segfault", True)


@pytest.mark.parametrize("signature", ["gloo-timeout", "monitored-barrier", "detail-mismatch"])
def test_a_segfault_of_one_that_had_waited_to_the_end_comes_after_it(signature: str) -> None:
    [one] = ended(left(-11), raised(signature))
    assert (one["kind"], one["own"]) == ("victim", False)


def test_who_took_a_size_from_data_that_did_not_fit_another_rank_is_no_culprit() -> None:
    asked, unfit = raised("wrong-size", rank=1), raised("gloo-size-mismatch", rank=2, source_id=6)
    assert [(o["rank"], o["own"]) for o in ended(None, asked, unfit)] == [(1, False), (2, False)]
    assert [(o["rank"], o["kind"], o["own"]) for o in ended(None, asked)] == [(1, "exception", True)]


def test_the_exception_with_a_cause_of_its_own_speaks_whatever_came_first() -> None:
    [one] = ended(None, raised("gloo-closed", line=10), raised("user", line=20), raised("nccl-timeout", line=30))
    assert (one["kind"], one["exc_line_no"]) == ("exception", 20)


def test_of_two_exceptions_of_its_own_the_first_speaks() -> None:
    [one] = ended(None, raised("user", line=10), raised("cuda-oom", line=20))
    assert (one["kind"], one["exc_line_no"]) == ("exception", 10)


@pytest.mark.parametrize(
    ("signature", "kind"),
    [
        ("cuda-oom", "out-of-memory"),
        ("host-oom", "out-of-memory"),
        ("ddp-unused", "ddp-unused"),
    ],
)
def test_a_known_text_names_its_kind(signature: str, kind: str) -> None:
    [one] = ended(None, raised(signature))
    assert (one["kind"], one["own"]) == (kind, True)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "gpu"),
        ("CUDA error: an illegal memory access was encountered", "gpu"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "gpu"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "driver"),
        ("NCCL error: unhandled cuda error. Last error: Cuda failure 2 'out of memory'", "out-of-memory"),
        # What the caller did wrong is an exception as any other: the rank died of it.
        ("CUDA error: device-side assert triggered", "exception"),
        ("CUDA error: invalid device ordinal", "exception"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "exception"),
    ],
)
@pytest.mark.parametrize("signature", ["cuda-error", "nccl-cuda"])
def test_a_cuda_error_is_told_by_what_it_speaks_of(signature: str, message: str, kind: str) -> None:
    [one] = ended(None, raised(signature, message=message))
    assert (one["kind"], one["own"]) == (kind, True)


# ---- what the kernel reports ----

CRASH = {"kind": "segfault", "host": "node7.cluster", "pid": 77, "comm": "pt_main_thread", "detail": "libnccl.so.2", "line_no": 9}


def test_a_crash_in_the_kernels_log_is_that_of_the_rank_with_its_host_and_pid() -> None:
    people = rows(PROCESSES_SCHEMA, {"rank": 2, "host": "node7", "pid": 77}, {"rank": 3, "host": "node8", "pid": 77})
    [one] = ended(processes=people, kernel=table("kernel_events", CRASH))
    assert (one["rank"], one["kind"], one["own"], one["library"], one["line_no"]) == (2, "segfault", True, "libnccl.so.2", 9)


def test_a_pid_of_a_host_without_a_name_is_nobodys() -> None:
    people = rows(PROCESSES_SCHEMA, {"rank": 2, "host": "node7", "pid": 77})
    assert ended(processes=people, kernel=table("kernel_events", CRASH | {"host": None})) == []


def test_a_crash_after_another_end_does_not_change_it() -> None:
    people = rows(PROCESSES_SCHEMA, {"rank": 2, "host": "node7", "pid": 77})
    [one] = ended(None, raised("nccl-timeout"), processes=people, kernel=table("kernel_events", CRASH))
    assert (one["kind"], one["own"], one["library"]) == ("victim", False, "libnccl.so.2")


def test_an_unknown_text_raised_inside_torch_distributed_blames_no_line_of_the_program() -> None:
    [one] = ended(None, raised("user", frames="all_reduce (torch/distributed/distributed_c10d.py:1)\nstep (train.py:9)"))
    assert (one["kind"], one["own"]) == ("victim", False)


def test_what_could_not_be_pickled_or_written_is_the_fault_of_the_rank_whose_it_was() -> None:
    frames = "_object_to_tensor (torch/distributed/distributed_c10d.py:3000)\nstep (train.py:9)"
    pickled = raised("user", type="AttributeError", message="Can't pickle local object 'f.<locals>.<lambda>'", frames=frames)
    assert [e["own"] for e in ended(None, pickled)] == [True]
    assert [e["own"] for e in ended(None, pickled | {"message": "'NoneType' object has no attribute 'size'"})] == [False]
    told = [
        raised("user", rank, rank + 1, type="CheckpointException", message="CheckpointException ranks:dict_keys([1, 12])", frames=frames)
        for rank in (0, 1, 2)
    ]
    assert [(e["rank"], e["own"]) for e in ended(None, *told)] == [(0, False), (1, True), (2, False), (12, True)]


def test_a_bare_signal_leaves_the_word_to_the_launcher() -> None:
    [one] = ended(left(-11), raised("signal"))
    assert (one["kind"], one["own"]) == ("segfault", True)


def test_the_launchers_block_speaks_where_no_traceback_is_found() -> None:
    [one] = ended(left(1, has_traceback=True, message="ValueError: bad batch"))
    assert (one["kind"], one["type"], one["message"]) == ("exception", "ValueError", "bad batch")


# ---- whose it was ----

PEOPLE = rows(PROCESSES_SCHEMA, *[{"rank": r, "host": "node1", "pid": 100 + r, "local_rank": r} for r in range(4)])


@pytest.mark.parametrize("who", [{"pid": 103}, {"local_rank": 3}], ids=["by pid", "by local rank"])
def test_an_ending_without_a_rank_is_brought_to_its_process(who: dict[str, object]) -> None:
    [one] = ended(left(-9, rank=None, **who), processes=PEOPLE)
    assert (one["rank"], one["host"], one["pid"]) == (3, "node1", 103)


def test_a_local_rank_that_two_hosts_have_names_nobody() -> None:
    two = rows(PROCESSES_SCHEMA, *[{"rank": r, "host": f"node{r}", "pid": 100 + r, "local_rank": 0} for r in range(2)])
    assert ended(left(-9, rank=None, local_rank=0), processes=two) == []


def test_a_process_of_unknown_rank_keeps_its_pid() -> None:
    [one] = ended(left(-9, rank=None, pid=999))
    assert (one["rank"], one["pid"], one["kind"]) == (None, 999, "killed")


def test_a_launcher_that_names_nobody_means_one_of_those_who_raised_something() -> None:
    nobody = table("worker_exits", {"kind": "failed", "exit_code": 1, "line_no": 30, "source_id": 5})
    assert [(e["rank"], e["kind"]) for e in ended(nobody, raised("user"))] == [(2, "exception")]
    assert [(e["rank"], e["kind"]) for e in ended(nobody)] == [(None, "exit")]
    killed = table("worker_exits", {"kind": "failed", "exit_code": -9, "signal": "SIGKILL", "line_no": 30, "source_id": 5})
    assert [(e["rank"], e["kind"]) for e in ended(killed, processes=PEOPLE)] == [(None, "killed")]


def test_a_launcher_that_names_nobody_means_one_of_those_whom_nccl_handed_an_error() -> None:
    nobody = table("worker_exits", {"kind": "failed", "exit_code": 1, "line_no": 30, "source_id": 5})
    assert ended(nobody, errors=failed_in_nccl(11)) == []
    warned = table("nccl_errors", {"level": "WARN", "kind": "connect-failed", "host": "node0", "pid": 11, "line_no": 3})
    assert [(e["rank"], e["kind"]) for e in ended(nobody, errors=warned)] == [(None, "exit")]


def test_who_was_told_to_end_after_it_had_raised_the_same_ended_by_it_too() -> None:
    said = [raised("user", rank=None, line=10 * n, kind="survived" if n < 3 else "python") for n in (1, 2, 3)]
    failed = {"kind": "failure", "rank": 1, "exit_code": 1, "line_no": 80, "source_id": 5}
    told = [failed | {"rank": r, "exit_code": -15, "signal": "SIGTERM", "line_no": 81 + r} for r in (0, 2)]
    rows = ended(table("worker_exits", failed, *told), *said)
    assert [(row["rank"], row["kind"], row["own"], row["exc_line_no"]) for row in rows] == [(r, "exception", True, 30) for r in (0, 1, 2)]
    # Of many that were told to end, one more that raised it may be any; and more than there are processes are of one that tried again.
    many = [failed | {"rank": r, "exit_code": -15, "signal": "SIGTERM", "line_no": 81 + r} for r in (0, 2, 3, 4, 5, 6)]
    for others, words in ((many, said[1:]), (told[:1], [*said, raised("user", rank=None, line=40, kind="python")])):
        assert [row["rank"] for row in ended(table("worker_exits", failed, *others), *words) if row["own"]] == [1]


def test_several_that_failed_ended_by_the_one_fault_that_is_raised_as_often() -> None:
    failed = [{"kind": "failure", "rank": r, "exit_code": 1, "line_no": 80 + r, "source_id": 5} for r in (0, 1)]
    words = [raised("user", rank=None, line=n, kind="python") for n in (10, 20)]
    rows = ended(table("worker_exits", *failed), *words)
    assert [(row["rank"], row["kind"], row["message"]) for row in rows] == [(0, "exception", "text"), (1, "exception", "text")]
    for unlike in ([words[0]], [words[0], words[1] | {"message": "another"}]):
        assert [row["kind"] for row in ended(table("worker_exits", *failed), *unlike)] == ["exit", "exit"]


def test_words_without_a_name_are_those_of_the_only_rank_that_its_launcher_found_failed() -> None:
    def ends(*ranks: int) -> list[tuple[object, object]]:
        exits = table("worker_exits", *({"kind": "failure", "rank": r, "exit_code": 1, "source_id": 5, "line_no": 30 + r} for r in ranks))
        return [(e["rank"], e["type"]) for e in ended(exits, raised("user", rank=None))]

    assert ends(3) == [(3, "RuntimeError")]
    assert ends(3, 4) == [(3, None), (4, None)]


def test_who_aborts_after_its_watchdog_found_a_peer_gone_is_a_victim() -> None:
    def kinds(message: str, aborted: int, **line: object) -> set[tuple[object, object]]:
        exits = table(
            "worker_exits", *({"kind": "failure", "rank": r, "exit_code": -6, "source_id": 5, "line_no": r} for r in range(aborted))
        )
        watchdog = table("watchdog", {"kind": "error", "source_id": 5, "message": message, "line_no": 3} | line)
        told = raised_by(table("exceptions", raised("nccl-remote", rank=None)), None, None, None, None, exits)
        return {(e["kind"], e["own"]) for e in endings(exits, told, *[None] * 7, watchdog).collect().to_dicts()}

    gone = "NCCL error: remote process exited or there was a network error"
    assert kinds(gone, 1) == kinds(gone, 1, hint_rank=0, hint_scope="global") == {("victim", False)}
    assert kinds(gone, 2) == kinds("CUDA error: unspecified launch failure", 1) == {("abort", True)}


def test_who_aborts_after_a_timeout_of_its_own_watchdog_is_a_victim() -> None:
    def kinds(code: int, **line: object) -> list[tuple[object, object]]:
        watchdog = table("watchdog", {"kind": "timeout", "source_id": 5} | line)
        return [(e["kind"], e["own"]) for e in endings(left(code), *[None] * 8, watchdog).collect().to_dicts()]

    assert kinds(-6, hint_rank=2, hint_scope="global") == [("victim", False)]
    assert kinds(1, hint_rank=2, hint_scope="global") == [("victim", False)]
    assert kinds(-6, hint_rank=3, hint_scope="global") == [("abort", True)], "another rank's watchdog"
    assert kinds(-11, hint_rank=2, hint_scope="global") == [("segfault", True)], "no end that a watchdog makes"
    assert kinds(-6, hint_rank=2, hint_scope="global", kind="dump-signal") == [("abort", True)]
    assert kinds(-6, hint_rank=2, hint_scope="global", kind="terminating") == [("victim", False)], "its heartbeat monitor ended it"


def test_who_was_killed_after_it_had_told_of_a_timeout_lived_when_it_struck() -> None:
    def kinds(code: int, by: str = "task", **line: object) -> list[tuple[object, object]]:
        watchdog = table("watchdog", {"kind": "dump-signal", "source_id": 5, "hint_scope": "global"} | line)
        signal = {-9: "SIGKILL", -11: "SIGSEGV"}[code]
        everyone = table("worker_exits", *({"kind": by, "rank": r, "signal": signal, "host": "node1", "line_no": r} for r in range(4)))
        there = rows(PROCESSES_SCHEMA, *({"rank": r, "host": "node1", "pid": 100 + r} for r in range(4)))
        told = endings(everyone, None, there, *[None] * 6, watchdog).collect().to_dicts()
        return [(e["kind"], e["own"]) for e in told if e["rank"] == 2]

    assert kinds(-9, hint_rank=2) == [("terminated", False)]
    assert kinds(-9, hint_rank=3) == [("killed", True)], "another rank told of it"
    assert kinds(-9, hint_rank=2, kind="heartbeat-stuck") == [("killed", True)]
    assert kinds(-9, by="failure", hint_rank=2) == [("killed", True)], "it may have been started again since"
    assert kinds(-11, hint_rank=2) == [("segfault", True)]


def test_who_aborts_after_its_recorder_was_written_with_an_operation_open_is_a_victim() -> None:
    def kind(pending: int | None, code: int = -6, rank: int = 2) -> tuple[object, object]:
        state = rows(PROGRESS, {"domain": "fr", "group_key": "pg:0", "rank": rank, "last_seq": 9, "first_pending": pending})
        [who] = [e for e in ended(left(code), progress=state) if e["rank"] == 2]
        return who["kind"], who["own"]

    assert kind(9) == ("victim", False)
    assert kind(None) == ("abort", True), "it waited for nothing"
    assert kind(9, rank=3) == ("abort", True), "the recorder of another rank"
    assert kind(9, code=-11) == ("segfault", True), "no end that a watchdog makes"


def test_as_many_unnamed_that_abort_as_watchdogs_of_the_same_text_timed_out_are_victims() -> None:
    def kinds(*writers: int, of: int = 0, aborted: int = 1) -> list[object]:
        lines = [
            {"kind": "failed", "rank": None, "pid": 900 + n, "exit_code": -6, "signal": "SIGABRT", "line_no": 30 + n}
            for n in range(aborted)
        ]
        watchdog = table("watchdog", *[{"kind": "timeout", "source_id": of, "pg_rank": rank} for rank in writers])
        return [e["kind"] for e in endings(table("worker_exits", *lines), *[None] * 8, watchdog).collect().to_dicts()]

    assert kinds(0) == ["victim"]
    assert kinds(0, 3, aborted=2) == ["victim", "victim"]
    assert kinds(0, aborted=2) == ["abort", "abort"], "one of them is none of the watchdog's"
    assert kinds(0, of=7) == ["abort"], "the watchdog of another text"


def test_launchers_of_several_hosts_that_share_a_text_tell_of_those_whom_watchdogs_of_other_texts_ended() -> None:
    def kinds(*timed_out: int, aborted: int = 2) -> list[object]:
        lines = [
            {"kind": "failed", "rank": None, "pid": 900 + n, "exit_code": -6, "signal": "SIGABRT", "line_no": 30 + n}
            for n in range(aborted)
        ]
        own = [{"kind": "timeout", "source_id": 1 + r, "hint_rank": r, "hint_scope": "global", "pg_rank": 0} for r in timed_out]
        return [e["kind"] for e in endings(table("worker_exits", *lines), *[None] * 8, table("watchdog", *own)).collect().to_dicts()]

    assert kinds(3, 11, 14) == ["victim", "victim"]
    assert kinds(3) == ["abort", "abort"], "more aborted than watchdogs ended"


def test_an_exception_belongs_to_the_rank_of_its_source() -> None:
    sources = rows(SOURCE_RANKS_SCHEMA, {"source_id": 5, "rank": 1})
    [one] = ended(None, raised("user", rank=None), sources=sources)
    assert one["rank"] == 1
    assert ended(None, raised("user", rank=None, hint_rank=1, hint_scope="local")) == []


def test_of_two_jobs_with_ranks_of_one_number_the_file_tells_whose_host_it_was() -> None:
    own = {"host": "ja", "pid": 101, "rank": 1, "source_id": 1}
    other = {"host": "jb", "pid": 901, "rank": None, "source_id": 5}
    sources = rows(SOURCE_RANKS_SCHEMA, {"source_id": 1, "rank": 1}, {"source_id": 5, "rank": 1})
    [one] = ended(None, raised("user", rank=None), processes=rows(PROCESSES_SCHEMA, own, other), sources=sources)
    assert (one["rank"], one["host"], one["pid"]) == (1, "jb", 901)
    # A launcher's log is of no rank: one process that it names says nothing of the others.
    [one] = ended(None, raised("user", rank=1), processes=rows(PROCESSES_SCHEMA, own, other))
    assert one["host"] == "ja"


# ---- without a word ----


def members(*ended_as: str | None) -> pl.LazyFrame:
    return rows(
        COMMS_SCHEMA,
        *[
            {
                "rank": r,
                "nranks": len(ended_as),
                "host": "node1",
                "pid": 100 + r,
                "comm_key": "0xc0",
                "completed": True,
                "ended": how,
                "source_id": r,
                "line_no": 4,
            }
            for r, how in enumerate(ended_as)
        ],
    )


DOWN = "destroy-complete"


def test_the_one_that_never_took_its_communicator_down_has_vanished() -> None:
    [one] = ended(comms=members(DOWN, DOWN, None, DOWN), processes=PEOPLE)
    assert (one["rank"], one["kind"], one["own"], one["source_id"], one["line_no"]) == (2, "vanished", True, 2, 4)


def test_of_a_job_that_is_said_to_have_ended_well_nobody_has_vanished() -> None:
    said = pl.LazyFrame({"source_id": [9], "line_no": [1]})
    assert ended(comms=members(DOWN, DOWN, None, DOWN), processes=PEOPLE, done=said) == []
    [one] = ended(comms=members(DOWN, DOWN, None, DOWN), processes=PEOPLE, done=said.clear())
    assert one["kind"] == "vanished"


def test_a_log_that_ends_before_what_all_came_through_is_no_death() -> None:
    def made(last: int) -> pl.LazyFrame:
        calls = {0: 9, 1: 9, 2: last, 3: 9}
        return rows(PROGRESS, *({"domain": "nccl", "group_key": "0xc0", "rank": r, "last_seq": n} for r, n in calls.items()))

    assert ended(comms=members(DOWN, DOWN, None, DOWN), processes=PEOPLE, progress=made(7)) == []
    assert [e["rank"] for e in ended(comms=members(DOWN, DOWN, None, DOWN), processes=PEOPLE, progress=made(9))] == [2]
    aborted = members("abort-complete", "abort-complete", None, "abort-complete")
    assert [e["rank"] for e in ended(comms=aborted, processes=PEOPLE, progress=made(7))] == [2]


def test_a_rank_that_says_that_it_aborts_has_not_vanished() -> None:
    down = members("abort-complete", "abort-complete", None, "abort-complete")
    [open_one] = members(DOWN, DOWN, None, DOWN).filter(pl.col("ended").is_null()).collect().to_dicts()
    where = {name: open_one[name] for name in ("source_id", "host", "pid")}
    notes = table("nccl_notes", where | {"kind": "abort-called", "line_no": 9})
    assert ended(comms=down, processes=PEOPLE, notes=notes) == []
    elsewhere = table("nccl_notes", where | {"kind": "abort-called", "line_no": 9, "pid": 7}, where | {"kind": "connected", "line_no": 9})
    assert [e["kind"] for e in ended(comms=down, processes=PEOPLE, notes=elsewhere)] == ["vanished"]


def test_a_rank_that_finds_its_connections_closed_has_outlived_its_peers() -> None:
    down = members("abort-complete", "abort-complete", None, "abort-complete")
    [open_one] = down.filter(pl.col("ended").is_null()).collect().to_dicts()
    where = {name: open_one[name] for name in ("source_id", "host", "pid")} | {"line_no": 9}
    assert ended(comms=down, processes=PEOPLE, errors=table("nccl_errors", where | {"kind": "peer-closed"})) == []
    other = table("nccl_errors", where | {"kind": "peer-closed", "pid": 7}, where | {"kind": "connect-retry"})
    assert [e["kind"] for e in ended(comms=down, processes=PEOPLE, errors=other)] == ["vanished"]


def test_logs_without_their_beginning_tell_who_never_took_its_communicator_down() -> None:
    def ends_of(*ranks: int) -> pl.LazyFrame:
        return members(DOWN, DOWN, DOWN, DOWN).filter(pl.col("rank").is_in(ranks)).with_columns(completed=False)

    [one] = ended(comms=ends_of(0, 1, 3), processes=PEOPLE)
    assert (one["rank"], one["kind"], one["pid"]) == (2, "vanished", 102)
    # Without a process of that rank there is only a log less; half of the ranks are no few.
    assert ended(comms=ends_of(0, 1, 3), processes=PEOPLE.filter(pl.col("rank") != 2)) == []
    assert ended(comms=ends_of(0, 1), processes=PEOPLE) == []
    # One whose log still holds the init has the communicator's id for a key, and took it down like the others.
    with_id = members(DOWN, DOWN, DOWN, DOWN).filter(pl.col("rank") == 2).with_columns(comm_key=pl.lit("0xc1"))
    assert ended(comms=pl.concat([ends_of(0, 1, 3), with_id]), processes=PEOPLE) == []


def test_a_rank_whose_end_is_known_has_not_vanished() -> None:
    [one] = ended(left(-9), comms=members(DOWN, DOWN, None, DOWN), processes=PEOPLE)
    assert one["kind"] == "killed"


@pytest.mark.parametrize("how", [(DOWN,) * 4, (None,) * 4, (DOWN, DOWN, None, None)], ids=["all down", "none down", "half down"])
def test_where_no_single_one_stands_out_nobody_has_vanished(how: tuple[str | None, ...]) -> None:
    assert ended(comms=members(*how), processes=PEOPLE) == []


# ---- a worker that the launcher had no need to stop ----

FOLDERS = pl.LazyFrame({"source_id": [20, 21, 22, 23], "attempt_local_rank": [0, 1, 2, 3]})


def stops(*pids: int, told: bool = False) -> pl.LazyFrame:
    """torchrun signals these workers, after it was told to end itself or of its own accord."""
    lines = [{"kind": "closing-signal", "signal": "SIGTERM", "pid": pid, "line_no": 2 + n} for n, pid in enumerate(pids)]
    return table("worker_exits", *([{"kind": "launcher-signal", "signal": "SIGTERM", "line_no": 1}] if told else []), *lines)


KNOWN = rows(PROCESSES_SCHEMA, *({"proc": r, "pid": pid, "rank": r} for r, pid in ((1, 101), (3, 103))))


def test_the_worker_that_was_not_stopped_had_ended_before() -> None:
    [one] = ended(stops(100, 101, 103), processes=KNOWN, hints=FOLDERS)
    assert (one["rank"], one["kind"], one["own"]) == (2, "left", True)
    assert "of its own accord" in one["why"]


def test_a_launcher_that_was_told_to_end_tells_so_only_where_ranks_lost_a_peer() -> None:
    assert ended(stops(100, 101, 103, told=True), processes=KNOWN, hints=FOLDERS) == []
    found = ended(stops(100, 101, 103, told=True), raised("gloo-closed", 0), processes=KNOWN, hints=FOLDERS)
    assert [(o["rank"], o["kind"]) for o in found] == [(0, "victim"), (2, "left")]


def test_whom_a_monitored_barrier_missed_had_ended_where_the_launcher_did_not_have_to_stop_it() -> None:
    def missing(who: str) -> list[tuple[object, object]]:
        said = raised("monitored-barrier", 0, message=f"[Rank 0]: Ranks {who} failed to pass monitoredBarrier in 1800000 ms")
        found = ended(stops(100, 101, 103, told=True), said, processes=KNOWN, hints=FOLDERS)
        return [(o["rank"], o["kind"]) for o in found if o["kind"] == "left"]

    assert missing("2") == missing("1, 2") == [(2, "left")]
    assert missing("1") == []


def test_who_lost_a_peer_is_not_the_one_that_had_ended() -> None:
    nobody = rows(PROCESSES_SCHEMA)
    lost = [raised("gloo-closed", r) for r in (0, 1, 3)]
    found = ended(stops(100, 101, 104, told=True), *lost, processes=nobody, hints=FOLDERS)
    assert [(o["rank"], o["kind"]) for o in found] == [(0, "victim"), (1, "victim"), (3, "victim"), (2, "left")]
    two = ended(stops(100, 101, 104, told=True), *lost[:2], processes=nobody, hints=FOLDERS)
    assert [(o["rank"], o["kind"]) for o in two] == [(0, "victim"), (1, "victim")]


def test_where_two_could_be_the_one_nobody_is_named() -> None:
    # Without a pid between them, ranks 1 and 2 are not told apart.
    known = rows(PROCESSES_SCHEMA, {"proc": 0, "pid": 100, "rank": 0})
    assert ended(stops(100, 101, 103), processes=known, hints=FOLDERS) == []
    assert ended(stops(100, 101), processes=KNOWN, hints=FOLDERS) == []


def test_whom_the_launcher_reports_as_failed_is_the_one_that_it_did_not_stop() -> None:
    # PyTorch 2.7 lists the first that failed alone; of rank 2, which it stopped, nothing is left.
    nobody, others = rows(PROCESSES_SCHEMA), [raised("gloo-closed", r) for r in (0, 1)]
    report = {"kind": "root-cause", "rank": 3, "local_rank": 3, "pid": 103, "exit_code": -6, "signal": "SIGABRT", "line_no": 9}
    stopped = pl.concat([stops(100, 101, 102), table("worker_exits", report)], how="diagonal")
    assert 2 not in {o["rank"] for o in ended(stopped, *others, processes=nobody, hints=FOLDERS)}
    assert 2 in {o["rank"] for o in ended(stops(100, 101, 102), *others, raised("gloo-closed", 3), processes=nobody, hints=FOLDERS)}


def test_nccl_s_log_of_a_rank_is_not_its_own_output() -> None:
    # Ranks 0 and 1 printed tracebacks; of rank 2 there is a file of NCCL's alone.
    sources = rows(SOURCE_RANKS_SCHEMA, *({"source_id": 40 + r, "rank": r} for r in range(3)))
    apart = pl.LazyFrame({"source_id": [40, 41, 42], "formats": [["traceback"], ["traceback"], ["nccl-log"]]})
    [one] = ended(left(1), sources=sources, files=apart)
    assert (one["kind"], one["own"]) == ("unheard", False)
    # Where the files of the job hold both, that file is all that it printed.
    both = pl.LazyFrame({"source_id": [40, 41, 42], "formats": [["nccl-log", "traceback"], ["traceback"], ["nccl-log"]]})
    [one] = ended(left(1), sources=sources, files=both)
    assert (one["kind"], one["own"]) == ("exit", True)


# ---- prefixes that tell the local rank only ----


def workers(*places: tuple[int, int, str]) -> pl.LazyFrame:
    """Processes: (rank, local rank, host)."""
    return rows(PROCESSES_SCHEMA, *[{"rank": r, "local_rank": n, "host": h, "pid": 100 + r} for r, n, h in places])


def test_an_exception_behind_a_prefix_of_the_local_rank_is_that_of_the_only_rank_of_this_number() -> None:
    local = raised("gloo-size-mismatch", rank=None, hint_rank=2, hint_scope="local")
    [one] = ended(left(-6), local, processes=workers((0, 0, "a"), (1, 1, "a"), (2, 2, "a")))
    assert (one["rank"], one["kind"], one["signature"]) == (2, "victim", "gloo-size-mismatch")


def tasks(*places: tuple[int, int]) -> pl.LazyFrame:
    """The world communicator: (number of the task before the line, rank)."""
    lines = [{"hint_rank": t, "hint_scope": "task", "rank": r, "nranks": 4, "host": "a", "pid": 100 + r} for t, r in places]
    return rows(COMMS_SCHEMA, *lines)


def test_an_exception_behind_the_number_of_a_task_is_that_of_the_rank_whose_nccl_lines_bear_it() -> None:
    raising = raised("user", rank=None, hint_rank=2, hint_scope="task")
    assert [e["rank"] for e in ended(None, raising, comms=tasks((0, 0), (1, 1), (2, 3), (3, 2)))] == [3]
    # A task that is a launcher holds several ranks.
    assert ended(None, raising, comms=tasks((0, 0), (0, 1), (2, 2), (2, 3))) == []


def test_of_several_hosts_the_one_that_the_line_names_tells_the_rank() -> None:
    local = raised("user", rank=None, hint_rank=1, hint_scope="local")
    people = workers((0, 0, "a"), (1, 1, "a"), (2, 0, "b"), (3, 1, "b"))
    assert [e["rank"] for e in ended(None, local | {"hint_host": "b.cluster"}, processes=people)] == [3]
    assert ended(None, local, processes=people) == []


# ---- a launcher that lists the first failure alone ----


def test_the_one_that_never_came_while_a_peer_was_lost_before_any_timeout_had_gone() -> None:
    def gone(after_s: float, *, closed: str = "gloo-closed", ranks: tuple[int, ...] = (0, 1, 2, 3)) -> list[tuple[object, object]]:
        last = progress({"pg:0": {r: (6 if r == 2 else 7, None) for r in ranks}})
        last = last.with_columns(last_created_ns=pl.lit(1_795_479_365 * 10**9), timeout_ms=pl.lit(20_000, dtype=pl.Int64))
        # The launcher's clock is three hours ahead of UTC.
        report = left(1, 0, time_raw_ns=(1_795_479_365 + 3 * 3600) * 10**9 + int(after_s * 10**9), kind="root-cause")
        found = ended(report, raised(closed, 0), progress=last, hints=FOLDERS.clear())
        return [(o["rank"], o["kind"]) for o in found if o["kind"] != "victim"]

    assert gone(0.3) == gone(-0.4) == [(2, "vanished")]
    # Another may have given up waiting, and said so where nobody kept it.
    assert gone(20) == gone(0.3, closed="gloo-timeout") == []
    # Of a rank without a record more could be told, and of a process of unknown rank nothing.
    assert gone(0.3, ranks=(0, 2, 3)) == gone(0.3, ranks=(0, 2, 3, (1 << 31) - 1)) == []


def test_who_is_left_where_all_others_lost_a_peer_went_first() -> None:
    def went(*signatures: str, known: int = 4) -> list[tuple[object, object]]:
        told = rows(SOURCE_RANKS_SCHEMA, *[{"source_id": r, "rank": r} for r in range(known)])
        lost = [raised(signature, r, source_id=r) for r, signature in enumerate(signatures)]
        return [(o["rank"], o["kind"]) for o in ended(None, *lost, sources=told) if o["own"]]

    assert went("gloo-closed", "gloo-reset", "gloo-closed") == [(3, "vanished")]
    # One that gave up waiting may have been the first; so may each of two that are left; and of two ranks either may be meant.
    assert went("gloo-closed", "gloo-timeout", "gloo-closed") == went("gloo-closed", "gloo-closed") == []
    assert went("gloo-closed", known=2) == []


def test_a_killed_process_of_unknown_rank_is_the_one_of_which_nothing_else_is_told() -> None:
    def killed(*signatures: str) -> list[tuple[object, object]]:
        told = rows(SOURCE_RANKS_SCHEMA, *[{"source_id": r, "rank": r} for r in range(4)])
        lost = [raised(signature, r, source_id=r) for r, signature in enumerate(signatures)]
        found = ended(left(-9, rank=None, pid=77), *lost, sources=told)
        return [(o["rank"], o["kind"]) for o in found if o["own"]]

    assert killed("gloo-closed", "gloo-timeout", "gloo-reset") == [(3, "killed")]
    # Two are left, or none.
    assert killed("gloo-closed", "gloo-timeout") == killed(*["gloo-closed"] * 4) == [(None, "killed")]


def one_listed(*stopped: int) -> pl.LazyFrame:
    """The report of a launcher of a function: rank 0 failed first; pids that it had to stop."""
    first = {"kind": "root-cause", "rank": 0, "local_rank": 0, "pid": 100, "exit_code": 1, "line_no": 30}
    signals = [{"kind": "closing-signal", "signal": "SIGTERM", "pid": pid, "line_no": 1 + n} for n, pid in enumerate(stopped)]
    return table("worker_exits", *signals, first)


HOME = rows(SOURCE_RANKS_SCHEMA, *({"source_id": 20 + r, "rank": r} for r in range(4)))


def of_function(*stopped: int, processes: pl.LazyFrame = KNOWN) -> list[tuple[object, object]]:
    found = ended(one_listed(*stopped), raised("gloo-closed", 0), processes=processes, sources=HOME, hints=FOLDERS)
    return [(o["rank"], o["kind"]) for o in found if o["kind"] == "left"]


def test_who_is_neither_listed_nor_stopped_had_ended() -> None:
    assert of_function(101, 103) == [(2, "left")]


def test_who_was_stopped_is_not_missing_from_a_report_of_one_failure() -> None:
    known = rows(PROCESSES_SCHEMA, *({"proc": r, "pid": 100 + r, "rank": r} for r in range(4)))
    assert of_function(101, 102, 103, processes=known) == []


def test_the_one_that_is_neither_stopped_nor_failed_for_want_of_a_peer_had_ended() -> None:
    # No pid but that of the first that failed has a rank; the words of the others leave one of the gaps.
    def gone(*words: pl.LazyFrame) -> list[tuple[object, object]]:
        found = ended(one_listed(101, 103), *words, processes=rows(PROCESSES_SCHEMA), sources=HOME, hints=FOLDERS)
        return [(o["rank"], o["kind"]) for o in found if o["kind"] == "left"]

    lost = [raised("gloo-closed", r) for r in (0, 1, 3)]
    assert gone(*lost) == [(2, "left")]
    assert gone(*lost[:2]) == []
    assert gone(raised("gloo-timeout", 0), *lost[1:]) == []


def test_where_a_stopped_pid_is_nobodys_no_rank_had_ended() -> None:
    assert of_function(101, 102, 103) == []
    assert of_function(101, 105) == []


# ---- tasks of srun ----


def of_tasks(*lines: dict[str, object]) -> pl.LazyFrame:
    task = {"kind": "task", "host": "a", "exit_code": -15, "signal": "SIGTERM"}
    return table("worker_exits", *({**task, **line, "line_no": n} for n, line in enumerate(lines, start=1)))


def test_a_task_that_a_signal_ended_before_srun_ended_the_step_went_by_itself() -> None:
    step = {"kind": "scheduler-note", "signal": None, "exit_code": None}
    hung_up = {"rank": 1, "signal": "SIGHUP", "exit_code": -1}
    found = ended(of_tasks(hung_up, step, {"rank": 0}, {"rank": 2}))
    assert {e["rank"]: e["own"] for e in found} == {0: False, 1: True, 2: False}
    assert not any(e["own"] for e in ended(of_tasks(step, hung_up, {"rank": 0}, {"rank": 2}))), "the step was cancelled"


def test_the_one_task_of_which_srun_says_nothing_had_ended_where_others_lost_a_peer() -> None:
    def left_by(*listed: int, lost: str = "gloo-closed") -> list[object]:
        found = ended(of_tasks(*({"rank": r} for r in listed)), raised(lost, 0), hints=FOLDERS.clear())
        return [e["rank"] for e in found if e["kind"] == "left"]

    assert left_by(0, 1, 3) == [2]
    assert left_by(0, 1, 4) == left_by(0, 1, 2) == [], "two are missing, or who comes after the last one"
    assert left_by(0, 1, 3, lost="gloo-timeout") == []


def fatal(signal: str, rank: int) -> dict[str, object]:
    return raised("signal", rank, type=signal, message=f"Fatal Python error: {signal}")


def test_a_crash_that_only_the_process_itself_printed_is_its_end() -> None:
    found = ended(left(-11, 0), fatal("SIGSEGV", 0), fatal("SIGSEGV", 1))
    assert [(o["rank"], o["kind"], o["own"], o["signal"]) for o in found] == [(r, "segfault", True, "SIGSEGV") for r in (0, 1)]


def test_the_last_words_of_a_crash_are_those_of_the_one_process_whose_parent_saw_it() -> None:
    """``torch.multiprocessing`` says which of its processes crashed, and Python's fault handler how, in the same output and without a
    rank."""
    words = raised("signal", None, type="SIGSEGV", message="Fatal Python error: Segmentation fault", frame="fit (train.py:47)")
    [one] = ended(left(-11, 1, source_id=5), words)
    assert (one["rank"], one["kind"], one["frame"], one["exc_line_no"]) == (1, "segfault", "fit (train.py:47)", 10)
    # Of two that left such words the parent waits for one.
    crashed = ended(left(-11, 1, source_id=5), words, words | {"line_no": 50})
    assert [(o["rank"], o["kind"]) for o in crashed] == [(1, "segfault"), (None, "segfault")]
    # In another file they may be another process's, and with another signal they are.
    assert len(ended(left(-11, 1, source_id=6), words)) == 2
    assert len(ended(left(-8, 1, source_id=5), words)) == 2


def test_a_stack_that_was_asked_for_by_a_signal_is_no_end() -> None:
    assert [o["kind"] for o in ended(None, fatal("SIGUSR1", 1))] == ["clean"]
    # The launcher knows how it ended.
    assert [o["kind"] for o in ended(left(0, 1), fatal("SIGSEGV", 1))] == ["clean"]


def test_what_a_process_got_over_tells_of_its_end_only_where_its_exit_code_alone_does():
    for kind in ("unraisable", "survived", "thread"):
        assert ended(None, raised("user", kind=kind)) == []
        [found] = ended(left(1), raised("user", kind=kind))
        assert (found["kind"], found["own"]) == ("exception", True)
        [found] = ended(left(1), raised("user", kind=kind), raised("gloo-timeout", line=40, kind="python"))
        assert (found["kind"], found["own"]) == ("victim", False)


def test_what_torch_distributed_refuses_of_a_layout_is_the_programs() -> None:
    frames = "{} (torch/distributed/{}:863)\nstep (train.py:9)"
    meshes = raised("user", type="RuntimeError", frames=frames.format("_concatenate", "device_mesh.py"))
    refused = raised("user", type="ValueError", frames=frames.format("__init__", "pipelining/schedules.py"))
    assert [e["own"] for e in ended(None, meshes)] == [True]
    assert [e["own"] for e in ended(None, refused)] == [True]


def test_a_wait_of_a_schedule_or_a_mesh_that_fails_blames_nobody_here() -> None:
    frames = "{} (torch/distributed/{}:863)\nstep (train.py:9)"
    for function, file, kind in (
        ("_wait_batch_p2p", "pipelining/schedules.py", "RuntimeError"),
        ("mesh_broadcast", "tensor/_collective_utils.py", "RuntimeError"),
        ("_tensor_to_object", "distributed_c10d.py", "ValueError"),
    ):
        assert [e["own"] for e in ended(None, raised("user", type=kind, frames=frames.format(function, file)))] == [False]


def test_one_rank_tells_of_all_whose_part_of_a_checkpoint_failed() -> None:
    told = raised("user", 0, 1, type="CheckpointException", message="CheckpointException ranks:dict_keys([0, 2])")
    assert [(e["rank"], e["own"], e["type"]) for e in ended(None, told)] == [
        (0, True, "CheckpointException"),
        (2, True, "CheckpointException"),
    ]


def killed_beside_dumps(*recorded: int, local: int, size: int = 8, **more: object) -> list[tuple[object, object]]:
    """Rank and kind of what ended, where a launcher says that a local rank was killed and these ranks left dumps of a job of that size."""
    killed = table("worker_exits", {"kind": "failed", "local_rank": local, "pid": 71, "exit_code": -9, "line_no": 30} | more)
    job = rows(GROUPS, {"domain": "fr", "group_key": "0", "members": list(range(size)), "size": size})
    stands = progress({"0": dict.fromkeys(recorded, (9, 8))})
    return [(e["rank"], e["kind"]) for e in ended(killed, progress=stands, groups=job)]


def test_a_killed_process_of_unknown_rank_is_the_one_rank_that_left_no_dump() -> None:
    assert killed_beside_dumps(0, 1, 2, 3, 4, 6, 7, local=1) == [(5, "killed")]
    assert killed_beside_dumps(0, 1, 2, 3, 4, 5, 6, local=3) == [(7, "killed")], "how many there are the groups tell"


def test_a_killed_process_stays_nameless_where_dumps_do_not_leave_one_rank_that_it_can_have() -> None:
    told = [
        killed_beside_dumps(0, 1, 2, 3, 4, 6, local=1),
        killed_beside_dumps(*range(8), local=1),
        killed_beside_dumps(0, 1, 3, 4, 5, 6, 7, local=5),
    ]
    assert told == [[(None, "killed")]] * 3
