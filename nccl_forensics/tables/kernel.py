"""What the kernel said: GPU errors, memory kills, devices, links, lockups."""

from __future__ import annotations

from nccl_forensics.tables.base import F64, HINT, I32, I64, LINE, TIME, U32, B, S, Table

_KERNEL = {**LINE, "host": (S, "host that the line itself states (syslog, journal)"), **TIME, **HINT}

TABLES: tuple[Table, ...] = (
    Table(
        "xids",
        "Xid lines of the NVIDIA driver, and driver lines that say the same without a number (``implied``); also Xids that agents report.",
        {
            **_KERNEL,
            "code": (I32, "Xid number"),
            "bus_id": (S, "PCI address as 0000:9b:00.0"),
            "uuid": (S, "GPU-..., where an agent names the GPU by it"),
            "gpu_instance": (S, "MIG GPU instance"),
            "compute_instance": (S, "MIG compute instance"),
            "pid": (I64, "process in the host's pid namespace; for 79 and 119 only who asked, not the cause"),
            "comm": (S, "its name, cut by the kernel"),
            "link": (I32, "NVLink number"),
            "unit": (S, "NVLink5 unit, or memory unit"),
            "fatal": (B, "as the line says (NVLink5)"),
            "channel": (S, "channel"),
            "where": (S, "GPC/TPC/SM, partition, or engine"),
            "gpu_index": (I32, "index that the message states (kernel minor order, not the CUDA ordinal)"),
            "action": (S, "recovery action of an Xid 154: label as written"),
            "action_code": (I32, "recovery action of an Xid 154: number"),
            "message": (S, "text after the number"),
            "implied": (B, "no Xid number on the line; the code is what the text means"),
            "repeats": (U32, "times the line stands for (syslog 'message repeated')"),
        },
    ),
    Table(
        "sxids",
        "NVSwitch errors: SXid lines of the kernel and their repetition by the fabric manager.",
        {
            **_KERNEL,
            "code": (I32, "SXid number"),
            "bus_id": (S, "PCI address of the switch"),
            "switch": (I32, "driver minor of the switch"),
            "link": (I32, "link or port"),
            "fatal": (B, "as the line says; null where it does not"),
            "message": (S, ""),
            "reporter": (S, "kernel, fabric-manager"),
        },
    ),
    Table(
        "oom_kills",
        "Out-of-memory kills: one row per killed process, the lines of one kill merged.",
        {
            **_KERNEL,
            "pid": (I64, "killed process, host pid namespace"),
            "comm": (S, ""),
            "constraint": (
                S,
                "CONSTRAINT_NONE: the whole host; CONSTRAINT_MEMCG: a cgroup limit; CONSTRAINT_CPUSET, ..._MEMORY_POLICY: NUMA",
            ),
            "memcg": (S, "cgroup whose limit was met"),
            "task_memcg": (S, "cgroup of the killed process"),
            "invoked_by": (S, "process that asked for memory"),
            "total_kb": (I64, "virtual size"),
            "anon_kb": (I64, ""),
            "file_kb": (I64, ""),
            "shmem_kb": (I64, "shared memory such as /dev/shm"),
            "limit_kb": (I64, "limit of the cgroup"),
            "uid": (I64, ""),
            "message": (S, ""),
        },
    ),
    Table(
        "kernel_events",
        "Other kernel lines that mean something: devices, links, lockups, storage, memory errors, driver loads; also known noise.",
        {
            **_KERNEL,
            "kind": (
                S,
                "pcie-error, pcie-error-layer, pcie-error-status, pcie-error-bit, pcie-recovery, pcie-down, pcie-limited, pcie-power, iommu-fault, nic-link, nic-module, nic-health, nic-heat, nic-start-failed, carrier, "
                "bond-down, storage-hang, storage-ok, disk-error, hung-task, lockup, panic, oops, mce, edac, memory-failure, throttle, "
                "segfault, gpu-start-failed, inforom, driver-load, boot, api-mismatch, gpu-crash-dump, gpu-name, amdgpu, tcp, limit, nic-reset, "
                "lost-lines, page-allocation, noise",
            ),
            "severity": (S, "fatal, degraded, suspect, benign, info"),
            "device": (S, "PCI address, where the line names one"),
            "ifname": (S, "network interface, RDMA device, server or mount"),
            "state": (S, "down, up, corrected, nonfatal, fatal, recovered ..."),
            "pid": (I64, ""),
            "comm": (S, ""),
            "detail": (S, "error bits, uuid, version, what a hung task waits for (storage, gpu), reason why noise is noise"),
            "value": (F64, "seconds, Gb/s, watts or count that the line states"),
            "message": (S, ""),
        },
    ),
    Table(
        "kernel_spans",
        "One row per kernel log: which host and time it covers. A first monotonic time far from 0 means that older lines are gone.",
        {
            **LINE,
            "host": (S, ""),
            **HINT,
            "time_kind": (S, "epoch, local-unzoned, monotonic"),
            "first_time_raw_ns": (I64, ""),
            "last_time_raw_ns": (I64, ""),
            "style": (S, "dmesg, dmesg-T, dmesg-iso, dmesg-e, kmsg, syslog, journal-json"),
            "count": (U32, "lines"),
        },
    ),
)
