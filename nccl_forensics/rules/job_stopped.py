"""The job was ended from outside: time limit, cancel, preemption, eviction.

## What it finds
What Slurm (sacct, scontrol, its lines in the job's output), PBS, LSF and submitit (their lines there) and Kubernetes (events, pod status) say about the
end of the job: time limit, cancel by a user, preemption, eviction, and nodes that failed under it.

## Why it matters
Everything that ranks print after the stop is teardown: killed processes, closed connections and watchdog errors are its consequences.

## What would refute it
The job had hung or failed before, and the time limit or the cancel only ended the wait. Then the earlier failure is the cause.

## What to do next
Time limit: ask for more time or checkpoint before it. Preemption and eviction: requeue. A failed node: see what its kernel log says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.signals import ASKS_TO_END
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import EXPLAINS_STOP, gave_up, timely, while_it_stood
from nccl_forensics.rules.common.ties import Job, Tie, job_of, tied
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.views.failures import GAVE_UP_WAITING, LONGER, STANDSTILL, TIMEOUTS
from nccl_forensics.views.lost_hosts import LOST_NODE, TAKEN_AWAY, nodes_lost
from nccl_forensics.views.raised import lived_on
from nccl_forensics.words import first_label

#: Signs of a failure that a stop from outside does not make by itself.
_OF_ITS_OWN = (
    TIMEOUTS,
    "mismatches and missed barriers",
    "NCCL errors",
    "communicators that never came up",
    "ranks that wait for others",
    STANDSTILL,
    LONGER,
)
#: What a process raises when it is told to end.
_BY_SIGNAL = r"Signal|KeyboardInterrupt|SystemExit"
_STATES = {
    "TIMEOUT": ("ran into its time limit", False),
    "DEADLINE": ("ran into its deadline", False),
    "CANCELLED": ("was cancelled", False),
    "PREEMPTED": ("was preempted", True),
    "REQUEUED": ("was requeued", True),
    "NODE_FAIL": ("lost a node", True),
    "BOOT_FAIL": ("lost a node while it booted", True),
}
#: How LSF names why it ended a job (its administrator's guide, "termination reasons displayed by bacct").
_LSF = {
    "TIMEOUT": ("RUNLIMIT:", "CPULIMIT:", "WINDOW:", "DEADLINE:"),
    "PREEMPTED": ("PREEMPT:",),
    "REQUEUED": ("REQUEUE_OWNER:", "REQUEUE_ADMIN:"),
    "CANCELLED": ("OWNER:", "ADMIN:", "FORCE_OWNER:", "FORCE_ADMIN:", "BUCKET_KILL:"),
}
#: Why Slurm ends a job that did nothing wrong.
_FOR_ITS_REASONS = "DUE TO (?:TIME LIMIT|PREEMPTION|JOB REQUEUE)"
#: What a watchdog says that counts as a sign of failure.
_GIVES_UP = pl.col("kind").is_in(GAVE_UP_WAITING)
#: Signals of a fault in the process itself.
_NEVER_SENT = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
#: Times of a scheduler are local, and those of the job may be another zone's.
_ZONES_H = 14.0
#: How far the scheduler's times may reach beyond those that the job's own evidence shows.
_SLACK_NS = 900 * 1_000_000_000
#: What srun says where a task that ended badly makes it end the others (Slurm, --kill-on-bad-exit and --wait).
_ENDS_THE_REST = r"srun: Terminating (?:job step|StepId=)"
_NODE_EVENTS = {"NodeNotReady": "is not ready", "Rebooted": "rebooted"}


@rule(
    name="job-stopped",
    code="SC01",
    cause="job-stopped",
    severity="critical",
    at_most=32,
    explains=(*EXPLAINS_STOP, "rank-died", "software-crash"),
)
def job_stopped(
    scheduler_jobs: pl.LazyFrame | None,
    scheduler_nodes: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    pods: pl.LazyFrame | None,
    pod_events: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    exceptions: pl.LazyFrame | None,
    stalls: pl.LazyFrame | None,
    stack_stalls: pl.LazyFrame | None,
    thread_states: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    job_times: pl.LazyFrame | None = None,
    watchdog_calls: pl.LazyFrame | None = None,
    watchdog: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Jobs by state, then what the job's own output says, then pods and nodes, then a signal that the launcher got."""
    own = [] if failures is None else failures.filter(pl.col("sign").is_in(_OF_ITS_OWN)).select("sign").collect()["sign"].to_list()
    if TIMEOUTS in own and watchdog is not None and not has_rows(_not_behind(watchdog, worker_exits), _GIVES_UP):
        own.remove(TIMEOUTS)
    if exceptions is not None:
        exceptions = _not_behind(exceptions, worker_exits)
        got_over = lived_on() | pl.col("type").fill_null("").str.contains(_BY_SIGNAL)
        raised = exceptions.filter(~got_over).collect().height
        own += [f"exceptions ({raised})"] if raised else []
    if has_rows(worker_exits, pl.col("kind").is_in(["scheduler-oom", "memory-monitor"])):
        own.append("a kill for want of memory")
    if worker_exits is not None and _before(worker_exits):
        own.append("a task that ended before")
    told: set[str] = set()
    job = job_of(job_signs, job_times, failures)
    stuck = [frame for frame in (stalls, stack_stalls) if has_rows(frame)]
    looked_at = thread_states is not None and _looked_at(thread_states)
    if scheduler_jobs is not None:
        # A job that stands runs into its limit, or is cancelled by whoever sees it.
        hung = ["ranks that stand still or made other calls"] if stuck or "parted" in job.signs.values() else []
        for finding in _jobs(scheduler_jobs, [*own, *hung], job, job_times, nodes_lost(worker_exits, scheduler_nodes)):
            if finding.severity != "warning":
                told.add(finding.subject[1])
            yield _unsure(finding) if looked_at else finding
    scheduled = list(told)
    if worker_exits is not None:
        if not own and not stuck and not scheduled:
            yield from _launcher(worker_exits, looked_at=looked_at)
        standing = [*own, "ranks that stand still"] if stuck else own
        lines = worker_exits.filter(pl.col("kind") == "scheduler")
        for finding in _lines(_of_this(lines, job, job_times), standing, told, job):
            yield _unsure(finding) if looked_at else finding
    ended: set[str] = set()
    if pods is not None:
        for finding in _pods(pods, own, job):
            ended.add(finding.subject[1].split(" ")[0])
            yield finding
    if pod_events is not None:
        yield from _events(pod_events, own, ended, job)
    if scheduler_nodes is not None:
        yield from _nodes(scheduler_nodes, job, job_times, gave_up(watchdog_calls))


