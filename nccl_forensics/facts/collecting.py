"""The steps of our own collection script: what each is called in reports, and how to get it by hand. The most decisive stand first."""

from __future__ import annotations

#: Step -> (what it is, command that gets it where the script could not).
STEPS: dict[str, tuple[str, str | None]] = {
    "processes": ("the processes of the job", "sh collect.sh -p PID"),
    "stack": ("stacks", "py-spy dump --pid PID"),
    "flight-recorder": (
        "Flight Recorder dumps",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_pipe_ TORCH_FR_DUMP_TEMP_FILE=/tmp/fr_trace_rank_ (set before the job starts)",
    ),
    "logs": ("logs", "sh collect.sh -f PATH"),
    "kernel-log": ("the kernel log", "sudo dmesg -T"),
    "nvidia-smi": ("the state of the GPUs", "nvidia-smi -q"),
    "environment": ("the environment of the processes", None),
    "infiniband": ("the counters of the RDMA devices", None),
    "infiniband-state": ("the state of the RDMA ports", "ibv_devinfo -v"),
    "nvlink": ("the state of the NVLinks", "nvidia-smi nvlink -s"),
    "nvlink-errors": ("the error counters of the NVLinks", "nvidia-smi nvlink -e"),
    "network": ("the network interfaces", "ip addr"),
    "routes": ("the routes", "ip route"),
    "sockets": ("the TCP sockets", "ss -tin"),
    "ethernet": ("settings, modules and counters of the Ethernet cards", "ethtool -a IFACE; ethtool -m IFACE; ethtool -S IFACE"),
    "ip-counters": ("the counters of the IP stack", "netstat -s"),
    "shared-memory": ("the size of /dev/shm", "df -k"),
    "limits": ("the limits of the processes", "ulimit -a"),
    "memory": ("the memory of the host", None),
    "pressure": ("how long processes wait for memory, storage and processors", None),
    "processors": ("the processors of the host", "lscpu; numactl -H"),
    "firewall": ("the rules of the packet filter", "sudo iptables -L -n -v"),
    "imex": ("the nodes of the IMEX domain", "nvidia-imex-ctl -N"),
    "gpu-topology": ("the GPU topology", "nvidia-smi topo -m"),
    "pcie": ("the PCIe links", "sudo lspci -vv"),
    "process-list": ("the list of processes", "ps -ef"),
    "scheduler": ("what the scheduler says", None),
    "ras": ("what NCCL's RAS says", "ncclras -v"),
    "kernel-stack": ("where the threads wait in the kernel", None),
    "interrupted": ("the rest of the collection", None),
}
