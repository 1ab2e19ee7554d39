"""Evidence that would settle more, most decisive first, with where and how to get it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from nccl_forensics.conclusions.census import nameless_dumps, people_of, recorded_ranks, strangers
from nccl_forensics.conclusions.grounds import links_told
from nccl_forensics.conclusions.run_outcome import IN_EACH_STEP
from nccl_forensics.conclusions.runs import earlier_jobs
from nccl_forensics.conclusions.verdict import Verdict
from nccl_forensics.facts.collecting import STEPS
from nccl_forensics.frames import ranks_in
from nccl_forensics.model import blamed_by
from nccl_forensics.store import Store
from nccl_forensics.values.ranklist import MOST_RANKS
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
#: Of a device that is at fault, the table that its own tool fills, what that is, why it is wanted, and the command.
_STATES = {
    "gpu-fault": (
        "gpus",
        "what the driver says of the GPUs",
        "memory errors, remapped rows and the action that it asks for tell a reset from a replacement",
        "nvidia-smi -q",
    ),
    "nvlink-fault": (
        "nvlink_counters",
        "the error counters of the NVLinks",
        "they tell which end of a link is ill",
        "nvidia-smi nvlink -e",
    ),
    "ib-link": ("ib_ports", "the state of the ports", "state, width and speed tell a cable from what stood behind it", "ibstat"),
}
_COLLECT = "nccl-forensics collect -o collect.sh   # then, on the host: sh collect.sh"


@dataclass(frozen=True, slots=True)
class _Gap:
    """What would settle more, why, of whom, and how to get it."""

    what: str
    why: str
    ranks: Sequence[int] = ()
    hosts: Sequence[str] = ()
    command: str | None = None


_People = Mapping[int, Mapping[str, object]]


def gaps_of(case: Mapping[str, object], resolver: Resolver, verdict: Verdict, outcome: str, store: Store) -> list[dict[str, object]]:
    """Rows of ``gaps``: what, why, ranks, hosts, priority, command."""
    named = [] if verdict.root is None else [c.rank for c in blamed_by(verdict.root.finding) if c.rank is not None]
    people = people_of(resolver)
    bare, behind = _without_stacks(resolver, verdict, outcome, named)
    listed = case["ranks_missing"]
    missing = [int(str(r)) for r in listed] if isinstance(listed, list) else []
    paths: dict[int, str] = dict(store.sources.select("source_id", "path").iter_rows())
    nameless = nameless_dumps(resolver)
    found = (
        *_stacks(bare, people, f"the verdict names {verb(bare, 'it', 'them')}", verb(bare, "it is", "they are")),
        *_names(nameless, paths),
        *_missing(missing, max(len(nameless), strangers(resolver))),
        *_cut(_copied_in_part(resolver, paths)),
        *_stacks(behind, people, f"others wait for {verb(behind, 'it', 'them')}", verb(behind, "it is", "they are")),
        *_dumps([] if nameless else _unrecorded(case, resolver, verdict, missing), people),
        *_exports(store),
        *_not_collected(resolver, paths),
        *_earlier(store, paths),
        *_kinds(case, resolver, verdict, store.present, people),
    )
    return [
        {"what": g.what, "why": g.why, "ranks": list(g.ranks), "hosts": list(g.hosts), "priority": n, "command": g.command}
        for n, g in enumerate(found, start=1)
    ]


def _more(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


def _names(dumps: Sequence[int], paths: Mapping[int, str]) -> Iterator[_Gap]:
    if dumps:
        several = len(dumps) > 1
        yield _Gap(
            f"the rank{'s' * several} of {f'{len(dumps)} recorder dumps' if several else 'a recorder dump'}",
            f"neither name nor content tells who wrote {_more([paths[source] for source in dumps])}: PyTorch ends the name of a dump with its rank",
        )


def _missing(ranks: list[int], unknown: int) -> Iterator[_Gap]:
    """Ranks of which nothing is known to come; ``unknown``: sources that may be theirs."""
    if ranks and unknown:
        why = "nothing in the bundle is known to come from them"
        yield _Gap(f"evidence of {len(ranks) - unknown} of these ranks", why, ranks, (), _COLLECT)
    elif ranks:
        why = f"nothing in the bundle comes from {verb(ranks, 'it', 'them')}"
        yield _Gap(f"the logs and dumps of {ranks_words(ranks)}", why, ranks, (), _COLLECT)


def _cut(ends: Sequence[str]) -> Iterator[_Gap]:
    if ends:
        they = "it ends" if len(ends) == 1 else "they end"
        yield _Gap(f"the rest of {_more(ends)}", f"{they} amid a line: what was written after that was not copied")


def _stacks(ranks: Sequence[int], people: _People, why: str, where: str) -> Iterator[_Gap]:
    if ranks:
        what = f"{verb(ranks, 'a stack', 'stacks')} of {ranks_words(ranks)}"
        yield _Gap(what, f"{why}; {verb(ranks, 'its stack says', 'their stacks say')} where {where}", *_beside(ranks, people))


def _dumps(silent: Sequence[int], people: _People) -> Iterator[_Gap]:
    if silent:
        one, it = verb(silent, "one", "ranks"), verb(silent, "it", "they")
        why = f"the other ranks left theirs; {one} without may have ended before {it} could write"
        what = f"the Flight Recorder {verb(silent, 'dump', 'dumps')} of {ranks_words(silent)}"
        yield _Gap(what, why, silent, _beside(silent, people)[1])


def _exports(store: Store) -> Iterator[_Gap]:
    """Only its name tells a report of Nsight Systems: the format is closed."""
    reports = store.sources.filter(pl.col("path").str.contains(_NSYS) & pl.col("records").fill_null(0).eq(0))["path"].sort().to_list()
    if reports:
        name = reports[0].rsplit("/", 1)[-1]
        yield _Gap(
            f"an export of {_more(reports)}",
            "a report of Nsight Systems can be read by its own tool only; its SQLite export is measured like a trace",
            command=f"nsys export --type sqlite -o {name.rsplit('.', 1)[0]}.sqlite {name}",
        )


def _earlier(store: Store, paths: Mapping[int, str]) -> Iterator[_Gap]:
    for source, job, line in earlier_jobs(store).head(ROWS).iter_rows():
        yield _Gap(
            f"a verdict on Slurm job {job}",
            f"its end stands in {paths[source]}:{line}, before a later start in the same output: what failed up to there is in the tables, and left out here",
            command=f"head -n {line} {shlex.quote(paths[source])} > {job}.out",
        )


def _copied_in_part(resolver: Resolver, paths: Mapping[int, str]) -> list[str]:
    """Logs that end amid a line, by path and last line."""
    frame = resolver.get("cut_ends")
    if frame is None:
        return []
    rows = frame.filter(~pl.col("buffer")).sort("source_id").select("source_id", "line_no").collect()
    return [f"{paths[source]}:{line}" for source, line in rows.iter_rows()]


def _not_collected(resolver: Resolver, paths: Mapping[int, str]) -> Iterator[_Gap]:
    """What our own collection script could not get."""
    frame = resolver.get("not_collected")
    for row in frame.head(ROWS).collect().iter_rows(named=True) if frame is not None else ():
        what, command = STEPS.get(row["step"], (row["step"], None))
        why = f"collect could not get it: {row['reason'] or row['status']} ({paths[row['source_id']]}:{row['line_no']})"
        yield _Gap(what, why, row["ranks"], row["hosts"], command)


def _kinds(case: Mapping[str, object], resolver: Resolver, verdict: Verdict, present: frozenset[str], people: _People) -> Iterator[_Gap]:
    """Kinds of evidence of which nothing was handed in, and that this job can leave."""
    root, explained = verdict.root, verdict.status == "explained"
    of_machine = root is not None and root.finding.cause in _OF_MACHINES
    kernel: list[_Gap] = []
    if "kernel_events" not in present:
        why = "Xid errors, killed processes and link flaps stand there only"
        kernel.append(_Gap("kernel logs of the hosts", why, (), _hosts(verdict, people), "dmesg -T"))
    if of_machine:
        yield from kernel
    table, *told = _STATES.get(str(root.finding.cause), ("",)) if root is not None else ("",)
    if table and table not in present:
        what, why, command = told
        yield _Gap(what, why, (), _hosts(verdict, people), command)
    if "fr_entries" not in present:
        command = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/shared/fr_"
        why = "they say which collective each rank is in and from which line of code"
        yield _Gap("Flight Recorder dumps of all ranks", why, command=command)
    elif _all_empty(resolver):
        why = "all that are there are empty: the recorder was off (it keeps nothing unless told a size, up to PyTorch 2.10), or knows another backend alone"
        command = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
        yield _Gap("Flight Recorder dumps that hold operations", why, command=command)
    backends = case["backends"]
    # A job that speaks gloo alone never calls NCCL.
    if "nccl_comms" not in present and (not isinstance(backends, list) or not backends or "nccl" in backends):
        command = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,COLL NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log"
        why = "they show transports, settings, versions and NCCL's own errors"
        yield _Gap("NCCL debug logs, one file per process", why, command=command)
    if "nccl_comms" in present and not explained and not links_told(resolver):
        command = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH,COLL NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log"
        why = "only there it says what was set, which adapters it took, and how fast the links are that it found"
        yield _Gap("NCCL's log with its subsystems ENV, NET and GRAPH", why, command=command)
    if not explained and "worker_exits" not in present:
        why = "it says which process ended first, and how: NCCL's own log of a killed one just stops"
        yield _Gap("what the launcher or the scheduler printed", why)
    if "stacks" not in present:
        why = "they tell a hang in the program from one in the transport"
        yield _Gap("stacks of all ranks, taken twice", why, command="py-spy dump --pid <pid>")
    if not of_machine:
        yield from kernel


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
    ends = ranks_in(blockers, pl.col("rank") < UNIDENTIFIED)
    have_stack = ranks_in(resolver.get("thread_states")) | ranks_in(resolver.get("stalls"), pl.col("stack_source_id").is_not_null())
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
    if len(own) < 2 or not isinstance(world, int) or world > MOST_RANKS or verdict.confidence == "high":
        return []
    return sorted(set(range(world)) - own - set(missing) - set(ended_themselves(resolver.get("endings"))))


def _beside(ranks: Sequence[int], people: _People) -> tuple[Sequence[int], list[str], str]:
    """The ranks, their hosts, and the command to run beside the first one of which the process is known."""
    known = [people[r] for r in ranks if r in people]
    pids = [str(p["pid"]) for p in known if p["pid"]]
    command = f"py-spy dump --pid {pids[0]}" if len(ranks) == len(pids) == 1 else "py-spy dump --pid <pid of the rank>"
    return ranks, sorted({str(p["host"]) for p in known if p["host"]}), command


def _hosts(verdict: Verdict, people: _People) -> list[str]:
    """Hosts of whom the verdict blames."""
    culprits = blamed_by(verdict.root.finding) if verdict.root is not None else ()
    own = {c.host or (people.get(c.rank, {}).get("host") if c.rank is not None else None) for c in culprits}
    return sorted(str(h) for h in own if h)
