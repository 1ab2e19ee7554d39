"""A GPU failed: the driver or the GPU's own counters say so.

## What it finds
Xid errors of the driver by GPU, with the one nearest to the cause first (79 before 154 and 45); GPUs that no longer answer nvidia-smi, or
that Kubernetes' device plugin took out of service; uncorrected memory errors, failed row remapping, pages past the limit, a recovery
action that the driver asks for; failed DCGM tests; a fabric that is not ready; and, where no host log tells more, the CUDA errors that
ranks themselves saw.

## Why it matters
The job cannot go on without the GPU, and the next job on it dies the same way. Peers report timeouts minutes later: those are
consequences. Xid 43 and 45 are consequences as well and never name the cause.

## What would refute it
The Xid comes after the job already stood still (cleanup of killed processes), or the bus address belongs to a GPU that the job did not
use. Xid 13 and 31 are mostly the program's: they speak against the GPU only if one GPU repeats them under different programs.

## What to do next
Follow the action of the code: restart the job, reset the GPU, reboot the node, or drain it. Save nvidia-bug-report.sh before the reset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.cuda_errors import cuda_error, fault_of
from nccl_forensics.facts.gpu import CORRECTED_DRAM_LIMIT, CORRECTED_SRAM_LIMIT, RETIRED_PAGES_LIMIT
from nccl_forensics.facts.xid import DEPTH, RECOVERY, XIDS, Xid, xid
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.gpu_states import ACTION_WORDS, dcgm_findings, kernel_findings, state_findings, tool_findings
from nccl_forensics.rules.common.hosts import (
    EXPLAINS_STOP,
    People,
    addressed,
    after_the_end,
    located,
    people,
    place,
    place_by_stall,
    place_by_word,
    ranks_of,
    timely,
    untimely_finding,
    with_placements,
)
from nccl_forensics.rules.common.thresholds import ZONES_H, AroundHours
from nccl_forensics.rules.common.ties import Job as TiedJob
from nccl_forensics.rules.common.ties import Tie, closest, job_of, tied
from nccl_forensics.words import first_label, ranks_words

#: Messages of the runtimes of GPUs, CUDA's and ROCm's.
_RUNTIMES = "(?i)cuda|by GPU node-"
#: Codes whose pid is only the process that asked.
_PID_MISLEADS = frozenset({79, 119, 120})
#: Seconds after the last word of a job from which what a program brings about belongs to its end.
_LATER_S = 5.0
#: Codes after which a GPU does nothing more, of no fault of its program.
_OF_THE_DEVICE = [code for code, facts in XIDS.items() if facts.severity == "critical" and facts.kind in ("bus", "firmware", "memory")]
#: Of these, memory errors that ended one process and left the GPU in use: an earlier one says nothing of this job.
_CONTAINED = frozenset({48, 94, 171, 172})
#: Codes upon which CUDA reports an error to the process that uses the GPU.
_HEARD = [code for code, facts in XIDS.items() if facts.kind in ("bus", "firmware", "memory", "app", "engine")]


@rule(
    name="gpu-fault",
    code="GP01",
    cause="gpu-fault",
    severity="critical",
    at_most=64,
    explains=(*EXPLAINS_STOP, "nvlink-fault", "pcie-degraded", "data-corruption"),
)
def gpu_fault(
    xids: pl.LazyFrame | None,
    gpus: pl.LazyFrame | None,
    gpu_tool_errors: pl.LazyFrame | None,
    kernel_events: pl.LazyFrame | None,
    dcgm_results: pl.LazyFrame | None,
    raised: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    placements: pl.LazyFrame | None,
    stalls: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    bandwidth_tests: pl.LazyFrame | None = None,
    *,
    window_h: AroundHours = ZONES_H,
    retired_pages: Annotated[int, "retired pages from which a GPU counts as worn out"] = RETIRED_PAGES_LIMIT,
    corrected_dram: Annotated[int, "corrected memory errors from which a GPU is watched"] = CORRECTED_DRAM_LIMIT,
    corrected_sram: Annotated[int, "corrected cache errors from which a GPU is watched"] = CORRECTED_SRAM_LIMIT,
) -> Iterator[Finding]:
    """Xids by host and code, then states by GPU, then tools, then what ranks saw themselves."""
    who = people(processes, placements)
    ties = job_of(job_signs, job_times, failures)
    proved = False
    if xids is not None:
        rows = addressed(located(xids, source_hosts), gpus, kernel_events, source_hosts)
        inside = timely(rows, job_times, window_h)
        if stalls is not None:
            place_by_stall(who, rows.filter(inside & pl.col("code").is_in(_OF_THE_DEVICE)), stalls)
        if raised is not None:
            place_by_word(who, rows.filter(inside & pl.col("code").is_in(_HEARD)), _of_the_device(raised))
        job = _Job(
            who,
            dated=has_rows(job_times),
            hurt=_hurt(raised, who),
            failed=has_rows(failures),
            one_numbering=_one_numbering(rows, who),
            unhurt=_failed_otherwise(raised),
            ties=ties,
            reloads=_reloads(kernel_events),
            tested=has_rows(bandwidth_tests) and not has_rows(bandwidth_tests, ~pl.col("complete") | pl.col("error").is_not_null()),
        )
        for finding in with_placements(_by_xid(rows.filter(inside), job), who):
            proved = proved or finding.severity == "critical"
            yield finding
        if not inside.all():
            yield untimely_finding(rows.filter(~inside), "Xid lines")
    if gpu_tool_errors is not None:
        errors = addressed(located(gpu_tool_errors, source_hosts), gpus, kernel_events, source_hosts)
        yield from with_placements(tool_findings(errors, who, _uuids(xids), ties), who)
    if kernel_events is not None:
        yield from with_placements(kernel_findings(located(kernel_events, source_hosts), who, ties), who)
    if gpus is not None:
        yield from with_placements(
            state_findings(located(gpus, source_hosts), who, ties, retired_pages, corrected_dram, corrected_sram), who
        )
    if dcgm_results is not None:
        yield from with_placements(dcgm_findings(located(dcgm_results, source_hosts), who), who)
    if raised is not None and not proved:
        yield from _seen_by_ranks(raised, known_ranks=processes is not None)


# ---- Xid ----


@dataclass(frozen=True, slots=True)
class _Job:
    """What the rest of the evidence tells of the job: its ranks, whether anything dates it, the hosts of ranks that say that their GPU
    failed them (None for a rank whose host is not known), whether it failed at all, whether the kernel knows its processes by the same
    pids, the ranks that failed with another error than CUDA's, and whether it is a test that came to its end."""

    who: People
    dated: bool
    hurt: frozenset[str | None]
    failed: bool
    one_numbering: bool
    unhurt: frozenset[int]
    ties: TiedJob
    reloads: dict[int, int]
    tested: bool


