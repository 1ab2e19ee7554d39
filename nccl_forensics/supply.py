"""What one would collect to fill a table or view: the words in which a report says what evidence was not there."""

from __future__ import annotations

_NCCL = "NCCL logs (NCCL_DEBUG=INFO)"
_OPERATIONS = "Flight Recorder dumps, or NCCL logs with COLL"
#: By the start of the name of a table or view; the longest start counts.
_SUPPLIES = {
    "nccl_": _NCCL,
    "nccl_ras": "ncclras output",
    "nccl_inspector": "NCCL inspector output",
    "nccl_topo": "an NCCL topology file",
    "nccl_ops": "NCCL logs with NCCL_DEBUG_SUBSYS=COLL",
    "comms": _NCCL,
    "settings": _NCCL,
    "networks": _NCCL,
    "host_nics": _NCCL,
    "bootstrapped": _NCCL,
    "gpu_links": "NCCL logs with NCCL_DEBUG_SUBSYS=GRAPH",
    "fr_": "Flight Recorder dumps",
    "dumps": "Flight Recorder dumps",
    "operations": _OPERATIONS,
    "groups": _OPERATIONS,
    "progress": _OPERATIONS,
    "waits": _OPERATIONS,
    "blockers": _OPERATIONS,
    "divergences": _OPERATIONS,
    "stuck": _OPERATIONS,
    "stalls": _OPERATIONS,
    "lag": "Flight Recorder dumps with times",
    "stacks": "stacks of the processes (py-spy, gdb)",
    "thread_states": "stacks of the processes (py-spy, gdb)",
    "odd_stacks": "stacks of the processes (py-spy, gdb)",
    "stack_stalls": "stacks of the processes (py-spy, gdb)",
    "kernel_": "kernel logs",
    "xids": "kernel logs",
    "sxids": "kernel logs or the fabric manager's log",
    "oom_kills": "kernel logs",
    "gpus": "nvidia-smi queries",
    "gpu_": "nvidia-smi queries",
    "gpu_bandwidth": "GPU bandwidth tests",
    "nvlink": "nvidia-smi nvlink output",
    "pcie_links": "lspci output",
    "dcgm": "dcgmi output",
    "fabric_events": "the fabric manager's log",
    "bandwidth_": "nccl-tests output",
    "rdma_tests": "perftest output",
    "tcp_tests": "iperf3 output",
    "ib_": "InfiniBand port listings and counters",
    "sysfs_": "InfiniBand port listings and counters",
    "link_quality": "InfiniBand port listings and counters",
    "net_": "ip and ethtool output",
    "pings": "ping output",
    "port_probes": "port probes",
    "sockets": "socket listings (ss)",
    "packets": "packet captures",
    "host_processes": "process listings (ps)",
    "filesystems": "df output",
    "limits": "ulimit output",
    "memory": "free output",
    "environment": "the environment of each process",
    "scheduler_": "scheduler output (sacct, scontrol)",
    "pods": "kubectl output",
    "pod_": "kubectl output",
    "trace": "profiler traces (torch.profiler, Nsight Systems)",
    "late_ranks": "profiler traces of several ranks",
    "watchdog": "logs of the training processes",
    "exceptions": "logs of the training processes",
    "failures": "logs of the training processes",
    "last_calls": "logs of the training processes",
    "worker_exits": "the launcher's log",
    "endings": "the launcher's log or those of the processes",
}


def supply(name: str) -> str:
    """What to hand in so that this table or view has rows; the name itself where that is not known."""
    start = max((s for s in _SUPPLIES if name.startswith(s)), key=len, default="")
    return _SUPPLIES.get(start, name)
