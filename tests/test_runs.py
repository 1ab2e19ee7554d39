"""Runs: a healthy start of the job is not mixed with a failed one."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.analysis import chosen_of
from nccl_forensics.conclusions.assemble import RunResult
from nccl_forensics.conclusions.census import Census
from nccl_forensics.conclusions.runs import Run, earlier_jobs, find_runs
from nccl_forensics.conclusions.verdict import Verdict
from nccl_forensics.model import Finding, Severity
from nccl_forensics.rules import Found, all_rules
from nccl_forensics.store import SOURCES, Store
from nccl_forensics.views import Resolver
from tests.rules.host_frames import table


def joined(source: int, rank: int, comm_id: str = "0xc0", nranks: int = 2, pid: int | None = None) -> dict[str, object]:
    who = {"host": "node1", "pid": pid if pid is not None else 100 + source, "comm": comm_id}
    return {"event": "init-complete", "source_id": source, "rank": rank, "nranks": nranks, "comm_id": comm_id} | who


def runs(*members: dict[str, object], sources: int = 4) -> list[tuple[int, set[int], set[int]]]:
    listed = pl.DataFrame([{"source_id": n, "path": f"log{n}"} for n in range(sources)], schema=SOURCES)
    store = Store.from_frames({"nccl_comms": table("nccl_comms", *members).collect()}, listed)
    return [(r.number, set(r.sources), set(r.foreign)) for r in find_runs(store)]


ONE = [(0, set(), set())]


def test_two_starts_of_the_job_are_two_runs_that_leave_each_other_out() -> None:
    found = runs(joined(0, 0), joined(1, 1), joined(2, 0, "0xd0"), joined(3, 1, "0xd0"))
    assert found == [(0, {0, 1}, {2, 3}), (1, {2, 3}, {0, 1})]


def test_one_communicator_is_one_run() -> None:
    assert runs(joined(0, 0), joined(1, 1)) == ONE


def test_a_communicator_whose_size_no_job_has_tells_of_no_run() -> None:
    huge = joined(1, 1) | {"nranks": 2_000_000_000}
    assert runs(joined(0, 0), huge, joined(2, 0, "0xd0"), joined(3, 1, "0xd0")) == runs(
        joined(0, 0), joined(2, 0, "0xd0"), joined(3, 1, "0xd0")
    )
    assert runs(joined(0, 0) | {"nranks": None}) == ONE


def test_disjoint_ranks_under_different_ids_are_one_run() -> None:
    assert runs(joined(0, 0, "0xc0", nranks=4), joined(1, 1, "0xd0", nranks=4)) == ONE


def test_smaller_communicators_that_all_hold_a_rank_nought_are_one_run() -> None:
    halves = [joined(s, s % 2, "0xe0" if s < 2 else "0xe1") for s in range(4)]
    whole = [joined(s, s, "0xc0", nranks=4) for s in range(4)]
    assert runs(*whole, *halves) == ONE


def test_several_communicators_of_one_process_are_one_run() -> None:
    assert runs(joined(0, 0), joined(1, 1), joined(0, 0, "0xd0"), joined(1, 1, "0xd0")) == ONE


def test_without_communicators_nothing_is_told_apart() -> None:
    assert [(r.number, r.foreign) for r in find_runs(Store.from_frames({}))] == [(0, frozenset())]


# ---- attempts of the launcher ----


def stored(*paths: str, exits: list[dict[str, object]] | None = None, unread: int | None = None) -> Store:
    rows = [{"source_id": n, "path": path, "formats": [] if n == unread else ["training-log"]} for n, path in enumerate(paths)]
    frames = {} if exits is None else {"worker_exits": table("worker_exits", *exits).collect()}
    return Store.from_frames(frames, pl.DataFrame(rows, schema=SOURCES))


def attempts(store: Store) -> list[tuple[int | None, set[int], set[int]]]:
    return [(r.attempt, set(r.sources), set(r.foreign)) for r in find_runs(store)]


def test_each_attempt_of_the_launcher_is_a_run_and_what_belongs_to_none_belongs_to_all() -> None:
    store = stored("l/attempt_0/0/stderr.log", "l/attempt_0/1/stderr.log", "l/attempt_1/0/stderr.log", "torchrun.log")
    assert attempts(store) == [(0, {0, 1}, {2}), (1, {2}, {0, 1})]
    assert [r.last for r in find_runs(store)] == [False, True]


def test_a_dump_with_nothing_newer_than_the_end_of_an_attempt_is_no_dump_of_a_later_one() -> None:
    paths = ("l/attempt_0/0/error.json", "l/attempt_1/0/error.json", "fr/rank_0", "fr/rank_1", "fr/rank_2")
    raised = [{"source_id": n, "time_raw_ns": at * 10**9, "time_kind": "epoch"} for n, at in ((0, 100), (1, 200))]
    dumps = [{"source_id": n, "last_created_ns": at * 10**9} for n, at in ((2, 90), (3, 150))]
    held = {"exceptions": table("exceptions", *raised).collect(), "fr_dumps": table("fr_dumps", *dumps).collect()}
    store = Store.from_frames(held, stored(*paths).sources)
    assert attempts(store) == [(0, {0, 2}, {1}), (1, {1}, {0, 2})], "one that goes on after it, or is empty, belongs to all"


def test_the_only_attempt_is_the_only_run_and_bears_its_number() -> None:
    assert attempts(stored("attempt_2/0/stderr.log", "attempt_2/1/stderr.log")) == [(2, set(), set())]
    # A folder in which nothing could be read is no attempt to tell from another.
    assert len(attempts(stored("attempt_0/0/stderr.log", "attempt_1/0/stderr.log", unread=1))) == 1


def test_the_last_attempts_of_all_agents_belong_together() -> None:
    # The second host took the place of another after the first attempt.
    store = stored("a/attempt_0/0/stderr.log", "a/attempt_1/0/stderr.log", "b/attempt_0/0/stderr.log")
    assert attempts(store) == [(0, {0}, {1, 2}), (1, {1, 2}, {0})]


def said(line: int, kind: str, pid: int | None = None) -> dict[str, object]:
    return {"source_id": 2, "line_no": line, "kind": kind, "pid": pid}


def test_the_launchers_log_is_cut_between_its_attempts() -> None:
    exits = [
        said(1, "closing-signal", 100),
        said(2, "failed", 101),
        said(3, "closing-signal", 201),
        said(4, "failed", 200),
        said(5, "root-cause", 200),
        said(6, "launcher-signal"),
    ]
    store = stored("l/attempt_0/0/stderr.log", "l/attempt_1/0/stderr.log", "torchrun.log", exits=exits)
    kept = [run.part_of(store).scan("worker_exits").collect()["line_no"].to_list() for run in find_runs(store)]
    assert kept == [[1, 2, 6], [3, 4, 5, 6]]


def test_without_a_report_at_the_end_the_failures_are_those_of_earlier_attempts() -> None:
    store = stored("l/attempt_0/0/stderr.log", "l/attempt_1/0/stderr.log", "torchrun.log", exits=[said(2, "failed", 101)])
    kept = [run.part_of(store).scan("worker_exits").collect()["line_no"].to_list() for run in find_runs(store)]
    assert kept == [[2], []]


# ---- jobs that append to one output ----


def cancelled(line: int, job: str, unit: str = "JOB") -> dict[str, object]:
    return said(line, "scheduler") | {"message": f"slurmstepd: error: *** {unit} {job} ON n1 CANCELLED AT 2025-08-21T02:26:53 ***"}


def kept_of_one_output(*exits: dict[str, object]) -> list[int]:
    store = stored("a.txt", "b.txt", "slurm.out", exits=list(exits))
    [run] = find_runs(store)
    return run.part_of(store).scan("worker_exits").collect()["line_no"].to_list()


def test_what_failed_in_an_earlier_job_of_one_output_is_no_part_of_the_last_one() -> None:
    assert kept_of_one_output(said(10, "failed", 101), cancelled(20, "71"), said(90, "failed", 301), cancelled(100, "72")) == [90, 100]


def test_where_an_earlier_job_ended_is_told() -> None:
    store = stored(
        "a.txt", "b.txt", "slurm.out", exits=[cancelled(20, "70"), cancelled(50, "71"), said(90, "failed", 301), cancelled(100, "72")]
    )
    assert earlier_jobs(store).select("job", "ended").rows() == [("71", 50)]
    assert earlier_jobs(stored("a.txt", "b.txt", "slurm.out", exits=[cancelled(100, "72")])).is_empty()


def test_steps_of_one_job_and_jobs_that_end_together_are_not_told_apart() -> None:
    assert kept_of_one_output(said(10, "failed", 101), cancelled(20, "71", "STEP"), cancelled(100, "71")) == [10, 20, 100]
    assert kept_of_one_output(said(10, "failed", 101), cancelled(99, "71"), cancelled(100, "72")) == [10, 99, 100]


def requeued(line: int, minute: int, why: str = "DUE TO JOB REQUEUE", unit: str = "JOB") -> dict[str, object]:
    return said(line, "scheduler") | {
        "message": f"slurmstepd: error: *** {unit} 71 ON n1 CANCELLED AT 2031-08-21T02:{minute:02}:53 {why} ***"
    }


@pytest.mark.parametrize("why", ["DUE TO JOB REQUEUE", "DUE TO PREEMPTION", "DUE TO NODE FAILURE"])
def test_a_job_that_slurm_started_again_in_one_output_is_judged_by_its_last_start(why: str) -> None:
    last = requeued(100, 40, "DUE TO TIME LIMIT")
    assert kept_of_one_output(said(10, "failed", 101), requeued(20, 5, why), said(90, "failed", 301), last) == [90, 100]


def test_the_steps_of_a_start_and_a_job_that_was_not_started_again_are_kept_together() -> None:
    assert kept_of_one_output(said(10, "failed", 101), requeued(20, 5, unit="STEP"), requeued(100, 6)) == [10, 20, 100]
    assert kept_of_one_output(said(10, "failed", 101), requeued(20, 5, ""), requeued(100, 40)) == [10, 20, 100]


# ---- which run the verdict is of ----


def came_to(number: int, severity: Severity | None, attempt: int | None = None, *, unexplained: bool = False) -> RunResult:
    root = None if severity is None else Found("AA01-1", "f", all_rules()[0], Finding("a fault", severity=severity))
    verdict = Verdict("unexplained" if unexplained else "explained" if root else "nothing-wrong", root, "low")
    return RunResult(
        Run(number, frozenset(), frozenset(), attempt), Resolver(Store.from_frames({})), (), verdict, "", Census(None, frozenset(), 0, 0)
    )


def test_the_last_run_that_failed_is_told_and_a_loss_only_where_none_failed() -> None:
    assert chosen_of([came_to(0, "critical"), came_to(1, "critical"), came_to(2, "error")]).run.number == 1
    assert chosen_of([came_to(0, "error"), came_to(1, None)]).run.number == 0
    assert chosen_of([came_to(0, None), came_to(1, None)]).run.number == 1


def test_an_attempt_whose_cause_is_known_is_told_before_a_later_one_without_but_a_run_of_another_day_is_not() -> None:
    assert chosen_of([came_to(0, "critical", attempt=0), came_to(1, None, attempt=1, unexplained=True)]).run.number == 0
    assert chosen_of([came_to(0, "critical"), came_to(1, None, unexplained=True)]).run.number == 1
