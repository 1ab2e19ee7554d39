"""Ranks, their hosts and processes, and what is to be said of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from nccl_forensics.conclusions.census import people_of
from nccl_forensics.extras import GroupTimeline, Host, Process, RankState, Seat
from nccl_forensics.frames import ranks_in, values_in
from nccl_forensics.views import Resolver
from nccl_forensics.words import UNIDENTIFIED, UNKNOWN_HOST

#: Endings that another rank's fault brought about: the process is gone now, and was waiting when it mattered.
_VICTIMS = ("clean", "victim", "terminated")


def states(report: Mapping[str, object], resolver: Resolver, groups: Sequence[GroupTimeline]) -> dict[int, RankState]:
    """What to say of each rank: the fault of the verdict first, then death by a cause of its own, then waiting."""
    verdict, case = report["verdict"], report["case"]
    assert isinstance(verdict, dict)
    assert isinstance(case, dict)
    people = people_of(resolver)
    known: dict[int, RankState] = dict.fromkeys(people, "ok")
    for name in ("dumps", "source_ranks"):
        files = resolver.get(name)
        if files is not None:
            for (rank,) in files.filter(pl.col("rank").is_between(0, UNIDENTIFIED - 1)).select("rank").collect().iter_rows():
                known.setdefault(rank, "ok")
    known |= dict.fromkeys(_waiting(verdict, resolver, groups), "waiting")
    endings = resolver.get("endings")
    if endings is not None:
        rows = endings.filter(pl.col("rank").is_not_null()).select("rank", "kind").collect()
        for rank, kind in rows.iter_rows():
            if kind not in _VICTIMS:
                known[rank] = "dead"
            elif kind != "clean" and known.get(rank, "ok") == "ok":
                # Nothing tells what it was doing before the others took it down.
                known[rank] = "dead" if verdict["cause"] in (None, "rank-died", "node-failed") else "waiting"
    for rank in case["ranks_missing"]:
        known[rank] = "missing"
    hosts = {c["host"] for c in verdict["culprits"] if c["rank"] is None and c["host"]}
    for rank, person in people.items():
        if person["host"] in hosts:
            known[rank] = "culprit"
    for culprit in verdict["culprits"]:
        if culprit["rank"] is not None:
            known[culprit["rank"]] = "culprit"
    return known


def _waiting(verdict: Mapping[str, object], resolver: Resolver, groups: Sequence[GroupTimeline]) -> set[int]:
    """Ranks that the wait-for graph, their watchdog's timeout, the divergence or the stuck collective of the verdict shows waiting."""
    found: set[int] = values_in(resolver.get("waits"), "waiter", pl.col("waiter") < UNIDENTIFIED)
    found |= ranks_in(resolver.get("watchdog_calls"))
    for group in groups:
        if group.first_divergence in group.columns and verdict["first_divergence"] is not None:
            at = group.columns.index(group.first_divergence)
            found |= {rank for row in group.rows if row.cells[at].state == "waiting" for rank in row.ranks}
    stuck = resolver.get("stuck")
    if stuck is not None and verdict["cause"] == "collective-stuck":
        for (ranks,) in stuck.select("ranks").collect().iter_rows():
            found |= {r for r in ranks if r < UNIDENTIFIED}
    return found


def _gpu(person: Mapping[str, object]) -> str | None:
    value = person.get("bus_id") or person.get("gpu_index")
    return str(value) if value is not None else None


def homes(report: Mapping[str, object], resolver: Resolver) -> dict[int, str]:
    """Rank to host: what is known of the process, else what a launcher said at its end, else what the verdict found out."""
    found: dict[int, str] = {}
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    found |= {c["rank"]: str(c["host"]) for c in verdict["culprits"] if c["rank"] is not None and c["host"]}
    endings = resolver.get("endings")
    if endings is not None and "host" in endings.collect_schema().names():
        told = endings.filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null()).select("rank", "host").collect()
        found |= dict(told.iter_rows())
    return found | {rank: str(p["host"]) for rank, p in people_of(resolver).items() if p.get("host")}


def cluster(resolver: Resolver, known: Mapping[int, RankState], hosts_of: Mapping[int, str]) -> tuple[Host, ...]:
    """Hosts with their ranks, in the order of their first rank."""
    people = people_of(resolver)
    hosts: dict[str, list[Seat]] = {}
    for rank in sorted(known):
        person = people.get(rank, {})
        hosts.setdefault(hosts_of.get(rank, UNKNOWN_HOST), []).append(Seat(rank, known[rank], _gpu(person)))
    return tuple(Host(name, tuple(seats)) for name, seats in hosts.items())


def processes(resolver: Resolver, known: Mapping[int, RankState], hosts_of: Mapping[int, str]) -> tuple[Process, ...]:
    """Every rank with what is known of its process."""
    people = people_of(resolver)
    ends: dict[int, str] = {}
    endings = resolver.get("endings")
    if endings is not None:
        for row in endings.filter(pl.col("rank").is_not_null()).collect().iter_rows(named=True):
            code = f"exit code {row['exit_code']}" if row["exit_code"] is not None else ""
            kind = "(ended by the others)" if row["kind"] == "victim" else f"({row['kind']})"
            ends[row["rank"]] = " ".join(x for x in (code, row["signal"] or "", kind) if x)
    last: dict[int, str] = {}
    progress = resolver.get("progress")
    if progress is not None:
        for row in progress.sort("last_order", nulls_last=False).collect().iter_rows(named=True):
            if row["last_op"]:
                last[row["rank"]] = f"{row['last_op']} #{row['last_seq']}"
    out = []
    for rank in sorted(known):
        p = people.get(rank, {})
        pid, local = p.get("pid"), p.get("local_rank")
        out.append(
            Process(
                rank,
                known[rank],
                int(str(local)) if local is not None else None,
                hosts_of.get(rank),
                int(str(pid)) if pid is not None else None,
                _gpu(p),
                str(p["nccl_version"]) if p.get("nccl_version") else None,
                ends.get(rank),
                last.get(rank),
            )
        )
    return tuple(out)
