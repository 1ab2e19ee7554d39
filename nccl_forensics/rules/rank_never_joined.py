"""A communicator never got all its ranks.

## What it finds
Communicators whose size is known from the ranks that started, of which some ranks never show up in any log, and that never got past the
bootstrap: a line that is only printed once every rank has checked in (bootstrap timings, topology, rings) shows that they all joined.

## Why it matters
Those that came wait in init until someone kills them; their logs look healthy and just end.

## What would refute it
The missing ranks' logs were not collected: look for their processes on the hosts.

## What to do next
Check that the processes of the missing ranks were started, on which host, and whether they wait on another address or in another job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import polars as pl

from nccl_forensics.evidence import cite, cite_absence
from nccl_forensics.frames import has_rows, ranks_in, values_in
from nccl_forensics.model import Action, Confidence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import garbled
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.views.log_ends import copied_in_part
from nccl_forensics.words import ranks_words, verb


@rule(
    name="rank-never-joined",
    code="IN01",
    cause="rank-never-joined",
    severity="critical",
    at_most=8,
    explains=("host-stall", "timeout", "connection-failed"),
)
def rank_never_joined(
    comms: pl.LazyFrame,
    bootstrapped: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    progress: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None,
    last_calls: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame | None = None,
    processes: pl.LazyFrame | None = None,
    cut_ends: pl.LazyFrame | None = None,
    nccl_tails: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per communicator that lacks ranks and that nothing shows past its bootstrap.

    Where something of another size reached those that wait (``Message truncated``, bootstrap.cc), a process of another release, or of
    another library, did come, and its log may be one that was not collected. Ranks that failed inside NCCL, recorded a collective or stand
    in the call of those that wait did come, whatever became of their logs; such a rank without a log also tells that logs of others may be
    lost. A smaller communicator than the job's counts its own ranks: whom of the job a number means is told where the others leave one
    answer, and nobody is named elsewhere. Logs of which the copy was cut tell neither who waits nor who came.
    """
    cut = set(copied_in_part(cut_ends).collect()["source_id"].to_list())
    came = _came(endings, progress)
    running, sampled = ranks_in(dumps), ranks_in(last_calls, pl.col("witness") == "stack")
    # A communicator is used, and taken down in order, after its bootstrap.
    all_joined = values_in(bootstrapped, "comm_key") | values_in(progress, "group_key", pl.col("domain") == "nccl")
    all_joined |= values_in(comms, "comm_key", pl.col("ended") == "destroy-complete")
    calls = _calls(last_calls)
    misread, gathered = _misread(nccl_errors, _TRUNCATED), _misread(nccl_errors, garbled())
    rows = comms.filter(pl.col("rank").is_not_null() & pl.col("nranks").is_not_null()).collect()
    strangers = cut - set(rows["source_id"].to_list())
    if strangers and nccl_tails is not None and has_rows(nccl_tails.filter(pl.col("source_id").is_in(sorted(strangers)))):
        return
    up = pl.col("comm_key").is_in(list(all_joined)) | pl.col("completed").any().over("comm_key")
    world = int(str(rows["nranks"].max() or 0))
    people = _people(processes)
    for _, part in rows.filter(~up).group_by("comm_key", maintain_order=True):
        size = int(str(part["nranks"].max() or 0))
        if set(part["source_id"].to_list()) <= cut:
            continue
        present = set(part["rank"].to_list())
        unseen = set(range(size)) - present
        if size < world and people:
            if unseen and part["started"].any():
                yield _smaller(part, size, world, sorted(unseen), people)
            continue
        # A recorder's dump shows that the process ran, not that it called NCCL: it speaks for a rank only while others are left.
        absent = unseen - came - _beside(present, calls)
        absent = absent - running or absent
        missing = tuple(sorted(absent))
        # Ranks of a host go together; files that are missing here and there were lost.
        scattered = len(missing) > 1 and missing[-1] - missing[0] >= len(missing)
        strewn = scattered and (len(missing) * _MANY > size or _by_chance(size, (present, running, sampled)) * 2 >= len(missing))
        answered = not misread.isdisjoint(part.select("host", "pid").iter_rows())
        outside = misread - set(comms.select("host", "pid").collect().iter_rows())
        told = outside or gathered.intersection(part.select("host", "pid").iter_rows())
        if told and missing and nccl_errors is not None:
            yield _other_release(part, missing, nccl_errors, told, _fewer(present, missing, processes))
            continue
        lost = absent != unseen or scattered or answered
        if not missing:
            continue
        # Known from its end alone: what is left of the log begins later than init.
        if not part["started"].any() and part["ended"].is_not_null().all():
            continue
        # Logs of a few ranks only were collected: which of the others came is not to be seen.
        named = () if strewn or len(missing) > len(present) else missing
        yield Finding(
            title=f"{ranks_words(missing)} of {size} never joined; {len(present)} {verb(present, 'rank waits', 'ranks wait')} in init",
            summary="The others started the communicator and never got past its bootstrap. No line of NCCL in the evidence is of the missing ranks."
            + ("" if len(missing) == 1 else " At least one of them did not join; logs of others may not have been collected.")
            + (_ANSWERED if answered else ""),
            confidence=_CONFIDENCE[(len(missing) > 1) + lost],
            ranks=named,
            subject=("never-joined", str(size)),
            evidence=(
                *cite(part, f"started with nranks {size} and never completed", at_most=8),
                *cite_absence(f"an init line of {ranks_words(missing)}", ("all NCCL logs of the bundle",)),
            ),
            evidence_total=part.height + 1,
            remedy="Find the processes of the missing ranks: not started, crashed before NCCL, or pointed at another master address.",
            prevention="Let the launcher check that all ranks are up before init; set a short timeout for init_process_group.",
            would_refute=(f"a log of {ranks_words(missing)} that shows it in this communicator",),
            actions=(Action("collect-more", ranks=missing, command="ps -ef | grep python"),),
            metrics={"missing": len(missing), "size": size},
        )


