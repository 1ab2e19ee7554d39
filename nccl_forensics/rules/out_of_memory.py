"""Memory ran out: the kernel killed a process of the job, or a GPU had no memory left.

## What it finds
Kills by the kernel's out-of-memory killer with process, cgroup limit and what the memory was, kills that Slurm reports, workers that
Ray's memory monitor ended, and ranks that CUDA or NCCL refused memory.

## Why it matters
All others wait for the dead rank until a timeout that says nothing of memory. A kill leaves no trace in the rank's own log.

## What would refute it
The killed process has nothing to do with the job, or the kill came after the job had already stopped.

## What to do next
Host memory: raise the limit of the cgroup or shrink data loader workers and shared memory. GPU memory: smaller batches, or look for
what else is on the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from nccl_forensics.evidence import cite, words_of_exception
from nccl_forensics.frames import has_rows, values_in
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, given, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import EXPLAINS_STOP, People, located, people, ranks_of, timely, untimely_finding
from nccl_forensics.rules.common.thresholds import ZONES_H, AroundHours
from nccl_forensics.rules.common.ties import Job, Tie, job_of, tied
from nccl_forensics.views.raised import lived_on
from nccl_forensics.views.tasks import rank_of_task
from nccl_forensics.words import first_label, ranks_words

#: Names of processes that train (the kernel cuts names at 15 characters).
_TRAINERS = (
    "python",
    "pt_main_thread",
    "pt_data_worker",
    "pt_",
    "ray::",
    "torchrun",
    "node_agent",
    "mpirun",
    "orted",
    "slurmstepd",
    "prted",
)
_GIB_KB = 1 << 20
#: What kubectl calls a pod that ended in good order, as its status, phase and reason.
_WELL = ("Completed", "Succeeded")
#: Namespaces of the cluster's own pods.
_SYSTEM = re.compile(r"^kube-|(?:^|-)(?:system|monitoring|operator|logging|observability)$")
#: The kernel's words in an OOMKilling event, and the kubelet's in a SystemOOM.
_VICTIM = re.compile(r"Killed process (\d{1,10}) \(([^()]{1,40})\)|victim process: ([^,\s]{1,40}), pid: (\d{1,10})")
_WORKERS = r"DataLoader worker \(pid(?:\(s\))? [0-9, ]{1,200}\)"
#: How Slurm names a job, or a step of it, in what srun and slurmstepd say.
_STEP = r"\b(?:StepId=|STEP |JOB )(\d+)"
#: Batch systems that watch the memory of a job and kill it themselves.
_OWN_KILL = r"PBS: job killed: |TERM_[A-Z]+: job killed "
_GPU_OOM = (
    r"(?i)cuda.{0,40}out of memory|out of memory.{0,40}cuda|HIP.{0,20}out of memory|CUBLAS_STATUS_ALLOC_FAILED|Failed to CUDA [a-z ]*alloc"
)
#: The process that the kernel took, or, where a log breaks off before it says so, the one that asked for memory.
_TAKEN = pl.coalesce("comm", "invoked_by", pl.lit(""))
_HOST_OOM = r"(?i)Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: can't allocate|node running low on memory|^MemoryError|Failed to (?:m?alloc|allocate) "


@rule(
    name="out-of-memory",
    code="ME01",
    cause="out-of-memory",
    severity="critical",
    at_most=32,
    explains=(*EXPLAINS_STOP, "input-stall", "gpu-fault"),
)
def out_of_memory(
    oom_kills: pl.LazyFrame | None,
    kernel_events: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    pods: pl.LazyFrame | None,
    pod_events: pl.LazyFrame | None,
    raised: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    scheduler_jobs: pl.LazyFrame | None = None,
    *,
    window_h: AroundHours = ZONES_H,
) -> Iterator[Finding]:
    """Kills by the kernel first, then what Kubernetes says of its pods, then ranks that say so themselves."""
    who = people(processes)
    proved = False
    if oom_kills is not None:
        rows = located(oom_kills, source_hosts)
        inside = timely(rows, job_times, window_h)
        for finding in _kills(
            rows.filter(inside),
            who,
            _mourned(raised),
            _killed_tasks(worker_exits, processes),
            job_of(job_signs, job_times, failures),
            _numbers(scheduler_jobs, worker_exits),
        ):
            proved = proved or finding.severity == "critical"
            yield finding
        if not inside.all():
            yield untimely_finding(rows.filter(~inside), "out-of-memory kills")
    if kernel_events is not None:
        rows = located(kernel_events.filter(pl.col("kind") == "page-allocation"), source_hosts)
        yield from _short(rows.filter(timely(rows, job_times, window_h)))
    if worker_exits is not None:
        yield from _scheduler(worker_exits, processes)
        yield from _monitor(worker_exits, who)
    if scheduler_jobs is not None:
        told = [replace(f, severity="info") if proved else f for f in _accounted(scheduler_jobs, job_of(job_signs, job_times, failures))]
        proved = proved or any(f.severity == "critical" for f in told)
        yield from told
    if pods is not None:
        told = [replace(f, severity="info") if proved else f for f in _pods(pods, who, failed=has_rows(failures))]
        proved = proved or any(f.severity == "critical" for f in told)
        yield from told
    if pod_events is not None:
        # Kernel, kubelet and an agent may tell of one kill: the first of them that is handed in is the cause.
        yield from (replace(f, severity="info") if proved else f for f in _pod_events(pod_events, who))
    if raised is not None:
        yield from _told(raised, known_ranks=processes is not None)


def _mourned(raised: pl.LazyFrame | None) -> dict[int, set[int]]:
    """Processes of which the job itself says that they were killed, and the ranks that say so: workers of data loaders
    (torch/utils/data/_utils/signal_handling.py)."""
    if raised is None:
        return {}
    said = raised.filter(pl.col("signature") == "worker-killed").select("rank", said=pl.col("message").str.extract_all(_WORKERS))
    out: dict[int, set[int]] = {}
    for rank, found in said.drop_nulls("said").collect().iter_rows():
        for pid in (pid for text in found for pid in re.findall(r"\d+", text)):
            out.setdefault(int(pid), set()).update([] if rank is None else [rank])
    return out


def _victim(host: object, pid: int, who: People, mourned: dict[int, set[int]]) -> Culprit:
    """The killed process with its rank: its own, or that of the one process of this host that lost it as a worker."""
    rank, there = who.of_pid(host, pid), set(who.of_host(host))
    if rank is None:
        parents = mourned.get(pid, set()) & there if there else mourned.get(pid, set())
        rank = min(parents) if len(parents) == 1 else None
    return Culprit(rank=rank, host=name_of(host), pid=pid)


def _killed_tasks(exits: pl.LazyFrame | None, processes: pl.LazyFrame | None) -> dict[str, int]:
    """The one rank of each host that a launcher found killed, or whose task the scheduler did, where it was not what killed most of the
    tasks."""
    if exits is None:
        return {}
    rows = exits.sort("source_id", "line_no").collect()
    tasks = rows.filter(pl.col("kind") == "task")
    killed = tasks.filter((pl.col("signal") == "SIGKILL") | pl.col("message").str.contains("Out Of Memory", literal=True))
    named = rows.filter(pl.col("kind").is_in(["failure", "root-cause"]) & (pl.col("signal") == "SIGKILL") & pl.col("rank").is_not_null())
    if killed.height * 2 > max(tasks.height, 2):
        killed = killed.clear()
    of_task = rank_of_task(rows, processes)
    ranks: dict[str, set[int | None]] = {}
    for host, rank in named.filter(pl.col("host").is_not_null()).select("host", "rank").iter_rows():
        ranks.setdefault(str(host), set()).add(rank)
    for row in killed.filter(pl.col("host").is_not_null()).iter_rows(named=True):
        ranks.setdefault(str(row["host"]), set()).add(of_task(row["rank"], row["host"]))
    return {host: one for host, found in ranks.items() if len(found) == 1 and (one := next(iter(found))) is not None}


def _numbers(jobs: pl.LazyFrame | None, exits: pl.LazyFrame | None) -> frozenset[str]:
    """Numbers of the scheduler's jobs that the evidence tells of; none where one is of an array or has parts, of which cgroups bear other
    numbers."""
    told = values_in(jobs, "job_id")
    if exits is not None:
        said = exits.select(pl.col("message").fill_null("").str.extract(_STEP)).drop_nulls().collect()
        told |= set(said.to_series().to_list())
    return frozenset(str(t) for t in told) if all(str(t).isdigit() for t in told) else frozenset()


def _kills(
    rows: pl.DataFrame, who: People, mourned: dict[int, set[int]], tasks: dict[str, int], job: Job, numbers: frozenset[str]
) -> Iterator[Finding]:
    """``tasks``: of each host the one rank that the scheduler found killed; ``numbers``: of the job, and others of a listing."""
    # A log that breaks off before the kill tells only who asked for memory.
    by_job = pl.any_horizontal(_TAKEN.str.starts_with(name) for name in _TRAINERS)
    cgroup = pl.coalesce("memcg", "task_memcg", pl.lit(""))
    slurm = cgroup.str.contains(r"job_?\d+|slurm")
    another = ~cgroup.str.extract(r"/job_(\d+)(?:/|$)").is_in(list(numbers)).fill_null(value=True) if numbers else pl.lit(value=False)
    rows = rows.with_columns(trainer=((by_job | slurm) & ~another) | pl.col("pid").is_in(list(mourned)).fill_null(value=False))
    for (host, trainer), part in rows.group_by("host", "trainer", maintain_order=True):
        culprits = tuple(_victim(host, pid, who, mourned) for pid in part["pid"].drop_nulls().unique(maintain_order=True).to_list())
        if trainer and len(culprits) == 1 and culprits[0].rank is None and str(host) in tasks:
            # One process of the job was killed on this host, and one task of it ended so.
            culprits = (replace(culprits[0], rank=tasks[str(host)]),)
        ranks = ranks_of(culprits)
        ours = bool(trainer) or bool(ranks)
        first = part.row(0, named=True)
        pids = part["pid"].drop_nulls().to_list()
        tie: Tie = "own" if ranks or not mourned.keys().isdisjoint(pids) or not ours else job.tie(part, host, pids=pids, takes=True)
        if tie == "open" and not part.select(by_job).to_series().any():
            tie = "doubtful"  # it bears no name of a job's process, and only that some job of the scheduler had it
        names = sorted({n for n in part.select(_TAKEN).to_series().to_list() if n})
        severity: Severity = "critical" if ours else "warning"
        confidence: Confidence = "high" if ranks or (ours and first["anon_kb"] is not None) else "medium" if ours else "low"
        what = ranks_words(ranks) if ranks else f"{', '.join(names[:3]) or 'a process'} (pid {', '.join(str(c.pid) for c in culprits[:4])})"
        does = f"the kernel killed {what}" if culprits else f"the kernel had to kill for memory when {', '.join(names[:3])} asked for some"
        shared = max((int(s) for s in part["shmem_kb"].drop_nulls().to_list()), default=0)
        yield tied(
            Finding(
                title=f"{does}{f' on {host}' if host else ''}: {_limit_words(first)}",
                summary=f"{_size_words(first)}"
                + (f" {shared / _GIB_KB:.1f} GiB of it were shared memory (/dev/shm)." if shared > _GIB_KB else "")
                + ("" if ours else " The process does not look like one of the job."),
                severity=severity,
                confidence=confidence,
                ranks=ranks,
                hosts=names_of(host),
                culprits=culprits,
                subject=(str(host or ""), *names, str(first["constraint"] or "")),
                evidence=cite(part, "the kernel's out-of-memory kill"),
                evidence_total=part.height,
                remedy="Raise the memory limit of the job"
                + (f" (cgroup {first['memcg']})" if first["memcg"] else "")
                + ", or use less: fewer data loader workers, no copies of the data set per worker, smaller pinned buffers.",
                prevention="Watch memory.current of the job's cgroup; leave headroom for checkpoints.",
                would_refute=("the kill came after the job had stopped", "the killed process is not one of the job"),
                actions=(Action("raise_memory_limit", hosts=names_of(host), ranks=ranks, confidence=confidence),),
                metrics={"kills": part.height, "anon_kb": first["anon_kb"], "limit_kb": first["limit_kb"]},
            ),
            tie,
        )


def _scheduler(exits: pl.LazyFrame, processes: pl.LazyFrame | None) -> Iterator[Finding]:
    """Slurm counts the kernel's kills in the step's cgroup (slurmstepd, ``oom_kill event``), and srun names tasks that ended by one; PBS
    and LSF kill by themselves. Where launchers speak, a task of the scheduler is a launcher and no rank."""
    rows = exits.sort("source_id", "line_no").collect()
    told = rows.filter(pl.col("kind") == "scheduler-oom")
    tasks = rows.filter(pl.col("kind") == "task")
    named = tasks.filter(pl.col("message").str.contains("Out Of Memory", literal=True))
    if not told.height and not named.height:
        return
    sure = named.height > 0
    if not sure:  # the tasks that somebody killed, unless that is nearly all of them: then the scheduler did
        killed = tasks.filter(pl.col("signal") == "SIGKILL")
        named = killed if killed.height * 2 <= tasks.height else killed.clear()
    of_task = rank_of_task(rows, processes)
    culprits = tuple(
        Culprit(rank=of_task(row["rank"], row["host"]), host=row["host"])
        for row in named.unique(["rank", "host"], maintain_order=True).iter_rows(named=True)
    )
    ranks, hosts = ranks_of(culprits), tuple(dict.fromkeys(c.host for c in culprits if c.host))
    words = ranks_words(ranks) if ranks else f"a process on {', '.join(hosts[:4])}" if hosts else "a process of the job"
    killer = "the scheduler" if told.height and told["message"].str.contains(_OWN_KILL).all() else "the kernel"
    yield Finding(
        title=f"{killer} killed {words}"
        + (f" on {', '.join(hosts[:4])}" if ranks and hosts else "")
        + (": it met its memory limit" if killer == "the scheduler" else ": the scheduler met its memory limit"),
        summary=f'The scheduler wrote: "{(told if told.height else named)["message"][0]}". What it cancels after that follows from it.',
        confidence="high" if sure else "medium",
        ranks=ranks,
        hosts=hosts,
        culprits=culprits,
        subject=("scheduler-oom", *hosts),
        evidence=(*cite(told, "the scheduler's count of kills"), *cite(named, "a task that was killed")),
        evidence_total=told.height + named.height,
        remedy="Ask for more memory (--mem, --mem-per-gpu), or use less: fewer data loader workers, no copies of the data set per worker.",
        prevention="Watch memory.current of the job's cgroup; leave headroom for checkpoints.",
        would_refute=("the killed process is not one that the job needs",),
        actions=(Action("raise_memory_limit", hosts=hosts, ranks=ranks, command="sacct -j <job> -o JobID,MaxRSS,ReqMem,State"),),
    )


def _accounted(jobs: pl.LazyFrame, job: Job) -> Iterator[Finding]:
    """Jobs that the scheduler's accounting has as out of memory; of a listing of several, or of other hosts, it is not known which it is."""
    listed = jobs.filter(pl.col("step").is_null()).sort("source_id", "line_no", "record", nulls_last=True).collect()
    for (number,), part in listed.filter(pl.col("state") == "OUT_OF_MEMORY").group_by("job_id", maintain_order=True):
        nodes = {first_label(node) for of in part["nodes"].drop_nulls().to_list() for node in of}
        elsewhere = bool(nodes) and bool(job.ranks) and nodes.isdisjoint(job.ranks)
        finding = Finding(
            title=f"job {number} ran out of memory, as the scheduler's accounting says",
            summary="A process of one of its steps was killed at the limit of its cgroup; the kernel log of the node tells which.",
            confidence="medium",
            subject=("accounting", str(number)),
            evidence=cite(part, "state of the job"),
            evidence_total=part.height,
            remedy="Ask for more memory (--mem, --mem-per-gpu), or use less: fewer data loader workers, no copies of the data set per worker.",
            prevention="Log the resident memory of every rank and its data loader workers, and compare it with the job's limit.",
            would_refute=("it is another job", "the killed process is not one that the job needs"),
            actions=(Action("raise_memory_limit", command="sacct -j <job> -o JobID,MaxRSS,ReqMem,State"),),
        )
        several = listed["job_id"].n_unique() > 1
        yield tied(finding, "apart" if elsewhere or (several and not job.failed) else "doubtful" if several else "own", "critical")


