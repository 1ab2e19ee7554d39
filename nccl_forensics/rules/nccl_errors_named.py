"""NCCL itself names what went wrong: NVLink SHARP, IMEX, NVML, limits, devices that do not fit together, a plugin's completions.

## What it finds
WARN lines of NCCL, its network plugins and RCCL whose text names a device, a service or a limit, each with the cause that it stands for.

## Why it matters
One of these lines among thousands says why the job ended or why a fast path is off; the other ranks only see a peer that went away.

## What would refute it
The line was printed while the job was being torn down, after another rank had already failed.

## What to do next
Follow the remedy of the finding: each kind of line has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import NOBODY, hosts_of, ranks_of, where_reported
from nccl_forensics.views.failures import went_on_without_nvml
from nccl_forensics.words import ranks_words


@dataclass(frozen=True, slots=True)
class _Named:
    """What lines of one kind mean. ``pattern`` (of Rust's regex, case ignored) narrows the kind down; the first entry that fits counts."""

    kinds: tuple[str, ...]
    pattern: str
    cause: str
    severity: Severity
    confidence: Confidence
    words: str
    remedy: str
    action: str
    #: The source file of NCCL that prints it, where the text alone is that of any CUDA call.
    file: str = ""
    #: The process that prints the line is the one whose device or host is meant; else either end may be at fault, and nobody is named.
    own: bool = True


_MEANINGS: tuple[_Named, ...] = (
    _Named(
        ("nvls-bind",),
        "",
        "nvls-disabled",
        "critical",
        "medium",
        "NVLink SHARP memory could not be bound",
        "Check the fabric manager and the NVSwitches of this host; NCCL_NVLS_ENABLE=0 goes around it at a loss of bandwidth.",
        "restart_job",
    ),
    _Named(
        ("cuda-failure",),
        "'(?:invalid argument|operation not permitted|operation not supported|the operation cannot be performed in the present state)'",
        "nvls-disabled",
        "critical",
        "medium",
        "CUDA refused what NVLink SHARP needs",
        "Check the fabric manager of this host: restarted while processes held GPUs, it serves multicast again only after a reset of the GPUs or a "
        "reboot. NCCL_NVLS_ENABLE=0 goes around it at a loss of bandwidth.",
        "restart_job",
        file="transport/nvls.cc",
    ),
    _Named(
        ("ibv-call",),
        r"ibv_reg_(?:mr|dmabuf_mr)\w* failed with error (?:Bad address|Invalid argument|Operation not permitted)",
        "gdr-disabled",
        "critical",
        "medium",
        "the network card could not register memory, as where the module that gives it the GPU's is missing or of another release",
        "Load the nvidia_peermem that belongs to the driver (modprobe nvidia_peermem, then dmesg); NCCL_NET_GDR_LEVEL=LOC goes around it at a loss of "
        "bandwidth.",
        "fix_config",
    ),
    _Named(
        ("mnnvl",),
        "not (?:working|supported)",
        "nvlink-fault",
        "critical",
        "medium",
        "NVLink between hosts is there and does not work: IMEX is not set up",
        "Check nvidia-imex-ctl -N and /dev/nvidia-caps-imex-channels on every host of the domain.",
        "fix_config",
    ),
    _Named(
        ("nvlink-p2p",),
        "",
        "nvlink-fault",
        "critical",
        # "Probably due to a hardware issue", NCCL says: a hypervisor or container that keeps GPUs apart looks the same.
        "medium",
        "GPUs that NVLink connects cannot copy to each other",
        "Read nvidia-smi nvlink -s and -e and the fabric manager's log of this host; drain it.",
        "drain_and_reset",
    ),
    _Named(
        ("nvml",),
        "version mismatch",
        "version-mismatch",
        "critical",
        "high",
        "the driver's library and its kernel module differ",
        "Reboot the host or reload the driver after the update; in a container mount the host's libraries.",
        "update_sw_fw",
    ),
    _Named(
        ("nvml",),
        "Failed to open libnvidia-ml",
        "software-crash",
        "critical",
        "medium",
        "the driver's library libnvidia-ml.so.1 is not found there",
        "Install the driver's libraries of the version of its kernel module on this host, or mount them into the container (nvidia-container-toolkit).",
        "fix_config",
    ),
    _Named(
        ("nvml",),
        "GPU is lost|Unknown Error|fallen off|requires reset",
        "gpu-fault",
        "critical",
        "medium",
        "the driver no longer reaches a GPU",
        "Read dmesg for Xid on this host, then reset the GPU or reboot the node.",
        "reset_gpu",
    ),
    _Named(
        ("system-call", "accept-failed", "proxy", "ipc", "shm", "connect-failed"),
        "Too many open files",
        "bad-setting",
        "critical",
        "high",
        "the limit of open files was met",
        "Raise ulimit -n (65536 and more) for the job and the daemon that starts it.",
        "fix_config",
    ),
    _Named(
        ("system-call",),
        "Thread creation failed.*Resource temporarily unavailable",
        "bad-setting",
        "critical",
        "high",
        "the limit of processes and threads was met",
        "Raise ulimit -u, and pids.max of the container or the job's cgroup.",
        "fix_config",
    ),
    _Named(
        ("comm-id",),
        "",
        "bad-setting",
        "critical",
        "high",
        "NCCL_COMM_ID is no address that NCCL can use",
        "Unset NCCL_COMM_ID, or give it as address:port with a name that every host resolves.",
        "fix_config",
    ),
    _Named(
        ("topology",),
        "XML (?:Parse|Mismatch|Graph has|Topology has)|XML parser is limited|too many XML|Attribute .* not found",
        "bad-setting",
        "critical",
        "medium",
        "the topology or graph file that NCCL was given cannot be read",
        "Unset NCCL_TOPO_FILE and NCCL_GRAPH_FILE, or write fresh files with NCCL_TOPO_DUMP_FILE and NCCL_GRAPH_DUMP_FILE.",
        "fix_config",
    ),
    _Named(
        ("system-call",),
        "bind failed.*Address already in use",
        "connection-failed",
        "critical",
        "medium",
        "another process holds the port that NCCL was told to use",
        "Find it with ss -ltnp (a process that an earlier job left, or a second job with the same NCCL_COMM_ID) and end it, or use another port.",
        "fix_config",
    ),
    _Named(
        ("system-call", "shm"),
        "Permission denied|Operation not permitted",
        "bad-setting",
        "critical",
        "medium",
        "the system refuses a call that NCCL needs",
        "Compare the user, the container's security profile (seccomp, capabilities) and the owner of what the line names with a host that works.",
        "fix_config",
    ),
    _Named(
        ("shm",),
        "Could not map.*Cannot allocate memory|failed to create.*Cannot allocate memory",
        "out-of-memory",
        "critical",
        "medium",
        "shared memory of NCCL could not be mapped: the host or the cgroup has no memory left, or the address space is limited",
        "Read free -m, memory.max of the job's cgroup and ulimit -v on this host.",
        "fix_config",
    ),
    _Named(
        ("ibv-call",),
        "ibv_query_gid failed with error (?:Invalid argument|Unknown error)",
        "bad-setting",
        "critical",
        "medium",
        "a port of an RDMA device has no GID at the index that NCCL asks for, which NCCL_IB_GID_INDEX gives where it is set",
        "Unset NCCL_IB_GID_INDEX (NCCL 2.21 and later choose by themselves), or set an index that show_gids lists as RoCE v2 on every host.",
        "fix_config",
    ),
    _Named(
        ("ibv-call",),
        "ibv_(?:post_send|post_recv|poll_cq)",
        "ib-link",
        "critical",
        "medium",
        "an RDMA device did not take NCCL's work",
        "Look for the first completion with an error before this line, and for mlx5 messages in dmesg of this host.",
        "check_cable_or_optic",
    ),
    _Named(
        ("ib-device",),
        "Unable to (?:open|query)",
        "nic-underused",
        "warning",
        "medium",
        "an RDMA device could not be opened, and NCCL goes on without it",
        "Check /dev/infiniband/uverbs* in the container, its device cgroup, and ibv_devinfo of the device.",
        "fix_config",
    ),
    _Named(
        ("cuda-context",),
        "",
        "gpu-fault",
        "warning",
        "medium",
        "no CUDA context could be made on a GPU",
        "The CUDA error beside the line says why: memory that another process holds, exclusive mode, or a GPU that failed (dmesg, nvidia-smi).",
        "collect_more",
    ),
    _Named(
        ("driver",),
        "FP8 reduction support",
        "invalid-usage",
        "critical",
        "medium",
        "FP8 data was to be reduced on GPUs that cannot do it",
        "Reduce in another type on GPUs before Hopper.",
        "fix_application",
    ),
    _Named(
        ("ib-incompatible",),
        "different link_layer|incompatible devices|incompatible with",
        "bad-setting",
        "critical",
        "medium",
        "an InfiniBand device was paired with a RoCE device, or with one of another kind",
        "Let NCCL_IB_HCA name devices of one kind that exist on every host.",
        "fix_config",
        own=False,
    ),
    _Named(
        ("ib-incompatible",),
        "mismatched physical devices|different number of devices",
        "nic-underused",
        "warning",
        "medium",
        "the two ends of a connection have different numbers of ports",
        "Compare the devices of both hosts (ibstat); a port is down or named otherwise on one of them.",
        "check_cable_or_optic",
        own=False,
    ),
    _Named(
        ("mixed-devices",),
        "device counts across ranks",
        "nic-underused",
        "critical",
        "high",
        "the ranks see different numbers of NICs",
        "Find the host with fewer devices (NET/IB : Using …, ibstat) and bring its port up.",
        "check_cable_or_optic",
        own=False,
    ),
    _Named(
        ("mixed-devices", "fallback"),
        "Cannot initialize CollNet|CollNet currently only supports",
        "low-bus-bandwidth",
        "info",
        "medium",
        "reduction in the network (SHARP) is not available; NCCL uses rings and trees",
        "Nothing, unless SHARP is meant to be used: then check the SHARP daemon and the plugin.",
        "none",
        own=False,
    ),
    _Named(
        ("topology",),
        "Could not find any local path from gpu",
        "nic-underused",
        "critical",
        "medium",
        "a GPU has no path to a NIC of its host",
        "Compare nvidia-smi topo -m with another host; in a VM give NCCL a topology file.",
        "fix_config",
    ),
    # EFA's 4126: its device answers for the peer, which does not itself.
    _Named(
        ("plugin", "plugin-error"),
        "Unresponsive receiver .{0,40}handshake failed",
        "connection-failed",
        "critical",
        "medium",
        "a peer's device was reached and the peer itself did not answer",
        "Look at what the peer did before: it ended, or it never opened its endpoint; read its log first.",
        "none",
        own=False,
    ),
    _Named(
        ("plugin", "plugin-error"),
        "completed with error|unresponsive|unreachable",
        "ib-link",
        "critical",
        "medium",
        "the network plugin got completions with errors",
        "Read the device's hw_counters (retrans_timeout_events, unresponsive_remote_events) on both hosts; the peer may have died first.",
        "check_cable_or_optic",
        own=False,
    ),
    _Named(
        ("ib-fatal", "ib-async-fatal"),
        "",
        "ib-link",
        "critical",
        "high",
        "an RDMA device reported a fatal event",
        "Read dmesg for mlx5 health messages and ibstat of this host; drain it.",
        "drain_and_reset",
    ),
    _Named(
        ("ib-recovery",),
        "marked as failed|Fatal error|error is fatal|CQE with error|probing attempts|Could not find|Port recovery failed",
        "ib-link",
        "error",
        "high",
        "NCCL gave up an RDMA port and moved its traffic",
        "Check state and error counters of the port; the job runs on with fewer links.",
        "check_cable_or_optic",
    ),
    _Named(
        ("ipc",),
        "IPC handle|Failed to import|IpcGetMemHandle|IpcOpenMemHandle|failed to peer with device",
        "p2p-disabled",
        "critical",
        "medium",
        "a process could not open the GPU memory of another one on its host",
        "Share IPC and pid namespaces between the containers of a host, or turn expandable segments off.",
        "fix_config",
    ),
    _Named(
        ("cuda-failure",),
        "peer access is not supported",
        "p2p-disabled",
        "critical",
        "medium",
        "CUDA refused direct copies between GPUs that NCCL takes for connected",
        "Check ACS and the IOMMU of this host (nvidia-smi topo -p2p r); NCCL_P2P_DISABLE=1 goes around it at a loss of bandwidth.",
        "fix_config",
    ),
    _Named(
        ("rccl-platform", "rccl-balancing"),
        "",
        "bad-setting",
        "warning",
        "high",
        "RCCL asks for another setting of the host",
        "Set what the line names (kernel command line, sysctl or environment) on every host.",
        "fix_config",
    ),
    _Named(
        ("version-mismatch",),
        "",
        "version-mismatch",
        "critical",
        "medium",
        "NCCL says that versions do not fit together",
        "Let every process load the same NCCL: compare LD_LIBRARY_PATH, images and wheels of all hosts.",
        "fix_config",
        own=False,
    ),
    _Named(
        ("truncated-message",),
        "",
        "version-mismatch",
        "warning",
        "low",
        "a peer sent a structure of another size, as another version of NCCL does, or one with other limits of channels",
        "Compare the NCCL versions that the processes loaded, and their settings of channels (NCCL_MAX_NCHANNELS, NCCL_MIN_NCHANNELS).",
        "fix_config",
        own=False,
    ),
    _Named(
        ("collective-mismatch",),
        "Mismatched collective|Your program may be hanging",
        "collective-mismatch",
        "critical",
        "medium",
        "NCCL found that ranks called different collectives",
        "Compare the calls of the ranks around the one that the line names, best by Flight Recorder dumps.",
        "fix_application",
        own=False,
    ),
    _Named(
        ("collective-mismatch",),
        "symmetric registration check failed",
        "argument-mismatch",
        "critical",
        "medium",
        "a rank called a collective with a buffer that is registered otherwise than its peers'",
        "Register the same window with the same offset on every rank.",
        "fix_application",
    ),
    _Named(
        ("wrong-device",),
        "",
        "invalid-usage",
        "critical",
        "high",
        "a buffer lies on another GPU than its communicator",
        "Call torch.cuda.set_device(local_rank) before the first tensor, and check map_location of checkpoints.",
        "fix_application",
    ),
    _Named(
        ("cuda-graph",),
        "",
        "invalid-usage",
        "critical",
        "medium",
        "a communicator was used by several threads, or partly captured in a CUDA graph",
        "Use a communicator from one thread, and capture all calls of a group or none.",
        "fix_application",
    ),
)


@rule(
    name="nccl-named-fault",
    code="NE14",
    cause="ib-link",
    severity="critical",
    at_most=24,
    explains=(
        "connection-failed",
        "rank-died",
        "rank-never-joined",
        "host-stall",
        "collective-stuck",
        "collective-skipped",
        "software-crash",
        "timeout",
        "gpu-stall",
    ),
)
def nccl_named_fault(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame | None, comms: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """One finding per meaning and host; the cause is that of the meaning. What NCCL went on without stopped nobody."""
    wanted = sorted({k for m in _MEANINGS for k in m.kinds})
    rows = nccl_errors.filter(pl.col("kind").is_in(wanted) & (pl.col("level") == "WARN"))
    people = processes if processes is not None else NOBODY
    told = where_reported(rows, people)
    # What a line is taken for is the first meaning that fits it.
    fits = [
        pl.when(
            pl.col("kind").is_in(list(m.kinds))
            & pl.col("message").fill_null("").str.contains(f"(?i){m.pattern}")
            & pl.col("file").fill_null("").str.ends_with(m.file)
        ).then(number)
        for number, m in enumerate(_MEANINGS)
    ]
    taken = told.with_columns(meaning=pl.coalesce(fits)).filter(pl.col("meaning").is_not_null()).sort("meaning", maintain_order=True)
    over = set(went_on_without_nvml(nccl_errors, comms).collect().rows()) if comms is not None else set()
    for (number, _), own in taken.group_by("meaning", "host", maintain_order=True):
        meaning = _MEANINGS[int(str(number))]
        yield _finding(own, replace(meaning, severity="warning") if over.issuperset(own.select("source_id", "line_no").rows()) else meaning)


def _finding(rows: pl.DataFrame, meaning: _Named) -> Finding:
    ranks, hosts = ranks_of(rows), hosts_of(rows)
    who = ", ".join(hosts) or "a host whose name is not in the evidence"
    message = str(rows["message"][0])
    return Finding(
        title=f"{meaning.words} ({who}{', ' + ranks_words(ranks) if ranks and meaning.own else ''}): {message[:140]}",
        summary="NCCL says so itself; the other ranks only see a peer that failed."
        if meaning.severity == "critical"
        else "NCCL says so itself.",
        cause=meaning.cause,
        severity=meaning.severity,
        confidence=meaning.confidence,
        ranks=ranks if meaning.own else (),
        hosts=hosts,
        culprits=(tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts)) if meaning.own else (),
        subject=(meaning.words, *hosts),
        evidence=cite(rows, "said by NCCL"),
        evidence_total=rows.height,
        remedy=meaning.remedy,
        prevention="Run a short all_reduce over the job's hosts, with its image and settings, before the job starts.",
        would_refute=("another rank had failed before this line was printed",),
        actions=(Action(meaning.action, hosts=hosts, ranks=ranks if meaning.own else (), confidence=meaning.confidence),),
    )


@rule(
    name="shape-mismatch-by-nccl",
    code="CO10",
    cause="shape-mismatch",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed"),
)
def shape_mismatch_by_nccl(nccl_errors: pl.LazyFrame, divergences: pl.LazyFrame | None, settings: pl.LazyFrame | None) -> Iterator[Finding]:
    """NCCL's network received another number of bytes than it expected, where neither operations nor settings tell what differed."""
    if has_rows(divergences):
        return
    if has_rows(settings, pl.col("differs")):
        return
    rows = nccl_errors.filter((pl.col("kind") == "size-mismatch") & (pl.col("level") == "WARN")).sort("source_id", "line_no").collect()
    if not rows.height:
        return
    hosts = hosts_of(rows)
    peers = sorted({str(p).split("<")[0] for p in rows["peer"].to_list() if p})
    yield Finding(
        title=f"{', '.join(hosts[:4]) or 'a host'} received another number of bytes than expected"
        + (f" from {', '.join(peers[:4])}" if peers else "")
        + ": the ranks called a collective with different sizes",
        summary="NCCL compares what a peer sends with what was posted. Either the sizes of one collective differ, or the ranks run with different "
        "NCCL settings. The lines do not say which side is wrong.",
        confidence="medium",
        hosts=hosts,
        subject=("size-mismatch", *hosts),
        evidence=cite(rows, "received size differs"),
        evidence_total=rows.height,
        remedy="Log COLL lines (NCCL_DEBUG_SUBSYS=COLL) or dump the Flight Recorder to see which rank's size differs.",
        prevention="Assert equal shapes before the collective, and equal NCCL_* settings at start.",
        would_refute=("the ranks run with different NCCL_* settings or versions",),
        alternatives=(("environment-mismatch", (), "no setting is seen to differ"),),
        actions=(Action("collect-more", hosts=hosts, command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,COLL"),),
    )
