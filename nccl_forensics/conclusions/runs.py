"""Runs: sources that cannot belong to the same start of the job are told apart, so that a healthy run is not mixed with a failed one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.views.path_hints import ATTEMPT


@dataclass(frozen=True, slots=True)
class Run:
    """One start of the job: its number, the sources of its own, those that belong to another run and are left out, which attempt of the
    launcher it was, if the evidence tells, and whether it was the last start."""

    number: int
    sources: frozenset[int]
    foreign: frozenset[int]
    attempt: int | None = None
    last: bool = True

    def part_of(self, store: Store) -> Store:
        """The store without what belongs to other runs. A launcher's own log goes on over all of its attempts, and jobs may append to one
        output."""
        if not self.foreign:
            return _of_last_job(store)
        own = _of_last_job(store.without(self.foreign)) if self.last else store.without(self.foreign)
        if self.attempt is None or not own.has("worker_exits"):
            return own
        exits = own.scan("worker_exits").collect()
        ended = _last_of_earlier(exits)
        earlier = (pl.col("line_no") <= pl.col("ended")).fill_null(value=False)
        kept = exits.join(ended, on="source_id", how="left").filter(~earlier if self.last else earlier | ~pl.col("kind").is_in(_TORCHRUN))
        return own.holding("worker_exits", kept.drop("ended"))


def find_runs(store: Store) -> list[Run]:
    """Runs in order; one run where nothing tells them apart. Sources that tell nothing of it belong to every run.

    A launcher that restarts its workers keeps the output of each attempt apart: each is a run. Without that, two sets of sources are
    different runs if both hold the same rank of a communicator of the same size under different communicator ids.
    """
    return _attempts(store) or _communicators(store) or [Run(0, frozenset(), frozenset(), _only_attempt(store))]


#: How slurmstepd names the job whose end it tells, and what of an output that several jobs appended to is told apart by it.
_SLURM_JOB = r"\*\*\* (?:JOB|STEP) (\d+)"
_TOLD_APART = ("worker_exits", "exceptions")
#: Tasks of an array that write one file at a time are ended within a few lines of each other.
_JOB_LINES = 20
#: Ends after which slurmctld may start the same job once more, and when it does so at the soonest (job_mgr.c, job_requeue: a begin time two
#: minutes off).
_REQUEUES = r"DUE TO (?:JOB REQUEUE|PREEMPTION|NODE FAILURE)"
_BEGINS_AGAIN = timedelta(minutes=2)


def earlier_jobs(store: Store) -> pl.DataFrame:
    """Outputs that a later Slurm job, or the same job after Slurm had requeued it, has appended to: ``source_id``, ``job`` (the last of the
    earlier ones) and ``ended``, the line of its end."""
    if not store.has("worker_exits"):
        return pl.DataFrame(schema={"source_id": pl.UInt32(), "job": pl.String(), "ended": pl.UInt32()})
    told_of = {
        "job": pl.col("message").str.extract(_SLURM_JOB),
        "again": pl.col("message").str.contains(_REQUEUES),
        "at": pl.col("message")
        .str.extract(r"CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
        .str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False),
    }
    ends = store.scan("worker_exits").filter(pl.col("kind") == "scheduler").select("source_id", "line_no", **told_of)
    ends = ends.filter(pl.col("job").is_not_null())
    last = pl.all().last().over("source_id")
    told = ends.sort("source_id", "line_no").with_columns(last.name.prefix("last_"))
    other = (pl.col("job") != pl.col("last_job")) | (pl.col("again") & (pl.col("last_at") - pl.col("at") >= _BEGINS_AGAIN))
    earlier = told.filter(other & (pl.col("line_no") + _JOB_LINES < pl.col("last_line_no")))
    return earlier.group_by("source_id").agg(pl.col("job").last(), pl.col("line_no").last().alias("ended")).sort("source_id").collect()


def _of_last_job(store: Store) -> Store:
    """The store without what launchers say and processes raise before the end of an earlier Slurm job in the output of a later one: with
    ``--open-mode=append`` and a fixed name the jobs of days stand in one file, and only the last of them is the incident."""
    ended = earlier_jobs(store).drop("job")
    if not ended.height:
        return store
    for name in (n for n in _TOLD_APART if store.has(n)):
        rows = store.scan(name).collect().join(ended, on="source_id", how="left", maintain_order="left")
        store = store.holding(name, rows.filter(~(pl.col("line_no") <= pl.col("ended")).fill_null(value=False)).drop("ended"))
    return store


#: What torchrun says of its workers: as one of them fails, and in the report that it ends with.
_FAILED, _REPORT = ("failed",), ("root-cause", "failure")
_TORCHRUN = (*_FAILED, *_REPORT, "closing-signal")


def _last_of_earlier(exits: pl.DataFrame) -> pl.DataFrame:
    """For each launcher's log the last line about an attempt before the last (``source_id``, ``ended``).

    torchrun names a worker that failed in each attempt, but reports at its end on those of the last attempt alone (PyTorch
    ``torch/distributed/launcher/api.py``): who is not in that report failed before.
    """
    told = exits.filter(pl.col("pid").is_not_null())
    reported = told.filter(pl.col("kind").is_in(_REPORT)).select("source_id", "pid").unique()
    before = told.filter(pl.col("kind").is_in(_FAILED)).join(reported, on=["source_id", "pid"], how="anti")
    return before.group_by("source_id").agg(pl.col("line_no").max().alias("ended"))


def attempt_of(path: str) -> int | None:
    """The launcher's attempt that a source belongs to, by its path."""
    found = ATTEMPT.search(path)
    return int(found[1]) if found else None