def _monitor(exits: pl.LazyFrame, who: People) -> Iterator[Finding]:
    """Ray's memory monitor ends workers before the kernel would; its raylet tells how many, in newer releases also which process."""
    rows = exits.filter(pl.col("kind") == "memory-monitor").sort("source_id", "line_no").collect()
    if not rows.height:
        return
    ended = dict.fromkeys((host, pid) for host, pid in rows.select("host", "pid").iter_rows() if pid is not None)
    culprits = tuple(Culprit(rank=who.of_pid(host, pid), host=host, pid=pid) for host, pid in ended)
    hosts = tuple(rows["host"].drop_nulls().unique(maintain_order=True).to_list())
    ranks = ranks_of(culprits)
    what = ranks_words(ranks) if ranks else "workers"
    where = f" on {', '.join(hosts[:4])}" if hosts else ""
    yield Finding(
        title=f"Ray killed {what}{where}: the host was running out of memory",
        summary=f'Ray wrote: "{str(rows["message"][0])[:300]}".',
        confidence="high" if ranks else "medium",
        ranks=ranks,
        hosts=hosts,
        culprits=culprits or tuple(Culprit(host=host) for host in hosts),
        subject=("memory-monitor", *hosts),
        evidence=cite(rows, "what Ray's memory monitor did"),
        evidence_total=rows.height,
        remedy="Give the host more memory, or use less: fewer workers per host, more CPUs per task, smaller batches of objects, no offload to the host.",
        prevention="Watch the host's memory; RAY_memory_usage_threshold says at which share Ray begins to kill.",
        would_refute=("the killed workers are not those that the job needs", "Ray started them again and the job went on"),
        actions=(Action("raise_memory_limit", hosts=hosts, ranks=ranks, command="ray logs raylet.out --node-ip HOST"),),
    )


