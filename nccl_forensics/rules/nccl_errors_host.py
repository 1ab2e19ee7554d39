"""NCCL's own warnings that name a resource of the host: shared memory, locked memory, GPU memory, a CUDA fault.

## What it finds
WARN lines of NCCL whose text names the resource that ran out or the CUDA error that struck, and the processes that wrote them first.

## Why it matters
The other ranks only see a peer that went away; the one line that says why stands in one log among many.

## What would refute it
The warning came during shutdown, after another rank had already failed.

## What to do next
Shared memory: raise --shm-size or the emptyDir limit. Locked memory: ulimit -l unlimited. GPU memory: look who else uses the GPU.
CUDA fault: read the kernel log of that host for Xid.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.cuda_errors import cuda_error, fault_of, texts
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Evidence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.endings import nobody_missed, raised_at
from nccl_forensics.rules.common.errors import hosts_of, ranks_of, where_reported
from nccl_forensics.words import ranks_words

_FALLOUT = (
    "timeout",
    "closed",
    "rank-died",
    "connection-failed",
    "host-stall",
    "input-stall",
    "collective-stuck",
    "rank-never-joined",
    "software-crash",
    "gpu-stall",
    "collective-skipped",
    "environment-mismatch",
)
_NO_SPACE = "No space left on device"
#: What NCCL up to 2.21 says of a segment that it could not make, without the reason.
_NO_SEGMENT = ("Error while creating shared memory segment",)
_NO_MEMORY = "Cannot allocate memory"
_OUT_OF_MEMORY = "out of memory"
#: CUDA texts that say that the GPU failed or could not be started, not that the program asked for too much.
_GPU_TEXTS = texts("gpu", "kernel", "not-ready")
_DRIVER_TEXTS = texts("driver")


def _any(texts: tuple[str, ...]) -> pl.Expr:
    return pl.col("message").str.contains_any(list(texts), ascii_case_insensitive=True)


@rule(name="shm-exhausted-nccl", code="HO01", cause="shm-exhausted", severity="critical", at_most=8, explains=(*_FALLOUT, "out-of-memory"))
def shm_exhausted_nccl(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame) -> Iterator[Finding]:
    """Shared memory segments that NCCL could not make for want of space: a fault of the host, not of a rank."""
    about = nccl_errors.filter(pl.col("kind") == "shm")
    said = has_rows(about, _any((_NO_SPACE,)))
    # Up to 2.21 the line has no error text: a tmpfs that cannot be extended is full, while a segment that cannot be made may have other
    # reasons.
    unsaid = ~pl.col("message").str.contains(r"error: ")
    extending = _any(("failed to extend",)) & unsaid
    wanted = about.filter(_any((_NO_SPACE,)) | extending)
    guessed = not has_rows(wanted)
    if guessed and not has_rows(about, ~_any(_NO_SEGMENT) | ~unsaid):
        wanted = about
    rows = where_reported(wanted, processes)
    if rows.height:
        hosts = hosts_of(rows)
        yield Finding(
            title=f"/dev/shm {'is' if said else 'seems'} full on {', '.join(hosts) or 'a host'}: NCCL could not make its shared memory segments",
            summary=f"{rows.height} warnings of {ranks_words(ranks_of(rows)) if ranks_of(rows) else 'processes'} say: "
            + (
                "no space left on device."
                if said
                else f"a segment could not be {'made' if guessed else 'extended'}. This release of NCCL does not say why; a full /dev/shm is the usual reason."
            ),
            confidence="high" if said else "low" if guessed else "medium",
            hosts=hosts,
            culprits=tuple(Culprit(host=h) for h in hosts),
            subject=("shm", *hosts),
            evidence=cite(rows, "no space left in /dev/shm" if said else "could not be made" if guessed else "could not be extended"),
            evidence_total=rows.height,
            remedy="Give the container more shared memory (docker --shm-size, Kubernetes emptyDir medium Memory) and remove stale /dev/shm/nccl-* files.",
            prevention="Check df /dev/shm in the job's prologue.",
            would_refute=("free space in /dev/shm at that moment",),
            actions=(Action("change-setting", hosts=hosts, command="df -h /dev/shm; ls -la /dev/shm/nccl-*", confidence="high"),),
        )


@rule(name="memlock-limit-nccl", code="HO02", cause="memlock-limit", severity="critical", at_most=8, explains=(*_FALLOUT, "ib-link"))
def memlock_limit_nccl(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame) -> Iterator[Finding]:
    """Memory registration refused for want of lockable memory: a limit of the host."""
    rows = where_reported(
        nccl_errors.filter((pl.col("kind") == "ibv-call") & _any(("ibv_reg_mr", "ibv_reg_dmabuf", "ibv_create")) & _any((_NO_MEMORY,))),
        processes,
    )
    if rows.height:
        hosts = hosts_of(rows)
        yield Finding(
            title=f"the locked-memory limit is too low on {', '.join(hosts) or 'a host'}: memory cannot be registered with the NIC",
            summary="ibv_reg_mr fails with 'Cannot allocate memory', which is the memlock limit, not a lack of memory.",
            confidence="high",
            hosts=hosts,
            culprits=tuple(Culprit(host=h) for h in hosts),
            subject=("memlock", *hosts),
            evidence=cite(rows, "registration refused"),
            evidence_total=rows.height,
            remedy="Set ulimit -l unlimited (docker --ulimit memlock=-1, LimitMEMLOCK=infinity for slurmd) on these hosts.",
            prevention="Check ulimit -l in the job's prologue.",
            would_refute=("ulimit -l of the job on these hosts says unlimited",),
            actions=(Action("change-setting", hosts=hosts, command="ulimit -l", confidence="high"),),
        )


@rule(name="out-of-memory-nccl", code="HO03", cause="out-of-memory", severity="critical", at_most=8, explains=_FALLOUT)
def out_of_memory_nccl(
    nccl_errors: pl.LazyFrame | None,
    processes: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Memory that ran out, of the GPU or of the host, in NCCL's warnings or in a rank's own exception, which is less sure where nobody missed
    the rank."""
    said = (
        where_reported(
            nccl_errors.filter(
                (pl.col("kind") == "host-alloc") | (pl.col("kind").is_in(["cuda-failure", "cuda-alloc"]) & _any((_OUT_OF_MEMORY,)))
            ),
            processes,
        )
        if nccl_errors is not None
        else pl.DataFrame()
    )
    raised = endings.filter(pl.col("kind") == "out-of-memory").sort("rank").collect() if endings is not None else pl.DataFrame()
    ranks = tuple(sorted({*(ranks_of(said) if said.height else ()), *(ranks_of(raised) if raised.height else ())}))
    hosts = tuple(sorted({*(hosts_of(said) if said.height else ()), *(hosts_of(raised) if raised.height else ())}))
    if not said.height and not raised.height:
        return
    heard = source_ranks.select(pl.col("rank").drop_nulls().n_unique()).collect().item() if source_ranks is not None else 0
    caught = not said.height and endings is not None and nobody_missed(raised, endings.collect(), heard, failures)
    on_gpu = bool(said.height and (said["kind"] != "host-alloc").any()) or bool(raised.height and (raised["signature"] != "host-oom").any())
    yield Finding(
        title=f"{ranks_words(ranks) if ranks else 'a process'} ran out of {'' if on_gpu else 'host '}memory"
        + (f" on {', '.join(hosts)}" if hosts else ""),
        summary="The allocation failed in this process; its peers only lost a partner.",
        confidence="high" if ranks and not caught else "medium",
        ranks=ranks,
        hosts=hosts,
        culprits=tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts),
        subject=("oom", *(str(r["frame"]) for r in raised.head(1).iter_rows(named=True) if r["frame"])),
        evidence=_proof(said, raised, "the allocation that failed"),
        evidence_total=said.height + raised.height,
        remedy="Find what else holds memory on that GPU (nvidia-smi), or lower the batch size or NCCL_BUFFSIZE."
        if on_gpu
        else "Give the job more host memory, or use less of it: data loader workers, pinned buffers, what the quoted line asks for.",
        prevention="Log torch.cuda.memory_summary of every rank before the first collective."
        if on_gpu
        else "Log the resident memory of every rank and its data loader workers, and compare it with the limit of the cgroup.",
        would_refute=("free memory on that device at that moment" if on_gpu else "free memory on that host at that moment",),
        actions=(Action("collect-more", ranks=ranks, hosts=hosts, command="nvidia-smi" if on_gpu else "free -m; ulimit -a"),),
    )


