"""A process is gone by a fault of its own, and the others went down with it.

## What it finds
Ranks that ended by SIGKILL, a crash or an exception of their own, or that vanished while all peers took their communicators down.
Terminations by the launcher, closed connections and timeouts are consequences and never count here.

## Why it matters
All others wait for a dead rank until a timeout; their errors come later and drown the first one. What a launcher calls its root cause
is the smallest time stamp at one-second resolution, often an innocent rank.

## What would refute it
The rank's own log shows orderly work after the time of its alleged death, or an earlier fault of another rank that took it down.

## What to do next
SIGKILL: look for the out-of-memory killer and the scheduler. Exception: read its traceback. Crash: get the core file or a native stack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.signatures import UNTHROWN
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import AGREE_ON_STEPS, WHY_IT_LEFT
from nccl_forensics.rules.common.endings import (
    CRASHES,
    most_crashed_alike,
    nobody_missed,
    own_signal,
    raised_at,
    ranks_known,
    signs_beside_endings,
)
from nccl_forensics.rules.common.errors import hosts_of
from nccl_forensics.rules.common.hosts import located, near_job, people
from nccl_forensics.rules.common.stalls import stall_findings
from nccl_forensics.rules.common.thresholds import BESIDE_S, ZONES_H, AroundHours, NearSeconds
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.words import first_label, ranks_words

#: What to say and do for each kind of ending.
_SAID = {
    "killed": (
        "was killed",
        "Find out who killed it: the kernel's out-of-memory killer, a cgroup limit, the scheduler or a person.",
    ),
    "segfault": ("crashed (SIGSEGV)", "Get a core file or run with faulthandler to see where it crashed."),
    "bus-error": ("crashed (SIGBUS)", "SIGBUS is often a full /dev/shm: check its size and use."),
    "fpe": ("crashed (SIGFPE)", "Get a native stack."),
    "illegal": ("crashed (SIGILL)", "The binary may not fit this CPU."),
    "abort": ("aborted (SIGABRT)", "Look for the C++ message before it on standard error."),
    "exception": ("raised an exception", "Fix the exception at the quoted line."),
    "exit": ("left early", "Find out why it left: its standard error is not in the evidence or says nothing."),
    "left": ("ended early without an error", "Find out why its loop ended before that of the others: less data, a break, a return."),
    "vanished": ("disappeared without a word", "Ask the scheduler and the kernel log of its host why the process ended."),
}


_RECORD = "Run each rank under torch.distributed.elastic's @record so that the first exception is kept with its rank."
_STACKS = "Start ranks with PYTHONFAULTHANDLER=1 and allow core files (ulimit -c unlimited): then a crash leaves its stack."
#: What would have told more, by kind of ending.
_KEPT = {
    **dict.fromkeys(CRASHES, _STACKS),
    "killed": "Keep the kernel log of all hosts and memory.events of the job's cgroup with the job: they tell who killed and why.",
}


_CONSEQUENCES = (
    "timeout",
    "closed",
    "host-stall",
    "input-stall",
    "collective-stuck",
    "connection-failed",
    "rank-never-joined",
    "p2p-deadlock",
)


@rule(
    name="rank-died",
    code="DE01",
    cause="rank-died",
    severity="critical",
    at_most=32,
    explains=_CONSEQUENCES,
)
def rank_died(
    endings: pl.LazyFrame,
    last_calls: pl.LazyFrame | None,
    stalls: pl.LazyFrame | None = None,
    source_ranks: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    processes: pl.LazyFrame | None = None,
    launches: pl.LazyFrame | None = None,
    watchdog_calls: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per kind of ending with the ranks that share it. A crash of a rank whose stack had stood in a collective with the others,
    waiting for a rank that holds them up, is more likely the end of a hang (a timeout that tears connections down) than its beginning."""
    stood = _stood(last_calls, stalls) if last_calls is not None else set()
    every = endings.collect()
    others = _Others(
        every=every,
        heard=source_ranks.select(pl.col("rank").drop_nulls().n_unique()).collect().item() if source_ranks is not None else 0,
        failures=failures,
        stood=frozenset(stood),
        known=frozenset(stood) if last_calls is not None and _twice(last_calls) else frozenset(),
    )
    own = every.filter(pl.col("own") & pl.col("kind").is_in(list(_SAID))).sort("time_raw_ns", "rank", nulls_last=True)
    known = ranks_known(every, launches, processes, source_ranks, watchdog_calls)
    if (every.height >= 3 and _alike(own, known)) or most_crashed_alike(every):
        return  # all alike is a crash of the software, not of a rank
    for _, part in own.group_by("kind", "type", maintain_order=True):
        yield _died(part, others)


