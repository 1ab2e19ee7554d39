"""Who is who: from claims in paths, prefixes and contents to processes and ranks.

The unit is a process (host, pid, and GPU where one process drives several). A rank is a claim of some strength; what the content
says beats what a file name says, because files get renamed and copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.values.claims import CONTENT, NUMBER, PREFIX, WORD, Claim, settle
from nccl_forensics.values.ranklist import MOST_RANKS
from nccl_forensics.views import view
from nccl_forensics.views.communicators import of_the_job
from nccl_forensics.views.source_ranks import job_size
from nccl_forensics.words import first_label

PROCESSES_SCHEMA = typed(
    "proc:u32 rank:i32 strength:i32 local_rank:i32 host:str node:str pid:i64 bus_id:str gpu_index:i32 nccl_version:str source_id:u32",
    "line_no:u32 conflict:str",
)


@view(rows="processes")
def processes(
    sources: pl.LazyFrame,
    path_hints: pl.LazyFrame,
    comms: pl.LazyFrame | None,
    nccl_versions: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    stacks: pl.LazyFrame | None,
    nccl_tails: pl.LazyFrame | None,
    traces: pl.LazyFrame | None = None,
    fr_dumps: pl.LazyFrame | None = None,
    fr_groups: pl.LazyFrame | None = None,
    nccl_inspector: pl.LazyFrame | None = None,
    environment: pl.LazyFrame | None = None,
    pods: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per process (and GPU, where a process drives several): ``rank`` (global), ``host``, ``pid``, ``bus_id``, ``gpu_index``.

    ``rank`` is null where nothing says it; ``conflict`` names claims that contradict each other. ``node``: the machine of a process whose
    ``host`` is the name of a pod, as Kubernetes tells it: logs of the kernel and of tools bear its name.
    """
    people = _People()
    world = _by_communicator(people, comms.collect()) if comms is not None else 0
    if nccl_inspector is not None:
        world = _by_inspector(people, nccl_inspector, world)
    if worker_exits is not None:
        _by_exit(people, worker_exits.filter(pl.col("pid").is_not_null()).collect())
    if stacks is not None:
        _by_stack(people, stacks, path_hints)
    copied = _copied(environment, sources) if environment is not None else ()
    for (host, pid), rank, strength, how in (*_traced(traces, path_hints), *_recorded(fr_dumps, stacks, path_hints), *copied):
        # Only of a process that something else tells of: of a job on many hosts a pid alone is nobody's.
        known = people.met(host, pid, one_naming=False)
        if known is not None:
            known.claims.append((strength, rank, how))
    if nccl_tails is not None:
        # A process that ended before its communicator started has NCCL lines and no rank.
        tails = nccl_tails.filter(pl.col("pid").is_not_null()).sort("source_id", "line_no").collect()
        for tail in tails.iter_rows(named=True):
            if people.met(tail["host"], tail["pid"], one_naming=comms is not None) is None:
                people.person(tail["host"], tail["pid"]).told_at(tail)
        device = {(h, p): d for h, p, d in tails.select("host", "pid", "dev").iter_rows() if d is not None}
        if not world:
            _by_number(people, tails, device, path_hints.filter((pl.col("path_strength") == NUMBER) & pl.col("path_rank").is_not_null()))
        _by_placement(people, world, device)
        _last_host(people, world, device)
        _by_name(people, world, tails, path_hints.filter((pl.col("path_strength") == WORD) & pl.col("path_rank").is_not_null()).collect())
    _last_one(people, world)
    if fr_groups is not None:
        _in_order(people, fr_groups)
    if traces is not None:
        _by_trace_alone(people, traces, path_hints)
    versions, nodes = _versions(nccl_versions), _nodes(pods)
    rows = [
        who.row() | {"proc": index, "node": nodes.get(who.host), "nccl_version": versions.get((who.host, who.pid))}
        for index, (_, who) in enumerate(sorted(people.by_key.items(), key=lambda item: tuple(str(x) for x in item[0])))
    ]
    return pl.DataFrame(rows, schema=PROCESSES_SCHEMA, infer_schema_length=None).lazy()


