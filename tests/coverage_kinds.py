"""Kinds of files, command outputs and line families that the format pages beside the corpus name, each with a sample and what becomes of
it.

``python -m tests.generate_docs`` writes them into docs/coverage.md; tests/test_coverage_kinds.py reads every sample. Samples are made by
hand from the pages' layouts: a text, or the path of a fixture.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.corpus import ROOT

FIXTURES = ROOT / "fixtures"


@dataclass(frozen=True)
class Kind:
    """``page`` and section, ``words``, the format that reads it, tables that it fills, rules that use these; ``sample`` as above."""

    page: str
    words: str
    format: str
    tables: tuple[str, ...]
    rules: tuple[str, ...]
    sample: str

    @property
    def fixture(self) -> str | None:
        """Path below ``fixtures``, where the sample is one."""
        return self.sample.removeprefix("@") if self.sample.startswith("@") else None

    @property
    def content(self) -> bytes:
        """The bytes to read."""
        return (FIXTURES / self.fixture).read_bytes() if self.fixture else self.sample.encode()


def _k(page: str, words: str, form: str, tables: str, rules: str, sample: str) -> Kind:
    return Kind(page, words, form, tuple(tables.split()), tuple(rules.split()), sample)


_GPU = "GPU-509665ad-b600-ac93-3616-d754b23d636d"
_NCCL = "node7:100:200 [0] NCCL INFO "
_SMI = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {_GPU})\n"

KINDS: tuple[Kind, ...] = (
    # ---- host.md 1: the kernel ----
    _k(
        "host 1",
        "dmesg, seconds since boot",
        "kernel-log",
        "xids kernel_spans",
        "gpu-fault",
        "[171167.620236] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n",
    ),
    _k(
        "host 1",
        "dmesg -T",
        "kernel-log",
        "xids",
        "gpu-fault",
        "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=a, DBE\n",
    ),
    _k(
        "host 1",
        "dmesg -x --time-format=iso",
        "kernel-log",
        "xids",
        "gpu-fault",
        "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: Xid (PCI:0000:3b:00): 63, pid=1, name=a, Row Remapper: New row marked for remapping, reset gpu to activate.\n",
    ),
    _k(
        "host 1",
        "/dev/kmsg",
        "kernel-log",
        "xids",
        "gpu-fault",
        "4,3964,206764307,-;NVRM: Xid (PCI:0000:3b:00): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No\n",
    ),
    _k(
        "host 1",
        "syslog, journalctl -o short-iso",
        "kernel-log",
        "xids",
        "gpu-fault",
        "2024-05-06T07:08:09+0000 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).\n",
    ),
    _k("host 1", "journalctl -o json", "journal-json", "kernel_spans", "node-failed", "@kernel_log/journal.jsonl"),
    _k(
        "host 1.4",
        "NVLink5 Xids",
        "kernel-log",
        "xids",
        "nvlink-fault",
        "[1.000000] NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)\n",
    ),
    _k(
        "host 1.5",
        "SXid",
        "kernel-log",
        "sxids",
        "nvlink-fault",
        "[1.000000] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n",
    ),
    _k(
        "host 1.6",
        "AER and PCIe hot plug",
        "kernel-log",
        "kernel_events",
        "pcie-degraded",
        "[1.000000] pcieport 0000:16:01.0: AER: Corrected error received: 0000:17:00.0\n[1.000001] pcieport 0000:16:01.0: pciehp: Slot(14): Link Down\n",
    ),
    _k(
        "host 1.7",
        "IOMMU faults",
        "kernel-log",
        "kernel_events",
        "dma-blocked",
        "[1.000000] DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0x1000 [fault reason 0x05] PTE Write access is not set\n",
    ),
    _k(
        "host 1.8",
        "the OOM killer",
        "kernel-log",
        "oom_kills",
        "out-of-memory",
        "[1.000000] Out of memory: Killed process 123 (python) total-vm:1641384kB, anon-rss:524092kB, file-rss:192kB, shmem-rss:0kB, UID:0 pgtables:1234kB oom_score_adj:0\n",
    ),
    _k(
        "host 1.9",
        "network cards, fabric and storage",
        "kernel-log",
        "kernel_events",
        "nic-events node-failed",
        "[1.000000] mlx5_core 0000:5c:00.0 ens1f0np0: Link down\n[2.000000] nfs: server store1 not responding, still trying\n",
    ),
    _k(
        "host 1.10",
        "lock-ups, machine checks, panics",
        "kernel-log",
        "kernel_events",
        "node-failed",
        "[1.000000] watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]\n",
    ),
    # ---- host.md 2: GPUs ----
    _k("host 2.1", "nvidia-smi -q", "nvidia-smi-q", "gpus", "gpu-fault gpu-throttled pcie-degraded", "@nvidia_smi/two-h100.txt"),
    _k("host 2.1", "nvidia-smi -q -x", "nvidia-smi-xml", "gpus", "gpu-fault gpu-throttled pcie-degraded", "@nvidia_smi/two-h100.xml"),
    _k(
        "host 2.1",
        "what nvidia-smi says instead of a report",
        "nvidia-smi",
        "gpu_tool_errors",
        "gpu-fault",
        "Unable to determine the device handle for GPU0000:91:00.0: Unknown Error\n",
    ),
    _k(
        "host 2.2",
        "--query-gpu as CSV",
        "nvidia-smi",
        "gpus",
        "gpu-throttled",
        "index, uuid, pcie.link.gen.current, power.draw [W]\n0, " + _GPU + ", 5, 400.00 W\n",
    ),
    _k(
        "host 2.2",
        "--query-compute-apps",
        "nvidia-smi",
        "gpu_processes",
        "gpu-shared",
        f"timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n2024/11/14 15:35:07.123, {_GPU}, 1234, python, 4096 MiB\n",
    ),
    _k(
        "host 2.2",
        "--query-remapped-rows",
        "nvidia-smi",
        "gpus",
        "gpu-fault",
        f"gpu_bus_id, gpu_uuid, remapped_rows.correctable, remapped_rows.uncorrectable, remapped_rows.pending, remapped_rows.failure\n00000000:3B:00.0, {_GPU}, 0, 1, Yes, No\n",
    ),
    _k(
        "host 2.2",
        "--query-accounted-apps",
        "nvidia-smi",
        "gpu_processes",
        "gpu-shared",
        f"gpu_uuid, pid, gpu_utilization [%], mem_utilization [%], max_memory_usage [MiB], time [ms]\n{_GPU}, 1234, 90 %, 20 %, 40960 MiB, 3600000 ms\n",
    ),
    _k(
        "host 2.2",
        "nvidia-smi dmon",
        "nvidia-smi",
        "gpus",
        "gpu-throttled",
        "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    mclk   pclk\n# Idx      W      C      C      %      %      %      %    MHz    MHz\n    0    120     40     45    100      0      0      0   2619   1980\n",
    ),
    _k("host 2.2", "nvidia-smi pmon", "nvidia-smi", "gpu_processes", "gpu-shared", "@nvidia_smi/pmon.txt"),
    _k("host 2.3", "nvlink -s", "nvidia-smi", "nvlinks", "nvlink-fault", _SMI + "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"),
    _k(
        "host 2.3",
        "nvlink -e",
        "nvidia-smi",
        "nvlink_counters",
        "nvlink-fault",
        _SMI + "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 2\n",
    ),
    _k(
        "host 2.3",
        "nvlink -ec, -gt",
        "nvidia-smi",
        "nvlink_counters",
        "nvlink-fault",
        _SMI + "\t Link 0: Data Tx: 1234 KiB\n\t Link 0: Data Rx: 0 KiB\n",
    ),
    _k("host 2.3", "nvlink -R", "nvidia-smi", "nvlinks", "nvlink-fault", _SMI + "\t Link 0: Remote Device 00000000:07:00.0: Link 24\n"),
    _k("host 2.3", "dcgmi nvlink -s", "dcgm-nvlink", "nvlinks", "nvlink-fault", "@dcgm/nvlink.txt"),
    _k("host 2.3", "dcgmi nvlink -e -j", "dcgm-nvlink-json", "nvlink_counters", "nvlink-fault", "@dcgm/nvlink_errors.json"),
    _k("host 2.3", "dcgmi nvlink -e", "dcgm-nvlink-errors", "nvlink_counters", "nvlink-fault", "@dcgm/nvlink_errors.txt"),
    _k("host 2.5", "topo -m", "nvidia-smi", "gpu_topology", "nvlink-fault", "@nvidia_smi/lists.txt"),
    _k("host 2.5", "topo -p2p", "nvidia-smi", "gpu_bandwidth", "peer-access", "@nvidia_smi/topo-p2p.txt"),
    _k("host 2.6", "dcgmi diag as JSON", "dcgm-json", "dcgm_results", "gpu-fault", "@dcgm/diag.json"),
    _k("host 2.6", "dcgmi mndiag as JSON", "dcgm-json", "dcgm_results", "gpu-fault", "@dcgm/mndiag.json"),
    _k("host 2.6", "dcgmi health", "dcgm", "dcgm_results", "gpu-fault", "@dcgm/health.txt"),
    _k("host 2.6", "dcgmi policy", "dcgm-policy", "xids dcgm_results", "gpu-fault", "@dcgm/policy.txt"),
    _k("host 2.6", "dcgmi stats", "dcgm-stats", "dcgm_results", "gpu-fault gpu-throttled", "@dcgm/stats.txt"),
    _k("host 2.6", "dcgm-exporter", "dcgm-exporter", "dcgm_results", "gpu-fault", "@dcgm/exporter.txt"),
    _k("host 2.7", "the fabric manager's log", "fabric-manager", "fabric_events", "nvlink-fault", "@texts/fabricmanager.log"),
    _k("host 2.7", "nvidia-imex-ctl -N", "imex", "imex_nodes", "imex-domain", "@imex/domain.txt"),
    _k("host 2.7", "nvidia-imex-ctl -N -j", "imex-json", "imex_nodes", "imex-domain", "@imex/domain.json"),
    _k("host 2.7", "nvidia-imex.log", "fabric-manager", "fabric_events", "imex-domain", "@imex/nvidia-imex.log"),
    _k("host 2.8", "rocm-smi --json", "rocm-smi", "gpus", "gpu-throttled", "@documents/rocm_smi.json"),
    _k("host 2.8", "amd-smi static, metric", "amd-smi", "gpus", "gpu-fault", "@amd_smi/metric.json"),
    _k("host 2.8", "rocm-smi --showtopo", "rocm-smi-links", "gpu_topology", "nvlink-fault", "@rocm_smi/topology.txt"),
    _k("host 2.8", "rocm-smi --showxgmierr", "rocm-smi-links", "nvlink_counters", "nvlink-fault", "@rocm_smi/errors.txt"),
    _k(
        "host 2.8",
        "amdgpu in the kernel log",
        "kernel-log",
        "kernel_events",
        "gpu-fault",
        "[1.000000] amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n",
    ),
    # ---- host.md 3: InfiniBand ----
    _k("host 3.1", "ibstat, ibstatus, ibv_devinfo, rdma link, ibdev2netdev", "ib-state", "ib_states", "ib-link", "@ib_state/sample.txt"),
    _k("host 3.1", "rdma link -j", "rdma-link-json", "ib_states", "ib-link", "@documents/rdma_link.json"),
    _k("host 3.1", "show_gids", "show-gids", "rdma_gids", "gid-index", "@show_gids/sample.txt"),
    _k(
        "host 3.2",
        "perfquery, rdma statistic, ibqueryerrors",
        "ib-counters",
        "ib_counters",
        "ib-link packet-loss",
        "@ib_counters/sample.txt",
    ),
    _k("host 3.2", "rdma statistic -j", "rdma-statistic-json", "ib_counters", "packet-loss", "@documents/rdma_statistic.json"),
    _k("host 3.2", "sysfs dumps and single files", "sysfs-dump", "sysfs_values", "ib-link congestion", "@ib_sysfs/dump.txt"),
    _k(
        "host 3.3",
        "iblinkinfo, ibnetdiscover -p, ibdiagnet, ibping, sminfo",
        "ib-fabric",
        "ib_links ib_diagnostics",
        "ib-link fabric-diagnostics",
        "@ib_counters/sample.txt",
    ),
    _k("host 3.3", "ibdiagnet2.db_csv", "ibdiagnet-db", "ib_counters ib_links", "ib-link", "@ibdiagnet_db/ibdiagnet2.db_csv"),
    _k("host 3.3", "ibnetdiscover", "ib-subnet", "ib_links", "ib-link", "@ib_subnet/topology.txt"),
    _k("host 3.4", "mlxlink", "mlxlink", "link_quality", "ib-link", "@mlxlink/sample.txt"),
    _k("host 3.4", "mlxlink --json", "mlxlink-json", "link_quality", "ib-link", "@mlxlink/sample.json"),
    _k("host 3.5", "ibtracert", "ibtracert", "ib_routes", "broken-path", "@ibtracert/path.txt"),
    _k("host 3.5", "saquery, smpquery", "ib-subnet", "ib_links", "ib-link", "@ib_subnet/records.txt"),
    _k("host 3.5", "rping, ucmatose, udaddy", "rdma-probes", "pings", "unreachable-host", "@rdma_probes/rping.txt"),
    # ---- host.md 4: Ethernet and IP ----
    _k(
        "host 4.1",
        "ip link, ip addr, ifconfig, ip route, /etc/hosts",
        "network",
        "net_interfaces net_addresses net_routes",
        "mtu-mismatch blocked-route",
        "@network/sample.txt",
    ),
    _k("host 4.1", "ip -j", "ip-json", "net_interfaces net_addresses", "mtu-mismatch", "@documents/ip.json"),
    _k("host 4.1", "ip rule", "firewall", "firewall_rules", "firewall", "@firewall/rules.txt"),
    _k("host 4.2", "ethtool, -S, -i", "network", "net_counters", "packet-loss congestion", "@network/sample.txt"),
    _k("host 4.2", "ethtool -a, -g, -k", "ethtool", "net_settings", "nic-settings", "@ethtool/settings.txt"),
    _k("host 4.2", "ethtool -m", "ethtool", "net_settings", "optical-module", "@ethtool/module.txt"),
    _k("host 4.3", "ping -M do, nc -zv, tracepath", "network", "pings port_probes", "mtu-mismatch unreachable-host", "@network/sample.txt"),
    _k("host 4.3", "arping", "rdma-probes", "pings", "unreachable-host", "@rdma_probes/arping.txt"),
    _k("host 4.4", "iperf3", "iperf3", "tcp_tests", "packet-loss bandwidth-test-failed", "@iperf3/sample.txt"),
    _k("host 4.4", "iperf3 -J", "iperf3-json", "tcp_tests", "packet-loss bandwidth-test-failed", "@iperf3/compact.json"),
    _k("host 4.5", "ss -ti", "sockets", "sockets", "packet-loss", "@sockets/sample.txt"),
    _k(
        "host 4.5",
        "netstat -s, nstat",
        "network",
        "net_counters",
        "packet-loss",
        "#kernel\nTcpOutSegs                      1000               0.0\nTcpRetransSegs                  12                 0.0\n",
    ),
    _k("host 4.5", "/proc/net/dev", "proc-files", "net_counters", "packet-loss", "@proc_files/net_dev"),
    _k("host 4.5", "/proc/net/netstat, /proc/net/snmp", "proc-files", "net_counters", "packet-loss", "@proc_files/net_netstat"),
    _k("host 4.5", "iptables -L, iptables-save", "firewall", "firewall_rules", "firewall", "@firewall/iptables.txt"),
    _k("host 4.5", "nft list ruleset", "firewall", "firewall_rules", "firewall", "@firewall/nft.txt"),
    _k("host 4.6", "tcpdump as text", "sockets", "packets", "mtu-mismatch", "@sockets/sample.txt"),
    _k("host 4.6", "pcap, pcapng", "pcap", "flows", "capture-loss capture-unanswered", "@pcap/sample.pcap"),
    _k("host 4.6", "tshark's list", "tshark", "flows", "capture-loss", "@tshark/list.txt"),
    # ---- host.md 5: tests of bandwidth ----
    _k(
        "host 5.1",
        "nccl-tests, rccl-tests",
        "nccl-tests",
        "bandwidth_tests bandwidth_rows",
        "low-bus-bandwidth data-corruption bandwidth-test-failed",
        "@nccl_tests/old_layout.txt",
    ),
    _k("host 5.1", "nccl-tests -J", "nccl-tests-json", "bandwidth_rows", "low-bus-bandwidth data-corruption", "@nccl_tests/broken.json"),
    _k(
        "host 5.1",
        "rccl-tests -Z json",
        "rccl-tests-lines",
        "bandwidth_tests bandwidth_rows",
        "low-bus-bandwidth data-corruption",
        "@nccl_tests/rccl_lines.txt",
    ),
    _k("host 5.4", "ib_write_bw and its family", "perftest", "rdma_tests", "low-bus-bandwidth", "@perftest/sample.txt"),
    _k("host 5.4", "perftest --out_json", "perftest-json", "rdma_tests", "low-bus-bandwidth", "@documents/perftest.json"),
    _k("host 5.5", "nvbandwidth", "gpu-bandwidth", "gpu_bandwidth", "low-bus-bandwidth", "@gpu_bandwidth/sample.txt"),
    _k("host 5.5", "nvbandwidth -j", "nvbandwidth-json", "gpu_bandwidth", "low-bus-bandwidth", "@documents/nvbandwidth.json"),
    _k(
        "host 5.6",
        "p2pBandwidthLatencyTest, bandwidthTest",
        "gpu-bandwidth",
        "gpu_bandwidth",
        "peer-access low-bus-bandwidth",
        "@gpu_bandwidth/bandwidth_test.txt",
    ),
    # ---- host.md 6: schedulers and hosts ----
    _k(
        "host 6.1",
        "Slurm's lines in the output of a job",
        "launcher-log",
        "worker_exits",
        "job-stopped rank-died",
        "srun: error: node01: task 3: Exited with exit code 1\nslurmstepd: error: *** STEP 39.0 ON c1 CANCELLED AT 2024-05-06T07:08:09 DUE TO TIME LIMIT ***\n",
    ),
    _k("host 6.1", "sacct, squeue, scontrol", "slurm", "scheduler_jobs", "job-stopped", "@slurm/sample.txt"),
    _k("host 6.1", "sinfo", "sinfo", "scheduler_nodes", "job-stopped", "@sinfo/sinfo.txt"),
    _k("host 6.1", "Slurm's JSON", "slurm-json", "scheduler_jobs", "job-stopped", "@documents/slurm.json"),
    _k("host 6.1", "slurmctld and slurmd logs", "slurm-daemon", "scheduler_nodes", "job-stopped", "@slurm_daemon/sample.txt"),
    _k(
        "host 6.2",
        "kubectl get, describe pod, events",
        "kubernetes",
        "pods pod_events",
        "job-stopped",
        "@kubernetes/sample.txt",
    ),
    _k("host 6.2", "kubectl as YAML", "kubernetes-yaml", "pods", "job-stopped", "@kubernetes/pod.yaml"),
    _k("host 6.2", "kubectl as JSON", "kubernetes-json", "pods", "job-stopped", "@documents/kubernetes.json"),
    _k("host 6.2", "kubectl describe node", "kubernetes-node", "scheduler_nodes", "job-stopped", "@kubernetes/node.txt"),
    _k("host 6.2", "the GPU device plugin's log", "device-plugin", "xids gpu_tool_errors", "gpu-fault", "@device_plugin/plugin.log"),
    _k(
        "host 6.2",
        "failed checks of the node health check (NHC), NVSentinel's health events",
        "node-health",
        "dcgm_results ib_diagnostics xids",
        "gpu-fault fabric-diagnostics",
        "ERROR:  nhc:  Health check failed:  check_gpu_ecc: GPU id 2: Row remap pending. FaultCode: NHC2007\n"
        "ERROR:  nhc:  Health check failed:  check_ib_link_flapping: flapping within 6 hours. Devices: mlx5_3. FaultCode: NHC2005\n"
        '{"level":"INFO","msg":"sent","event":{"checkName":"GpuXidError","componentClass":"GPU","isFatal":true,"nodeName":"n7",'
        '"message":"XID 79","entitiesImpacted":[{"entityType":"GPU","entityValue":"3"}]}}\n',
    ),
    _k(
        "host 6.2",
        "nvidia-container-cli",
        "nvidia-smi",
        "gpu_tool_errors",
        "gpu-fault",
        "nvidia-container-cli: initialization error: nvml error: driver not loaded\n",
    ),
    _k(
        "host 6.3",
        "Open MPI and Hydra on ends",
        "launcher-log",
        "worker_exits",
        "rank-died",
        "mpirun noticed that process rank 3 with PID 12345 on node node07 exited on signal 9 (Killed).\n",
    ),
    _k(
        "host 6.3",
        "DeepSpeed and torchrun on ranks that they start",
        "launcher-log",
        "launches",
        "software-crash rank-died",
        "[2026-01-07 10:00:00,123] [INFO] [launch.py:164:main] dist_world_size=16\n",
    ),
    _k("host 6.3", "Open MPI on a node it lost", "sinfo", "scheduler_nodes", "job-stopped", "@sinfo/mpirun.txt"),
    _k(
        "host 6.4",
        "ps, df, ulimit, free",
        "host-listing",
        "host_processes filesystems limits memory",
        "process-stopped shm-exhausted memlock-limit host-memory-low",
        "@host_listing/node.txt",
    ),
    _k(
        "host 6.4",
        "top -b",
        "host-facts",
        "host_facts",
        "host-differs",
        "top - 07:08:09 up 12 days,  3:04,  2 users,  load average: 191.00, 180.00, 170.00\n%Cpu(s): 10.0 us, 20.0 sy,  0.0 ni, 30.0 id, 40.0 wa,  0.0 hi,  0.0 si,  0.0 st\n",
    ),
    _k("host 6.4", "vmstat, /proc/pressure", "host-pressure", "host_facts", "host-pressure", "@host_pressure/sample.txt"),
    _k(
        "host 6.4",
        "numactl -H, lscpu, governors, dmidecode, os-release, modinfo",
        "host-hardware",
        "host_facts",
        "host-differs",
        "@host_hardware/sample.txt",
    ),
    _k("host 6.4", "ls -l /dev/shm", "shm-files", "shm_files", "shm-leftovers", "@shm_files/sample.txt"),
    _k("host 6.4", "environment dumps", "environ", "environment", "bad-setting environment-mismatch", "@documents/environ"),
    _k(
        "host 6.4",
        "lsmod, uname, driver version, chronyc, timedatectl, ipmitool sel",
        "host-facts",
        "host_facts",
        "host-differs",
        "@host_facts/sample.txt",
    ),
    _k("host 6.4", "ipmitool sdr, sdr elist, sensor", "host-facts", "host_facts", "host-differs", "@host_facts/sensors.txt"),
    _k("host 6.4", "ntpq -p", "host-facts", "host_facts", "host-differs", "@host_facts/ntpq.txt"),
    _k("host 6.4", "Redfish log entries", "redfish", "host_facts", "host-differs", "@documents/redfish.json"),
    _k("host 6.4", "lsof -i", "open-files", "sockets", "packet-loss", "@open_files/lsof.txt"),
    _k("host 6.4", "fuser -v /dev/nvidia*", "open-files", "gpu_processes", "gpu-shared", "@open_files/fuser.txt"),
    _k("host 6.4", "/proc/driver/nvidia/gpus/*/information", "proc-files", "gpus gpu_tool_errors", "gpu-fault", "@proc_files/information"),
    _k("host 6.4", "/proc/driver/nvidia/params", "proc-files", "host_facts", "host-differs", "@proc_files/params"),
    _k("host 1.6", "lspci -vv", "lspci", "pcie_links", "pcie-degraded", "@texts/lspci.txt"),
    # ---- host.md 7, 8 ----
    _k("host 7.1", "topology and graph XML", "nccl-topology", "nccl_topo", "topology-file nccl-slow-choice", "@documents/topology.xml"),
    # ---- nccl.md ----
    _k(
        "nccl 1-2",
        "INIT lines, ENV, NET",
        "nccl-log",
        "nccl_comms nccl_env nccl_network",
        "rank-never-joined environment-mismatch wrong-interface",
        "@nccl/stub-2.30.7-rank0.log",
    ),
    _k(
        "nccl 3",
        "rings, trees, channels, connections",
        "nccl-log",
        "nccl_rings nccl_connections nccl_channels",
        "few-channels gdr-disabled",
        f"{_NCCL}Channel 00/02 : 0 1\n{_NCCL}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n{_NCCL}16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer\n",
    ),
    _k(
        "nccl 4.1",
        "operations (COLL)",
        "nccl-log",
        "nccl_ops",
        "collective-skipped collective-stuck",
        f"{_NCCL}AllReduce: opCount 5 sendbuff 0x7f0 recvbuff 0x7f1 count 1024 datatype 7 op 0 root 0 comm 0x55d3 [nranks=8] stream 0x55d4\n",
    ),
    _k(
        "nccl 4.3",
        "choices of algorithm (TUNING)",
        "nccl-log",
        "nccl_tuning",
        "nccl-slow-choice",
        f"{_NCCL}AllReduce: 4194304 Bytes -> Algo 1 proto 2 time 123.4\n",
    ),
    _k(
        "nccl 5",
        "warnings",
        "nccl-log",
        "nccl_errors",
        "cuda-fault connection-failed nccl-named-fault",
        "node7:100:200 [0] init.cc:12 (caller) NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n",
    ),
    _k("nccl 6.1", "RAS client, text", "nccl-ras", "nccl_ras_groups nccl_ras_items", "ras-behind", "@ras/mismatch.txt"),
    _k("nccl 6.2", "RAS client, JSON", "nccl-ras-json", "nccl_ras_ranks", "ras-dead ras-behind", "@documents/ras.json"),
    _k(
        "nccl 6.3",
        "RAS monitor, text",
        "nccl-ras",
        "nccl_ras_events",
        "ras-dead",
        "[2025-11-02 10:00:05] PEER_DEAD: [node2:1234 cuda 0] declared dead\n",
    ),
    _k("nccl 6.3", "RAS monitor, JSON", "nccl-ras-monitor-json", "nccl_ras_events", "ras-dead", "@nccl_profilers/ras_monitor.json"),
    _k("nccl 6.4", "Inspector", "nccl-inspector", "nccl_inspector", "inspector-straggler", "@documents/inspector.jsonl"),
    _k(
        "nccl 6.4",
        "Inspector's metrics for Prometheus",
        "nccl-inspector-metrics",
        "nccl_inspector",
        "inspector-straggler",
        "@nccl_profilers/inspector.prom",
    ),
    _k(
        "nccl 6.5",
        "the example profiler",
        "nccl-profiler",
        "nccl_inspector",
        "inspector-straggler",
        "@nccl_profilers/profile_0x11f71fb08cb_3.json",
    ),
    _k(
        "nccl 8.2",
        "network plugins",
        "nccl-log",
        "nccl_network",
        "socket-fallback",
        f"{_NCCL}NET/OFI Selected Provider is efa (found 4 nics)\n{_NCCL}Using network AWS Libfabric\n",
    ),
    _k("nccl 8.2", "Horovod's stall inspector", "horovod", "reports", "stalled-tensors", "@horovod/stall.txt"),
    _k("nccl 8.2", "UCX", "ucx-log", "nccl_errors", "connection-failed", "@ucx/sample.txt"),
    # ---- torch.md ----
    _k(
        "torch 1",
        "Flight Recorder, pickle",
        "flight-recorder",
        "fr_dumps fr_entries",
        "collective-skipped",
        "@flight_recorder/ring_wrap_rank_0",
    ),
    _k(
        "torch 1",
        "Flight Recorder, JSON",
        "flight-recorder",
        "fr_dumps fr_entries",
        "collective-skipped",
        "@flight_recorder/ring_wrap_rank_0.json",
    ),
    _k("torch 3", "watchdog, heartbeat, DETAIL, barriers", "c10d-log", "watchdog", "timeout-too-short", "@texts/c10d.txt"),
    _k("torch 1", "torchfrtrace", "recorder-analysis", "reports", "host-stall-by-analysis", "@recorder_analysis/missing.txt"),
    _k("torch 3.9", "torchrun and its error files", "torchelastic-error", "exceptions", "rank-died", "@documents/error.json"),
    _k("torch 4", "Kineto's Chrome traces", "chrome-trace", "traces", "communication-bound low-overlap", "@documents/trace.json"),
    _k("torch 5.1", "py-spy dump", "py-spy", "stacks", "host-stall-by-stacks", "@stacks/py_spy_ranks.txt"),
    _k("torch 5.2", "py-spy dump --json", "py-spy-json", "stacks", "host-stall-by-stacks", "@stacks/py_spy.json"),
    _k("torch 5.3", "py-spy record -f raw", "py-spy-raw", "stacks", "host-stall-by-stacks", "@stacks/py_spy_raw.txt"),
    _k("torch 5.3", "py-spy record -f speedscope", "py-spy-speedscope", "stacks", "host-stall-by-stacks", "@documents/speedscope.json"),
    _k("torch 5.4", "faulthandler", "faulthandler", "stacks", "host-stall-by-stacks", "@stacks/faulthandler_crash.txt"),
    _k("torch 5.5", "gdb", "gdb", "stacks", "host-stall-by-stacks", "@stacks/gdb.txt"),
    _k("torch 5.6", "pystack", "pystack", "stacks", "host-stall-by-stacks", "@stacks/pystack.txt"),
    _k("torch 3", "versions of PyTorch: collect_env, pip", "collect-env", "host_facts", "host-differs", "@collect_env/collect_env.txt"),
)

#: Kinds that the pages name and nothing reads, with the reason.
UNREAD: tuple[tuple[str, str, str], ...] = (
    ("host 2.7", "logs of NMX and NVOS", "the page gives no layout, and no capture is public"),
    ("host 4.3", "traceroute, curl -v", "routers on the way say nothing of a job that ping, nc and ip do not"),
    ("host 8", ".nsys-rep", "proprietary; a gap names the command that exports it (its SQLite export is read)"),
    ("nccl 6.5", "proxy profiles (NCCL_PROXY_PROFILE)", "of builds with profiling up to 2.22 only; a gap says that no event was measured"),
    ("torch 2", "the output of torchfrtrace", "the dumps themselves are read, of which it is an opinion"),
)
