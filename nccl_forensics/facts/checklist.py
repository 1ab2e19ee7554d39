"""The first-response questions of the field, each with the rules that answer it, what evidence that takes, and how to get it by hand.

The questions are what debugging guides of clusters ask for hangs, errors, slow jobs and silent corruption, and for each part of a machine.
"""

from __future__ import annotations

from dataclasses import dataclass

HANG, ERROR, SLOW, CORRUPTION = "Hang", "Error", "Slow", "Silent corruption"
GPU, LINKS, FABRIC, NETWORK, HOST, SETTINGS = "GPU", "NVLink and PCIe", "InfiniBand and RoCE", "Network", "Host", "Settings and versions"
SECTIONS = (HANG, ERROR, SLOW, CORRUPTION, GPU, LINKS, FABRIC, NETWORK, HOST, SETTINGS)


@dataclass(frozen=True, slots=True)
class Question:
    """One item. ``rules`` answer it: a finding of any of them is a bad answer; a good one takes that one of them was run and that one of
    the tables or views that it ``takes`` holds a row, or of a column (``gpus.throttle``) a value. ``command`` gets what is missing."""

    section: str
    text: str
    rules: tuple[str, ...]
    takes: tuple[str, ...]
    command: str


def _q(section: str, text: str, rules: str, takes: str, command: str) -> Question:
    return Question(section, text, tuple(rules.split()), tuple(takes.split()), command)


_LOG = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH NCCL_DEBUG_FILE=nccl.%h.%p.log"
_CALLS = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=nccl.%h.%p.log"
_DUMPS = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/shared/fr_"
_STACKS = "py-spy dump --pid PID, on every rank, twice"
_TRACE = "torch.profiler.profile() around a few steps, on every rank"
_OPERATIONS = "operations nccl_ops fr_entries"

