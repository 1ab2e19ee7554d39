"""Evidence that would settle more, most decisive first, with where and how to get it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import polars as pl

from nccl_forensics.conclusions.census import links_told, nameless_dumps, people_of, recorded_ranks, strangers
from nccl_forensics.conclusions.run_outcome import IN_EACH_STEP
from nccl_forensics.conclusions.runs import earlier_jobs
from nccl_forensics.conclusions.verdict import Verdict
from nccl_forensics.facts.collecting import STEPS
from nccl_forensics.model import blamed_by
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.views.deaths import ended_themselves
from nccl_forensics.words import UNIDENTIFIED, ranks_words, verb

#: Rows of a report's lists.
ROWS = 4096
#: Reports of Nsight Systems: since 2021.5, before, and before they are imported.
_NSYS = r"\.(?:nsys-rep|qdrep|qdstrm)$"
#: Causes of which the kernel's log of the hosts tells more than stacks and recorders do.
_OF_MACHINES = frozenset(
    {"gpu-stall", "collective-stuck", "rank-died", "connection-failed", "node-failed", "gpu-fault", "nvlink-fault", "ib-link"}
)
_COLLECT = "nccl-forensics collect -o collect.sh   # then, on the host: sh collect.sh"


def gaps_of(case: Mapping[str, object], resolver: Resolver, verdict: Verdict, outcome: str, store: Store) -> list[dict[str, object]]:
    """Rows of ``gaps``: what, why, ranks, hosts, priority, command."""
    out: list[dict[str, object]] = []

    def gap(what: str, why: str, ranks: Sequence[int] = (), hosts: Sequence[str] = (), command: str | None = None) -> None:
        out.append({"what": what, "why": why, "ranks": list(ranks), "hosts": list(hosts), "priority": len(out) + 1, "command": command})

    named = [] if verdict.root is None else [c.rank for c in blamed_by(verdict.root.finding) if c.rank is not None]
    people = people_of(resolver)
    bare, behind = _without_stacks(resolver, verdict, outcome, named)
    if bare:
        their = verb(bare, "its stack says", "their stacks say")
        gap(
            _stacks(bare),
            f"the verdict names {verb(bare, 'it', 'them')}; {their} where {verb(bare, 'it is', 'they are')}",
            *_beside(bare, people),
        )
    raw_missing = case["ranks_missing"]
    missing = [int(str(r)) for r in raw_missing] if isinstance(raw_missing, list) else []
    paths: dict[int, str] = dict(store.sources.select("source_id", "path").iter_rows())
    nameless = nameless_dumps(resolver)
    if nameless:
        several = len(nameless) > 1
        gap(
            f"the rank{'s' * several} of {f'{len(nameless)} recorder dumps' if several else 'a recorder dump'}",
            f"neither name nor content tells who wrote {paths[nameless[0]]}{f' and {len(nameless) - 1} more' * several}: "
            "PyTorch ends the name of a dump with its rank",
        )
    unknown = max(len(nameless), strangers(resolver))
    if missing and unknown:
        gap(
            f"evidence of {len(missing) - unknown} of these ranks",
            "nothing in the bundle is known to come from them",
            missing,
            (),
            _COLLECT,
        )
    elif missing:
        why = f"nothing in the bundle comes from {verb(missing, 'it', 'them')}"
        gap(f"the logs and dumps of {ranks_words(missing)}", why, missing, (), _COLLECT)
    cut = _copied_in_part(resolver, paths)
    if cut:
        listed = f"{cut[0]}{f' and {len(cut) - 1} more' if len(cut) > 1 else ''}"
        gap(
            f"the rest of {listed}", f"{'it ends' if len(cut) == 1 else 'they end'} amid a line: what was written after that was not copied"
        )
    if behind:
        they = verb(behind, "its stack says where it is", "their stacks say where they are")
        gap(_stacks(behind), f"others wait for {verb(behind, 'it', 'them')}; {they}", *_beside(behind, people))
    silent = [] if nameless else _unrecorded(case, resolver, verdict, missing)
    if silent:
        why = f"the other ranks left theirs; {verb(silent, 'one', 'ranks')} without may have ended before {verb(silent, 'it', 'they')} could write"
        gap(f"the Flight Recorder {verb(silent, 'dump', 'dumps')} of {ranks_words(silent)}", why, silent, _beside(silent, people)[1])
    # Only its name tells a report of Nsight Systems: the format is closed.
    reports = store.sources.filter(pl.col("path").str.contains(_NSYS) & pl.col("records").fill_null(0).eq(0))["path"].sort().to_list()
    if reports:
        listed = f"{reports[0]}{f' and {len(reports) - 1} more' if len(reports) > 1 else ''}"
        name = reports[0].rsplit("/", 1)[-1]
        gap(
            f"an export of {listed}",
            "a report of Nsight Systems can be read by its own tool only; its SQLite export is measured like a trace",
            command=f"nsys export --type sqlite -o {name.rsplit('.', 1)[0]}.sqlite {name}",
        )
    for what, why, ranks, where, how in _not_collected(resolver, paths):
        gap(what, why, ranks, where, how)
    for source, job, line in earlier_jobs(store).head(ROWS).iter_rows():
        gap(
            f"a verdict on Slurm job {job}",
            f"its end stands in {paths[source]}:{line}, before a later start in the same output: what failed up to there is in the tables, and left out here",
            command=f"head -n {line} {shlex.quote(paths[source])} > {job}.out",
        )
    for what, why, command in _kinds(case, resolver, verdict, store.present):
        of_hosts = what.startswith("kernel") and verdict.root is not None
        gap(what, why, (), _hosts(verdict, people) if of_hosts else (), command)
    return out


def _copied_in_part(resolver: Resolver, paths: Mapping[int, str]) -> list[str]:
    """Logs that end amid a line, by path and last line."""
    frame = resolver.get("cut_ends")
    if frame is None:
        return []
    rows = frame.filter(~pl.col("buffer")).sort("source_id").select("source_id", "line_no").collect()
    return [f"{paths[source]}:{line}" for source, line in rows.iter_rows()]


def _not_collected(resolver: Resolver, paths: Mapping[int, str]) -> list[tuple[str, str, list[int], list[str], str | None]]:
    """What our own collection script could not get: what, why, ranks, hosts, and how to get it."""
    frame = resolver.get("not_collected")
    if frame is None:
        return []
    out = []
    for row in frame.head(ROWS).collect().iter_rows(named=True):
        what, command = STEPS.get(row["step"], (row["step"], None))
        why = f"collect could not get it: {row['reason'] or row['status']} ({paths[row['source_id']]}:{row['line_no']})"
        out.append((what, why, list(row["ranks"]), list(row["hosts"]), command))
    return out


def _kinds(case: Mapping[str, object], resolver: Resolver, verdict: Verdict, present: frozenset[str]) -> list[tuple[str, str, str | None]]:
    """Kinds of evidence of which nothing was handed in, and that this job can leave."""
    wanted: list[tuple[str, str, str | None]] = []
    if "fr_entries" not in present:
        command = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/shared/fr_"
        wanted.append(
            ("Flight Recorder dumps of all ranks", "they say which collective each rank is in and from which line of code", command)
        )
    elif _all_empty(resolver):
        why = "all that are there are empty: the recorder was off (it keeps nothing unless told a size, up to PyTorch 2.10), or knows another backend alone"
        wanted.append(("Flight Recorder dumps that hold operations", why, "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"))
    backends = case["backends"]
    # A job that speaks gloo alone never calls NCCL.
    if "nccl_comms" not in present and (not isinstance(backends, list) or not backends or "nccl" in backends):
        command = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,COLL NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log"
        wanted.append(("NCCL debug logs, one file per process", "they show transports, settings, versions and NCCL's own errors", command))
    if "nccl_comms" in present and verdict.status != "explained" and not links_told(resolver):
        what = "NCCL's log with its subsystems ENV, NET and GRAPH"
        why = "only there it says what was set, which adapters it took, and how fast the links are that it found"
        wanted.append((what, why, "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH,COLL NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log"))
    if verdict.status != "explained" and "worker_exits" not in present:
        why = "it says which process ended first, and how: NCCL's own log of a killed one just stops"
        wanted.append(("what the launcher or the scheduler printed", why, None))
    if "stacks" not in present:
        wanted.append(
            ("stacks of all ranks, taken twice", "they tell a hang in the program from one in the transport", "py-spy dump --pid <pid>")
        )
    if "kernel_events" not in present:
        kernel = ("kernel logs of the hosts", "Xid errors, killed processes and link flaps stand there only", "dmesg -T")
        first = verdict.root is not None and verdict.root.finding.cause in _OF_MACHINES
        wanted.insert(0 if first else len(wanted), kernel)
    return wanted


def _all_empty(resolver: Resolver) -> bool:
    """Whether recorders were dumped and none of them holds an operation."""
    dumps = resolver.get("fr_dumps")
    held = dumps.select(pl.col("entries").sum()).collect().item() if dumps is not None else None
    return held == 0


def _without_stacks(resolver: Resolver, verdict: Verdict, outcome: str, named: list[int]) -> tuple[list[int], list[int]]:
    """Ranks of which a stack would tell more: of those that the verdict names, and of others that ranks wait for while it is not sure."""
    blockers = resolver.get("blockers")
    if blockers is None:
        return [], []
    ends = set(blockers.filter(pl.col("rank") < UNIDENTIFIED).select("rank").collect()["rank"].to_list())
    states = resolver.get("thread_states")
    have_stack: set[int] = set()
    if states is not None:
        have_stack = set(states.filter(pl.col("rank").is_not_null()).select("rank").collect()["rank"].to_list())
    sure = bool(named) and verdict.confidence == "high"
    cause = verdict.root.finding.cause if verdict.root is not None else None
    told = {r for r in named if r < UNIDENTIFIED}
    if (outcome == "slow" or (sure and outcome != "hung")) and cause not in ("straggler", *IN_EACH_STEP):
        told = set()  # where the ranks of a wrong setting or a bad part stand tells nothing of it
    settled = have_stack | set(ended_themselves(resolver.get("endings")))
    return sorted(told - settled), [] if sure else sorted(ends - told - settled)


def _unrecorded(case: Mapping[str, object], resolver: Resolver, verdict: Verdict, missing: Sequence[int]) -> list[int]:
    """Ranks that left other evidence and no dump of their recorder, where at least two others left theirs and the verdict is not sure; none
    that is known to have ended by itself."""
    own, world = recorded_ranks(resolver), case["world_size"]
    if len(own) < 2 or not isinstance(world, int) or world > 1_000_000 or verdict.confidence == "high":
        return []
    return sorted(set(range(world)) - own - set(missing) - set(ended_themselves(resolver.get("endings"))))


def _stacks(ranks: Sequence[int]) -> str:
    return f"{verb(ranks, 'a stack', 'stacks')} of {ranks_words(ranks)}"


def _beside(ranks: Sequence[int], people: Mapping[int, Mapping[str, object]]) -> tuple[Sequence[int], list[str], str]:
    """The ranks, their hosts, and the command to run beside the first one of which the process is known."""
    known = [people[r] for r in ranks if r in people]
    pids = [str(p["pid"]) for p in known if p["pid"]]
    command = f"py-spy dump --pid {pids[0]}" if len(ranks) == len(pids) == 1 else "py-spy dump --pid <pid of the rank>"
    return ranks, sorted({str(p["host"]) for p in known if p["host"]}), command


def _hosts(verdict: Verdict, people: Mapping[int, Mapping[str, object]]) -> list[str]:
    """Hosts of whom the verdict blames."""
    culprits = blamed_by(verdict.root.finding) if verdict.root is not None else ()
    own = {c.host or (people.get(c.rank, {}).get("host") if c.rank is not None else None) for c in culprits}
    return sorted(str(h) for h in own if h)