def _by_xid(rows: pl.DataFrame, job: _Job) -> Iterator[Finding]:
    rows = rows.filter(pl.col("code").is_not_null())
    if not rows.height:
        return
    codes_of: dict[tuple[object, object], dict[int, int]] = defaultdict(dict)
    for host, bus, code in rows.select("host", "bus_id", "code").iter_rows():
        codes_of[(host, bus)][code] = codes_of[(host, bus)].get(code, 0) + 1
    leaders: dict[tuple[object, int], list[object]] = defaultdict(list)
    for (host, bus), codes in codes_of.items():
        leaders[(host, min(codes, key=_rank_code))].append(bus)
    for host, code in sorted(leaders, key=lambda k: (_rank_code(k[1]), str(k[0]))):
        buses = leaders[(host, code)]
        mine = rows.filter((pl.col("host").eq_missing(pl.lit(host, dtype=pl.String()))) & pl.col("bus_id").is_in(buses, nulls_equal=True))
        yield from _xid_finding(host, code, buses, mine, job)


def _rank_code(code: int) -> tuple[int, int]:
    return (DEPTH[xid(code).kind], code)


def _unclaimed(own: pl.DataFrame, host: object, ranks: Sequence[int], job: _Job) -> bool:
    """Whether nothing ties such lines to the job: no rank is known on the GPU (one that only its neighbours place says whose GPU it is during
    the job, and not that the job ran then), none of this host tells of a fault of its GPU, and no times tell that the job ran then. Of
    hundreds of hosts some always have such a line, from whatever ran on them before."""
    return job.who.placed.keys() >= set(ranks) and job.hurt.isdisjoint({None, first_label(host)}) and _undated(own, job)