def _nodes(pods: pl.LazyFrame | None) -> dict[str | None, str]:
    """The machine of each pod that ran on one alone."""
    if pods is None:
        return {}
    told = pods.filter(pl.col("pod").is_not_null() & pl.col("node").is_not_null()).group_by("pod")
    alone = told.agg(pl.col("node").first(), n=pl.col("node").n_unique()).filter(pl.col("n") == 1)
    return dict(alone.select("pod", "node").collect().iter_rows())


#: Strength, rank, and what says it.


@dataclass(slots=True)
class _Person:
    """One process, or one GPU of a process that drives several, with what is claimed of its rank."""

    host: str | None
    pid: int | None
    bus_id: str | None
    claims: list[Claim] = field(default_factory=list)
    local_rank: int | None = None
    gpu_index: int | None = None
    source_id: int | None = None
    line_no: int | None = None

    @property
    def rank(self) -> int | None:
        return settle(self.claims).rank

    def told_at(self, row: Mapping[str, Any]) -> None:
        """The first line that tells of it."""
        if self.source_id is None:
            self.source_id, self.line_no = row["source_id"], row["line_no"]

    def row(self) -> dict[str, object]:
        """A row of ``PROCESSES_SCHEMA`` without number and version."""
        settled = settle(self.claims)
        own = {name: getattr(self, name) for name in ("host", "pid", "bus_id", "local_rank", "gpu_index", "source_id", "line_no")}
        return own | {"rank": settled.rank, "strength": settled.strength, "conflict": settled.conflict}