def _not_behind(rows: pl.LazyFrame, exits: pl.LazyFrame | None) -> pl.LazyFrame:
    """Lines without those that stand behind the scheduler's word, in the same file, that it ended the job for a reason of its own; a
    timeout of minutes has begun before it, wherever it stands."""
    if exits is None:
        return rows
    said = exits.filter((pl.col("kind") == "scheduler") & pl.col("message").str.contains(_FOR_ITS_REASONS))
    after = rows.join(said.group_by("source_id").agg(said_at=pl.col("line_no").min()), on="source_id", how="left")
    timed_out = pl.col("kind") == "timeout"
    return after.filter(timed_out.fill_null(value=False) | (pl.col("line_no") < pl.col("said_at")).fill_null(value=True)).drop("said_at")


def _before(exits: pl.LazyFrame) -> bool:
    """Whether tasks ended by themselves before the scheduler ended the rest: srun says so in the order in which it comes. A job that is
    cancelled gets SIGTERM first, and SIGKILL only after ``KillWait`` (Slurm, slurm.conf): many such ends tell nothing, few do, as do a
    signal that no scheduler sends and srun's own word that it ends the rest."""
    rows = exits.filter(pl.col("kind").is_in(["task", "scheduler", "scheduler-note"])).sort("source_id", "line_no").collect()
    for _, part in rows.group_by("source_id", maintain_order=True):
        ends = part.filter((pl.col("kind") == "scheduler") & pl.col("message").str.contains("CANCELLED", literal=True))
        tasks = part.filter(pl.col("kind") == "task")
        own = tasks.filter((pl.col("exit_code").fill_null(0) != 0) & ~pl.col("signal").fill_null("").is_in(ASKS_TO_END))
        if ends.height:
            first = own.filter(pl.col("line_no") < ends["line_no"][0])
            ended = part.filter(pl.col("message").str.contains(_ENDS_THE_REST) & (pl.col("line_no") < ends["line_no"][0]))
            if first.height and (first.height * 2 <= tasks.height or ended.height or first["signal"].is_in(_NEVER_SENT).any()):
                return True
    return False


