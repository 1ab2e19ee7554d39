"""The values that travel between the floors: evidence, findings, the verdict.

Everything here is frozen and knows nothing of files, frames or reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
Severity = Literal["critical", "error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Status = Literal["explained", "unexplained", "nothing-wrong", "insufficient-evidence"]
EvidenceKind = Literal["line", "record", "file", "absence"]

SEVERITIES: tuple[Severity, ...] = ("critical", "error", "warning", "info")
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")

#: The words of the contract, each with what happened. Order is the contract's.
CAUSES: dict[str, str] = {
    "collective-skipped": "some ranks never entered a collective that the others of the group wait in, and went on to later ones",
    "collective-mismatch": "at the same position the ranks of a group called different collectives",
    "shape-mismatch": "the same collective with different sizes",
    "dtype-mismatch": "the same collective with different data types",
    "argument-mismatch": "the same collective with different reduce op, root or split sizes",
    "group-deadlock": "ranks entered collectives of several groups in different orders and wait for each other",
    "p2p-deadlock": "sends and receives that do not pair up, or wait on each other in a circle",
    "rank-died": "a process is gone: killed, segfault, uncaught exception, early exit",
    "rank-never-joined": "the communicator never got all its ranks",
    "collective-stuck": "every rank entered the collective and none finished: the transport, not the program",
    "gpu-stall": "a rank's GPU stopped making progress on work that its peers have long passed",
    "straggler": "one or few ranks keep arriving late; all the others wait for them; the job advances",
    "input-stall": "the rank that the others wait for sits in its data loader",
    "host-stall": "the rank that the others wait for has nothing enqueued and sits on the host side",
    "ddp-unused-parameter": "gradients that never come, because some ranks did not use some parameters",
    "timeout-too-short": "the job was alive and advancing when a timeout ended it",
    "p2p-disabled": "GPU pairs of one host that could talk directly go through host memory",
    "socket-fallback": "traffic between hosts over TCP where RDMA was there or meant to be",
    "gdr-disabled": "no GPUDirect RDMA",
    "nic-underused": "fewer NICs used than the host has",
    "few-channels": "fewer channels than the links can feed",
    "nvls-disabled": "no NVLink SHARP where the hardware has it",
    "wrong-interface": "bootstrap or sockets on docker, loopback, or an interface that the peers cannot reach",
    "connection-failed": "connection refused, no route, timed out or closed by the peer",
    "mtu-mismatch": "MTUs differ along the path",
    "packet-loss": "retransmits, discards, out-of-sequence packets",
    "congestion": "pauses, CNPs, transmit waits",
    "ib-link": "an InfiniBand / RoCE port down, flapping, degraded, or with rising error counters",
    "gpu-fault": "Xid, ECC, fallen off the bus",
    "nvlink-fault": "NVLink errors or inactive links",
    "pcie-degraded": "PCIe at reduced width or generation",
    "gpu-throttled": "GPU clocks held down",
    "node-failed": "the node went away",
    "job-stopped": "the job was ended from outside (time limit, cancel, preemption)",
    "shm-exhausted": "/dev/shm is full",
    "memlock-limit": "the locked-memory limit was met",
    "out-of-memory": "host or GPU memory ran out",
    "version-mismatch": "ranks with different NCCL, driver or library versions",
    "environment-mismatch": "ranks with different NCCL_* settings",
    "invalid-usage": "NCCL or the framework refused the call",
    "bad-setting": "a setting that alone explains the trouble",
    "communication-bound": "too much of the step is communication",
    "low-overlap": "communication is not hidden behind compute",
    "low-bus-bandwidth": "the collectives run below what the links carry",
    "small-buckets": "too many small collectives",
    "data-corruption": "wrong results",
    "software-crash": "all ranks fall over alike in a library or the program",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that can be walked back to a file. ``line`` is 1-based; ``record`` is a pointer such as ``entries[18]``.

    An ``absence`` has no line: ``looked_in`` names where the missing thing would have been. ``holds``: words of the one line meant, of a
    block of lines that begins at ``line``.
    """

    kind: EvidenceKind
    source_id: int | None = None
    line: int | None = None
    end_line: int | None = None
    record: str | None = None
    looked_in: tuple[str, ...] = ()
    why: str = ""
    holds: tuple[str, ...] = ()


def name_of(told: object) -> str | None:
    """A name of a host or a device as evidence tells it; one that is empty is not known."""
    return str(told) if told else None


def names_of(told: object) -> tuple[str, ...]:
    """The same as all that there is to list."""
    return (str(told),) if told else ()


def given(value: T | None) -> tuple[T, ...]:
    """A number (of a rank, say) as all that there is to list."""
    return (value,) if value is not None else ()


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who or what is to blame. All fields but one may be null."""

    rank: int | None = None
    host: str | None = None
    gpu: str | None = None
    pid: int | None = None
    nic: str | None = None
    link: str | None = None
    #: The file of a process whose rank nothing tells.
    source_id: int | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first operation in which the members of a group disagree."""

    process_group: str | None
    comm_id: str | None
    seq: int | None
    op: str | None


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do next; ``action`` is a word of the contract; ``where``: the line of user code that it is about."""

    action: str
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    command: str | None = None
    confidence: Confidence = "medium"
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says. Fields left at None take the rule's own value.

    ``ranks`` are the ranks that the finding is about (the blamed ones first of all); ``culprits`` adds hosts, GPUs, NICs and links: None
    blames the ranks, an empty tuple nobody.
    ``subject`` are the stable words of the fingerprint (host + GPU, link, setting, code location), never times, pids or paths.
    ``alternatives`` are other causes, whom they would blame, and what speaks against them: None where nothing in the evidence does.
    """

    title: str
    summary: str = ""
    cause: str | None = None
    severity: Severity | None = None
    confidence: Confidence = "medium"
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    culprits: tuple[Culprit, ...] | None = None
    subject: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    evidence_total: int | None = None
    divergence: Divergence | None = None
    run: int | None = None
    attempt: int | None = None
    remedy: str = ""
    prevention: str = ""
    would_refute: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    alternatives: tuple[tuple[str, tuple[int, ...], str | None], ...] = ()
    metrics: Mapping[str, float | int | str | None] = field(default_factory=dict)


def blamed_by(finding: Finding) -> tuple[Culprit, ...]:
    """Whom a finding blames: its culprits, which may be nobody; the ranks that it is about where it names none."""
    return finding.culprits if finding.culprits is not None else tuple(Culprit(rank=r) for r in finding.ranks)