QUESTIONS: tuple[Question, ...] = (
    _q(
        HANG,
        "Did every rank start and join each communicator?",
        "rank-never-joined rank-never-joined-by-store init-never-finished clients-never-joined two-launches-at-one-store died-in-init store-gone ras-dead",
        "comms nccl_tails nccl_ras_groups nccl_ras_ranks",
        _LOG,
    ),
    _q(
        HANG,
        "Are all processes of the job still there?",
        "rank-died rank-ended rank-ended-by-stacks process-stopped peer-gone",
        "endings host_processes gone_peers",
        "ps -ef on every node",
    ),
    _q(
        HANG,
        "Is every rank in the same collective of its group?",
        "collective-skipped collective-skipped-by-step collective-skipped-whole-step collective-skipped-ahead collective-skipped-by-stacks ras-behind",
        f"{_OPERATIONS} stacks nccl_ras_items nccl_ras_ranks",
        _CALLS,
    ),
    _q(
        HANG,
        "Do all ranks call the same operation at each position?",
        "collective-mismatch collective-mismatch-by-stacks collective-mismatch-by-traceback",
        f"{_OPERATIONS} stacks",
        _DUMPS,
    ),
    _q(
        HANG,
        "Do sizes, reduce operation and root of each collective agree?",
        "shape-mismatch shape-mismatch-by-transport shape-mismatch-by-nccl argument-mismatch splits-mismatch roots-mismatch",
        _OPERATIONS,
        _DUMPS,
    ),
    _q(HANG, "Do groups take their collectives in one order on all ranks?", "group-deadlock", _OPERATIONS, _DUMPS),
    _q(
        HANG,
        "Does every send meet its receive?",
        "p2p-deadlock p2p-deadlock-by-watchdogs p2p-unpaired p2p-unlike p2p-deadlock-by-stacks p2p-half-left-out",
        f"{_OPERATIONS} stacks",
        _DUMPS,
    ),
    _q(
        HANG,
        "Does a collective that all ranks entered finish?",
        "collective-stuck collective-stuck-downstream gpu-stall",
        _OPERATIONS,
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000, and nvidia-smi and dmesg of every node",
    ),
    _q(
        HANG,
        "Does no GPU stand idle while all others spin?",
        "gpu-idle",
        "gpus.utilization_percent",
        "nvidia-smi --query-gpu=index,pci.bus_id,utilization.gpu,power.draw,power.limit,memory.used --format=csv, twice",
    ),
    _q(
        HANG,
        "Is no rank held up on its host: data loading, a lock, a checkpoint?",
        "input-stall input-stall-by-stacks host-stall host-stall-by-stacks",
        f"{_OPERATIONS} stacks",
        _STACKS,
    ),
    _q(HANG, "Does Horovod wait for no rank to hand in tensors?", "stalled-tensors", "reports", "the output of rank 0 from the start on"),
    _q(
        HANG,
        "Does every rank use all parameters of its model?",
        "ddp-unused-parameter ddp-bucket-passed",
        "reports",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    _q(HANG, "Was the timeout long enough for a job that still advanced?", "timeout-too-short", _OPERATIONS, _DUMPS),
    _q(
        ERROR,
        "Did every process end without a fault of its own?",
        "software-crash rank-died crash-in-kernel-log raised-by-nobody-known",
        "endings exceptions worker_exits",
        "the launcher's output, standard error of every rank",
    ),
    _q(ERROR, "Did NCCL accept all that it was asked?", "invalid-usage bootstrap-disagreement", "nccl_versions", _LOG),
    _q(
        ERROR,
        "Could every connection be made and kept?",
        "connection-failed store-unreachable rendezvous-failed port-in-use unreachable-host blocked-route host-tables-full nccl-named-fault",
        "nccl_versions port_probes pings",
        "nc -zv MASTER PORT; ip route",
    ),
    _q(ERROR, "Did RDMA complete without errors?", "ib-error", "nccl_versions", _LOG),
    _q(
        ERROR,
        "Was the job left alone by its scheduler?",
        "job-stopped",
        "scheduler_jobs pods worker_exits",
        "sacct -j JOB; kubectl describe pod POD",
    ),
    _q(
        SLOW,
        "Do all ranks arrive at collectives at about the same time?",
        "straggler straggler-by-durations input-stall-by-logs slow-kernels slow-worker straggler-by-stacks inspector-straggler gpu-shared",
        "lag late_ranks nccl_inspector timeline_work",
        _DUMPS,
    ),
    _q(SLOW, "Is most of a step computation?", "communication-bound input-bound", "trace_measures", _TRACE),
    _q(SLOW, "Is communication hidden behind computation?", "low-overlap", "trace_measures", _TRACE),
    _q(SLOW, "Are collectives large enough for their links?", "small-buckets", "trace_bandwidth", _TRACE),
    _q(
        SLOW,
        "Do collectives reach the bandwidth that the links carry?",
        "low-bus-bandwidth slow-group bandwidth-test-failed",
        "bandwidth_rows rdma_tests gpu_bandwidth trace_bandwidth",
        "all_reduce_perf -b 8 -e 8G -f 2 -g 8",
    ),
    _q(
        SLOW,
        "Do GPUs of a host talk directly, not through host memory?",
        "p2p-disabled p2p-disabled-by-setting peer-access",
        "nccl_connections gpu_bandwidth settings",
        _LOG,
    ),
    _q(
        SLOW,
        "Do hosts talk over RDMA rather than TCP?",
        "socket-fallback socket-fallback-of-plugin socket-fallback-by-setting mixed-transports",
        "networks settings",
        _LOG,
    ),
    _q(SLOW, "Do NICs read GPU memory directly (GPUDirect RDMA)?", "gdr-disabled gdr-disabled-by-setting", "nccl_connections", _LOG),
    _q(SLOW, "Is every NIC of each host used?", "nic-underused nic-slow", "host_nics", _LOG),
    _q(SLOW, "Are there enough channels for the links?", "few-channels few-channels-by-setting", "nccl_channels settings", _LOG),
    _q(SLOW, "Is NVLink SHARP in use where it can be?", "nvls-disabled-by-setting", "settings", _LOG),
    _q(
        SLOW,
        "Does NCCL choose fitting algorithms, protocols and paths?",
        "nccl-slow-choice",
        "nccl_tuning nccl_graphs nccl_topo",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING,GRAPH",
    ),
    _q(
        CORRUPTION,
        "Did tests that check their results find them right?",
        "data-corruption",
        "bandwidth_rows",
        "all_reduce_perf -b 8 -e 8G -f 2 -g 8 -c 1",
    ),
    _q(
        CORRUPTION,
        "Did loss and gradient norm keep to their course?",
        "loss-jump",
        "training_steps",
        "the log of the training loop, with loss and gradient norm of every step",
    ),
    _q(
        CORRUPTION,
        "Are there no memory or link errors near a break of the loss?",
        "corruption-signs",
        "kernel_spans xids gpus.dram_uncorrected nvlink_counters",
        "the log of the training loop; sudo dmesg -T; nvidia-smi -q -d ECC; nvidia-smi nvlink -e",
    ),
    _q(
        CORRUPTION,
        "Do all ranks compute the same gradient norm?",
        "replicas-differ",
        "replica_norms",
        "the log of every rank, with the gradient norm of every step",
    ),
    _q(CORRUPTION, "Do all ranks reduce the same data type?", "dtype-mismatch", _OPERATIONS, _DUMPS),
    _q(GPU, "Did the driver report no error of a GPU (Xid)?", "gpu-fault cuda-fault", "kernel_spans xids", "sudo dmesg -T | grep Xid"),
    _q(
        GPU,
        "Do driver, libraries and GPUs fit each other?",
        "driver-mismatch driver-refused",
        "endings kernel_spans",
        "nvidia-smi; cat /proc/driver/nvidia/version; sudo dmesg -T | grep 'API mismatch'",
    ),
    _q(GPU, "Does every host list all of its GPUs?", "gpu-missing", "gpu_samples", "nvidia-smi -L; lspci | grep -i nvidia"),
    _q(
        GPU,
        "Are memory errors, remapped rows and retired pages within bounds?",
        "gpu-fault",
        "gpus.dram_uncorrected gpus.sram_uncorrected gpus.remap_failed gpus.retired_double_bit dcgm_results",
        "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    ),
    _q(
        GPU,
        "Do GPUs run at full clocks?",
        "gpu-throttled",
        "gpus.throttle gpus.sm_clock_mhz",
        "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER",
    ),
    _q(
        LINKS,
        "Are all NVLinks up and free of errors?",
        "nvlink-fault nvlink-topology topology-dump",
        "nvlinks nvlink_counters",
        "nvidia-smi nvlink -s; nvidia-smi nvlink -e",
    ),
    _q(LINKS, "Is the IMEX domain whole, where hosts share memory over NVLink?", "imex-domain", "imex_nodes", "nvidia-imex-ctl -N"),
    _q(
        LINKS,
        "Does every PCIe link run at full width and speed, without errors?",
        "pcie-degraded pcie-in-topology",
        "gpus.pcie_width pcie_links",
        "sudo lspci -vv",
    ),
    _q(LINKS, "May devices copy to each other past the IOMMU?", "dma-blocked", "kernel_spans", "sudo dmesg -T | grep -i -e DMAR -e AMD-Vi"),
    _q(
        FABRIC,
        "Is every port active at full width and speed, without link errors?",
        "ib-link fabric-diagnostics",
        "ib_ports ib_port_counters ib_links link_quality",
        "ibstat; perfquery -x; mlxlink -d mlx5_0 -c",
    ),
    _q(
        FABRIC,
        "Did network cards and their links stay up, by the kernel's log?",
        "nic-events",
        "kernel_spans",
        "sudo dmesg -T | grep -i -e mlx5 -e 'link down' -e carrier",
    ),
    _q(FABRIC, "Is the fabric free of congestion?", "congestion", "ib_port_counters net_counters", "perfquery -x; ethtool -S IFACE"),
    _q(FABRIC, "Do all paths through the fabric arrive?", "broken-path", "ib_routes", "ibtracert SOURCE_LID TARGET_LID"),
    _q(
        FABRIC, "Are cables and optical modules free of alarms?", "optical-module", "net_settings", "ethtool -m IFACE; mlxlink -d mlx5_0 -m"
    ),
    _q(FABRIC, "Does NCCL use the right GID of each port?", "gid-index", "rdma_gids", "show_gids"),
    _q(
        NETWORK,
        "Do MTUs agree from end to end?",
        "mtu-mismatch",
        "net_interfaces ib_ports pings",
        "ip link; ping -M do -s 8972 PEER; ibv_devinfo",
    ),
    _q(
        NETWORK,
        "Are Ethernet cards set up alike: pause, rings, offloads?",
        "nic-settings",
        "net_settings",
        "ethtool -a IFACE; ethtool -g IFACE; ethtool -k IFACE",
    ),
    _q(
        NETWORK,
        "Do packets arrive without loss and retransmission?",
        "packet-loss capture-loss capture-unanswered",
        "ib_port_counters net_counters sockets tcp_tests conversations",
        "ss -tin; nstat -az; ethtool -S IFACE; iperf3 -c PEER",
    ),
    _q(
        NETWORK,
        "Does TCP fill the interfaces that it goes over?",
        "tcp-below-line-rate",
        "tcp_tests net_interfaces.speed_mbit_s",
        "iperf3 -c PEER -P 8; ethtool IFACE; ip addr",
    ),
    _q(
        NETWORK,
        "Do bootstrap and sockets use an interface that all peers reach?",
        "wrong-interface gloo-wrong-interface",
        "nccl_network",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET; ip addr",
    ),
    _q(
        NETWORK,
        "Do packet filters let the job's connections pass?",
        "firewall blocked-route",
        "firewall_rules",
        "sudo iptables -L -n -v; sudo nft list ruleset; ip rule",
    ),
    _q(
        HOST,
        "Is there room in shared memory (/dev/shm)?",
        "shm-exhausted shm-exhausted-nccl shm-leftovers",
        "filesystems shm_files",
        "df -k /dev/shm; ls -l /dev/shm",
    ),
    _q(
        HOST,
        "May processes lock as much memory as RDMA needs?",
        "memlock-limit memlock-limit-nccl",
        "limits",
        "ulimit -l; cat /proc/PID/limits",
    ),
    _q(
        HOST,
        "Was there memory enough, on hosts and GPUs?",
        "out-of-memory out-of-memory-nccl host-memory-low",
        "oom_kills kernel_spans memory",
        "sudo dmesg -T | grep -i oom; free -m",
    ),
    _q(
        HOST,
        "Do processes run without waiting for memory or storage?",
        "host-pressure",
        "pressures",
        "grep . /proc/pressure/*; vmstat 1 5",
    ),
    _q(HOST, "Did every node stay up?", "node-failed", "kernel_spans scheduler_nodes", "sudo dmesg -T; journalctl -k -b -1"),
    _q(
        SETTINGS,
        "Do all ranks run with the same NCCL settings?",
        "environment-mismatch channels-differ",
        "settings",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV; cat /proc/PID/environ",
    ),
    _q(
        SETTINGS,
        "Do all ranks run the same versions, on like hosts?",
        "version-mismatch host-differs other-versions",
        "nccl_versions host_facts",
        "NCCL_DEBUG=VERSION; nvidia-smi; uname -a",
    ),
    _q(
        SETTINGS,
        "Is no setting or topology file known to harm?",
        "bad-setting topology-file",
        "settings environment",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV; cat /proc/PID/environ",
    ),
)