def _which(jobs: pl.LazyFrame, job: Job, job_times: pl.LazyFrame | None) -> tuple[set[str], bool]:
    """The jobs of a listing that may be the one at hand, by the time it ran and by its hosts, and whether that is sure: a listing of a
    user, or of a day, holds others as well."""
    listed = jobs.filter(pl.col("step").is_null() & pl.col("job_id").is_not_null()).collect()
    every = set(listed["job_id"].to_list())
    if not job.seen or not every:
        return every, True
    window = job_times.collect() if job_times is not None else None
    there, then = set(every), set(every)
    if window is not None and window.height and not window["yearless"][0]:
        first, last = int(window["first_raw_ns"][0]), int(window["last_raw_ns"][0])
        ran = (pl.col("start_raw_ns").fill_null(first) <= last + _SLACK_NS) & (pl.col("end_raw_ns").fill_null(last) >= first - _SLACK_NS)
        then = set(listed.filter(ran)["job_id"].to_list())
    if job.ranks and not job.homeless:
        hosts = set(job.ranks)
        nodes = {name: {first_label(n) for n in of or ()} for name, of in listed.select("job_id", "nodes").iter_rows()}
        # A job has all hosts on which its ranks are seen; of a listing that is cut, or names few, some of them.
        there = {name for name, of in nodes.items() if of >= hosts} or {name for name, of in nodes.items() if not of or of & hosts}
    # Times of a listing are local to its cluster, and those of the job may be another zone's: that none fits says less.
    likely = (there & then) or there or then
    if not likely:
        return every, False
    stated = listed.filter(pl.col("job_id").is_in(list(likely)))
    alike = stated["state"].n_unique() == 1
    return likely, bool(there) and (alike or len(likely) == 1) and (len(every) == 1 or bool(there & then))


def _jobs(jobs: pl.LazyFrame, own: list[str], job: Job, job_times: pl.LazyFrame | None, lost: set[str]) -> Iterator[Finding]:
    likely, sure = _which(jobs, job, job_times)
    for found in _listed(jobs.filter(pl.col("job_id").is_in(list(likely))), own, lost):
        yield _with_ranks(found, job) if sure else tied(found, "open" if job.failed or own else "apart")
    other = jobs.filter(~pl.col("job_id").is_in(list(likely)))
    for found in _listed(other, own, lost):
        yield tied(found, "apart")


def _with_ranks(found: Finding, job: Job) -> Finding:
    """A node that failed, with the ranks of the job that ran there."""
    if found.cause != "node-failed" or len(found.hosts) != 1:
        return found
    there = sorted(job.ranks.get(first_label(found.hosts[0]) or "", ()))
    return replace(found, ranks=tuple(there), culprits=tuple(Culprit(rank=r, host=found.hosts[0]) for r in there)) if there else found


def _listed(jobs: pl.LazyFrame, own: list[str], lost: set[str]) -> Iterator[Finding]:
    """``lost``: nodes that something else says to be gone: a listing names all nodes of the job."""
    rows = jobs.filter(pl.col("step").is_null() & pl.col("state").is_in(list(_STATES))).sort(
        "source_id", "line_no", "record", nulls_last=True
    )
    for (number, state), part in rows.collect().group_by("job_id", "state", maintain_order=True):
        row = part.row(0, named=True)
        words, always = _STATES[str(state)]
        by = f" by user {row['by']}" if row["by"] else ""
        after = f" after {row['elapsed_s'] // 60} min" if row["elapsed_s"] else ""
        failed = str(state) in ("NODE_FAIL", "BOOT_FAIL")
        nodes = tuple(row["nodes"] or ())
        gone = tuple(n for n in nodes if first_label(n) in lost) or nodes
        which = f" ({gone[0]})" if failed and len(gone) == 1 else ""
        yield _finding(f"job {number} {words}{which}{by}{after}", str(state), part, own, always, "node-failed" if failed else None, gone)