def _stranger(kind: str, own: pl.DataFrame, host: object, ranks: Sequence[int], job: _Job) -> str | None:
    """Why a fault that any process may bring about is likely not of this job's; None where it may be."""
    if kind not in ("app", "consequence"):
        return None
    if job.hurt.isdisjoint({None, first_label(host)}) and own.height and after_the_end(own, job.ties.times, _LATER_S).all():
        return " It was written after the job had told of its failure: it follows from that."
    if kind == "app" and not ranks and job.hurt.isdisjoint({None, first_label(host)}) and _failed_by_itself(job):
        return " A rank failed by itself with another error than CUDA's, and none tells of a fault of its GPU: it is of something else."
    if _of_others(own, host, job):
        return " Its process is none of the job's, and no times tell that the job ran then: it may be older than the job."
    if not job.failed and job.hurt.isdisjoint({None, first_label(host)}) and _not_of_ranks(own, host, job):
        return " Its process is none of the job's, and the job shows no failure: it ended another one."
    if job.tested and not job.failed:
        return " The test of the collectives came to its end without an error: it ended another process."
    if _unclaimed(own, host, ranks, job):
        if not job.who.pids:
            return None
        return " Nothing ties it to the job: no rank is known on this GPU or tells of a fault of its GPU, and no times tell that the job ran then."
    if kind == "app" and ranks and job.unhurt.issuperset(ranks):
        return f" {ranks_words(ranks)} failed with another error than CUDA's, which such a fault brings about: it belongs to another job."
    return None


def _xid_finding(host: object, code: int, buses: list[object], rows: pl.DataFrame, job: _Job) -> Iterator[Finding]:
    facts = xid(code)
    buckets = tuple(dict.fromkeys(b for b in (facts.immediate, facts.investigate) if b))
    if facts.kind in ("link", "benign"):
        return  # links have a rule of their own
    own = rows.filter(pl.col("code") == code)
    others = sorted({c for c in rows["code"].to_list() if c != code})
    severity, action, note = _weigh(facts, set(rows["code"].to_list()), rows)
    culprits = tuple(_culprit(host, bus, rows, code, job.who) for bus in sorted(buses, key=str))
    program, faint = facts.kind == "app", facts.kind in ("app", "consequence")
    confidence: Confidence = "medium" if program or facts.kind in ("driver", "engine") else "high"
    if program and len(buses) >= 3:
        confidence = "low"  # the same fault on many GPUs speaks for the program that they all run
    if stranger := _stranger(facts.kind, own, host, ranks_of(culprits), job):
        severity, confidence, culprits = "warning", "low", ()
        note += stranger
    elif faint and severity == "critical" and not job.failed and not job.who.pids and _unclaimed(own, host, ranks_of(culprits), job):
        severity, confidence = "error", "low"  # nothing tells of a job that stopped, nor when one ran
    ranks = ranks_of(culprits)
    subject = f"{len(buses)} GPUs of {host or 'one host'}" if len(buses) > 1 else place(host, buses[0])
    behind = f" ({ranks_words(ranks)})" if ranks else ""
    implied = bool(own["implied"].fill_null(False).all())
    if implied and facts.kind == "summary" and confidence == "high":
        confidence = "medium"  # the code that this one speaks of is not in the log
    many = len(buses) > 1 and facts.kind in ("bus", "firmware")
    message = next((m for m in own["message"].to_list() if m), None)
    tie: Tie = "own"
    # Faults of programs name their process; where a line does not, or the program is none of the job's, was judged above.
    if not faint or own["pid"].null_count() == own.height:
        tie = closest(
            [
                job.ties.tie(
                    _of_bus(rows, bus),
                    host,
                    gpu=bus,
                    pids=_pids(rows, bus),
                    of=ranks_of([c for c in culprits if c.gpu == bus]),
                    lasting=code in _OF_THE_DEVICE and code not in _CONTAINED and not _mended(own, job),
                )
                for bus in buses
            ]
        )
    finding = Finding(
        title=f"{subject}{behind} {'wrote what stands for' if implied else 'reported'} Xid {code}: {facts.meaning}",
        summary=(
            f"The driver wrote {own.height} such {'line' if own.height == 1 else 'lines'}"
            + (f': "{message[:200]}"' if message else "")
            + "."
        )
        + (f" Further codes on the same GPU follow from it: {', '.join(map(str, others))}." if others else "")
        + (" Several GPUs of one host fail alike: look for a cause in the node (power, PCIe switch, driver)." if many else "")
        + note,
        severity=severity,
        confidence=confidence,
        ranks=ranks,
        hosts=names_of(host),
        culprits=culprits,
        subject=(str(host or ""), *sorted(str(b) for b in buses), str(code)),
        evidence=cite(
            pl.concat([own.head(6), rows.filter(pl.col("code") != code).unique("code", maintain_order=True).head(6)]),
            f"Xid {code}" if not others else f"Xid {code} and what followed it",
        ),
        evidence_total=rows.height,
        remedy=("" if action == "collect_more" or severity == "info" else "Save nvidia-bug-report.sh first. ")
        + f"{ACTION_WORDS[action][0].upper()}{ACTION_WORDS[action][1:]}."
        + (f" NVIDIA's bucket{'s' if len(buckets) > 1 else ''}: {', then '.join(buckets)}." if buckets else ""),
        prevention="Watch Xid errors per node (dcgm-exporter, node problem detector) and drain on the codes that ask for it.",
        would_refute=("the code appears only after the job had already stopped", "the GPU was not used by the job"),
        actions=(
            Action(
                action,
                hosts=names_of(host),
                gpus=tuple(str(b) for b in buses if b),
                ranks=ranks,
                command="nvidia-bug-report.sh" if severity != "info" else None,
                confidence=confidence,
            ),
        ),
        alternatives=(("software-crash", ranks, "this code is usually raised by a fault of the program"),) if program else (),
        metrics={"xid": code, "lines": own.height},
    )
    yield tied(finding, tie)