@dataclass(frozen=True)
class _Others:
    """What the rest of the job tells. ``heard``: how many ranks files are of; ``stood``: ranks whose stacks stood in a collective with the
    others; ``known``: those, where each was looked at twice."""

    every: pl.DataFrame
    heard: int
    failures: pl.LazyFrame | None
    stood: frozenset[int]
    known: frozenset[int]

    def unmissed(self, part: pl.DataFrame) -> bool:
        """Whether tracebacks alone say that these ended, and nobody misses them: others wait for whom they miss, and a job that
        shows another sign of failure may well be without it."""
        ranks = part["rank"].drop_nulls().to_list()
        return _printed(part) and nobody_missed(part, self.every, self.heard, self.failures) and self.stood <= set(ranks)

    def had_a_helper(self, part: pl.DataFrame) -> bool:
        """Whether a process of unknown rank, whom no rank misses, was a helper of the job, or a program that it ran."""
        nameless = part["rank"].is_null().all()
        return bool(nameless) and self.heard > 1 and part.height == self.every.height and not signs_beside_endings(self.failures)

    def waited_with(self, kind: str, ranks: Collection[int]) -> bool:
        """Whether these stood with the others before they crashed; so does a rank that whoever ends a standing job kills."""
        return kind in ("segfault", "abort", "killed") and bool(ranks) and set(ranks) <= (self.known if kind == "killed" else self.stood)


def _printed(part: pl.DataFrame) -> bool:
    """Whether a traceback in a process's own file may be one that it caught and printed, or a program's that it started."""
    return part["kind"][0] == "exception" and not part["over"].fill_null(value=True).all()


def _sure(part: pl.DataFrame) -> bool:
    """Whether these ended by what is said of them, and it was the beginning of the trouble."""
    kind, signature, message_type = part.select("kind", "signature", "type").row(0)
    # An error of NCCL on its way up is the end of the process and not the beginning of the trouble.
    if kind in ("vanished", "exit", "abort", "left") or signature in ("nccl-error", "nccl-cuda"):
        return False
    # One that the launcher had to stop was still there: what it raised did not end it.
    # Who sent a signal that asks to end, and to whom else, is not known.
    if kind in ("exception", "killed") and (part["signal"] == "SIGTERM").any():
        return False
    # What the C++ runtime says of a thread that nobody joined: a process on its way out says so too.
    return message_type != UNTHROWN and not _printed(part) and not _crashed_together(part)


def _crashed_together(part: pl.DataFrame) -> bool:
    """Whether several ranks crashed: one crash is a rank's own trouble, and of several one program may be the cause."""
    return part["kind"][0] in CRASHES and part["rank"].drop_nulls().len() > 1


