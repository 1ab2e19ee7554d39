"""One host of the job is not like the others: driver, kernel, modules, clock, or its board management says why.

## What it finds
Hosts whose NVIDIA driver, kernel, video BIOS, PyTorch, CPUs, NUMA nodes, CPU governor, BIOS or system differs from most hosts; hosts that lack a kernel module that GPUDirect RDMA or InfiniBand needs
and the others have loaded; clocks that are not synchronised; hardware events of the board management; hosts that wait for storage.

## Why it matters
In a job that fails on one host only, the odd one out is the first place to look.

## What would refute it
The host was the same in runs that went well.

## What to do next
Bring the host to the state of its peers, or keep it out of the job until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import text_of
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, near_job, place
from nccl_forensics.rules.common.thresholds import BESIDE_S, ZONES_H, AroundHours, NearSeconds
from nccl_forensics.rules.common.ties import job_of

#: Modules whose absence costs a path, with what they are for.
_NEEDED = {
    "nvidia_peermem": "GPUDirect RDMA (unless dma-buf is used)",
    "nv_peer_mem": "GPUDirect RDMA (older name)",
    "gdrdrv": "GDRCopy",
    "mlx5_ib": "InfiniBand and RoCE",
    "efa": "EFA",
}
_VERSIONS = {
    "nvidia-driver": "driver",
    "torch": "PyTorch",
    "nccl-package": "the package of NCCL",
    "bios": "BIOS",
    "governor": "the CPU governor",
    "numa-nodes": "NUMA nodes",
    "threads-per-core": "threads per core",
    "cpu-model": "the CPU model",
}
#: Events of the board management: a part of sensor or event, the cause, and words.
_EVENTS = (
    ("thermal trip", "node-failed", "a processor or board got too hot and switched off"),
    ("uncorrectable", "node-failed", "uncorrectable memory or bus error"),
    ("pci serr", "pcie-degraded", "PCI system error"),
    ("pci perr", "pcie-degraded", "PCI parity error"),
    ("bus fatal", "pcie-degraded", "fatal PCI bus error"),
    ("failure detected", "gpu-throttled", "a power supply or fan failed"),
    ("power supply ac lost", "gpu-throttled", "a power supply lost its input"),
)


@rule(name="host-differs", code="EN03", cause="version-mismatch", severity="warning", at_most=24)
def host_differs(
    host_facts: pl.LazyFrame | None,
    gpus: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    *,
    clock_s: Annotated[float, "seconds that a clock may be off"] = 1.0,
    iowait: Annotated[float, "percent of CPU time waiting for storage that is worth a warning"] = 50.0,
) -> Iterator[Finding]:
    """Versions, modules, clocks, hardware events, waiting for storage."""
    facts = located(host_facts, source_hosts).filter(pl.col("host").is_not_null()) if host_facts is not None else None
    said: list[tuple[str, str, str, dict[str, object]]] = []
    if facts is not None:
        told = facts.filter(pl.col("kind").is_in(["version", "cpu"]) & pl.col("value").is_not_null())
        said += [(_VERSIONS.get(row["name"], row["name"]), row["host"], row["value"], row) for row in told.iter_rows(named=True)]
    if gpus is not None:
        for row in located(gpus, source_hosts).filter(pl.col("host").is_not_null()).iter_rows(named=True):
            said += [
                (what, row["host"], row[c], row)
                for what, c in (("driver", "driver_version"), (f"video BIOS of {row['name']}", "vbios"))
                if row[c]
            ]
    yield from _versions(said)
    if facts is None:
        return
    yield from _modules(facts.filter(pl.col("kind") == "module"))
    yield from _clocks(facts.filter(pl.col("kind") == "clock"), clock_s)
    yield from _hardware(facts.filter(pl.col("kind") == "bmc"))
    yield from _sensors(facts.filter(pl.col("kind") == "sensor"))
    waiting = facts.filter((pl.col("name") == "iowait-percent") & (pl.col("number") >= iowait))
    for (host,), part in waiting.group_by("host", maintain_order=True):
        yield _finding(
            part,
            host,
            "host-stall",
            f"{place(host)} waits for storage {float(str(part['number'].max())):.0f} % of its CPU time",
            "Data loading or checkpoints stand still, and with them the ranks of this host.",
            "Look at the file systems and at NFS or Lustre messages in the kernel log.",
        )


def _versions(said: list[tuple[str, str, str, dict[str, object]]]) -> Iterator[Finding]:
    for what in sorted({w for w, *_ in said}):
        by_host = {h: (v, r) for w, h, v, r in reversed(said) if w == what}
        counted = Counter(v for v, _ in by_host.values())
        if len(counted) < 2 or len(by_host) < 3:
            continue
        usual, most = counted.most_common(1)[0]
        odd = sorted(h for h, (v, _) in by_host.items() if v != usual)
        if len(odd) * 2 >= len(by_host):
            continue
        first = by_host[odd[0]]
        example = next(r for v, r in by_host.values() if v == usual)
        yield Finding(
            title=f"{', '.join(odd[:4])} {'has' if len(odd) == 1 else 'have'} {what} {first[0]}, {most} other hosts have {usual}",
            summary="Hosts of one job should be alike; the odd one out is suspect where only it fails or is slow.",
            confidence="medium",
            hosts=tuple(odd),
            culprits=tuple(Culprit(host=h) for h in odd),
            subject=("differs", what, *odd),
            evidence=(*cite([by_host[h][1] for h in odd], f"another {what}"), *cite([example], "the usual one")),
            remedy=f"Bring {what} of these hosts to {usual}.",
            would_refute=("the same difference in runs that went well",),
            actions=(Action("update_sw_fw", hosts=tuple(odd), confidence="low"),),
        )


def _modules(rows: pl.DataFrame) -> Iterator[Finding]:
    by_host = {str(h): set(p["name"].to_list()) for (h,), p in rows.group_by("host", maintain_order=True)}
    for module, purpose in _NEEDED.items():
        have = sorted(h for h, m in by_host.items() if module in m)
        lack = sorted(set(by_host) - set(have))
        if not lack or len(lack) >= len(have):
            continue
        part = rows.filter((pl.col("name") == module) & (pl.col("host") == have[0]))
        listed = rows.filter(pl.col("host").is_in(lack)).unique("host", keep="first", maintain_order=True)
        yield Finding(
            title=f"{', '.join(lack[:4])} {'has' if len(lack) == 1 else 'have'} not loaded {module}, which {len(have)} other hosts have",
            summary=f"The module is for {purpose}.",
            cause="gdr-disabled" if "peer" in module or module == "gdrdrv" else "socket-fallback",
            severity="warning",
            confidence="medium",
            hosts=tuple(lack),
            culprits=tuple(Culprit(host=h) for h in lack),
            subject=("module", module, *lack),
            evidence=(*cite(listed, "the host's list of modules begins here and has no such line"), *cite(part, "loaded on another host")),
            remedy=f"modprobe {module} on these hosts, and in their boot configuration.",
            would_refute=("the path works without it on these hosts (connection lines with GDRDMA)",),
            actions=(Action("fix_config", hosts=tuple(lack), command=f"modprobe {module}"),),
        )


def _clocks(rows: pl.DataFrame, most: float) -> Iterator[Finding]:
    off = rows.filter(
        ((pl.col("name") == "offset") & (pl.col("number").abs() > most)) | ((pl.col("name") == "synchronized") & (pl.col("value") == "no"))
    )
    for (host,), part in off.group_by("host", maintain_order=True):
        words = ", ".join(f"{n} {v}" for n, v in part.select("name", "value").iter_rows())
        yield Finding(
            title=f"the clock of {host} is not to be trusted ({words})",
            summary="Times of this host cannot be compared with those of others: who was first is not known from them.",
            cause="environment-mismatch",
            severity="info",
            confidence="high",
            hosts=(str(host),),
            culprits=(Culprit(host=str(host)),),
            subject=("clock", str(host)),
            evidence=cite(part, "state of the clock"),
            remedy="Run chronyd or another NTP client on every host.",
            would_refute=("another tool shows the clock as synchronised",),
            actions=(Action("fix_config", hosts=(str(host),), command="chronyc tracking"),),
        )


def _hardware(rows: pl.DataFrame) -> Iterator[Finding]:
    said = text_of("{} {}", pl.col("name").fill_null(""), pl.col("value").fill_null("")).str.to_lowercase()
    for words, cause, meaning in _EVENTS:
        for (host,), part in rows.filter(said.str.contains(words, literal=True)).group_by("host", maintain_order=True):
            event = f"{part['name'][0]}: {part['value'][0]}"
            yield _finding(
                part,
                host,
                cause,
                f"{place(host)}: {meaning} ({event})",
                "From the board management's event log; its clock may differ from the host's.",
                "Compare the time with the failure; drain the host and look at the named part.",
            )


def _sensors(rows: pl.DataFrame) -> Iterator[Finding]:
    """Sensors that the board management calls critical: heat, and power supplies or fans."""
    critical = rows.filter(pl.col("value").str.contains(r": (?:[lu]?cr|[lu]?nr)$"))
    name = pl.col("name").str.to_lowercase()
    for what, words in ((r"temp|inlet|cpu|gpu|dimm", "too hot"), (r"^ps|psu|pwr|power|fan", "power or cooling is not as it should be")):
        mine = critical.filter(name.str.contains(what)).filter(pl.lit(words != "too hot") | pl.col("value").str.contains("degrees"))
        for (host,), part in mine.group_by("host", maintain_order=True):
            listed = ", ".join(f"{sensor} at {value}" for sensor, value in part.select("name", "value").head(3).iter_rows())
            yield _finding(
                part,
                host,
                "gpu-throttled",
                f"{place(host)}: {words} ({listed})",
                "The board management calls these readings critical.",
                "Check fans, air flow and power supplies of the host.",
            )


def _finding(rows: pl.DataFrame, host: object, cause: str, title: str, summary: str, remedy: str) -> Finding:
    hosts = names_of(host)
    return Finding(
        title=title,
        summary=summary,
        cause=cause,
        severity="warning",
        confidence="medium",
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in hosts),
        subject=(cause, *hosts, title[:60]),
        evidence=cite(rows, "said by the host"),
        evidence_total=rows.height,
        remedy=remedy,
        would_refute=("it was the same in runs that went well",),
        actions=(Action("collect_more", hosts=hosts),),
    )


@rule(
    name="driver-refused",
    code="EN05",
    cause="version-mismatch",
    severity="error",
    at_most=32,
    explains=("rank-died", "rank-never-joined", "connection-failed", "timeout", "version-mismatch"),
)
def driver_refused(
    kernel_events: pl.LazyFrame,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    *,
    window_h: AroundHours = ZONES_H,
    near_s: NearSeconds = BESIDE_S,
) -> Iterator[Finding]:
    """The kernel's NVIDIA driver refused a library of another release: such a process gets no GPU. One finding per host."""
    rows = located(kernel_events.filter(pl.col("kind") == "api-mismatch"), source_hosts).sort("source_id", "line_no")
    well = job_of(job_signs, job_times, failures)
    for (host,), part in near_job(rows, job_times, near_s, window_h).filter("inside").group_by("host", maintain_order=True):
        hosts = names_of(host)
        close = bool(part["close"].any())
        yield Finding(
            title=f"the NVIDIA driver of {place(host)} refused a library of another release",
            summary=f'The kernel wrote: "{part["message"][0]}". Processes that load this library find no GPU on the host.',
            # A daemon that watches the GPUs is refused as well; ranks that go on were not.
            severity="warning" if well.seen and not well.failed else None,
            confidence="medium" if close or job_times is None else "low",
            hosts=hosts,
            culprits=(Culprit(host=name_of(host)),),
            subject=("driver-refused", str(host or "")),
            evidence=cite(part, "line of the kernel"),
            evidence_total=part.height,
            remedy="Reboot the host after a driver update (or reload the module), or install the library of the driver's release.",
            would_refute=("the refused program is none of the job's",),
            actions=(Action("update_sw_fw", hosts=hosts, command="nvidia-smi; cat /proc/driver/nvidia/version"),),
        )
