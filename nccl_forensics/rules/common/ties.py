"""Whether something that a host tells belongs to the job at hand: its log may be older or younger than the job, its GPU another's, its
process not one of the job's, and the host none that the job ran on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

import polars as pl

from nccl_forensics.frames import has_rows
from nccl_forensics.model import Confidence, Finding, Severity
from nccl_forensics.rules.common.hosts import kin, timely, zoned
from nccl_forensics.words import UNIDENTIFIED, first_label

#: ``own``: it is the job's. ``open``: nothing tells. ``doubtful``: the job shows a failure of another rank that this does not bring about.
#: ``apart``: it is none of the job's, or the job went on as if it had not been.
Tie = Literal["own", "open", "doubtful", "apart"]
#: Seconds around the job within which an event counts as one of its time: a rank that lost its GPU is missed after a timeout only.
NEAR_S = 3600.0
#: Seconds by which clocks of one time differ, whatever zones they tell.
_CLOCKS_S = 180.0
#: Names that every host has for itself.
_ANYBODY = frozenset({"localhost", "ip6-localhost"})
_NOTES: dict[Tie, str] = {
    "own": "",
    "open": " Nothing ties it to the job: whether it happened while the job ran is not known.",
    "doubtful": " Nothing ties it to the job, and the job shows a failure of another rank that this does not bring about.",
    "apart": " It does not belong to this job, or the job went on as if it had not been.",
}


@dataclass(frozen=True, slots=True)
class Job:
    """What the job shows of its ranks: signs of failure by rank, and by host the ranks, their pids and their GPUs."""

    signs: dict[int, str] = field(default_factory=dict)
    ranks: dict[str, set[int]] = field(default_factory=dict)
    pids: dict[tuple[str | None, int], int] = field(default_factory=dict)
    gpus: dict[tuple[str, str], int] = field(default_factory=dict)
    homeless: bool = False
    blind: frozenset[str] = frozenset()
    seen: bool = False
    failed: bool = False
    times: pl.LazyFrame | None = None

    def tie(
        self,
        rows: pl.DataFrame | None,
        host: object,
        *,
        gpu: object = None,
        pids: Collection[int] = (),
        of: Collection[int] = (),
        lasting: bool = False,
        takes: bool = False,
    ) -> Tie:
        """How what ``rows`` tell belongs to the job.

        ``rows``: with ``time_raw_ns`` and ``time_kind``; None for a tool's listing, which has no time of its own. ``lasting``: a state that
        only a reset or a reboot ends. A listing, and a log without dates, are of the current boot: a GPU that a rank had was lost under the
        job or after it. ``of``: the rank of a GPU, where something beside the job's own lines tells it (its place among its neighbours, or
        that it alone stands). ``takes``: it ends processes by a signal, so that only ranks that were killed or went without a word bear it
        out.
        """
        if not self.seen:
            return "own"
        name = first_label(host)
        if name in _ANYBODY:
            name = None
        if name is None and len(self.ranks) == 1 and not self.homeless:
            (name,) = self.ranks
        here = self._here(name)
        if here is False and not self._run_by(name, pids):
            return self._elsewhere(name)
        if str(gpu).startswith("GPU-") and not of:
            gpu = None  # where the GPU of this UUID sits is nowhere told
        rank = self._holder(name, gpu, of)
        # Of a host whose GPUs the job does not tell, any of its ranks may be on this one.
        whole = gpu is None or (rank is None and name in self.blind)
        its = set(self.ranks.get(name or "", set())) if whole else {rank} - {None}
        strange = here and not whole and rank is None
        close = rows is not None and self._close(rows)
        undated = rows is None or (rows.height > 0 and bool(rows["time_kind"].fill_null("monotonic").eq("monotonic").all()))
        lost = lasting and rank is not None and undated
        killed = takes and name is None and gpu is None and "taken" in self.signs.values()
        ours = lost or killed or self._borne_out(its, takes=takes) or self._run_by(name, pids)
        if rows is not None and not close and self._another_time(rows):
            return "open" if ours else "apart"
        if ours:
            return "own"
        if close and self.failed and not strange and not takes and (here or rank is not None or not self.ranks):
            return "own"
        if strange or not self.failed:
            return "open" if close else "apart"
        return "doubtful" if self.signs.keys() - its else "open"

    def _holder(self, name: str | None, gpu: object, of: Collection[int]) -> int | None:
        """The rank that has this GPU: by its host, or where that is not told as the only one with a GPU of this address; else as ``of``
        tells."""
        if gpu is not None and name is not None:
            alike = {self.gpus[name, str(gpu)]} if (name, str(gpu)) in self.gpus else set()
        else:
            alike = {r for (_, bus), r in self.gpus.items() if bus == str(gpu)} if gpu is not None else set()
        told = alike if len(alike) == 1 else set(of)
        return told.pop() if len(told) == 1 else None

    def _borne_out(self, its: Collection[int | None], *, takes: bool) -> bool:
        """Whether a rank that it may concern failed as it would make ranks fail."""
        bears = ("taken",) if takes else ("gpu", "taken", "died", "stands")
        return any(self.signs.get(r or 0) in bears for r in its)

    def _run_by(self, name: str | None, pids: Collection[int]) -> bool:
        """Whether one of these processes is a rank's; on a host of another name than those of the ranks, of one rank alone."""
        strange = name is None or not kin(name, self.ranks)
        alike = [pid for _, pid in self.pids] if strange else []
        return any((name, pid) in self.pids or (alike.count(pid) == 1 if name else pid in alike) for pid in pids)

    def _elsewhere(self, name: str | None) -> Tie:
        """How what a host tells on which no rank is known to have run belongs to the job."""
        strangers = name is None or not kin(name, self.ranks)
        return "apart" if not self.failed or not strangers else "doubtful" if self.signs else "open"

    def place(self, host: object) -> Tie:
        """How a state of a host, which slows a job as well as it ends one, belongs to the job: by the host alone."""
        name = first_label(host)
        name = None if name in _ANYBODY else name
        here = self._here(name)
        if not self.seen or here or (name is None and len(self.ranks) <= 1):
            return "own"
        return "apart" if here is False and name is not None and (not self.failed or kin(name, self.ranks)) else "open"

    def _here(self, name: str | None) -> bool | None:
        """Whether the job ran on this host; None where that is not known."""
        if name is None or not self.ranks:
            return None
        return True if name in self.ranks else None if self.homeless else False

    def _another_time(self, rows: pl.DataFrame) -> bool:
        """Whether the clocks say that it did not happen in the job's time, in whatever zones they are."""
        wall = rows["time_kind"].is_in(["epoch", "local-unzoned", "local-yearless"]).fill_null(False)
        return has_rows(self.times) and bool(wall.all()) and not bool(zoned(rows, self.times, _CLOCKS_S).any())

    def _close(self, rows: pl.DataFrame) -> bool:
        wall = rows["time_kind"].is_in(["epoch", "local-unzoned", "local-yearless"]).fill_null(False)
        return has_rows(self.times) and bool((timely(rows, self.times, NEAR_S / 3600) & wall).any())