def _died(part: pl.DataFrame, others: _Others) -> Finding:
    """``part``: rows of ``endings`` of one kind and one type of exception."""
    first = part.row(0, named=True)
    kind, message_type = str(first["kind"]), first["type"]
    said, remedy = _SAID["abort" if message_type == UNTHROWN else kind]
    ranks = tuple(part["rank"].drop_nulls().to_list())
    hosts = hosts_of(part)
    who = ranks_words(ranks) if ranks else "a process of unknown rank"
    where = f" on {', '.join(hosts[:3])}" if hosts else ""
    by_exception = [
        raised_at(r) | {"why": f"{r['type']} raised by this rank"} for r in part.iter_rows(named=True) if r["exc_source_id"] is not None
    ]
    alone, helper = others.unmissed(part), others.had_a_helper(part)
    low = alone or helper or others.waited_with(kind, ranks) or set(part["signature"].to_list()) == {"nccl-error"}
    raised = kind == "exception"
    actions = (
        Action("fix-code", hosts=hosts, ranks=ranks, where=first["frame"]) if raised else Action("collect-more", hosts=hosts, ranks=ranks)
    )
    return Finding(
        title=f"{who}{where} {said}{_detail(part)}",
        summary=f"{first['why']}." + (" Nobody missed it, and nothing but this traceback says that it ended." if alone else ""),
        severity="warning" if helper else "critical",
        confidence="low" if low else "high" if ranks and _sure(part) else "medium",
        ranks=ranks,
        hosts=hosts,
        culprits=tuple(Culprit(rank=r["rank"], host=r["host"], pid=r["pid"]) for r in part.iter_rows(named=True)),
        subject=(kind, str(message_type or ""), str(first["frame"] or "")),
        evidence=(*cite(by_exception, "the exception"), *cite(part, f"how the process ended ({first['signal'] or kind})")),
        evidence_total=part.height + len(by_exception),
        remedy=remedy,
        prevention=_KEPT.get(kind, _RECORD),
        would_refute=("an earlier fault of another rank that took this one down",),
        actions=(actions,),
        alternatives=(("software-crash", (), "the others were stopped before they could crash as well"),)
        if _crashed_together(part)
        # Whoever stands still takes nothing down either.
        else (("host-stall", ranks, None),)
        if kind == "vanished"
        else (),
    )


def _detail(part: pl.DataFrame) -> str:
    """What the end is told with: the signal, the exception and where it was raised, or the library that it crashed in."""
    first = part.row(0, named=True)
    if first["kind"] == "exception":
        message = str(first["message"] or "").split("\n", 1)[0][:160]
        told = f": {first['type']}{f': {message}' if message else ''}" if first["type"] else ""
        return told + (f" at {first['frame']}" if first["frame"] else "")
    inside = sorted({str(x) for x in part["library"].to_list() if x})
    signal = f" ({first['signal']})" if first["kind"] == "killed" else ""
    return signal + (f" in {', '.join(inside[:3])}" if inside else "")