def _people(processes: pl.LazyFrame | None) -> dict[tuple[object, object], int]:
    """The rank of the job by host and pid, of processes with one."""
    if processes is None:
        return {}
    known = processes.filter(pl.col("rank").is_not_null() & pl.col("pid").is_not_null()).select("host", "pid", "rank").collect()
    return {(host, pid): rank for host, pid, rank in known.iter_rows()}


def _smaller(part: pl.DataFrame, size: int, world: int, missing: Sequence[int], people: Mapping[tuple[object, object], int]) -> Finding:
    """Who never came to a communicator of fewer ranks than the job has: its lines number its own ranks."""
    place = {rank: people[host, pid] for rank, host, pid in part.select("rank", "host", "pid").iter_rows() if (host, pid) in people}
    named = tuple(_in_order(place, size, world, missing))
    seen = set(people.values())
    where = f"{ranks_words(missing)} of a communicator of {size} ranks"
    waits = f"{part['rank'].n_unique()} {verb(part['rank'].unique().to_list(), 'rank waits', 'ranks wait')} in its init"
    there = bool(named) and seen.issuperset(named)
    return Finding(
        title=f"{ranks_words(named)} ({where}) never joined; {waits}" if named else f"{where} never joined; {waits}",
        summary="The others started this communicator and never got past its bootstrap. "
        + ("The missing ones of it are in the job's communicator, and their logs show no line of this one." if there else "")
        + ("" if named else "It numbers its own ranks, and which of the job these numbers mean the evidence does not tell."),
        confidence=_CONFIDENCE[(not there) + (len(missing) > 1)],
        ranks=named,
        subject=("never-joined", str(size)),
        evidence=(
            *cite(part, f"started with nranks {size} and never completed", at_most=8),
            *cite_absence(f"an init line of {where}", ("all NCCL logs of the bundle",)),
        ),
        evidence_total=part.height + 1,
        remedy="Look where the missing ranks are in the program: they never came to the call that makes this communicator.",
        prevention="Make communicators in one order on all their ranks, before the first step.",
        would_refute=(f"a log of {where} that shows it in this communicator",),
        actions=(Action("collect-more", ranks=named, command="py-spy dump --pid <pid>"),),
        metrics={"missing": len(missing), "size": size},
    )


def _in_order(place: Mapping[int, int], size: int, world: int, missing: Sequence[int]) -> list[int]:
    """Ranks of the job that the missing numbers of a communicator mean, where its members follow each other in the job's order: each gap
    that is as wide as what is missing in it, or all of them one stride apart. Empty where that leaves more than one answer."""
    known = sorted(place.items())
    if not known or any(a >= b for (_, a), (_, b) in pairwise(known)):
        return []
    steps = {(b - a) / (j - i) for (i, a), (j, b) in pairwise(known)}
    if len(known) > _ALIKE and len(steps) == 1 and (stride := steps.pop()).is_integer():
        found = [known[0][1] + int(stride) * (m - known[0][0]) for m in missing]
        return found if all(0 <= rank < world for rank in found) else []
    found = []
    for (i, a), (j, b) in pairwise([(-1, -1), *known, (size, world)]):
        inside = [m for m in missing if i < m < j]
        if inside and b - a != j - i:
            return []
        found += [a + m - i for m in inside]
    return found


#: Of how many members at least, but one, the stride counts: two of them have one always.
_ALIKE = 2