class _People:
    """Processes by host, pid, and bus id where one process drives several GPUs."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[object, ...], _Person] = {}
        self._same_pid: dict[object, list[_Person]] = defaultdict(list)
        self._hosts: set[str | None] = set()

    def __iter__(self) -> Iterator[_Person]:
        return iter(self.by_key.values())

    def person(self, host: str | None, pid: int | None, bus: str | None = None) -> _Person:
        key = (host, pid, bus)
        if key not in self.by_key:
            self._hosts.add(first_label(host))
            self.by_key[key] = _Person(host, pid, bus)
            self._same_pid[pid].append(self.by_key[key])
        return self.by_key[key]

    def names_hosts_as(self, hosts: pl.Series) -> bool:
        """Whether one of these hosts is known under the same name: then other names are other hosts."""
        return not self._hosts.isdisjoint(map(first_label, hosts.drop_nulls().unique().to_list()))

    def met(self, host: str | None, pid: int | None, *, one_naming: bool) -> _Person | None:
        """The process known under this pid: on this host, or where the host is unknown, or named in another way (not ``one_naming``), the
        only one with this pid. Containers count pids anew on each host."""
        name = first_label(host)
        candidates = [w for w in self._same_pid[pid] if first_label(w.host) == name]
        if not candidates and name is not None:
            candidates = [w for w in self._same_pid[pid] if w.host is None or not one_naming]
        elif name is None:
            candidates = self._same_pid[pid]
        return candidates[0] if len(candidates) == 1 else None


def _by_communicator(people: _People, frame: pl.DataFrame) -> int:
    """Processes by their communicators; back comes the size of the largest, in which ranks are those of the job (0 without any, or where
    all of that size are children of ones that no line tells, as the beginnings of the logs are lost)."""
    world = int(str(frame["nranks"].max() or 0))
    if not frame.select(of_the_job().any()).item():
        world = 0
    per_pid = frame.filter(pl.col("nranks") == world).group_by("host", "pid", "comm_key").agg(pl.col("rank").n_unique().alias("n"))
    multi = {(h, p) for h, p, n in per_pid.filter(pl.col("n") > 1).select("host", "pid", "n").iter_rows()}
    for row in frame.iter_rows(named=True):
        if row["pid"] is None and row["rank"] is None:
            continue
        several = (row["host"], row["pid"]) in multi
        who = people.person(row["host"], row["pid"], row["bus_id"] if several or row["pid"] is None else None)
        who.bus_id = who.bus_id or row["bus_id"]
        who.gpu_index = who.gpu_index if who.gpu_index is not None else row["nvml_dev"]
        who.told_at(row)
        if row["hint_rank"] is not None and row["hint_scope"] == "global" and not several:
            who.claims.append((PREFIX, row["hint_rank"], "launcher prefix"))
        if row["hint_rank"] is not None and row["hint_scope"] == "local" and not several and who.local_rank is None:
            who.local_rank = row["hint_rank"]  # a launcher's prefix: then it tells whose a line behind the same prefix is that says no more
        if row["nranks"] == world and row["rank"] is not None:
            who.claims.append((CONTENT, row["rank"], "rank in the world communicator"))
    return world


def _by_inspector(people: _People, operations: pl.LazyFrame, world: int) -> int:
    """Processes by what the Inspector says in each of its records; back comes the size of the largest communicator that is known."""
    found = (
        operations.filter(pl.col("pid").is_not_null() & pl.col("rank").is_not_null())
        .group_by("host", "pid", "comm_id", "rank", "nranks")
        .agg(pl.col("source_id", "line_no").sort_by("source_id", "line_no").first())
        .sort("source_id", "line_no", "host", "pid", "comm_id", "rank")
        .collect()
    )
    world = max(world, int(str(found["nranks"].max() or 0)))
    for row in found.iter_rows(named=True):
        who = people.met(row["host"], row["pid"], one_naming=True) or people.person(row["host"], row["pid"])
        who.told_at(row)
        if row["nranks"] == world:
            who.claims.append((CONTENT, row["rank"], "the Inspector's rank in the largest communicator"))
    return world


def _by_exit(people: _People, exits: pl.DataFrame) -> None:
    """Processes that a launcher names with their pid."""
    hosts = _one_host(exits)
    one_naming = people.names_hosts_as(exits["host"])
    for row in exits.iter_rows(named=True):
        host = row["host"] or hosts.get(row["source_id"])
        who = people.met(host, row["pid"], one_naming=one_naming) or people.person(host, row["pid"])
        if row["rank"] is not None:
            who.claims.append((CONTENT, row["rank"], "launcher's failure block"))
        if row["local_rank"] is not None:
            who.local_rank = row["local_rank"]
        who.told_at(row)


def _by_stack(people: _People, stacks: pl.LazyFrame, path_hints: pl.LazyFrame) -> None:
    """Processes that a sampler of stacks looked at."""
    hints = path_hints.filter((pl.col("path_strength") == WORD) & pl.col("path_rank").is_not_null())
    path_rank = dict(hints.select("source_id", "path_rank").collect().iter_rows())
    seen = (
        stacks.filter(pl.col("pid").is_not_null())
        .group_by("source_id", "pid")
        .agg(pl.col("line_no").min(), pl.col("hint_rank").first(), pl.col("hint_scope").first(), pl.col("hint_host").first())
        .sort("source_id", "pid")
        .collect()
    )
    pids_of = seen.group_by("source_id").agg(pl.col("pid").n_unique().alias("n"))
    single = {s for s, n in pids_of.iter_rows() if n == 1}
    one_naming = people.names_hosts_as(seen["hint_host"])
    for row in seen.iter_rows(named=True):
        who = people.met(row["hint_host"], row["pid"], one_naming=one_naming) or people.person(row["hint_host"], row["pid"])
        if row["hint_rank"] is not None and row["hint_scope"] == "global":
            who.claims.append((PREFIX, row["hint_rank"], "heading of a stack"))
        if row["source_id"] in single and row["source_id"] in path_rank:
            who.claims.append((WORD, path_rank[row["source_id"]], "name of a stack file"))
        who.told_at(row)


#: A process by host and pid, the rank that it is said to have, how strong that is, and what says it.
_Said = tuple[tuple[str | None, int], int, int, str]


def _by_traces(traces: pl.LazyFrame, path_hints: pl.LazyFrame) -> pl.LazyFrame:
    """Traces that state the pid of their process, with the rank that is ``said`` in them or in their name, and the ``strength`` of that."""
    named = path_hints.filter(pl.col("path_strength") == WORD).select("source_id", "path_rank")
    return (
        traces.filter(pl.col("pid").is_not_null())
        .join(named, on="source_id", how="left")
        .with_columns(said=pl.coalesce("rank", "path_rank"), strength=pl.when(pl.col("rank").is_null()).then(WORD).otherwise(CONTENT))
        .filter(pl.col("said").is_not_null())
    )


def _traced(traces: pl.LazyFrame | None, path_hints: pl.LazyFrame) -> list[_Said]:
    """Ranks of processes that a profiler traced: it writes the pid, and the rank itself or in the file's name. A pid that two ranks have is
    nobody's."""
    if traces is None:
        return []
    rows = (
        _by_traces(traces, path_hints)
        .select("pid", "said", "strength")
        .unique()
        .filter((pl.len().over("pid") == 1) & (pl.len().over("said") == 1))
        .sort("pid")
        .collect()
    )
    return [((None, pid), rank, strength, _PROFILED) for pid, rank, strength in rows.iter_rows()]


