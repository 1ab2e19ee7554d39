"""Kills for want of memory and tasks that end by themselves, as Slurm tells of them before it cancels the rest."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.job_stopped import job_stopped
from nccl_forensics.rules.out_of_memory import out_of_memory
from nccl_forensics.views.deaths import endings
from nccl_forensics.views.job_signs import JOB_SIGNS
from tests.rules.host_frames import check, table

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


def taken(number: int) -> pl.LazyFrame:
    """A process that the kernel killed in the cgroup of a job."""
    cgroup = f"/slurm/uid_1007/job_{number}/step_0"
    row = {"host": "node4", "pid": 4410, "comm": "python", "anon_kb": 1 << 20, "constraint": "CONSTRAINT_MEMCG", "memcg": cgroup}
    return table("oom_kills", row)


def test_a_kill_in_the_cgroup_of_another_job_than_those_told_of_is_not_the_jobs() -> None:
    listed = table("scheduler_jobs", {"job_id": "8812", "state": "COMPLETED", "exit_code": 0})
    for told in ({"scheduler_jobs": listed}, {"worker_exits": exits(CANCELLED)}):
        [other] = check(out_of_memory, oom_kills=taken(8790), **told)
        assert (other.severity, other.confidence) == ("warning", "low")
        [own] = check(out_of_memory, oom_kills=taken(8812), **told)
        assert own.severity == "critical"
    # Of an array, and of a job of parts, cgroups bear other numbers than listings.
    array = table("scheduler_jobs", {"job_id": "8812_3", "state": "FAILED"})
    assert check(out_of_memory, oom_kills=taken(8815), scheduler_jobs=array)[0].severity == "critical"
    assert check(out_of_memory, oom_kills=taken(8815))[0].severity == "critical"


def test_a_killed_pod_beside_a_workload_that_completed_in_a_job_that_shows_no_failure_is_anothers() -> None:
    fell = {"pod": "probe-5", "status": "OOMKilled", "node": "node7", "last": False}
    done = ({"pod": f"big-worker-{n}", "status": "Completed", "reason": "Completed", "node": f"node{n}"} for n in range(3))
    both = table("pods", fell, *done)
    [other] = check(out_of_memory, pods=both)
    assert (other.severity, other.culprits) == ("warning", ())
    failed = pl.LazyFrame({"sign": ["exceptions"]})
    assert check(out_of_memory, pods=both, failures=failed)[0].severity == "critical"
    sibling = table("pods", {**fell, "pod": "big-worker-3"}, {"pod": "big-worker-1", "status": "Completed", "reason": "Completed"})
    assert check(out_of_memory, pods=sibling)[0].severity == "critical"


def test_what_watchdogs_say_behind_the_word_of_a_time_limit_is_its_consequence_but_not_a_timeout() -> None:
    limit = CANCELLED.removesuffix(" ***") + " DUE TO TIME LIMIT ***"
    failed = pl.LazyFrame({"sign": ["watchdog timeouts"]})

    def told(kind: str, line: int, source: int = 0) -> tuple[str | None, str]:
        said = table("watchdog", {"kind": kind, "line_no": line, "source_id": source})
        [finding] = check(job_stopped, worker_exits=exits("step 3", limit), failures=failed, watchdog=said)
        return finding.severity, finding.confidence

    assert told("error", 3) == ("critical", "high")
    for own in (told("error", 1), told("timeout", 3), told("error", 3, source=1)):
        assert own != ("critical", "high")


def test_tasks_that_srun_killed_as_it_ended_the_step_did_not_end_by_themselves() -> None:
    crash = "srun: error: node7: task 3: Segmentation fault (core dumped)"
    killed = ("srun: error: node4: tasks 0-2: Killed", "srun: error: node8: tasks 4-7: Killed")

    def own(*lines: str) -> list[int]:
        return endings(exits(*lines), *[None] * 15).filter("own").collect()["rank"].to_list()

    assert own(crash, "srun: Terminating StepId=8812.0", CANCELLED, *killed) == [3]
    # Without one that had ended before, nothing says who killed them.
    assert set(own("srun: Terminating StepId=8812.0", *killed)) != {3}


def test_a_process_of_another_name_in_a_cgroup_of_some_job_stops_none_that_nothing_ties_it_to() -> None:
    row = {"host": "node9", "pid": 551, "anon_kb": 1 << 20, "constraint": "CONSTRAINT_MEMCG", "memcg": "/slurm/uid_5/job_77/step_0"}
    signs = pl.DataFrame({"rank": [0, 1]}, schema={"rank": pl.Int32()}).lazy()
    job = signs.with_columns(pl.lit(None, dtype=t).alias(c) for c, t in JOB_SIGNS.items() if c != "rank")
    failed = pl.LazyFrame({"sign": ["watchdog timeouts"]})
    found = [
        check(out_of_memory, oom_kills=table("oom_kills", {**row, "comm": name}), job_signs=job, failures=failed)[0]
        for name in ("jupyter-lab", "python")
    ]
    assert [(f.severity, f.confidence) for f in found] == [("error", "low"), ("critical", "medium")]
