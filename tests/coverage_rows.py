"""What people do by hand, and what does it here: the rows of docs/coverage.md. The keys are those of the guides that stand beside the
corpus.

``python -m tests.generate_docs`` writes the page; tests/test_coverage.py holds it against the code, and the keys against the guides.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One thing to cover. ``rules`` and ``formats`` by name, ``pages`` below docs/, ``missing`` says what is not done."""

    key: str
    words: str
    rules: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    missing: str = ""


def _r(key: str, words: str, rules: str = "", formats: str = "", pages: str = "", missing: str = "") -> Row:
    return Row(key, words, tuple(rules.split()), tuple(formats.split()), tuple(pages.split()), missing)


#: The field's guide of debugging by hand.
GUIDE: tuple[Row, ...] = (
    _r("H1", "last operation of every rank, side by side", "collective-skipped", "nccl-log flight-recorder", "postmortem.md"),
    _r("H2", "all ranks in the same operation and none finished", "collective-stuck", "nccl-log flight-recorder"),
    _r(
        "H3",
        "ranks whose communicator never came up",
        "rank-never-joined init-never-finished clients-never-joined died-in-init",
        "nccl-log traceback",
    ),
    _r(
        "H4",
        "processes that are gone, ports that do not answer",
        "rank-died rank-ended rank-ended-by-stacks unreachable-host",
        "host-listing network launcher-log",
    ),
    _r("H5", "the watchdog's operation, sequence number and timeout", "collective-mismatch-by-watchdog timeout-too-short", "c10d-log"),
    _r("H6", "Flight Recorder dumps compared", "collective-skipped collective-mismatch", "flight-recorder", "accuracy.md"),
    _r("H7", "py-spy stacks of all ranks merged", "collective-skipped-by-stacks host-stall-by-stacks", "py-spy py-spy-json"),
    _r("H8", "gdb and faulthandler stacks merged with them", "host-stall-by-stacks", "gdb faulthandler pystack"),
    _r(
        "H9",
        "a collective that only some ranks reach, or two in swapped order",
        "collective-skipped-by-step group-deadlock",
        "flight-recorder",
    ),
    _r("H10", "sizes, types and arguments that differ", "shape-mismatch dtype-mismatch argument-mismatch", "flight-recorder nccl-log"),
    _r("H11", "all wait for a slow root", "straggler host-stall", "flight-recorder chrome-trace"),
    _r("H12", "both pipeline stages send first", "p2p-deadlock p2p-deadlock-by-stacks", "flight-recorder"),
    _r("H13", "groups that wait for each other", "group-deadlock", "flight-recorder"),
    _r("H14", "parameters without a gradient", "ddp-unused-parameter", "traceback c10d-log"),
    _r("H15", "a timeout that is too short, or only put off", "timeout-too-short", "c10d-log flight-recorder"),
    _r("H16", "killed by the kernel, the cgroup or a restart", "out-of-memory rank-died", "kernel-log launcher-log slurm kubernetes"),
    _r("H17", "monitored barrier", "rank-died collective-skipped-by-step", "c10d-log traceback"),
    _r(
        "E1",
        "ncclSystemError: shared memory, devices, buffers",
        "shm-exhausted-nccl shm-leftovers memlock-limit-nccl",
        "nccl-log shm-files",
    ),
    _r("E2", "ncclInvalidArgument and ncclInvalidUsage", "invalid-usage", "nccl-log traceback"),
    _r("E3", "ncclUnhandledCudaError", "cuda-fault gpu-fault", "nccl-log kernel-log"),
    _r("E4", "ncclRemoteError and ncclInternalError: who went first", "rank-died died-in-init", "traceback nccl-log"),
    _r(
        "E5", "the ring does not come up: firewall, interface, names", "connection-failed wrong-interface blocked-route", "nccl-log network"
    ),
    _r("E6", "Xid of the driver, with its official action", "gpu-fault", "kernel-log journal-json", "reference/xid.md"),
    _r("E7", "ECC, remapped rows, temperature, power", "gpu-fault gpu-throttled", "nvidia-smi-q nvidia-smi-xml dcgm amd-smi"),
    _r("E8", "NVLink errors and inactive links", "nvlink-fault nvlink-topology", "nvidia-smi fabric-manager dcgm-nvlink"),
    _r("E9", "PCIe errors, IOMMU, ACS", "pcie-degraded peer-access p2p-disabled", "lspci kernel-log"),
    _r("E10", "versions that differ between ranks", "version-mismatch host-differs", "nccl-log host-facts"),
    _r("S1", "NVLink, shared memory or nothing between GPUs", "p2p-disabled p2p-disabled-by-setting peer-access", "nccl-log"),
    _r("S2", "RDMA with GPUDirect, or sockets", "socket-fallback gdr-disabled", "nccl-log"),
    _r("S3", "number of channels against the platform", "few-channels few-channels-by-setting", "nccl-log"),
    _r("S4", "network cards in use", "nic-underused nic-slow", "nccl-log ib-state"),
    _r("S5", "algorithm and protocol by size", "nccl-slow-choice", "nccl-log nccl-topology"),
    _r("S6", "nccl-tests against what the links carry", "low-bus-bandwidth", "nccl-tests nccl-tests-json", "measures.md"),
    _r("S7", "one bad cable slows the ring", "low-bus-bandwidth ib-link nic-slow", "nccl-tests mlxlink", "postmortem.md"),
    _r(
        "S8",
        "computation against communication, overlap, bucket sizes",
        "communication-bound low-overlap small-buckets",
        "chrome-trace nsight-systems",
        "measures.md",
    ),
    _r("S9", "time that ranks wait for the latest", "straggler inspector-straggler", "flight-recorder chrome-trace", "measures.md"),
    _r("S10", "iperf3 rates, retransmissions, loss", "packet-loss tcp-below-line-rate", "iperf3 iperf3-json"),
    _r(
        "S11", "ib_write_bw and ibping", "low-bus-bandwidth bandwidth-test-failed broken-path", "perftest perftest-json ib-fabric ibtracert"
    ),
    _r("S12", "MTU from end to end", "mtu-mismatch", "network ib-state ip-json"),
    _r(
        "S13",
        "counters of ports that rise",
        "ib-link packet-loss congestion optical-module nic-settings",
        "ib-counters sysfs-dump network ethtool",
    ),
    _r("S14", "packet captures: resent, zero windows, resets, duplicate ACKs", "capture-loss capture-unanswered", "pcap tshark sockets"),
    _r(
        "S15", "settings, differences and harm", "environment-mismatch bad-setting", "nccl-log environment environ", "reference/settings.md"
    ),
    _r("S16", "a virtual machine that hides the topology", "topology-file nvlink-topology nccl-slow-choice", "nccl-topology nccl-log"),
    _r("S17", "throttling by heat or power", "gpu-throttled", "nvidia-smi-q dcgm-exporter"),
    _r("S18", "rings and trees over hosts with their slow edges", "low-bus-bandwidth nic-underused", "nccl-log", "postmortem.md"),
    _r(
        "C1",
        "memory and link errors near jumps of loss or gradients",
        "corruption-signs loss-jump replicas-differ data-corruption",
        "training-log kernel-log nccl-tests",
    ),
    _r("C2", "types that differ without an error", "dtype-mismatch", "flight-recorder nccl-log"),
    _r("A1", "the postmortem, with what would have caught it earlier", pages="postmortem.md first-verdict.md"),
    _r("A2", "what to switch on next time", pages="collect.md reference/checklists.md"),
    _r("A3", "hosts to exclude, by confidence", "gpu-fault node-failed", pages="first-verdict.md"),
)