def _copied(environment: pl.LazyFrame, sources: pl.LazyFrame) -> list[_Said]:
    """Ranks of processes whose environments were copied to files whose last number is their pid (``4002.environ``, ``4002/environ``). What
    two ranks bear is no pid, nor is what is the rank itself."""
    rows = (
        environment.filter(pl.col("name") == "RANK")
        .join(sources.select("source_id", "path"), on="source_id")
        .select(
            pid=pl.col("path").str.extract(r"([0-9]+)[^0-9]*$").cast(pl.Int64, strict=False),
            said=pl.col("value").cast(pl.Int32, strict=False),
        )
        .drop_nulls()
        .unique()
        .filter((pl.col("said").n_unique().over("pid") == 1) & (pl.col("pid") != pl.col("said")))
        .sort("pid", "said")
        .collect()
    )
    return [((None, pid), rank, WORD, "its environment, in a file that bears its pid") for pid, rank in rows.iter_rows()]


#: What says the rank of a process that was traced.
_PROFILED = "profiler trace of its process"


def _by_trace_alone(people: _People, traces: pl.LazyFrame, path_hints: pl.LazyFrame) -> None:
    """Processes of which nothing but a profiler's trace tells that states pid and host, for ranks that no other process has."""
    process = ["host", "pid"]
    rows = (
        _by_traces(traces.filter(pl.col("host").is_not_null()), path_hints)
        .filter((pl.struct(process).n_unique().over("said") == 1) & (pl.col("said").n_unique().over(process) == 1))
        .sort("source_id")
        .unique("said", keep="first", maintain_order=True)
        .select(*process, "said", "strength", "source_id", line_no=pl.lit(None, dtype=pl.UInt32))
        .collect()
    )
    taken = {who.rank for who in people}
    one_naming = people.names_hosts_as(rows["host"])
    # All are looked for before any is added: traces of several hosts may share a pid, and name their hosts alike.
    unmet = [
        r for r in rows.iter_rows(named=True) if r["said"] not in taken and people.met(r["host"], r["pid"], one_naming=one_naming) is None
    ]
    for row in unmet:
        who = people.person(row["host"], row["pid"])
        who.claims.append((row["strength"], row["said"], _PROFILED))
        who.told_at(row)


def _recorded(fr_dumps: pl.LazyFrame | None, stacks: pl.LazyFrame | None, path_hints: pl.LazyFrame) -> list[_Said]:
    """Ranks of processes of which a sampler wrote a thread that the dump of one rank, by the name of its file, has entries of."""
    if fr_dumps is None or stacks is None:
        return []
    named = path_hints.filter(pl.col("path_strength") == WORD).select("source_id", rank="path_rank")
    of_rank = fr_dumps.select("source_id", pthread="thread_ids").explode("pthread").drop_nulls().join(named, on="source_id")
    seen = stacks.filter(pl.col("pid").is_not_null() & pl.col("pthread_id").is_not_null()).select("pid", "hint_host", pthread="pthread_id")
    met = of_rank.select("rank", "pthread").unique().join(seen.unique(), on="pthread").select("pid", "hint_host", "rank", "pthread")
    # Processes that one parent made share addresses: then a thread tells nobody.
    told = met.unique().filter(pl.len().over("pthread") == 1).select("pid", "hint_host", "rank").unique()
    rows = told.filter((pl.len().over("pid", "hint_host") == 1) & (pl.len().over("rank") == 1)).sort("pid", "hint_host").collect()
    return [((host, pid), rank, WORD, "dump of a thread of it") for pid, host, rank in rows.iter_rows()]


