"""What tools and the kernel say of the state of a GPU: nvidia-smi, Kubernetes' device plugin, drivers, DCGM."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.xid import RECOVERY
from nccl_forensics.model import Action, Culprit, Finding, Severity, given, name_of, names_of
from nccl_forensics.rules.common.hosts import People, place
from nccl_forensics.rules.common.ties import Job, tied

#: What each action means, in words.
ACTION_WORDS = {
    "restart_job": "restart the job; the GPU stays usable",
    "fix_application": "look for the fault in the program first (compute-sanitizer); the GPU stays usable",
    "reset_gpu": "reset the GPU when no process uses it (on NVSwitch systems the whole node)",
    "reboot_node": "reboot the node",
    "drain_and_reset": "let the jobs end, then reset the GPU",
    "replace_hw": "drain the node and have the GPU replaced",
    "check_power_or_cooling": "check power cables, seating and cooling",
    "update_sw_fw": "update driver and firmware",
    "fix_config": "check the configuration",
    "collect_more": "save nvidia-bug-report.sh and watch whether it repeats",
    "none": "nothing to do for this code itself",
}

_TOOL_WORDS: dict[str, tuple[Severity, str, str | None]] = {
    "gpu-lost": ("critical", "no longer answers nvidia-smi: the driver lost it", None),
    "no-driver": ("error", "nvidia-smi cannot reach the driver", None),
    "version-mismatch": ("error", "the driver in the kernel and its libraries have different versions", "version-mismatch"),
    "gpu-silent": (
        "warning",
        "has told the driver nothing of itself: it is lost, or no process has opened it since the driver was loaded",
        None,
    ),
    "unhealthy": ("warning", "was taken out of service by Kubernetes' device plugin", None),
}
#: Kinds that speak of one GPU, not of the whole host.
_OF_ONE_GPU = frozenset({"gpu-lost", "gpu-silent", "unhealthy"})
#: Kinds that do not prove a fault of the GPU.
_FAINT = frozenset({"gpu-silent", "unhealthy"})


def tool_findings(rows: pl.DataFrame, who: People, explained: list[str], ties: Job) -> Iterator[Finding]:
    """One finding per GPU or host and kind of what a tool says in place of a report. ``explained``: UUIDs of GPUs that an Xid names."""
    told = pl.col("kind").is_in(list(_TOOL_WORDS)) & ~((pl.col("kind") == "unhealthy") & pl.col("uuid").is_in(explained).fill_null(False))
    wanted = rows.filter(told).unique(["host", "kind", "bus_id", "gpu_index"], maintain_order=True)
    for row in wanted.iter_rows(named=True):
        severity, words, cause = _TOOL_WORDS[row["kind"]]
        faint = row["kind"] in _FAINT
        gpu = row["bus_id"] or (f"index {row['gpu_index']}" if row["gpu_index"] is not None else None)
        rank = who.of_listed(row["host"], row["bus_id"], row["gpu_index"])
        ranks = given(rank)
        if row["kind"] == "gpu-silent" and ranks and ties.failed:
            severity, words, faint = "critical", "has told the driver nothing of itself, though a rank ran on it: the driver lost it", False
        subject = place(row["host"], gpu) if row["kind"] in _OF_ONE_GPU else f"on {place(row['host'])}"
        title = f"{subject} {words}" if row["kind"] in _OF_ONE_GPU else f"{words} {subject}"
        yield tied(
            Finding(
                title=title,
                summary=f'The tool says: "{row["message"]}".',
                severity=severity,
                cause=cause,
                confidence="medium" if faint or row["kind"] == "gpu-silent" else "high",
                ranks=ranks,
                hosts=(row["host"],) if row["host"] else (),
                culprits=(Culprit(rank=rank, host=row["host"], gpu=gpu),),
                subject=(str(row["host"] or ""), str(gpu or ""), row["kind"]),
                evidence=cite([row], "the plugin's line" if row["kind"] == "unhealthy" else "what the tool says instead of a report"),
                remedy="Reboot the node; if the GPU is gone again, have it replaced."
                if row["kind"] == "gpu-lost"
                else "Look for the Xid in the kernel log of the node, and follow its action."
                if faint
                else "Reload or reinstall the driver, then reboot.",
                prevention="Count the GPUs of every node in the job's prologue (nvidia-smi -L).",
                would_refute=("the listing was taken after the incident, during maintenance",),
                actions=(
                    Action(
                        "collect_more" if faint else "reboot_node",
                        hosts=(row["host"],) if row["host"] else (),
                        gpus=names_of(gpu),
                        ranks=ranks,
                    ),
                ),
            ),
            ties.tie(None, row["host"], gpu=gpu if row["kind"] in _OF_ONE_GPU and row["bus_id"] else None, of=ranks, lasting=True),
        )


def kernel_findings(rows: pl.DataFrame, who: People, ties: Job) -> Iterator[Finding]:
    """One finding per device and kind of line: GPUs that the driver could not start, AMD's that failed, damaged InfoROMs."""
    bad = rows.filter(
        (pl.col("kind") == "gpu-start-failed")
        | ((pl.col("kind") == "amdgpu") & (pl.col("severity") == "fatal"))
        | (pl.col("kind") == "inforom")
    )
    for (host, device, kind), part in bad.group_by("host", "device", "kind", maintain_order=True):
        first = part.row(0, named=True)
        rank = who.of_gpu(host, device)
        inforom = kind == "inforom"
        words = {"gpu-start-failed": "could not be started by the driver", "amdgpu": "failed", "inforom": "has a corrupted InfoROM"}[
            str(kind)
        ]
        yield tied(
            Finding(
                title=f"{place(host, device or 'of unknown address')} {words}",
                summary=f'The kernel wrote {part.height} such lines, the first: "{first["message"]}".',
                severity="warning" if inforom else "critical",
                confidence="medium" if inforom else "high",
                ranks=given(rank),
                hosts=names_of(host),
                culprits=(Culprit(rank=rank, host=name_of(host), gpu=name_of(device)),),
                subject=(str(host or ""), str(device or ""), str(kind)),
                evidence=cite(part, "the kernel's line"),
                evidence_total=part.height,
                remedy="Reset the GPU; reboot the node if that fails.",
                prevention="Watch the driver's messages of every node (dcgm-exporter, node problem detector) and drain on those that ask for it.",
                would_refute=("the GPU was not used by the job",),
                actions=(Action("reset_gpu", hosts=names_of(host), gpus=names_of(device)),),
            ),
            ties.tie(part, host, gpu=device, of=() if rank is None else (rank,), lasting=True),
        )