def _pods(pods: pl.LazyFrame, who: People, *, failed: bool) -> Iterator[Finding]:
    """Pods whose container the kubelet saw killed for memory. One of a system namespace, one that is no host of the job's known ranks nor a
    sibling of their pods, one that has been started again since, and one beside the pods of another workload that all completed, in a job
    that shows no failure, do not explain a stop by themselves."""
    killed = pods.filter((pl.col("reason") == "OOMKilled") | (pl.col("status") == "OOMKilled"))
    rows = killed.sort("source_id", "line_no", "record", nulls_last=True).collect()
    everyone = pods.select("pod", "node").unique().collect().rows()
    # Ranks of a pod that has the host's network know the node's name.
    on_nodes = {_workload(pod) for pod, node in everyone if who.of_host(node)} - {None}
    in_pods = {_workload(pod) for pod, _ in everyone if who.of_host(pod)} - {None}
    well = set() if failed else _completed(pods)
    for (namespace, pod), part in rows.group_by("namespace", "pod", maintain_order=True):
        ranks = who.of_host(pod)
        node = next((n for n in part["node"].to_list() if n), None)
        of_node = bool(node) and not ranks and (bool(who.of_host(node)) or _workload(pod) in on_nodes)
        strange = bool(who.hosts) and not ranks and not of_node and _workload(pod) not in in_pods
        strange = strange or bool(well - {_family(pod)})
        system = _SYSTEM.search(str(namespace or "")) is not None
        again = bool(part["last"].fill_null(False).all()) and not ranks
        ours = not (strange or system or again)
        behind = f" ({ranks_words(ranks)})" if ranks else ""
        yield _pod_finding(
            f"the container of pod {pod}{behind}{f' on {node}' if node else ''} was killed: its memory limit was met (OOMKilled)",
            "The kubelet names a process of the container, which may be a data loader; the kernel log of the node tells which and how much it held."
            + (" It has been started again since." if again else "")
            + (" Nothing ties the pod to the ranks of the job." if strange or system else ""),
            part,
            (str(node if of_node else pod or ""),),
            ranks,
            ours,
        )