def _one_host(exits: pl.DataFrame) -> dict[int, str]:
    """Sources (launchers' logs) of which all lines that state a host state the same one: it is that of their other lines as well."""
    told = (
        exits.filter(pl.col("host").is_not_null()).group_by("source_id").agg(pl.col("host").n_unique().alias("n"), pl.col("host").first())
    )
    return {source: host for source, n, host in told.iter_rows() if n == 1}


def _by_device(people: _People, device: dict[tuple[object, object], int]) -> tuple[dict[object, list[int]], set[int], list[_Person]]:
    """By host the rank of each process less its CUDA device, where both are known; the ranks that some process has; processes without
    one."""
    offsets: dict[object, list[int]] = defaultdict(list)
    taken: set[int] = set()
    without: list[_Person] = []
    for who in people:
        rank, dev = who.rank, device.get((who.host, who.pid))
        if rank is None:
            without.append(who)
            continue
        taken.add(rank)
        if dev is not None:
            offsets[who.host].append(rank - dev)
    return offsets, taken, without


def _by_placement(people: _People, world: int, device: dict[tuple[object, object], int]) -> None:
    """A process without a rank on a host whose other processes (at least three) all have a rank that is their CUDA device plus one
    constant."""
    offsets, taken, without = _by_device(people, device)
    chosen: dict[int, list[_Person]] = defaultdict(list)
    for who in without:
        dev, known = device.get((who.host, who.pid)), offsets[who.host]
        if dev is not None and len(known) >= _PLACED and len(set(known)) == 1 and dev + known[0] not in taken and dev + known[0] < world:
            chosen[dev + known[0]].append(who)
    for rank, candidates in chosen.items():
        if len(candidates) == 1:
            candidates[0].claims.append((NUMBER, rank, "its CUDA device, as on the other ranks of its host"))


_PLACED = 3


def _by_number(people: _People, tails: pl.DataFrame, device: dict[tuple[object, object], int], numbered: pl.LazyFrame) -> None:
    """Processes of which no communicator tells a rank, each alone in an NCCL log of its own, where these are numbered 0, 1, ... without a gap
    by names that are alike else; or each the only one behind a scheduler's prefix, where these are numbered so. The numbers are ranks, if on
    each host they follow the CUDA devices, and on one host with several."""
    alone = tails.unique(["source_id", "host", "pid"]).filter(pl.len().over("source_id") == 1)
    files = alone.join(numbered.select("source_id", "path_rank", "stem").collect(), on="source_id")
    if files["stem"].n_unique() == 1 and files.height == len(people.by_key):
        _numbered(
            people, files.select("host", "pid", "path_rank"), device, "number in the name of its NCCL log, which follows the CUDA devices"
        )
    tasks = tails.filter(pl.col("hint_scope") == "task").select("host", "pid", "hint_rank").unique()
    _numbered(people, tasks, device, "number of its task, which follows the CUDA devices")


def _numbered(people: _People, numbers: pl.DataFrame, device: dict[tuple[object, object], int], how: str) -> None:
    number = {(host, pid): rank for host, pid, rank in numbers.iter_rows()}
    if not len(number) == numbers.height == len(people.by_key) or any(who.rank is not None for who in people):
        return
    offsets: dict[object, list[int]] = defaultdict(list)
    for (host, pid), rank in number.items():
        offsets[host].append(rank - device.get((host, pid), 0))
    follow = all(len(set(known)) == 1 for known in offsets.values()) and max(map(len, offsets.values()), default=0) >= 2
    if not follow or sorted(number.values()) != list(range(len(number))):
        return
    for who in people:
        who.claims.append((NUMBER, number[who.host, who.pid], how))


