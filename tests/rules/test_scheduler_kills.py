"""Kills for want of memory and tasks that end by themselves, as Slurm tells of them before it cancels the rest."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.reading import read_source
from nccl_forensics.rules.job_stopped import job_stopped
from nccl_forensics.rules.out_of_memory import out_of_memory
from tests.rules.host_frames import check

COUNT = "slurmstepd: error: Detected 1 oom_kill event in StepId=8812.0. Some of the step tasks have been OOM Killed."
CANCELLED = "slurmstepd: error: *** STEP 8812.0 ON node4 CANCELLED AT 2025-09-23T06:30:02 ***"
REST = "srun: error: node4: tasks 0-2: Terminated"
KILLED = "srun: error: node7: task 3: Killed"


def exits(*lines: str) -> pl.LazyFrame:
    frame = read_source("\n".join(lines).encode()).frames["worker_exits"]
    return frame.with_columns(pl.lit(0, dtype=pl.UInt32()).alias("source_id")).lazy()


def out_of(*lines: str) -> list[Finding]:
    return check(out_of_memory, worker_exits=exits(*lines))


def stopped(*lines: str) -> list[Finding]:
    return check(job_stopped, worker_exits=exits(*lines))


def test_the_task_that_srun_calls_out_of_memory_is_named():
    [finding] = out_of(COUNT, "srun: error: node7: task 3: Out Of Memory", CANCELLED, REST)
    assert (finding.confidence, finding.ranks, finding.hosts) == ("high", (3,), ("node7",))
    assert len(finding.evidence) == 2


def test_a_count_of_kills_and_one_killed_task_belong_together():
    [finding] = out_of(COUNT, CANCELLED, REST, KILLED)
    assert (finding.confidence, finding.ranks) == ("medium", (3,))


def test_where_the_scheduler_killed_nearly_all_nobody_is_named():
    [finding] = out_of(COUNT, CANCELLED, "srun: error: node4: tasks 0-3: Killed")
    assert (finding.confidence, finding.ranks, finding.culprits) == ("medium", (), ())


def test_a_task_that_starts_a_launcher_is_no_rank():
    torchrun = "W0923 06:30:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 81 closing signal SIGTERM"
    [finding] = out_of(COUNT, torchrun, "srun: error: node7: task 3: Out Of Memory")
    assert (finding.ranks, finding.hosts) == ((), ("node7",))


def test_without_a_word_of_memory_there_is_nothing_to_say():
    assert out_of(CANCELLED, REST, KILLED) == []


def test_what_follows_a_kill_for_want_of_memory_is_no_cancellation_by_somebody():
    [finding] = stopped(COUNT, CANCELLED, REST)
    assert finding.severity in ("info", "warning")
    [finding] = stopped(CANCELLED, REST)
    assert finding.severity == "critical"


def test_a_task_that_was_killed_before_the_cancellation_comes_first():
    [after] = stopped(CANCELLED, REST, KILLED)
    assert after.severity == "critical"
    [before] = stopped(KILLED, CANCELLED, REST)
    assert before.severity in ("info", "warning")
    # All of them at once: that was somebody from outside.
    [together] = stopped("srun: error: node4: tasks 0-3: Killed", CANCELLED)
    assert together.severity == "critical"


def test_a_task_that_met_a_fault_of_its_own_comes_before_the_cancellation_though_no_other_is_told_of():
    [crashed] = stopped("srun: error: node7: task 3: Bus error", CANCELLED)
    assert crashed.severity in ("info", "warning")
    [after] = stopped(CANCELLED, "srun: error: node7: task 3: Bus error")
    assert after.severity == "critical"


def test_srun_says_that_it_ends_the_others_because_of_a_task():
    for said in ("srun: Terminating job step 8812.0", "srun: Terminating StepId=8812.0"):
        [before] = stopped(KILLED, said, CANCELLED)
        assert before.severity in ("info", "warning")
    [by_somebody] = stopped(KILLED, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", CANCELLED)
    assert by_somebody.severity == "critical"


def test_a_cancelled_step_may_be_told_of_without_its_host():
    [finding] = stopped("slurmstepd: error: *** STEP 8812.0 CANCELLED AT 2025-09-23T06:30:02 DUE TO TIME LIMIT ***")
    assert finding.title == "the job ran into its time limit"