def _completed(pods: pl.LazyFrame) -> set[str]:
    """Workloads of several pods that all came to their end in good order."""
    ends: dict[str, list[bool]] = {}
    for pod, status, reason in pods.select("pod", "status", "reason").unique().collect().iter_rows():
        ends.setdefault(_family(pod), []).append(status in _WELL or reason in _WELL)
    return {name for name, well in ends.items() if len(well) > 1 and all(well)}


def _family(pod: object) -> str:
    """The name of a pod up to its first hyphen: leaders and workers of one workload bear it."""
    return str(pod or "").partition("-")[0]


def _workload(pod: object) -> str | None:
    """The name of a pod without its number among the pods of one workload; None of one that has none."""
    name = str(pod or "")
    return name.rstrip("0123456789") if name[-1:].isdigit() else None


def _pod_events(events: pl.LazyFrame, who: People) -> Iterator[Finding]:
    """Kills that an agent on the node reported as events (node-problem-detector's OOMKilling, the kubelet's SystemOOM)."""
    rows = (
        events.filter(pl.col("reason").is_in(["OOMKilling", "SystemOOM"])).sort("source_id", "line_no", "record", nulls_last=True).collect()
    )
    for (where,), part in rows.group_by("object", maintain_order=True):
        node = str(where or "").rpartition("/")[2] or None
        found = _VICTIM.search(str(part["message"][0] or ""))
        name, pid = (found[2] or found[3], int(found[1] or found[4])) if found else (None, None)
        rank = who.of_pid(node, pid)
        ranks = given(rank)
        ours = bool(ranks) or str(name or "").startswith(_TRAINERS)
        yield _pod_finding(
            f"the kernel killed {name or 'a process'}{f' (pid {pid})' if pid else ''}{f' on {node}' if node else ''}: {part['reason'][0]}",
            f'The event says: "{str(part["message"][0] or "")[:200]}".'
            + ("" if ours else " The process does not look like one of the job."),
            part,
            names_of(node),
            ranks,
            ours,
        )