@rule(name="cuda-fault", code="GP03", cause="gpu-fault", severity="critical", at_most=8, explains=_FALLOUT)
def cuda_fault(nccl_errors: pl.LazyFrame | None, processes: pl.LazyFrame, endings: pl.LazyFrame | None) -> Iterator[Finding]:
    """CUDA errors that stick: the GPU failed or could not be started, or a kernel on it did what none may, which is the program's fault."""
    said, raised, ranks, hosts, text = _reported(nccl_errors, processes, endings, "gpu", _GPU_TEXTS)
    if text is None:
        return
    error = cuda_error(text)
    asleep = error is not None and error.speaks == "not-ready"
    program = error is not None and error.speaks == "kernel"
    # A process that sees no GPU may have been told to, or have forked after CUDA began; a fabric that is not up is the host's.
    sure = not program and not (asleep and error is not None and error.number != 802)
    many = len(ranks) > 4
    meaning = f"{error.meaning[0].upper()}{error.meaning[1:]}. " if error is not None else ""
    yield Finding(
        title=f"{ranks_words(ranks) if ranks else 'a process'}: CUDA reports '{text}'",
        summary=meaning
        + (
            "It never came to work on this GPU."
            if asleep
            else "An error of this kind sticks to the process: its GPU does nothing more. The kernel log tells hardware from software."
        ),
        confidence="low" if many else "high" if ranks and sure else "medium",
        ranks=ranks,
        hosts=hosts,
        culprits=tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts),
        cause=fault_of(text),
        subject=("cuda", text, *hosts),
        evidence=_proof(said, raised, text),
        evidence_total=said.height + raised.height,
        remedy="See that nvidia-smi and, on hosts with NVSwitch, the fabric manager work on that host (nvidia-smi -q | grep -A4 Fabric), and "
        "which GPUs the process may see (CUDA_VISIBLE_DEVICES)."
        if asleep
        else "Look for Xid in the kernel log of that host; without one suspect the program (run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer).",
        prevention="Collect dmesg of every host with the job's logs.",
        would_refute=("no Xid in the kernel log, and the same kernel fails on other GPUs too",),
        actions=(Action("collect_more", ranks=ranks, hosts=hosts, command="nvidia-smi -q" if asleep else "dmesg -T | grep -i xid"),),
        alternatives=(("gpu-fault", ranks, "no kernel log shows that the device is well"),) if program else (),
    )