def _looked_at(thread_states: pl.LazyFrame) -> bool:
    """Whether somebody took stacks of ranks that wait for others, or took them twice, and none of them is seen to move: one looks so at a
    job that stands."""
    ranks = thread_states.filter(pl.col("role").is_null()).collect()
    looked = bool(ranks["place"].is_in([*WAITING, "cuda-sync"]).any()) or bool((ranks["samples"] > 1).any())
    return looked and not ranks["moved"].any()


_LOOKED_AT = "Stacks were taken before, and no rank is seen to move between them: whether the job stood still is not known."


def _unsure(found: Finding) -> Finding:
    """A cancel after somebody had looked at where the ranks stand: one that stands still is cancelled by whoever sees it."""
    if found.subject[1] != "CANCELLED" or found.severity != "critical":
        return found
    return replace(found, confidence="low", summary=_LOOKED_AT)


def _launcher(exits: pl.LazyFrame, *, looked_at: bool) -> Iterator[Finding]:
    """The launcher was told to end, and nothing of the job says that it had failed or stood still before."""
    # A worker that failed comes first, whatever the launchers of the other hosts were then told.
    if has_rows(exits, pl.col("kind").is_in(["scheduler", "root-cause", "failure", "failed"])):
        return
    rows = exits.filter((pl.col("kind") == "launcher-signal") & pl.col("signal").is_in(ASKS_TO_END))
    part = rows.sort("source_id", "line_no").collect()
    if part.height:
        signal = str(part["signal"][0])
        yield replace(
            _finding(f"the launcher was told to end ({signal})", signal, part, [], True, None, ()),
            confidence="low" if looked_at else "medium",
            summary=_LOOKED_AT if looked_at else "Nothing of this job is seen to have failed before that.",
            would_refute=("a failure or a standstill of the job before the signal",),
        )


def _of_this(lines: pl.LazyFrame, job: Job, job_times: pl.LazyFrame | None) -> pl.LazyFrame:
    """The lines without those that are more than a day older than the job, or of a host that is known not to be the job's: the output of
    another job that lies beside."""
    rows = lines.collect()
    inside = timely(rows, job_times, _ZONES_H)
    ours = [host is None or job.place(host) != "apart" or not job.failed for host in rows["host"].to_list()]
    return rows.filter(inside & pl.Series(ours, dtype=pl.Boolean)).lazy()


def _lines(exits: pl.LazyFrame, own: list[str], told: set[str], job: Job) -> Iterator[Finding]:
    rows = exits.sort("source_id", "line_no").collect()
    reasons = (
        ("TIME LIMIT", "TIMEOUT"),
        ("PREEMPTION", "PREEMPTED"),
        ("NODE FAILURE", "NODE_FAIL"),
        (" FAILURE, SEE SLURMCTLD LOG", "NODE_FAIL"),
        (LOST_NODE, "NODE_FAIL"),
        ("JOB REQUEUE", "REQUEUED"),
        ("PBS: job killed: walltime ", "TIMEOUT"),
        ("PBS: job killed: cput ", "TIMEOUT"),
        (": this job is timed-out", "TIMEOUT"),
        (": this job is preempted", "PREEMPTED"),
        *((f"TERM_{term}", state) for state, terms in _LSF.items() for term in terms),
        ("CANCELLED", "CANCELLED"),
    )
    seen: dict[str, list[dict[str, object]]] = {}
    for row in rows.iter_rows(named=True):
        state = next((s for word, s in reasons if word in str(row["message"])), None)
        if state:
            seen.setdefault(state, []).append(row)
    if len(seen) > 1:
        seen.pop("CANCELLED", None)  # steps are cancelled whatever ends the job
    for state, items in seen.items():
        if state not in told:
            words, always = _STATES[state]
            part = pl.DataFrame(items, infer_schema_length=None)
            cause = "node-failed" if state == "NODE_FAIL" else None
            lost = sorted({str(row["host"]) for row in items if row["host"] and LOST_NODE in str(row["message"])})
            # srun itself cancels the steps after a rank failed: beside a failure it says nothing of who did it.
            cancelled = state == "CANCELLED"
            said = _finding(f"the job {words}", state, part, own, always, cause, tuple(lost), weak=cancelled and bool(own))
            said = _with_ranks(said, job)
            yield replace(said, confidence="medium") if cancelled and not own else said


def _of_pod(job: Job, name: object) -> Tie:
    """A pod whose name a rank's host bears is the job's; of others it is not known, and a job that goes on lost none."""
    if not job.seen or first_label(name) in job.ranks:
        return "own"
    return ("doubtful" if job.signs else "open") if job.failed else "apart"