@rule(name="rank-ended", code="DE12", cause="rank-died", severity="critical", at_most=8, explains=(*_CONSEQUENCES, "straggler"))
def rank_ended(stalls: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks that others wait for and whose stacks show that their program is over, though the process still waits for a thread, a child or
    its launcher; and the one of which nothing is there where all others left dumps."""
    yield from stall_findings(
        stalls,
        "rank-died",
        ("has ended its program early", "have ended their programs early"),
        remedy=WHY_IT_LEFT,
        prevention=AGREE_ON_STEPS,
        action="fix-code",
    )


#: How the kernel names processes that train (it cuts names at 15 characters), and libraries that only they load.
_TRAINERS = r"^(?:python|pt_main_thread|pt_elastic|ray::|torchrun|.*_perf)"
_LIBRARIES = r"(?i)^lib(?:nccl|rccl|torch|c10|cuda|cudnn|cublas|nvidia-|amdhip|hip|hsa|MIOpen|mlx5|ibverbs|uc[pst]|ucm|mpi|fabric|gloo)"


@rule(name="crash-in-kernel-log", code="DE06", cause="rank-died", severity="critical", at_most=16, explains=_CONSEQUENCES)
def crash_in_kernel_log(
    kernel_events: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    *,
    window_h: AroundHours = ZONES_H,
    near_s: NearSeconds = BESIDE_S,
    alike: Annotated[int, "processes of a host from which on crashes in one library are a fault of software"] = 3,
) -> Iterator[Finding]:
    """Segmentation faults in the kernel's log of processes that train, where no rank is known to be that process and none is known to have
    crashed: one finding per host and library. Several processes do not crash in one library by the fault of one rank."""
    ended = endings.collect() if endings is not None else pl.DataFrame(schema={"signal": pl.String(), "library": pl.String()})
    if (ended["signal"].is_in(["SIGSEGV", "SIGABRT"]) | ended["library"].is_not_null()).any():
        return
    ours = pl.col("comm").fill_null("").str.contains(_TRAINERS) | pl.col("detail").fill_null("").str.contains(_LIBRARIES)
    rows = located(kernel_events.filter((pl.col("kind") == "segfault") & ours), source_hosts).sort("source_id", "line_no")
    rows = near_job(rows, job_times, near_s, window_h).filter("inside")
    who = people(processes)
    seen = bool(who.pids or who.hosts)
    failed = has_rows(failures)
    for (host, library), part in rows.group_by("host", "detail", maintain_order=True):
        pids = part["pid"].drop_nulls().unique(maintain_order=True).to_list()
        names = sorted({str(c) for c in part["comm"].to_list() if c})
        # Where the ranks' own pids are known it is none of them: a child of one, a process in a container, or another job's.
        close = bool(part["close"].any()) and not any(place == first_label(host) for place, _ in who.pids)
        hosts = names_of(host)
        software = bool(library) and len(pids) >= alike
        more = f" and {len(pids) - 4} more" if len(pids) > 4 else ""
        yield Finding(
            title=f"{' and '.join(names[:2]) or 'a process'} (pid {', '.join(map(str, pids[:4]))}{more}) crashed (SIGSEGV)"
            + (f" in {library}" if library else "")
            + (f" on {host}" if host else ""),
            summary=f"{len(pids)} processes of this host crashed in one library: a fault of the program or of that library, not of one rank."
            if software
            else "The kernel reports the crash; no evidence tells which rank the process was.",
            severity="critical" if failed or not seen else "warning",
            confidence="medium" if close or not seen else "low",
            cause="software-crash" if software else None,
            hosts=() if software else hosts,
            culprits=() if software else tuple(Culprit(host=name_of(host), pid=p) for p in pids[:16]) or (Culprit(host=name_of(host)),),
            subject=("segfault", *names, str(library or "")),
            evidence=cite(part, "line of the kernel"),
            evidence_total=part.height,
            remedy="Get a core file or run with faulthandler to see where it crashed; hand in the logs that tell ranks and pids.",
            prevention="Run each rank with faulthandler on (PYTHONFAULTHANDLER=1), and keep core files.",
            would_refute=("the process is none of the job's", "it crashed on its way out, after another fault"),
            actions=(Action("collect-more", hosts=hosts),),
        )


def _alike(own: pl.DataFrame, everyone: int) -> bool:
    """Nearly all ranks ended in the same way of their own."""
    if own.height < 2 or own.height < 0.8 * everyone:
        return False
    return own.select("kind", own_signal(), "type").n_unique() == 1


def _twice(last_calls: pl.LazyFrame) -> bool:
    """Whether every sampled rank was looked at more than once, and none moved."""
    seen = last_calls.filter(pl.col("witness") == "stack").select(pl.col("moved").eq_missing(pl.lit(value=False)).all()).collect()
    return bool(seen.item())


def _stood(last_calls: pl.LazyFrame, stalls: pl.LazyFrame | None) -> set[int]:
    """Ranks whose stacks stand still in a call that waits for others, if those of all sampled ranks (two at least) do, but for ranks that
    surely hold them up."""
    seen = last_calls.filter(pl.col("witness") == "stack").collect()
    waits, rests = pl.col("place").is_in(WAITING), ~pl.col("moved").fill_null(False)
    if stalls is not None:
        hold = stalls.filter(pl.col("confidence") == "high").select("rank").collect()["rank"].to_list()
        seen = seen.filter(waits | ~rests | ~pl.col("rank").is_in(hold))
    still = seen.filter(waits & rests)
    return set(still["rank"].to_list()) if seen.height == still.height >= 2 else set()