def _only_attempt(store: Store) -> int | None:
    known = {n for path in store.sources["path"].to_list() if (n := attempt_of(path)) is not None}
    return known.pop() if len(known) == 1 else None


def _attempts(store: Store) -> list[Run]:
    """A run for each attempt, if there are several.

    Each agent counts its own restarts, so that those of a host that joined later lag behind: the last attempts of all agents belong
    together, and so do those before.
    """
    agents: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    read: set[tuple[str, int]] = set()
    for source, path, formats in store.sources.select("source_id", "path", "formats").iter_rows():
        found = ATTEMPT.search(path)
        if found:
            agent, number = path[: found.start()], int(found[1])
            agents[agent][number].add(source)
            if formats:
                read.add((agent, number))
    # Attempts of which nothing could be read tell nothing.
    lines = [[(n, held) for n, held in sorted(attempts.items()) if (agent, n) in read] for agent, attempts in agents.items()]
    depth = max((len(line) for line in lines), default=0)
    if depth < 2:
        return []
    together = [[line[-back] for line in lines if len(line) >= back] for back in range(depth, 0, -1)]
    owned = [frozenset[int]().union(*(held for _, held in run)) for run in together]
    return _apart(_with_dumps(store, owned), [max(n for n, _ in run) for run in together])


#: Error files tell whole seconds.
_SECOND_NS = 1_000_000_000


def _with_dumps(store: Store, owned: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The sources of each attempt, with the recorder dumps that lie beside them all and hold nothing newer than the last error of an attempt
    before the last: that is when its processes ended, and a later one has begun a recorder of its own."""
    out = list(owned)
    raised = store.scan("exceptions").filter(pl.col("time_kind") == "epoch").select("source_id", "time_raw_ns").collect()
    dumps = store.scan("fr_dumps").group_by("source_id").agg(pl.col("last_created_ns").max()).drop_nulls().collect()
    left = dumps.filter(~pl.col("source_id").is_in(list(frozenset[int]().union(*owned))))
    for n, own in enumerate(owned[:-1]):
        ended = raised.filter(pl.col("source_id").is_in(list(own)))["time_raw_ns"].max()
        if isinstance(ended, int):
            before = pl.col("last_created_ns") <= ended + _SECOND_NS
            out[n] |= frozenset(left.filter(before)["source_id"].to_list())
            left = left.filter(~before)
    return out


def _apart(owned: Sequence[frozenset[int]], attempts: Sequence[int | None]) -> list[Run]:
    everyone = frozenset[int]().union(*owned)
    return [Run(i, own, everyone - own, n, i == len(owned) - 1) for i, (own, n) in enumerate(zip(owned, attempts, strict=True))]


def _communicators(store: Store) -> list[Run]:
    frame = Resolver(store).get("comms")
    if frame is None:
        return []
    comms = (
        frame.filter(pl.all_horizontal(pl.col("comm_id", "rank", "nranks").is_not_null()))
        .select("source_id", "comm_id", "rank", "nranks")
        .collect()
    )
    parent: dict[object, object] = {}

    def root(x: object) -> object:
        while parent.setdefault(x, x) != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for source, comm, _, _ in comms.iter_rows():
        parent[root(("source", source))] = root(("comm", comm))
    seats: dict[object, set[tuple[int, int]]] = defaultdict(set)
    members: dict[object, set[int]] = defaultdict(set)
    biggest: dict[object, int] = defaultdict(int)
    for source, _, rank, nranks in comms.iter_rows():
        key = root(("source", source))
        seats[key].add((nranks, rank))
        members[key].add(source)
        biggest[key] = max(biggest[key], nranks)
    keys = sorted(members, key=lambda k: min(members[k]))
    groups: list[set[object]] = []
    for key in keys:
        world = {s for s in seats[key] if s[0] == biggest[key]}
        place = next((g for g in groups if all(not world & seats[o] for o in g)), None)
        if place is None:
            groups.append({key})
        else:
            place.add(key)
    if len(groups) < 2:
        return []
    return _apart([frozenset(s for key in g for s in members[key]) for g in groups], [None] * len(groups))