#: The catalogue of host and network evidence: what each sign means.
HOSTS: tuple[Row, ...] = (
    _r("X1", "a GPU fell off the bus", "gpu-fault", "kernel-log"),
    _r("X2", "timeouts of driver and firmware", "gpu-fault", "kernel-log"),
    _r("X3", "uncorrectable ECC", "gpu-fault corruption-signs", "kernel-log nvidia-smi-q"),
    _r("X4", "a contained memory error", "gpu-fault corruption-signs", "kernel-log"),
    _r("X5", "an uncontained memory error", "gpu-fault corruption-signs", "kernel-log"),
    _r("X6", "an NVLink that failed, and its far end", "nvlink-fault", "kernel-log fabric-manager"),
    _r("X7", "Xids that programs raise", "gpu-fault", "kernel-log"),
    _r("X8", "Xids that only follow a kill", "gpu-fault", "kernel-log"),
    _r("X9", "early warnings of memory", "gpu-fault", "kernel-log"),
    _r("X10", "the action that the driver itself asks for", "gpu-fault", "kernel-log"),
    _r("M1", "the kernel killed a process of the job", "out-of-memory", "kernel-log"),
    _r("M2", "the scheduler says that memory ran out", "out-of-memory", "slurm kubernetes"),
    _r("M3", "shared memory full or small", "shm-exhausted", "host-listing shm-files"),
    _r("M4", "locked memory limited", "memlock-limit", "host-listing"),
    _r("K1", "panics, lock-ups, reboots", "node-failed", "kernel-log slurm"),
    _r("K2", "storage that stands still", "node-failed process-stopped", "kernel-log host-listing"),
    _r("P1", "fatal PCIe errors", "pcie-degraded gpu-fault", "kernel-log"),
    _r("P2", "storms of corrected PCIe errors", "pcie-degraded", "kernel-log"),
    _r("P3", "fewer lanes or a lower generation", "pcie-degraded", "lspci nvidia-smi-q"),
    _r("G1", "a GPU that is missing", "gpu-missing gpu-fault", "nvidia-smi nvidia-smi-q"),
    _r("G2", "clocks held down", "gpu-throttled", "nvidia-smi-q"),
    _r("G3", "memory health", "gpu-fault", "nvidia-smi-q"),
    _r("G4", "NVLinks missing or slow", "nvlink-fault", "nvidia-smi"),
    _r("G5", "an NVSwitch fabric that is not ready", "gpu-fault nvlink-fault", "nvidia-smi-q fabric-manager"),
    _r("G6", "multicast teams that cannot be set up", "nvlink-fault nccl-named-fault", "fabric-manager"),
    _r("G7", "a node with other versions", "host-differs", "host-facts nvidia-smi-q"),
    _r("G8", "foreign processes on the job's GPUs", "gpu-shared", "nvidia-smi-q host-listing"),
    _r("G9", "one GPU idle while all others spin", "gpu-idle", "nvidia-smi nvidia-smi-q"),
    _r("I1", "a port that is down while its peers are up", "ib-link", "ib-state"),
    _r("I2", "a port slower than its peers", "ib-link nic-slow", "ib-state"),
    _r("I3", "a link that flaps", "ib-link ib-error", "kernel-log ib-counters"),
    _r("I4", "peers that do not acknowledge", "packet-loss", "ib-counters"),
    _r("I5", "bit errors of cables and optics", "ib-link optical-module", "mlxlink ethtool"),
    _r("I6", "congestion and pauses", "congestion", "ib-counters network"),
    _r("I7", "a lossless class that is not set up", "packet-loss nic-settings", "network ethtool"),
    _r("I8", "trouble of the subnet manager", "ib-link", "ib-state ib-fabric"),
    _r("I9", "clean counters and a slow test", "low-bus-bandwidth gdr-disabled", "perftest"),
    _r("N1", "MTUs that differ", "mtu-mismatch", "network"),
    _r("N2", "an interface that is absent, down or the wrong one", "wrong-interface", "network nccl-log"),
    _r("N3", "a host name that leads to loopback", "unreachable-host", "network"),
    _r("N4", "refused against timed out", "unreachable-host connection-failed", "network"),
    _r("N5", "sockets that stand still", "packet-loss", "sockets"),
    _r("N6", "limits of instances and of the IP stack", "packet-loss congestion", "network"),
    _r("B1", "a test with wrong results", "data-corruption", "nccl-tests"),
    _r("B2", "bus bandwidth below what is expected", "low-bus-bandwidth", "nccl-tests"),
    _r("B3", "a GPU or link that copies slower than its peers", "low-bus-bandwidth", "gpu-bandwidth nvbandwidth-json"),
    _r("B4", "a card or path below line rate", "low-bus-bandwidth", "perftest"),
    _r("B5", "a test without its end", "bandwidth-test-failed", "nccl-tests"),
    _r("S1", "a node that failed, by the scheduler", "node-failed job-stopped", "slurm slurm-daemon"),
    _r("S2", "a job that was ended from outside", "job-stopped", "slurm kubernetes"),
    _r("S3", "the first task that ended badly", "rank-died", "launcher-log"),
    _r("S4", "evictions", "job-stopped", "kubernetes kubernetes-json"),
    _r("S5", "a process that is stopped or traced", "process-stopped", "host-listing"),
    _r("T1", "a topology file that describes too little", "topology-file nvlink-topology", "nccl-topology"),
    _r("T2", "a topology matrix with holes", "nvlink-fault", "nvidia-smi"),
    _r("C1", "noise that is known to be harmless", "known-noise", "kernel-log fabric-manager"),
)