def _reloads(kernel_events: pl.LazyFrame | None) -> dict[int, int]:
    """By source the last line of a boot or in which the driver was loaded: a GPU that had failed before was reset."""
    if kernel_events is None:
        return {}
    loads = kernel_events.filter(pl.col("kind").is_in(["driver-load", "boot"])).group_by("source_id").agg(pl.col("line_no").max())
    return dict(loads.collect().iter_rows())


def _mended(rows: pl.DataFrame, job: _Job) -> bool:
    """Whether the driver was loaded anew after the last of these lines."""
    return rows.height > 0 and all(line < job.reloads.get(source, 0) for source, line in rows.select("source_id", "line_no").iter_rows())


def _of_bus(rows: pl.DataFrame, bus: object) -> pl.DataFrame:
    return rows.filter(pl.col("bus_id").eq_missing(pl.lit(bus, dtype=pl.String())))


def _pids(rows: pl.DataFrame, bus: object) -> list[int]:
    """Processes that lines about a GPU name, but for codes that name whoever asks the driver next."""
    told = _of_bus(rows, bus).filter(~pl.col("code").is_in(list(_PID_MISLEADS)))
    return [int(p) for p in told["pid"].drop_nulls().unique().to_list()]


def _one_numbering(rows: pl.DataFrame, who: People) -> bool:
    """Whether the kernel knows a rank by the same pid as the rank itself: then no container numbers processes anew."""
    return any((first_label(host), pid) in who.pids for host, pid in rows.select("host", "pid").drop_nulls().unique().iter_rows())


def _failed_otherwise(raised: pl.LazyFrame | None) -> frozenset[int]:
    """Ranks that say why they failed, and do not name a CUDA error."""
    if raised is None:
        return frozenset()
    said: dict[int, bool] = {}
    for rank, message in raised.filter(pl.col("rank").is_not_null()).select("rank", "message").collect().iter_rows():
        said[rank] = said.get(rank, False) or "cuda" in str(message).lower()
    return frozenset(rank for rank, cuda in said.items() if not cuda)


