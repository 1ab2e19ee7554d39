"""Whether launcher and scheduler say that the job ended well."""

from __future__ import annotations

from nccl_forensics.rules.common.ties import job_of
from nccl_forensics.views.done import done
from nccl_forensics.views.job_signs import job_signs
from tests.rules.host_frames import table, xid


def lines(*kinds: str, source: int = 0) -> list[dict[str, object]]:
    return [{"source_id": source, "line_no": n + 1, "kind": kind} for n, kind in enumerate(kinds)]


def told(*rows: dict[str, object], jobs: tuple[tuple[str, int, str | None], ...] = ()) -> list[tuple[object, ...]]:
    listed = table("scheduler_jobs", *({"source_id": 9, "state": s, "exit_code": c, "step": step} for s, c, step in jobs))
    return done(table("worker_exits", *rows), listed).collect().rows()


def test_launchers_whose_last_word_is_that_their_workers_finished_tell_the_end_of_the_job() -> None:
    assert told(*lines("failed", "restart", "finished"), *lines("finished", source=1)) == [(0, 3), (1, 1)]


def test_nothing_is_told_where_a_launcher_has_another_last_word_or_none_speaks() -> None:
    assert told(*lines("finished"), *lines("failed", source=1)) == []
    assert told(*lines("finished", "closing-signal")) == []
    assert told() == []


def test_a_listing_tells_it_where_all_of_its_jobs_are_completed() -> None:
    assert told(jobs=(("COMPLETED", 0, None), ("FAILED", 1, "0"))) == [(9, 1)]
    assert told(jobs=(("COMPLETED", 0, None), ("FAILED", 1, None))) == []
    assert told(jobs=(("RUNNING", 0, None),)) == []
    assert told(*lines("failed"), jobs=(("COMPLETED", 0, None),)) == []


def test_beside_a_job_that_ended_well_a_host_tells_nothing_of_its_own_though_no_rank_is_known() -> None:
    ended = done(table("worker_exits", *lines("finished")), None)
    rows = table("xids", xid(79)).collect()
    assert job_of(job_signs(*[None] * 7, ended), None, None).tie(rows, "node7", gpu="0000:17:00.0") == "apart"
    assert job_of(job_signs(*[None] * 7, done(table("worker_exits"), None)), None, None).tie(rows, "node7") == "own"