def job_of(job_signs: pl.LazyFrame | None, job_times: pl.LazyFrame | None, failures: pl.LazyFrame | None) -> Job:
    """From the view ``job_signs``; without it nothing is known of a job, and whatever a host tells is judged by itself."""
    if job_signs is None:
        return Job()
    found = Job(times=job_times, failed=has_rows(failures))
    blind: set[str] = set()
    homeless = seen = False
    for rank, host, node, pid, bus, sign in job_signs.select("rank", "host", "node", "pid", "bus_id", "sign").collect().iter_rows():
        seen = seen or rank is None or rank < UNIDENTIFIED
        if rank is None or rank >= UNIDENTIFIED:
            continue
        if sign is not None:
            found.signs[rank] = sign
        name = None if host in _ANYBODY else host
        if pid is not None:
            found.pids[(name, pid)] = rank
        if name is None:
            homeless = True
            continue
        for place in {name, node} - {None}:
            found.ranks.setdefault(place, set()).add(rank)
            if bus is not None:
                found.gpus[(place, bus)] = rank
            else:
                blind.add(place)
    return replace(found, seen=seen, homeless=homeless, blind=frozenset(blind))


_LESS: dict[Tie, Confidence] = {"open": "medium", "doubtful": "low", "apart": "low"}
_MILDER: dict[Tie, dict[Severity, Severity]] = {
    # It does not explain what that other rank shows.
    "doubtful": {"critical": "error"},
    "apart": {"critical": "warning", "error": "warning"},
}


def tied(finding: Finding, tie: Tie, severity: Severity | None = None) -> Finding:
    """The finding, as sure as its tie to the job allows; ``severity``: that of its rule, where it states none."""
    if tie == "own":
        return finding
    least = _LESS[tie]
    confidence = finding.confidence if finding.confidence == "low" or (finding.confidence == "medium" and least == "medium") else least
    stated = finding.severity or severity
    return replace(
        finding,
        confidence=confidence,
        severity=_MILDER.get(tie, {}).get(stated, stated) if stated is not None else None,
        summary=finding.summary + _NOTES[tie],
        actions=tuple(replace(a, confidence=confidence) for a in finding.actions),
    )


_ORDER: tuple[Tie, ...] = ("own", "open", "doubtful", "apart")


def closest(ties: Collection[Tie]) -> Tie:
    """The closest of several ties."""
    return min(ties, key=_ORDER.index, default="own")
