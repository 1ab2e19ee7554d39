"""Builders of small frames for rules: one row of a view from the few words that a test is about."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.deaths import DEATHS
from nccl_forensics.views.divergence import DIVERGENCES
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.nccl_facts import HOST_NICS, NETWORKS
from nccl_forensics.views.settings import SETTINGS
from nccl_forensics.views.stalls import STALLS
from tests.rules.host_frames import table
from tests.views.frames import rows

__all__ = [
    "cited",
    "comm",
    "comms",
    "divergences",
    "endings",
    "errors",
    "host_ranks",
    "networks",
    "nics",
    "people",
    "settings",
    "stalls",
    "told",
]


def told(finding: Finding) -> tuple[str | None, str, tuple[int, ...]]:
    """Severity, confidence and ranks of a finding; its culprits must be these ranks."""
    assert tuple(c.rank for c in finding.culprits) == finding.ranks
    return finding.severity, finding.confidence, finding.ranks


def cited(finding: Finding) -> list[tuple[int | None, int | str | None]]:
    """(source, line or record) of every evidence item; an absence is ``(None, None)``."""
    return [(e.source_id, e.line if e.line is not None else e.record) for e in finding.evidence]


def divergences(kind: str, ranks: list[int], others: list[int], **more: object) -> pl.LazyFrame:
    """One divergence of the default group at operation 18; rank 9's dump is cited for the odd ranks, rank 0's for the others."""
    row = {
        "domain": "fr",
        "group_key": "pg:0",
        "group_name": "0",
        "group_desc": "default_pg",
        "kind": kind,
        "seq": 18,
        "ranks": ranks,
        "others": others,
        "expected_op": "all_reduce",
        "found_op": "all_reduce",
        "sure": True,
        "why": "seen so",
        "source_id": 9,
        "record": "entries[17]",
        "peer_source_id": 0,
        "peer_record": "entries[18]",
    }
    return rows(DIVERGENCES, row | more)


def stalls(*found: dict[str, object]) -> pl.LazyFrame:
    """Stalled ranks that ranks 0 and 1 wait for in all_reduce 6; a waiter's entry, the own last one and the own stack are citable."""
    usual = {
        "confidence": "high",
        "why": "seen so",
        "waiters": [0, 1],
        "group_key": "pg:0",
        "group_name": "0",
        "group_desc": "default_pg",
        "seq": 6,
        "op": "all_reduce",
        "source_id": 0,
        "record": "entries[6]",
        "own_source_id": 2,
        "own_record": "entries[5]",
        "stack_source_id": 7,
        "stack_line_no": 3,
    }
    return rows(STALLS, *[usual | f for f in found])


def endings(*found: dict[str, object]) -> pl.LazyFrame:
    """How ranks ended; cited by line 10 + rank of the launcher's log (source 0)."""
    return rows(DEATHS, *[{"own": True, "why": "seen so", "source_id": 0, "line_no": 10 + int(str(f.get("rank") or 0))} | f for f in found])


def people(*where: tuple[int | None, str, int]) -> pl.LazyFrame:
    """Processes: (rank, host, pid). Each has its NCCL lines, beginning at line 1 of source number rank."""
    return rows(PROCESSES_SCHEMA, *[{"rank": r, "host": h, "pid": p, "source_id": r, "line_no": 1} for r, h, p in where])


def host_ranks(**ranks: list[int]) -> pl.LazyFrame:
    """Ranks by host."""
    return pl.DataFrame(
        [{"host": h, "ranks": r, "n": len(r)} for h, r in ranks.items()],
        schema={"host": pl.String(), "ranks": pl.List(pl.Int32()), "n": pl.UInt32()},
    ).lazy()


def comm(rank: int, nranks: int, **more: object) -> dict[str, object]:
    """One member of the communicator 0xc0, from line 5 of source number rank."""
    return {
        "rank": rank,
        "nranks": nranks,
        "host": "node1",
        "pid": 100 + rank,
        "comm": "0xa0",
        "comm_key": "0xc0",
        "started": True,
        "completed": False,
        "source_id": rank,
        "line_no": 5,
    } | more


def comms(*members: dict[str, object]) -> pl.LazyFrame:
    """Members of communicators."""
    return rows(COMMS_SCHEMA, *members)


def errors(*lines: dict[str, object]) -> pl.LazyFrame:
    """WARN lines of NCCL on node1, one source."""
    return table("nccl_errors", *[{"level": "WARN", "host": "node1"} | line for line in lines])


def settings(name: str, *values: tuple[str, list[int]], of: int = 4) -> pl.LazyFrame:
    """One setting: (value, ranks that show it); cited by line 2 of the first rank's log."""
    return rows(
        SETTINGS,
        *[
            {
                "name": name,
                "value": value,
                "ranks": ranks,
                "hosts": ["node1"],
                "processes": len(ranks),
                "of": of,
                "differs": len(values) > 1 or len(ranks) < of,
                "source_id": ranks[0],
                "line_no": 2,
            }
            for value, ranks in values
        ],
    )


def nics(**devices: dict[str, int | None] | list[str]) -> pl.LazyFrame:
    """RDMA devices by host, with their speed in Mbit/s where it is known; cited by the device's place in the list."""
    return rows(
        HOST_NICS,
        *[
            {
                "host": host,
                "device": d,
                "port": 1,
                "speed_mbps": listed[d] if isinstance(listed, dict) else None,
                "source_id": s,
                "line_no": n,
            }
            for s, (host, listed) in enumerate(devices.items())
            for n, d in enumerate(listed, 1)
        ],
    )


def networks(**chosen: str) -> pl.LazyFrame:
    """The network that each host chose; host number n runs rank n."""
    return rows(
        NETWORKS, *[{"host": h, "network": n, "ranks": [i], "source_id": i, "line_no": 3} for i, (h, n) in enumerate(chosen.items())]
    )