def _pods(pods: pl.LazyFrame, own: list[str], job: Job) -> Iterator[Finding]:
    rows = pods.filter(pl.col("reason").is_in(list(TAKEN_AWAY))).sort("source_id", "line_no", "record", nulls_last=True).collect()
    for (pod, reason), part in rows.group_by("pod", "reason", maintain_order=True):
        found = _finding(f"pod {pod} {TAKEN_AWAY[str(reason)]}", f"{pod} {reason}", part, own, True, None, _hosts(part, "node"))
        yield tied(found, _of_pod(job, pod))


def _not_ready(events: pl.DataFrame) -> dict[object, tuple[str, ...]]:
    """Pods of which Kubernetes says that their node is not ready, with that node where it says so of one alone."""
    objects = events.filter(pl.col("reason") == "NodeNotReady")["object"].drop_nulls().unique(maintain_order=True)
    nodes = [name.partition("/")[2] for name in objects if name.lower().startswith("node/")]
    return {name: tuple(nodes) if len(nodes) == 1 else () for name in objects if name.lower().startswith("pod/")}


def _events(events: pl.LazyFrame, own: list[str], ended: set[str], job: Job) -> Iterator[Finding]:
    rows = (
        events.filter(pl.col("reason").is_in([*TAKEN_AWAY, *_NODE_EVENTS]))
        .sort("source_id", "line_no", "record", nulls_last=True)
        .collect()
    )
    gone = _not_ready(rows)
    evicted = set(rows.filter(pl.col("reason") == "TaintManagerEviction")["object"].to_list())
    for (thing, reason), part in rows.group_by("object", "reason", maintain_order=True):
        name = str(thing).partition("/")[2]
        if reason in TAKEN_AWAY and name in ended:
            continue
        if reason == "TaintManagerEviction" and thing in gone:
            # Who is evicted from a node that is not ready has lost that node some minutes before (tolerationSeconds, 300 by default).
            said = f"{thing} was evicted as its node was not ready"
            lost = _finding(said, f"{thing} {reason}", part, own, True, "node-failed", gone[thing])
            yield tied(_with_ranks(lost, job), _of_pod(job, name))
        elif reason in TAKEN_AWAY:
            what = thing or "a pod"
            tie = _of_pod(job, name) if thing else "open"
            yield tied(_finding(f"{what} {TAKEN_AWAY[str(reason)]}", f"{what} {reason}", part, own, True, None, ()), tie)
        elif thing in gone and thing not in evicted:
            lost = _finding(f"the node of {thing} was not ready", f"{thing} {reason}", part, own, True, "node-failed", gone[thing])
            yield tied(_with_ranks(lost, job), _of_pod(job, name))
        elif str(thing).lower().startswith("node/"):
            yield _finding(
                f"node {name} {_NODE_EVENTS[str(reason)]}", f"{thing} {reason}", part, own, True, "node-failed", (name,), weak=True
            )


#: Seconds before the begin of the call that timed out within which a node may have gone, and after which a scheduler misses it.
_GONE_S = 300.0