def _by_chance(size: int, kinds: Iterable[set[int]]) -> float:
    """How many ranks would have lost their files of every kind, if files of each kind are lost by chance as often as is seen; 0 where one
    kind alone is there, which tells nothing of chance."""
    shares = [len(ranks) / size for ranks in kinds if ranks]
    return size * prod(max(0.0, 1 - share) for share in shares) if len(shares) > 1 else 0.0


#: One rank in so many, missing here and there: then it is files that are missing.
_MANY = 8
_CONFIDENCE: tuple[Confidence, ...] = ("high", "medium", "low")


def _came(endings: pl.LazyFrame | None, progress: pl.LazyFrame | None) -> set[int]:
    """Ranks that called NCCL: they say that it failed them, or a recorder holds an operation of theirs."""
    return ranks_in(endings, pl.col("signature").str.starts_with("nccl")) | ranks_in(progress, pl.col("domain") == "fr")


_ANSWERED = " But messages of another size reached those that wait, as from a process of another release of NCCL: then it came, and its log was not collected."


def _misread(nccl_errors: pl.LazyFrame | None, what: pl.Expr) -> set[tuple[object, ...]]:
    """Processes (host, pid) that got a bootstrap message of another size than theirs, or laid out otherwise."""
    if nccl_errors is None:
        return set()
    return set(nccl_errors.filter(what & pl.col("pid").is_not_null()).select("host", "pid").unique().collect().iter_rows())


_TRUNCATED = pl.col("kind") == "truncated-message"


def _fewer(present: Collection[int], missing: Sequence[int], processes: pl.LazyFrame | None) -> tuple[int, ...]:
    """Those that tell their ranks before the bootstrap or those that do not, as other releases do: who are the fewer, where all processes of
    the job are seen."""
    seen = 0 if processes is None else processes.filter(pl.col("pid").is_not_null()).select("host", "pid").unique().collect().height
    if seen != len(present) + len(missing) or len(present) == len(missing):
        return ()
    return tuple(sorted(present if len(present) < len(missing) else missing))


def _other_release(
    part: pl.DataFrame,
    missing: Sequence[int],
    nccl_errors: pl.LazyFrame,
    outside: Collection[tuple[object, ...]],
    odd: tuple[int, ...],
) -> Finding:
    """The missing ones came and failed before a communicator: NCCL's first messages have the size that their release gives them."""
    told = nccl_errors.filter(_TRUNCATED | garbled()).sort("source_id", "line_no").collect()
    told = told.filter(pl.struct("host", "pid").map_elements(lambda who: (who["host"], who["pid"]) in outside, return_dtype=pl.Boolean()))
    hosts = tuple(sorted({str(h) for h in (*told["host"].to_list(), *part["host"].to_list()) if h is not None}))
    return Finding(
        title=f"processes that meet in one bootstrap speak releases of NCCL that do not fit: {ranks_words(odd or missing)} and the others",
        summary="A message of another size or layout came before any communicator was made, where the release of NCCL alone gives both. "
        + (
            f"Releases differ in what they print before that, and {ranks_words(odd)} {verb(odd, 'does', 'do')} otherwise than most."
            if odd
            else "Which of them is the odd one, releases that print their version once a job do not tell."
        ),
        cause="version-mismatch",
        confidence="medium",
        hosts=hosts,
        ranks=odd,
        subject=("never-joined", "other-release"),
        evidence=(
            *cite(told, "a message of another size or layout, before any communicator", at_most=4),
            *cite(part, "a rank of the others, which waits in its bootstrap", at_most=4),
        ),
        evidence_total=told.height + part.height,
        remedy="Let every process load the same NCCL: compare LD_LIBRARY_PATH, images and wheels of all hosts.",
        prevention="Log the NCCL version of every rank, and stop where they differ.",
        would_refute=("every process loads the same release",),
        actions=(Action("collect-more", hosts=hosts, command="python -c 'import torch; print(torch.cuda.nccl.version())'"),),
    )


_Call = tuple[object, ...]


def _calls(last_calls: pl.LazyFrame | None) -> dict[int, _Call]:
    """The call that waits in which the stack of a rank stands: operation and line of code."""
    if last_calls is None:
        return {}
    stacks = last_calls.filter((pl.col("witness") == "stack") & pl.col("place").is_in(WAITING)).select("rank", "op", "user_frame").collect()
    return {rank: tuple(call) for rank, *call in stacks.iter_rows()}


def _beside(present: set[int], calls: Mapping[int, _Call]) -> set[int]:
    """Ranks whose stack stands in the call in which most of those stand that began the communicator."""
    usual = Counter(calls[r] for r in present if r in calls).most_common(1)
    return {rank for rank, call in calls.items() if call == usual[0][0]} if usual and usual[0][1] > 1 else set()
