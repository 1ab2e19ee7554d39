"""Runs: a healthy start of the job is not mixed with a failed one."""

from __future__ import annotations

import polars as pl

from nccl_forensics.runs import find_runs
from nccl_forensics.store import SOURCES, Store
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