def state_findings(rows: pl.DataFrame, who: People, ties: Job, retired: int, dram: int, sram: int) -> Iterator[Finding]:
    """One finding per GPU and severity, from the worst of its samples."""
    key = pl.coalesce("bus_id", "uuid", pl.lit("index ") + pl.col("gpu_index").cast(pl.String))
    for (host, gpu), part in rows.with_columns(gpu=key).group_by("host", "gpu", maintain_order=True):
        if gpu is None:
            continue
        told: dict[Severity, list[tuple[str, str, int]]] = {"critical": [], "error": [], "warning": []}
        for index, row in enumerate(part.iter_rows(named=True)):
            for severity, words, action in _signs(row, retired, dram, sram):
                if words not in (w for w, _, _ in told[severity]):
                    told[severity].append((words, action, index))
        for level, signs in told.items():
            if not signs:
                continue
            rank = who.of_listed(host, part["bus_id"][0], part["gpu_index"][0])
            ranks = () if rank is None else (rank,)
            at = part[sorted({i for _, _, i in signs})]
            name = next((n for n in part["name"].to_list() if n), None)
            action = signs[0][1]
            yield tied(
                Finding(
                    title=f"{place(host, gpu)}: {'; '.join(w for w, _, _ in signs[:3])}",
                    summary=f"{name or 'The GPU'} reports this of itself. Counters of a snapshot say that it happened, not when.",
                    severity=level,
                    confidence="high" if level == "critical" else "medium",
                    ranks=ranks,
                    hosts=names_of(host),
                    culprits=(Culprit(rank=rank, host=name_of(host), gpu=str(gpu)),),
                    subject=(str(host or ""), str(gpu), *sorted(w.split(" (")[0].rstrip("0123456789 ") for w, _, _ in signs)),
                    evidence=cite(at, signs[0][0]),
                    remedy=f"{ACTION_WORDS[action][0].upper()}{ACTION_WORDS[action][1:]}.",
                    prevention="Run dcgmi diag -r 3 on nodes before they take jobs.",
                    would_refute=("the counters are older than the incident (compare with an earlier snapshot)",),
                    actions=(Action(action, hosts=names_of(host), gpus=(str(gpu),), ranks=ranks),),
                ),
                ties.tie(None, host, gpu=part["bus_id"][0], of=ranks, lasting=True) if level == "critical" else "own",
            )


