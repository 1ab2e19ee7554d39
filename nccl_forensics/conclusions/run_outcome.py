"""How a run went: finished, hung, crashed, slow, stopped, or unknown, by its verdict and by how its processes ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import polars as pl

from nccl_forensics.conclusions.verdict import Verdict, with_root
from nccl_forensics.frames import values_in
from nccl_forensics.rules import Found, Outcome
from nccl_forensics.views import Resolver
from nccl_forensics.views.failures import LONGER, STANDSTILL, WAITS
from nccl_forensics.words import sentence

_HANGS = frozenset(
    {
        "collective-skipped",
        "collective-mismatch",
        "group-deadlock",
        "p2p-deadlock",
        "collective-stuck",
        "gpu-stall",
        "input-stall",
        "host-stall",
        "rank-never-joined",
    }
)
_CRASHES = frozenset({"rank-died", "software-crash", "out-of-memory", "gpu-fault", "node-failed", "shm-exhausted", "invalid-usage"})
#: What a rank does for too long in each step looks, at any moment, as what it does for ever.
IN_EACH_STEP = frozenset({"input-stall", "host-stall"})
#: Ends without a failure of the process itself.
_QUIET = frozenset({"left", "vanished", "unheard", "victim", "terminated", "clean"})
#: Signatures of processes that waited in vain.
_IN_VAIN = frozenset({"nccl-timeout", "gloo-timeout", "monitored-barrier", "store-timeout", "store-barrier"})


def outcome_of(verdict: Verdict, found: Iterable[Found], resolver: Resolver) -> str:
    """``outcome`` of a run in the report (``case.runs``)."""
    root = verdict.root
    cause = root.finding.cause if root is not None else None
    signs = values_in(resolver.get("failures"), "sign")
    if cause in _HANGS:
        return "slow" if _late(verdict, found) is not None and not signs else "hung"
    if cause in _CRASHES:
        return "crashed"
    if cause == "job-stopped":
        return "stopped"
    if verdict.status == "nothing-wrong":
        return "finished"
    ended = _ended(resolver, signs)
    if ended is None and root is not None and root.finding.severity == "error" and not signs:
        return "slow"
    return ended or "unknown"


def _late(verdict: Verdict, found: Iterable[Found]) -> Found | None:
    """The finding that whoever the verdict names came late again and again, where what it did for too long explains that."""
    root = verdict.root
    if root is None or root.finding.cause not in IN_EACH_STEP:
        return None
    return next((f for f in found if f.finding.cause == "straggler" and verdict.explained_by.get(f.id) == root.id), None)


def as_it_went(verdict: Verdict, outcomes: Sequence[Outcome], outcome: str) -> tuple[Verdict, tuple[Outcome, ...]]:
    """The same, with what a rank was found in told as a loss where the job was only slow: nothing stopped, and it stood there again and
    again."""
    root, late = verdict.root, _late(verdict, (f for o in outcomes for f in o.found))
    if outcome != "slow" or root is None or late is None or root.finding.severity != "critical":
        return verdict, tuple(outcomes)
    said = root.finding
    slow = replace(
        said,
        severity="error",
        summary=f"The job goes on and is slow: {late.finding.title}. {sentence(said.summary)}",
        would_refute=late.finding.would_refute,
    )
    return with_root(verdict, outcomes, slow)


def _ended(resolver: Resolver, signs: Set[str]) -> str | None:
    """By how processes ended, and what stood still."""
    endings = resolver.get("endings")
    ends = endings.select("kind", "signature").collect().rows() if endings is not None else []
    kinds = {kind for kind, _ in ends}
    if kinds - _QUIET:
        return "crashed"
    if any(kind == "victim" and signature in _IN_VAIN for kind, signature in ends) or _timed_out(resolver):
        return "hung"
    if "victim" in kinds:
        return "crashed"  # lost a peer, and ended of it
    if signs & {STANDSTILL, LONGER, WAITS}:
        return "hung"
    return "stopped" if "terminated" in kinds else None


def _timed_out(resolver: Resolver) -> bool:
    """Whether a watchdog or a monitored barrier gave up waiting."""
    told = (("watchdog", ("timeout", "heartbeat-stuck")), ("rank_reports", ("barrier-missing",)))
    return any(resolver.shows(table, pl.col("kind").is_in(kinds)) for table, kinds in told)