def _nodes(nodes: pl.LazyFrame, job: Job, job_times: pl.LazyFrame | None, reported: set[int]) -> Iterator[Finding]:
    """Nodes that do not answer or that the scheduler took out: context, unless one of the job's hosts was lost while the job stood, as the
    times say or the job's own launcher, and not all of its ranks told of the failure."""
    frame = nodes.sort("source_id", "line_no", "record", nulls_last=True).collect()
    # A node that started anew, or since when the scheduler misses it.
    again = pl.col("reason").fill_null("").str.contains("(?i)reboot")
    when = frame.with_columns(
        time_raw_ns=pl.when(again).then(pl.coalesce("boot_raw_ns", "reason_raw_ns")).otherwise("reason_raw_ns"),
        time_kind=pl.lit("local-unzoned"),
    )
    stood = while_it_stood(when, job_times, _GONE_S)
    for row, then in zip(frame.iter_rows(named=True), stood, strict=True):
        flags = row["flags"] or []
        down = row["state"] in ("DOWN", "ERROR") or "NOT_RESPONDING" in flags or "FAIL" in flags
        if not down and not row["reason"]:
            continue
        node = str(row["node"])
        few = "GPUs allocatable" in str(row["reason"])
        why = f": {row['reason']}" if row["reason"] else ""
        ranks = job.ranks.get(first_label(node) or "", set())
        # A launcher has daemons on the hosts of its own job alone.
        own = row["tool"] == "mpirun" and (not ranks or bool(ranks - reported))
        lost = down and not few and job.failed and (own or (then and bool(ranks - reported)))
        yield Finding(
            title=f"the {'launcher' if row['tool'] == 'mpirun' else 'scheduler'} has {node} as {row['state'] or 'known'}{''.join('+' + f for f in flags)}{why}",
            summary=("It was lost while the job waited for ranks that ran there." if ranks else "The job's own launcher lost it.")
            if lost
            else "Read at the time of collection; it does not tell when the node went away.",
            cause="gpu-fault" if few else "node-failed",
            severity="critical" if lost else "warning" if down or few else "info",
            confidence="medium" if down or few else "low",
            hosts=(node,),
            ranks=tuple(sorted(ranks)) if lost else (),
            culprits=tuple(Culprit(rank=r, host=node) for r in sorted(ranks)) if lost and ranks else (Culprit(host=node),),
            subject=(node, str(row["state"]), str(row["reason"])),
            evidence=cite([row], "state of the node"),
            remedy=_NODE[0],
            prevention=_NODE[1],
            would_refute=("the node was not part of the job, or was taken out after it",),
            actions=(_look_at(node),),
        )


#: What to do about an end from outside, and what keeps it from costing much, by how it came.
_LIMIT = (
    "Requeue the job from its last checkpoint with more time.",
    "Write a checkpoint on the scheduler's warning signal before the limit.",
)
_ASKED = (
    "Ask whoever ended it why; requeue the job from its last checkpoint.",
    "Write a checkpoint on the signal that comes before the end.",
)
_TAKEN = (
    "Find out why it was taken away (priority, a taint, a resource of the node that ran low); requeue the job from its last checkpoint.",
    "Write a checkpoint on the signal that comes before the end; ask for all that the job uses, local storage and memory among it.",
)
_NODE = (
    "Read the node's kernel log, console and BMC log before it is used again; requeue the job without it.",
    "Drain nodes that the scheduler misses, and write checkpoints often enough to lose one.",
)
_ADVICE = {
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), _LIMIT),
    **dict.fromkeys(("CANCELLED", "SIGTERM", "SIGINT", "SIGHUP"), _ASKED),
}


def _look_at(node: str) -> Action:
    return Action("collect-more", hosts=(node,), command=f"scontrol show node {node}; dmesg -T")


def _hosts(part: pl.DataFrame, column: str) -> tuple[str, ...]:
    return tuple(part[column].drop_nulls().unique(maintain_order=True).to_list())


def _finding(
    title: str,
    subject: str,
    rows: pl.DataFrame,
    own: list[str],
    always: bool,
    cause: str | None,
    hosts: tuple[str, ...],
    *,
    weak: bool = False,
) -> Finding:
    """``always``: a stop that is never an answer to a hang. ``weak``: one that often follows the job's own failure. ``hosts`` are blamed
    where one alone failed."""
    later = bool(own) and not always
    severity: Severity = "info" if later or (weak and own) else "warning" if weak else "critical"
    confidence: Confidence = "low" if later or weak else "medium" if own else "high"
    metrics: Mapping[str, float | int | str | None] = {"rows": rows.height}
    alone = hosts if cause == "node-failed" and len(hosts) == 1 else ()
    remedy, prevention = _NODE if cause == "node-failed" else _ADVICE.get(subject, _TAKEN)
    return Finding(
        title=title,
        summary="The job also shows failures of its own: " + ", ".join(own) + "."
        if own
        else "Nothing of this job is seen to have failed before that.",
        cause=cause,
        severity=severity,
        confidence=confidence,
        hosts=alone,
        culprits=tuple(Culprit(host=host) for host in alone),
        subject=("stopped", subject),
        evidence=cite(rows, "how the scheduler says that it ended"),
        evidence_total=rows.height,
        remedy=remedy,
        prevention=prevention,
        would_refute=("a failure of the job before the stop",),
        actions=(*(_look_at(host) for host in alone), Action("restart_job")),
        metrics=metrics,
    )