def _signs(row: dict[str, object], retired: int, dram: int, sram: int) -> Iterator[tuple[Severity, str, str]]:
    def count(column: str) -> int:
        return int(str(row[column] or 0))

    if row["problem"]:
        yield "critical", f"does not answer ({row['problem']})", "reboot_node"
    if row["remap_failed"]:
        yield "error", "row remapping failed: no spare rows left", "replace_hw"
    if row["unrepairable"]:
        yield "error", "unrepairable memory", "replace_hw"
    if row["sram_threshold_exceeded"]:
        yield "error", "uncorrected SRAM errors past NVIDIA's threshold", "replace_hw"
    if count("sram_uncorrected") or count("dram_uncorrected"):
        both = count("sram_uncorrected") + count("dram_uncorrected")
        yield "error", f"uncorrected memory errors since the last reset ({both})", "drain_and_reset"
    if count("retired_single_bit") + count("retired_double_bit") >= retired:
        yield "error", f"retired pages at or past the limit ({count('retired_single_bit') + count('retired_double_bit')})", "replace_hw"
    action = RECOVERY.get(str(row["recovery_action"] or "none").lower(), "collect_more")
    if action != "none":
        yield "error", f"the driver asks for a recovery action ({row['recovery_action']})", action
    elif row["reset_required"]:
        yield "error", "the driver asks for a reset", "reset_gpu"
    state, status = row["fabric_state"], row["fabric_status"]
    if state is not None and str(state).lower() != "completed":
        yield "error", f"the NVLink fabric is not ready (state {state}): CUDA answers with error 802", "fix_config"
    elif status is not None and str(status).lower() != "success":
        yield "error", f"joining the NVLink fabric failed (status {status})", "fix_config"
    for item in row["fabric_health"] if isinstance(row["fabric_health"], list) else ():
        yield "warning", f"fabric health: {item}", "collect_more"
    if row["remap_pending"] or row["retirement_pending"] or row["repair_pending"]:
        yield "warning", "a memory repair waits for a reset", "drain_and_reset"
    if count("sram_uncorrected_total") > count("sram_uncorrected"):
        yield "warning", f"uncorrected SRAM errors in the board's life ({count('sram_uncorrected_total')})", "collect_more"
    if count("banks_none"):
        yield "warning", f"memory banks without spare rows ({count('banks_none')})", "collect_more"
    if count("dram_corrected") > dram or count("sram_corrected") > sram:
        yield "warning", "many corrected memory errors", "collect_more"


_CONFIG_TESTS = (
    "persistence",
    "environment",
    "graphics process",
    "permission",
    "denylist",
    "blacklist",
    "software",
    "main library",
    "library",
)


#: Agents that look at nodes themselves, by the category of their results.
_AGENTS = {"Node health check": "the node health check (NHC)", "NVSentinel": "NVSentinel"}


def dcgm_findings(rows: pl.DataFrame, who: People) -> Iterator[Finding]:
    """One finding per GPU and test of DCGM that failed, or that it counted while it watched; other agents' checks likewise."""
    bad = rows.filter(pl.col("status").is_in(["fail", "failure"]))
    for (host, gpu, test), part in bad.group_by("host", "gpu_index", "test", maintain_order=True):
        first = part.row(0, named=True)
        config = any(w in str(test or "").lower() for w in _CONFIG_TESTS)
        rank = who.of_index(host, gpu)
        where = place(host, f"index {gpu}") if gpu is not None else f"GPUs of {place(host)}"
        where += f" (rank {rank})" if rank is not None else ""
        agent = _AGENTS.get(str(first["category"]))
        again = "Run the test again on the idle node; if it fails again, drain the node."
        if first["category"] in ("Policy", "Job statistics"):
            what, caveat, why = f": DCGM counted {test} while it watched", "", "what DCGM counted"
            refuted, again = "the counts are of another job", "Run dcgmi diag -r 3 on the idle node; if it fails, drain the node."
        elif agent:
            what, caveat, why = f" failed the check {test} of {agent}", "", f"what {agent} says"
            refuted = "the check expects another kind of node"
        else:
            what, why = f" failed DCGM's test {test}", "result of the test"
            caveat = " This test is about configuration, not about the hardware."
            if not config:
                caveat = " A diagnostic run while jobs use the GPUs fails for no reason of the hardware."
            refuted = "the test ran while a job used the GPUs"
        links = re.search(r"(?i)nvlink", f"{test} {first['message'] or ''}") is not None
        yield Finding(
            cause="nvlink-fault" if links else None,
            title=where + what,
            summary=(str(first["message"]) if first["message"] else "The tool gives no reason.") + caveat,
            severity="warning" if config else "error",
            confidence="low" if config else "medium",
            ranks=given(rank),
            hosts=names_of(host),
            culprits=(Culprit(rank=rank, host=name_of(host), gpu=f"index {gpu}" if gpu is not None else None),),
            subject=(str(host or ""), str(gpu), str(test)),
            evidence=cite(part, why),
            remedy=again,
            prevention="Run dcgmi diag -r 3 on nodes before they take jobs.",
            would_refute=(refuted,),
            actions=(Action("fix_config" if config else "drain_and_reset", hosts=names_of(host)),),
        )