def _pod_finding(title: str, summary: str, rows: pl.DataFrame, hosts: tuple[str, ...], ranks: tuple[int, ...], ours: bool) -> Finding:
    return Finding(
        title=title,
        summary=summary,
        severity="critical" if ours else "warning",
        confidence="medium" if ours else "low",
        ranks=ranks,
        hosts=hosts,
        culprits=tuple(Culprit(rank=r, host=h) for h in hosts for r in (ranks or (None,))) if ours else (),
        subject=("kubernetes", *hosts),
        evidence=cite(rows, "what Kubernetes says"),
        evidence_total=rows.height,
        remedy="Raise the memory limit of the pod (resources.limits.memory), or use less: fewer data loader workers, smaller pinned buffers.",
        prevention="Watch container_memory_working_set_bytes of the job's pods; leave headroom for checkpoints.",
        would_refute=("the kill came after the job had stopped", "the pod is not one of the job"),
        actions=(
            Action(
                "raise_memory_limit", hosts=hosts, ranks=ranks, command="kubectl describe pod POD", confidence="medium" if ours else "low"
            ),
        ),
    )


def _short(rows: pl.DataFrame) -> Iterator[Finding]:
    """Pages that the kernel could not find: the host is short of memory, or of memory in one piece; a sign of slowness, not of an end."""
    for (host,), part in rows.group_by("host", maintain_order=True):
        hosts = names_of(host)
        order = max(part["value"].drop_nulls().to_list(), default=None)
        yield Finding(
            title=f"the kernel{f' of {host}' if host else ''} found no free pages {part.height} time{'s' if part.height > 1 else ''}",
            summary=(
                f"The largest it looked for were of order {order:g} (2 to the power of it, in one piece). " if order is not None else ""
            )
            + "A host that looks for memory is slow; drivers may fail to register buffers.",
            severity="warning",
            confidence="low",
            hosts=hosts,
            culprits=(Culprit(host=name_of(host)),),
            subject=(str(host or ""), "page-allocation"),
            evidence=cite(part, "allocation that failed"),
            evidence_total=part.height,
            remedy="Leave more memory free (vm.min_free_kbytes), and see what fills the page cache.",
            would_refute=("the lines are older than the job",),
            actions=(Action("raise_memory_limit", hosts=hosts, command="free -g; cat /proc/buddyinfo"),),
        )


