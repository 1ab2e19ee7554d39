"""Whose process wrote a source: from its contents, its name and the names of its neighbours."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

import polars as pl

from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.values.claims import CONTENT, NUMBER, PREFIX, WORD, Claim, settle
from nccl_forensics.values.ranklist import MOST_RANKS, unfold
from nccl_forensics.views import view
from nccl_forensics.views.matching import of_nccl
from nccl_forensics.views.odd_dumps import odd_dump
from nccl_forensics.views.pids import Pids
from nccl_forensics.words import first_label


def job_size(fr_groups: pl.LazyFrame) -> int:
    """How many ranks the groups that recorders state go up to; 0 where that is no number of ranks."""
    lists = fr_groups.filter(pl.col("ranks").is_not_null()).select(pl.col("ranks").unique()).collect()["ranks"].to_list()
    size = max((max(unfold(text)) for text in lists), default=-1) + 1
    return size if size <= MOST_RANKS else 0


SOURCE_RANKS_SCHEMA = typed("source_id:u32 rank:i32 strength:i32 how:str conflict:str")


@view(rows="sources")
def source_ranks(
    path_hints: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    fr_dumps: pl.LazyFrame | None,
    fr_groups: pl.LazyFrame | None,
    stacks: pl.LazyFrame | None,
    exceptions: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    reports: pl.LazyFrame | None,
    nccl_comms: pl.LazyFrame | None,
    fr_entries: pl.LazyFrame | FoldedTable | None = None,
) -> pl.LazyFrame:
    """The rank whose process wrote a source, for sources of one process: ``source_id``, ``rank``, ``strength``, ``how``, ``conflict``.

    A Flight Recorder dump carries no rank. Membership of its groups narrows it down (a rank is in all of its groups), the pthread ids of
    its entries meet those of a stack, and at last the file's name counts.
    """
    claims: _Claims = defaultdict(list)
    hints = path_hints.collect()
    pid_ranks = Pids(processes)
    for table in (exceptions, watchdog, reports):
        if table is not None:
            _by_prefix(claims, table)
    if nccl_comms is not None and processes is not None:
        pids = nccl_comms.group_by("source_id").agg(pl.struct("host", "pid").n_unique().alias("n"), pl.col("host", "pid").first()).collect()
        for source, n, host, pid in pids.iter_rows():
            if n == 1 and (rank := pid_ranks.rank(pid, host)) is not None:
                claims[source].append((CONTENT, rank, "NCCL lines of its process"))
    pthreads = _by_stack(claims, stacks, pid_ranks) if stacks is not None else {}
    dumps = (
        fr_dumps.select("source_id", "thread_ids").collect() if fr_dumps is not None else pl.DataFrame(schema={"source_id": pl.UInt32()})
    )
    for source, threads in dumps.iter_rows():
        owners = {owner for t in (threads or []) for owner in pthreads.get(t, ())}
        if len(owners) == 1 and (rank := pid_ranks.rank(*owners.pop())) is not None:
            claims[source].append((CONTENT, rank, "thread ids that a stack of that process shares"))
    common = _common(fr_groups) if fr_groups is not None else {}
    for source, left in common.items():
        if len(left) == 1:
            claims[source].append((CONTENT, min(left), "the one rank that is in all of its groups"))
    recorded = set(dumps["source_id"])
    no_ranks = _contradicted(claims, common, hints)
    of_hosts = _numbered_by_host(fr_dumps, hints, job_size(fr_groups)) if fr_dumps is not None and fr_groups is not None else set()
    attempts = _by_attempt(claims, hints, processes)
    for source, rank, strength, stem in hints.select("source_id", "path_rank", "path_strength", "stem").iter_rows():
        if rank is None or source in attempts or (source in recorded and stem in of_hosts):
            continue
        if strength == WORD or (source in recorded and stem not in no_ranks):
            claims[source].append((strength, rank, "file name"))
    if fr_dumps is not None and fr_groups is not None:
        unknown = {dump for dump in recorded if not claims.get(dump)}
        if unknown and fr_entries is not None and stacks is not None:
            odd = odd_dump(fr_dumps, fr_entries, stacks, pid_ranks, unknown, job_size(fr_groups))
            if odd is not None:
                for source in sorted(odd[0]):
                    claims[source].append((NUMBER, odd[1], "what stands apart in dumps and in stacks"))
        _last_dump(claims, dumps["source_id"], fr_groups)
    _numbered_alike(claims, hints.filter(~pl.col("source_id").is_in([*attempts, *recorded])))
    settled = [(source, settle(claims[source])) for source in sorted(claims)]
    rows = [(source, found.rank, found.strength, found.how, found.conflict) for source, found in settled]
    return pl.DataFrame(rows, schema=SOURCE_RANKS_SCHEMA, orient="row").lazy()


#: What is claimed of the rank of each source.
_Claims = dict[int, list[Claim]]


def _by_prefix(claims: _Claims, table: pl.LazyFrame) -> None:
    """Lines that a launcher or torch itself prefixed with the rank."""
    said = table.filter(pl.col("hint_rank").is_not_null() & (pl.col("hint_scope") == "global")).group_by("source_id")
    ranks = said.agg(pl.col("hint_rank").n_unique().alias("n"), pl.col("hint_rank").first().alias("rank"))
    for source, n, rank in ranks.collect().iter_rows():
        if n == 1:
            claims[source].append((PREFIX, rank, "prefix of its lines"))


def _by_stack(claims: _Claims, stacks: pl.LazyFrame, pid_ranks: Pids) -> dict[str, set[tuple[int, str | None]]]:
    """Stacks of one process each; the processes (pid, host) of each pthread."""
    pthreads: dict[str, set[tuple[int, str | None]]] = defaultdict(set)
    frame = stacks.filter(pl.col("pid").is_not_null()).select("source_id", "pid", "hint_host", "pthread_id").collect()
    for source, pid, host, pthread in frame.unique().sort("source_id", "pid").iter_rows():
        if pthread is not None:
            pthreads[pthread].add((pid, host))
        if (rank := pid_ranks.rank(pid, host)) is not None:
            claims[source].append((CONTENT, rank, "pid of its process"))
    for source, n in frame.group_by("source_id").agg(pl.col("pid").n_unique()).iter_rows():
        if n > 1:
            claims.pop(source, None)
    return pthreads


def _by_attempt(claims: _Claims, hints: pl.DataFrame, processes: pl.LazyFrame | None) -> dict[int, int]:
    """Files in torchrun's folder of a worker, by the rank that has this local rank, of a job on several hosts on the one in whose folder
    they lie; the sources in such folders with their local ranks."""
    local_to_rank: dict[int, set[int]] = defaultdict(set)
    at_home: dict[tuple[str | None, int], set[int]] = defaultdict(set)
    if processes is not None:
        known = processes.filter(pl.col("rank").is_not_null() & pl.col("local_rank").is_not_null())
        for rank, local, host in known.select("rank", "local_rank", "host").collect().iter_rows():
            local_to_rank[local].add(rank)
            at_home[first_label(host), local].add(rank)
    attempts = {s: local for s, local in hints.select("source_id", "attempt_local_rank").iter_rows() if local is not None}
    stems = dict(hints.select("source_id", "stem").iter_rows())
    for source, local in attempts.items():
        ranks_here = local_to_rank.get(local, set())
        if len(ranks_here) > 1:
            folders = {first_label(folder) for folder in re.split(r"[/!]+", str(stems[source]))[:-1]}
            ranks_here = set().union(*(at_home[f, local] for f in folders if f is not None and (f, local) in at_home))
            if len(ranks_here) != 1:
                continue
        if len(ranks_here) == 1:
            claims[source].append((PREFIX, next(iter(ranks_here)), "local rank of its folder"))
        elif not ranks_here and not any(len(v) > 1 for v in local_to_rank.values()):
            claims[source].append((NUMBER, local, "local rank of its folder"))
    return attempts


def _contradicted(claims: _Claims, common: Mapping[int, frozenset[int]], hints: pl.DataFrame) -> set[str]:
    """Stems of names whose bare numbers are no ranks: by content one of these files is another rank's, or of none that its groups have in
    common."""
    numbers = hints.filter((pl.col("path_strength") == NUMBER) & pl.col("path_rank").is_not_null())
    found: set[str] = set()
    for source, number, stem in numbers.select("source_id", "path_rank", "stem").iter_rows():
        told = settle(claims.get(source, ()))
        if number not in common.get(source, {number}) or (told.strength == CONTENT and told.rank not in (None, number)):
            found.add(stem)
    return found


def _numbered_by_host(fr_dumps: pl.LazyFrame, hints: pl.DataFrame, size: int) -> set[str]:
    """Stems of names whose numbers count the processes of one host: where names that are alike but for their folder bear one number, the
    files are of two processes at one time, and all of them are no more than the job has ranks (two jobs that run at once have more).

    Dumps that begin with the same record at different times are of two processes, or of one rank that was started again: these do not
    overlap. gloo's recorder lies beside NCCL's in one process, so that only dumps of NCCL are compared.
    """
    spans = fr_dumps.filter(of_nccl() & pl.col("first_record_id").is_not_null())
    spans = spans.select("source_id", "encoding", "first_record_id", "first_created_ns", "last_created_ns")
    named = hints.lazy().filter(pl.col("path_rank").is_not_null())
    named = named.select("source_id", "stem", number="path_rank", name=pl.col("stem").str.split("/").list.last())
    dumps = spans.join(named, on="source_id")
    pairs = dumps.join(dumps, on=["encoding", "first_record_id", "number", "name"], suffix="_2").filter(
        pl.col("stem") != pl.col("stem_2"),
        pl.col("first_created_ns") != pl.col("first_created_ns_2"),
        pl.max_horizontal("first_created_ns", "first_created_ns_2") < pl.min_horizontal("last_created_ns", "last_created_ns_2"),
    )
    found = pairs.select("source_id", "stem").unique().collect()
    return set(found["stem"].to_list()) if found["source_id"].n_unique() <= size else set()


def _common(fr_groups: pl.LazyFrame) -> dict[int, frozenset[int]]:
    """The ranks that all groups of a source have in common: its own is among them.

    Lists of one member alone tell nothing: gloo's recorders list a nameless group of rank 0 on every rank once the groups were taken down.
    Each list is unfolded once, and small groups come first: the whole job is a group of every dump, so that going through all of its
    members for each would take the square of the ranks.
    """
    member = fr_groups.filter(pl.col("ranks").is_not_null()).select("source_id", "ranks").collect()
    sets = {text: frozenset(unfold(text)) for text in member["ranks"].unique().to_list()}
    groups: dict[int, list[frozenset[int]]] = defaultdict(list)
    for source, text in member.iter_rows():
        groups[source].append(sets[text])
    common: dict[int, frozenset[int]] = {}
    for source, own in groups.items():
        if any(len(group) > 1 for group in own):
            left, *others = sorted(own, key=len)
            for other in others:
                left = left & other
            common[source] = left
    return common


def _numbered_alike(claims: _Claims, hints: pl.DataFrame) -> None:
    """A file that says nothing of its rank and has a bare number in its name, as others have whose content tells that this is their
    rank."""
    numbered = hints.filter((pl.col("path_strength") == NUMBER) & pl.col("path_rank").is_not_null())
    for _, part in numbered.group_by("stem", maintain_order=True):
        family = dict(part.select("source_id", "path_rank").iter_rows())
        told = {source: settle(claims[source]).rank for source in family if claims.get(source)}
        if len(told) < _TOLD or any(family[source] != rank for source, rank in told.items()):
            continue
        for source in family.keys() - told.keys():
            claims[source].append((NUMBER, family[source], "number in its name, which is the rank in names like it"))


#: Files whose content must tell that the number in their name is their rank.
_TOLD = 2


def _last_dump(claims: _Claims, dumps: Iterable[int], fr_groups: pl.LazyFrame) -> None:
    """One dump without a rank and one rank of the stated groups without a dump: they belong together."""
    settled = {d: settle(claims.get(d, [])).rank for d in dumps}
    without = [d for d, rank in settled.items() if rank is None]
    taken = set(settled.values())
    free = set(range(job_size(fr_groups))) - taken
    if len(without) == 1 and len(free) == 1:
        claims[without[0]].append((NUMBER, free.pop(), "the one rank that no other dump has"))
