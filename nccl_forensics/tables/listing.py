"""Listings of a host: processes, file systems, limits, memory, environment."""

from __future__ import annotations

from nccl_forensics.tables.base import F64, I32, I64, WHERE, B, S, Table

TABLES: tuple[Table, ...] = (
    Table(
        "host_processes",
        "One process (or thread) of a ps listing.",
        {
            **WHERE,
            "pid": (I64, ""),
            "tid": (I64, ""),
            "ppid": (I64, ""),
            "state": (S, "STAT letters: R S D Z T t with suffixes"),
            "wchan": (S, "kernel function it sleeps in"),
            "cpu_percent": (F64, ""),
            "rss_kb": (I64, ""),
            "elapsed": (S, "as written"),
            "command": (S, "secrets masked"),
        },
    ),
    Table(
        "filesystems",
        "One file system of a df listing, or the size of /dev/shm.",
        {
            **WHERE,
            "mount": (S, ""),
            "device": (S, ""),
            "size_kb": (F64, ""),
            "used_kb": (F64, ""),
            "available_kb": (F64, ""),
            "used_percent": (F64, ""),
            "inodes": (B, "counts are inodes, not kB"),
        },
    ),
    Table(
        "limits",
        "One limit of ulimit -a or /proc/<pid>/limits.",
        {
            **WHERE,
            "name": (S, "memlock, nofile, nproc, stack ..."),
            "soft": (F64, "bytes or count; null where unlimited"),
            "hard": (F64, "bytes or count; null where unlimited or not shown"),
            "unlimited": (B, "the soft limit is unlimited"),
        },
    ),
    Table(
        "memory",
        "One figure of free or /proc/meminfo.",
        {
            **WHERE,
            "name": (S, "total, used, free, shared, available, swap-total, swap-used, or the name in /proc/meminfo"),
            "value_kb": (F64, ""),
        },
    ),
    Table(
        "environment",
        "One environment variable of an env dump.",
        {**WHERE, "rank": (I32, "RANK of the same dump"), "name": (S, ""), "value": (S, "secrets masked")},
    ),
    Table(
        "host_facts",
        "One fact of a host that small tools print.",
        {
            **WHERE,
            "tool": (
                S,
                "lsmod, uname, proc-driver, chronyc, timedatectl, ntpq, ipmitool, redfish, top, uptime, who, proc-stat, collect_env, pip, lscpu, numactl, cpupower, dmidecode, os-release, modinfo, proc-pressure, vmstat",
            ),
            "kind": (S, "module, version, cpu, numa, clock, bmc, sensor, load, pressure, boot"),
            "name": (S, "module, nvidia-driver, kernel, torch, nccl-package, offset, synchronized, sensor, load, iowait-percent ..."),
            "value": (S, "as written"),
            "number": (F64, "seconds (negative: behind), load or percent"),
        },
    ),
    Table(
        "shm_files",
        "One file of /dev/shm that belongs to communication or data loading (ls -l).",
        {
            **WHERE,
            "name": (S, "nccl-AbCdEf, torch_<pid>_..., cuda.shm..., psm2_..., sem...."),
            "owner": (S, ""),
            "bytes": (I64, ""),
            "modified": (S, "as written: May 6 07:08"),
        },
    ),
)