#: Texts of PyTorch and gloo. Keys are ours.
TORCH: tuple[Row, ...] = (
    _r(
        "watchdog",
        "the watchdog's timeout with operation and sequence number",
        "timeout-too-short collective-mismatch-by-watchdog",
        "c10d-log",
    ),
    _r("heartbeat", "the heartbeat monitor on a watchdog that got stuck", "host-stall-by-heartbeat", "c10d-log"),
    _r("desync", "the desync report", "host-stall-by-desync-report gpu-stall-by-desync-report", "c10d-log"),
    _r("horovod", "Horovod's report of tensors that wait for ranks", "stalled-tensors", "horovod"),
    _r("ray", "Ray's raylet on workers that it killed or lost", "out-of-memory rank-died", "launcher-log"),
    _r("backend-error", "NCCL errors as DistBackendError with their last line", "rank-died", "traceback"),
    _r("gloo-timeout", "gloo waited its whole timeout", "collective-skipped host-stall", "traceback"),
    _r("gloo-closed", "gloo's peer closed or reset the connection", "rank-died", "traceback"),
    _r("gloo-size", "gloo got another number of bytes than it expected", "shape-mismatch-by-transport", "traceback"),
    _r("detail", "TORCH_DISTRIBUTED_DEBUG=DETAIL on mismatched calls", "collective-mismatch-by-traceback", "c10d-log traceback"),
    _r("monitored-barrier", "a monitored barrier that names missing ranks", "collective-skipped-by-step", "c10d-log traceback"),
    _r("ddp", "parameters that got no gradient", "ddp-unused-parameter", "traceback c10d-log"),
    _r("elastic", "torchrun's summary of failures, read as evidence and not as truth", "rank-died", "launcher-log torchelastic-error"),
    _r("signals", "exit codes and signals of workers", "rank-died job-stopped", "launcher-log"),
    _r("data-loader", "data loader workers that were killed", "shm-exhausted rank-died", "traceback"),
)

#: What is known to be wanted and is not there.
MISSING: tuple[str, ...] = (
    "systemd's binary journals are read as the text that `journalctl --file F --utc --all -o short-iso-precise` prints of them (its line numbers are cited); "
    "of a journal in which an object is damaged, what lies behind it is not searched for.",
    "Nsight Systems' `.nsys-rep` is read through its SQLite export only; the report names the command.",
    "Archives of 7-Zip, RAR, LZ4 and compress(1) are named and not unpacked.",
    "NCCL's lines without a finding of their own (below, `evidence for other rules`) are read, searchable by `sql`, and count as signs of a failure.",
)