@rule(name="driver-mismatch", code="EN04", cause="version-mismatch", severity="critical", at_most=8, explains=_FALLOUT)
def driver_mismatch(nccl_errors: pl.LazyFrame | None, processes: pl.LazyFrame, endings: pl.LazyFrame | None) -> Iterator[Finding]:
    """CUDA refused to start because driver and libraries do not fit each other. Where all ranks meet it none is special."""
    said, raised, ranks, hosts, text = _reported(nccl_errors, processes, endings, "driver", _DRIVER_TEXTS)
    if text is None:
        return
    error = cuda_error(text)
    known = processes.filter(pl.col("rank").is_not_null()).select(pl.col("rank").n_unique()).collect().item()
    alike = len(ranks) >= max(int(known), 2)
    blamed = () if alike else tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts)
    yield Finding(
        title=f"{'all ranks' if alike else ranks_words(ranks) if ranks else 'a process'}"
        + (f" on {', '.join(hosts[:4])}" if hosts and not alike else "")
        + f": CUDA reports '{text}'",
        summary=(f"{error.meaning[0].upper()}{error.meaning[1:]}. " if error is not None else "")
        + ("All ranks meet it: the image does not fit the hosts." if alike else "The others started: these hosts differ from theirs."),
        confidence="high" if ranks else "medium",
        ranks=() if alike else ranks,
        hosts=() if alike else hosts,
        culprits=blamed,
        subject=("driver", text, *hosts),
        evidence=_proof(said, raised, text),
        evidence_total=said.height + raised.height,
        remedy="Compare the driver (nvidia-smi) with what the image's CUDA needs; after a driver update reboot, or reload the kernel's module.",
        prevention="Compare driver versions of all hosts in the job's prologue.",
        would_refute=("the same driver and image on a host that works",),
        actions=(
            Action(
                "update_sw_fw",
                ranks=() if alike else ranks,
                hosts=() if alike else hosts,
                command="nvidia-smi; cat /proc/driver/nvidia/version",
            ),
        ),
    )


def _reported(
    nccl_errors: pl.LazyFrame | None, processes: pl.LazyFrame, endings: pl.LazyFrame | None, kind: str, wanted: tuple[str, ...]
) -> tuple[pl.DataFrame, pl.DataFrame, tuple[int, ...], tuple[str, ...], str | None]:
    """NCCL's CUDA warnings and endings of a kind with these texts, the ranks and hosts that report them, and the first of the texts."""
    said = (
        where_reported(nccl_errors.filter((pl.col("kind") == "cuda-failure") & _any(wanted)), processes)
        if nccl_errors is not None
        else pl.DataFrame()
    )
    raised = endings.filter((pl.col("kind") == kind) & _any(wanted)).sort("rank").collect() if endings is not None else pl.DataFrame()
    both = [f for f in (said, raised) if f.height]
    ranks = tuple(sorted({r for f in both for r in ranks_of(f)}))
    hosts = tuple(sorted({h for f in both for h in hosts_of(f)}))
    messages = [str(m) for f in both for m in f["message"].to_list() if m]
    return said, raised, ranks, hosts, next((t for t in wanted for m in messages if t.lower() in m.lower()), None)


def _proof(said: pl.DataFrame, raised: pl.DataFrame, text: str) -> tuple[Evidence, ...]:
    exceptions = [raised_at(row) for row in raised.iter_rows(named=True)]
    return (*(cite(said, text) if said.height else ()), *cite(exceptions, "raised by this rank"))