def _limit_words(row: dict[str, object]) -> str:
    constraint = str(row["constraint"] or "")
    if constraint == "CONSTRAINT_MEMCG":
        limit = row["limit_kb"]
        return "the memory limit of its cgroup was met" + (f" ({int(str(limit)) / _GIB_KB:.1f} GiB)" if limit is not None else "")
    if constraint == "CONSTRAINT_NONE":
        return "the host ran out of memory"
    if constraint in ("CONSTRAINT_CPUSET", "CONSTRAINT_MEMORY_POLICY"):
        return "its NUMA nodes ran out of memory while others may have had some"
    return "out of memory"


def _size_words(row: dict[str, object]) -> str:
    anon = row["anon_kb"]
    return (
        f"It held {int(str(anon)) / _GIB_KB:.1f} GiB of its own memory." if anon is not None else "The log does not say how much it held."
    )


def _told(raised: pl.LazyFrame, *, known_ranks: bool) -> Iterator[Finding]:
    """Memory refused in the text of processes. Where processes are known, the ends of the ranks are judged by a rule of their own, though
    not what ended a thread of theirs. Whoever looks for the largest batch that fits is refused memory, and goes on."""
    raised = raised.filter(~lived_on())
    for on_gpu in (True, False):
        seen: dict[object, dict[str, object]] = {}
        if on_gpu:
            says = pl.col("message").str.contains(_GPU_OOM) | (pl.col("signature").fill_null("") == "cuda-oom")
        else:
            # Registration of memory and shared memory have rules of their own.
            says = pl.col("message").str.contains(_HOST_OOM) | (pl.col("type").fill_null("") == "MemoryError")
            says = says & ~pl.col("message").str.contains("ibv_|/dev/shm|shared memory")
        for row in raised.filter(says).sort("source_id", "line_no").collect().iter_rows(named=True):
            rank = row["rank"]
            if rank is not None and known_ranks and row["kind"] != "thread":
                continue
            own = row | {"host": row["hint_host"], "holds": words_of_exception(row)}
            seen.setdefault(rank if rank is not None else ("source", row["source_id"]), own)
        if not seen:
            continue
        rows = [seen[k] for k in sorted(seen, key=lambda k: str(k).zfill(9))]
        culprits = tuple(Culprit(rank=_int(r["rank"]), host=_text(r["host"]), pid=_int(r["pid"])) for r in rows)
        ranks = ranks_of(culprits)
        names = ranks_words(ranks) if ranks else "a rank that the evidence does not name"
        message = str(rows[0]["message"] or "").split("\n", 1)[0][:200]
        yield Finding(
            title=f"{'GPU' if on_gpu else 'host'} memory ran out on {names}",
            summary=f'The first message says: "{message}".',
            confidence="high" if ranks and not all(r["kind"] == "thread" for r in rows) else "medium",
            ranks=ranks,
            culprits=culprits,
            subject=("gpu" if on_gpu else "host",),
            evidence=cite(rows, "memory was refused"),
            evidence_total=len(rows),
            remedy="Smaller batches or activation checkpointing; look for other processes on the GPU (nvidia-smi); NCCL itself needs some "
            "hundred MiB per communicator."
            if on_gpu
            else "Give the job more host memory, or use fewer data loader workers.",
            prevention="Log torch.cuda.max_memory_allocated() per step and leave headroom for NCCL's buffers.",
            would_refute=("the message was caught and the rank went on",),
            actions=(Action("fix-code" if on_gpu else "raise_memory_limit", ranks=ranks),),
        )


def _int(value: object) -> int | None:
    return int(str(value)) if value is not None else None


def _text(value: object) -> str | None:
    return str(value) if value is not None else None
