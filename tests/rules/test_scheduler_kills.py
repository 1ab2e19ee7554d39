"""Kills for want of memory and tasks that end by themselves, as Slurm tells of them before it cancels the rest."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.reading.source import read_source
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


def test_pbs_ended_the_job_at_its_wall_time():
    [finding] = stopped("=>> PBS: job killed: walltime 7213 exceeded limit 7200")
    assert (finding.title, finding.confidence) == ("the job ran into its time limit", "high")
    assert not out_of("=>> PBS: job killed: walltime 7213 exceeded limit 7200")


def test_pbs_ended_the_job_at_its_memory_limit():
    lines = ("=>> PBS: job killed: mem 70254592kb exceeded limit 67108864kb", "epoch 3 step 20")
    [finding] = out_of(*lines)
    assert finding.title == "the scheduler killed a process of the job: it met its memory limit"
    assert not stopped(*lines)


def test_lsf_says_in_its_summary_why_it_ended_the_job():
    words = {
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.": ("the job ran into its time limit", "high"),
        "TERM_PREEMPT: job killed after preemption.": ("the job was preempted", "high"),
        "TERM_OWNER: job killed by owner.": ("the job was cancelled", "medium"),
    }
    for line, told in words.items():
        [finding] = stopped(line)
        assert (finding.title, finding.confidence) == told
    assert out_of("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.")


def test_a_signal_from_outside_of_lsf_and_variables_of_a_terminal_stop_no_job():
    assert not stopped(
        CANCELLED.replace(" CANCELLED", " ended"), "TERM_EXTERNAL_SIGNAL: job killed by a signal external to LSF.", "TERM_PROGRAM=x", REST
    )


def test_the_node_that_srun_lost_is_named_without_a_word_of_slurmstepd():
    [finding] = stopped("srun: error: Node failure on gpu-dy-17", "srun: error: Nodes gpu-dy-17 are still not ready")
    assert (finding.cause, finding.hosts) == ("node-failed", ("gpu-dy-17",))


def test_submitit_says_whether_the_signal_is_for_want_of_time_or_a_preemption():
    head = "submitit WARNING (2027-02-07 21:12:26,312) - "
    [finding] = stopped(head + "Caught signal SIGUSR2 on node17: this job is timed-out.")
    assert finding.title == "the job ran into its time limit"
    [finding] = stopped(head + "Caught signal SIGUSR2 on node17: this job is preempted.")
    assert finding.title == "the job was preempted"
    assert not stopped(COUNT, head + "Bypassing signal SIGTERM", head + "Caught signal SIGUSR2 on node17: this job is fine.")