def _failed_by_itself(job: _Job) -> bool:
    """Whether a rank ended the job by an error of its own that is not CUDA's."""
    return any(job.ties.signs.get(rank) == "died" for rank in job.unhurt)


def _hurt(raised: pl.LazyFrame | None, who: People) -> frozenset[str | None]:
    """Hosts of the ranks that say that their GPU failed them: a fault of the kernel's log there has somebody to belong to."""
    if raised is None:
        return frozenset()
    host_of = {rank: host for host, ranks in who.hosts.items() for rank in ranks}
    host_of |= {rank: str(host) for (host, _), rank in who.gpus.items() if rank in who.placed}
    said = raised.filter(pl.col("message").str.contains(_RUNTIMES)).select("rank", "hint_host", "message")
    hosts: set[str | None] = set()
    for rank, host, message in said.collect().iter_rows():
        if _cuda_fault(str(message)) is not None:
            hosts.add(first_label(host) or (host_of.get(rank) if rank is not None else None))
    return frozenset(hosts)


def _undated(rows: pl.DataFrame, job: _Job) -> bool:
    """Whether no times tell that the job ran when the lines were written: they bear no date, or nothing of the job does."""
    return not job.dated or bool(rows["time_kind"].eq_missing("monotonic").all())


def _of_others(rows: pl.DataFrame, host: object, job: _Job) -> bool:
    """Whether lines name processes of which none is a rank, on a host whose ranks are known with their pids, and neither times tell that
    the job ran then nor a rank of a fault of its GPU.

    A pid alone proves nothing: in a container a rank knows itself by another number than the kernel does. Where another line of the
    kernel names a rank by its pid, the numbers are the same, and it does.
    """
    told = not job.one_numbering and (bool(job.hurt) or not _undated(rows, job))
    if told and not rows["time_kind"].eq_missing("monotonic").all():
        return False
    return _not_of_ranks(rows, host, job)


def _not_of_ranks(rows: pl.DataFrame, host: object, job: _Job) -> bool:
    """Whether lines name processes of which none is a rank by its pid, on a host whose ranks are known with theirs."""
    if host is None or rows["pid"].null_count():
        return False
    known = {pid for (place, pid) in job.who.pids if place == first_label(host)}
    return bool(known) and not known & set(rows["pid"].to_list())


def _weigh(facts: Xid, codes: set[int], rows: pl.DataFrame) -> tuple[Severity, str, str]:
    """Severity, action and a note from the codes that stand together on one GPU."""
    severity, action, note = facts.severity, facts.action, ""
    if facts.kind == "consequence":
        note = " It is written when a process ends or is killed, and names no cause of its own."
    if facts.code in (48, 171, 172):
        units = " ".join(str(m).lower() for m in rows["message"].drop_nulls().to_list())
        dram = 171 in codes or "framebuffer" in units
        note = f" The error was in {'DRAM (HBM)' if dram else 'SRAM'}." if dram or 172 in codes or "sram" in units else ""
        if codes & {64, 157}:
            action = "replace_hw"
    advised = [a for a in rows.filter(pl.col("code") == 154).sort("line_no")["action"].to_list() if a]
    if advised:
        wanted = RECOVERY.get(str(advised[-1]).lower())
        note += f' The driver itself asks for "{advised[-1]}".'
        if wanted and wanted != "none":
            action = wanted
            if facts.kind == "summary":
                severity = "error"
    return severity, action, note


def _culprit(host: object, bus: object, rows: pl.DataFrame, code: int, who: People) -> Culprit:
    """The GPU with its rank and process. Where the code is raised by whoever asks the driver next, what followed tells the GPU's
    process."""
    rank = who.of_gpu(host, bus)
    told = ~pl.col("code").is_in(list(_PID_MISLEADS)) if code in _PID_MISLEADS else pl.col("code") == code
    pids = rows.filter(told & pl.col("bus_id").eq_missing(pl.lit(bus, dtype=pl.String())))["pid"].drop_nulls().unique().to_list()
    pid = pids[0] if len(pids) == 1 else None
    if code in _PID_MISLEADS and who.of_pid(host, pid) is None:
        pid = None
    return Culprit(rank=rank if rank is not None else who.of_pid(host, pid), host=name_of(host), gpu=name_of(bus), pid=pid)