def _last_host(people: _People, world: int, device: dict[tuple[object, object], int]) -> None:
    """Processes without a rank that are all those of one host and as many as the block of ranks that nobody has: their CUDA devices tell
    which is which, where on all other hosts (one with at least three ranks) ranks follow devices."""
    offsets, taken, without = _by_device(people, device)
    if sum(map(len, offsets.values())) + len(without) < len(people.by_key):
        return  # of some rank the device is not known
    hosts = {who.host for who in without}
    first = min(set(range(len(taken) + 1)) - taken)  # the lowest rank that nobody has
    block = range(first, first + len(without))
    follow = all(len(set(known)) == 1 for known in offsets.values()) and max(map(len, offsets.values()), default=0) >= _PLACED
    if len(hosts) != 1 or hosts & set(offsets) or not follow or len(taken) + len(without) != world or not taken.isdisjoint(block):
        return
    by_device = {device.get((who.host, who.pid)): who for who in without}
    if set(by_device) != set(range(len(without))):
        return
    for place, rank in enumerate(block):
        by_device[place].claims.append((NUMBER, rank, "its CUDA device and the block of ranks that no other host has"))


def _by_name(people: _People, world: int, tails: pl.DataFrame, named: pl.DataFrame) -> None:
    """A process without a rank whose NCCL lines, alone, stand in a file that is named by a rank, where no such name contradicts what is
    known."""
    alone = tails.unique(["source_id", "host", "pid"]).filter(pl.len().over("source_id") == 1)
    files = alone.join(named, on="source_id").sort("source_id")
    by_rank: dict[int, set[tuple[object, object]]] = defaultdict(set)
    told: dict[tuple[object, object], set[int]] = defaultdict(set)
    for host, pid, rank in files.select("host", "pid", "path_rank").iter_rows():
        by_rank[rank].add((host, pid))
        told[host, pid].add(rank)
    without: list[tuple[_Person, int]] = []
    for who in people:
        rank, own = who.rank, told.get((who.host, who.pid), set())
        if rank is not None and own and own != {rank}:
            return  # these names count something else
        if rank is not None:
            by_rank[rank].add((who.host, who.pid))
        elif len(own) == 1 and who.pid is not None:
            without.append((who, min(own)))
    for who, rank in without:
        if len(by_rank[rank]) == 1 and (not world or rank < world):
            who.claims.append((WORD, rank, "name of the file of its NCCL log"))


def _last_one(people: _People, world: int) -> None:
    """One process without a rank and one rank without a process: they belong together."""
    ranks = {id(who): who.rank for who in people}
    without = [who for who in people if ranks[id(who)] is None]
    free = set(range(world)) - set(ranks.values()) if 0 < world <= MOST_RANKS else set()
    if len(without) == 1 and len(free) == 1:
        without[0].claims.append((NUMBER, free.pop(), "the one rank that no other process has"))


def _in_order(people: _People, fr_groups: pl.LazyFrame) -> None:
    """Processes of one host, as many as the job has ranks by the groups of recorders, of which torchrun names some: it starts its workers
    in the order of their ranks, so that their pids follow each other in that order. Who reuses processes that are there, as Ray does, keeps
    no order."""
    workers = sorted((who for who in people if who.pid is not None), key=lambda who: who.pid or 0)
    pids = [who.pid or 0 for who in workers]
    in_order = [who.rank for who in workers]
    launched = any(who.rank is not None and who.local_rank is not None for who in workers)
    if not launched or len({first_label(who.host) for who in workers if who.host is not None}) > 1:
        return
    whole = len(workers) == len(people.by_key) == len(set(pids)) == job_size(fr_groups)
    if whole and pids[-1] - pids[0] < _NEAR * len(pids) and all(rank in (None, place) for place, rank in enumerate(in_order)):
        for place, who in enumerate(workers):
            if in_order[place] is None:
                who.claims.append((NUMBER, place, "the order of the pids, in which its launcher starts workers"))


#: Pids for each worker that lie between the first and the last at most: others start little meanwhile.
_NEAR = 8


def _versions(nccl_versions: pl.LazyFrame | None) -> dict[tuple[object, object], str]:
    if nccl_versions is None:
        return {}
    frame = nccl_versions.filter(pl.col("pid").is_not_null() & pl.col("version").is_not_null()).select("host", "pid", "version").collect()
    return {(h, p): v for h, p, v in frame.iter_rows()}