def _uuids(xids: pl.LazyFrame | None) -> list[str]:
    """GPUs that an Xid names by UUID: that their plugin took them out of service tells no more."""
    return [] if xids is None else xids.select(pl.col("uuid").drop_nulls().unique()).collect()["uuid"].to_list()


# ---- what ranks saw themselves ----


def _of_the_device(raised: pl.LazyFrame) -> pl.DataFrame:
    """The exceptions in which CUDA speaks of the device."""
    rows = raised.filter(pl.col("message").str.contains(_RUNTIMES)).sort("source_id", "line_no").collect()
    return rows.filter(pl.Series([_cuda_fault(str(m)) is not None for m in rows["message"].to_list()], dtype=pl.Boolean))


def _seen_by_ranks(raised: pl.LazyFrame, *, known_ranks: bool) -> Iterator[Finding]:
    """CUDA errors in the text of processes that no other evidence names: the device is ill or its program is, which the text cannot tell.

    Where processes are known, the ends of the ranks are judged by a rule of their own; here are left the texts of no known rank.
    """
    seen: dict[str, dict[object, dict[str, object]]] = defaultdict(dict)
    said = raised.filter(pl.col("message").str.contains(_RUNTIMES)).sort("source_id", "line_no")
    for row in said.collect().iter_rows(named=True):
        text = _cuda_fault(str(row["message"]))
        if text is None:
            continue
        rank = row["rank"]
        if rank is not None and known_ranks:
            continue
        seen[text].setdefault(rank if rank is not None else ("source", row["source_id"]), row | {"host": row["hint_host"]})
    for text in sorted(seen):
        rows = [r for _, r in sorted(seen[text].items(), key=lambda i: str(i[0]).zfill(9))]
        ranks = tuple(sorted(int(str(r["rank"])) for r in rows if r["rank"] is not None))
        fault = fault_of(text)
        program = fault == "software-crash"
        names = ranks_words(ranks) if ranks else "a rank that the evidence does not name"
        few = len(rows) <= 2
        speaker = "CUDA" if "cuda" in str(rows[0]["message"]).lower() else "ROCm"
        yield Finding(
            title=f"{'a kernel' if program else 'the GPU'} of {names} failed: {speaker} reported '{text}'",
            summary="An error that sticks to the device: everything that the rank does with it afterwards fails. "
            + (
                "It tells of a wrong address or instruction in a kernel, which mostly is the program's or a library's."
                if program
                else "It stands for an Xid in the host's kernel log."
            )
            + ("" if few else f" {len(rows)} ranks saw it: then one of them infected the others, or the program is at fault."),
            severity="critical",
            confidence="medium" if few else "low",
            cause=fault,
            ranks=ranks,
            culprits=tuple(Culprit(rank=r["rank"], host=r["host"], pid=r["pid"]) for r in rows),  # type: ignore[arg-type]  # columns of exceptions: an integer, a text, an integer
            subject=(text,),
            evidence=cite(rows, f"{speaker} error '{text}'"),
            evidence_total=len(rows),
            remedy="Look into the kernel log of the host (dmesg) for an Xid at that time; run dcgmi diag -r 3 on the node.",
            prevention="Collect dmesg of all hosts with the job's logs.",
            would_refute=("the same error on other GPUs with the same program and input",),
            actions=(Action("collect_more", ranks=ranks, command="dmesg -T | grep -i -E 'xid|nvrm'"),),
            alternatives=(("gpu-fault", ranks, "no kernel log shows that the device is well"),) if program else (),
        )


def _cuda_fault(message: str) -> str | None:
    """The words of a CUDA error that speaks of the device and not of a wrong call, the driver or memory: these have rules of their own."""
    said = cuda_error(message)
    return said.text if said is not None and said.speaks in ("gpu", "kernel", "not-ready") else None
