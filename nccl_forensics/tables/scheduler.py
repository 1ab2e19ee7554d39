"""What schedulers say about jobs, nodes and pods: Slurm's tools and kubectl."""

from __future__ import annotations

from nccl_forensics.tables.base import F64, I32, I64, SL, WHERE, B, S, Table

TABLES: tuple[Table, ...] = (
    Table(
        "scheduler_jobs",
        "One job or step of sacct, scontrol show job, squeue or slurmrestd. time_raw_ns is the end.",
        {
            **WHERE,
            "tool": (S, "sacct, scontrol, squeue, slurm-json"),
            "job_id": (S, "without the step"),
            "step": (S, "batch, extern, 0 ...; null for the job itself"),
            "name": (S, ""),
            "state": (S, "COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, PREEMPTED, RUNNING ... in full"),
            "by": (S, "user id that cancelled the job"),
            "reason": (S, ""),
            "exit_code": (I32, ""),
            "exit_signal": (I32, "null where none"),
            "start_raw_ns": (I64, "start as written, as if UTC, or epoch"),
            "end_raw_ns": (I64, ""),
            "elapsed_s": (I64, ""),
            "time_limit_s": (I64, ""),
            "nodes": (SL, "expanded host list"),
            "max_rss_bytes": (F64, "sampled; a peak may be missed"),
            "restarts": (I32, ""),
        },
    ),
    Table(
        "scheduler_nodes",
        "One node of scontrol show node, sinfo or slurmrestd. time_raw_ns is the boot time.",
        {
            **WHERE,
            "tool": (S, "scontrol, sinfo, slurm-json, slurmctld, kubectl, mpirun"),
            "node": (S, ""),
            "state": (S, "base state in upper case: IDLE, ALLOCATED, MIXED, DOWN ..."),
            "flags": (SL, "DRAIN, FAIL, NOT_RESPONDING, REBOOT ..."),
            "reason": (S, ""),
            "reason_by": (S, ""),
            "reason_raw_ns": (I64, "when the reason was set"),
            "boot_raw_ns": (I64, ""),
            "daemon_start_raw_ns": (I64, ""),
            "gres": (S, ""),
        },
    ),
    Table(
        "pods",
        "One pod, or one container of a pod where kubectl tells it apart.",
        {
            **WHERE,
            "tool": (S, "get, describe, json"),
            "namespace": (S, ""),
            "pod": (S, ""),
            "container": (S, ""),
            "ready": (S, "as written: 1/1"),
            "status": (S, "Running, OOMKilled, Error, Evicted, Completed ..."),
            "reason": (S, "of the last termination or of the pod's end"),
            "exit_code": (I32, ""),
            "exit_signal": (I32, ""),
            "restarts": (I32, ""),
            "node": (S, ""),
            "address": (S, ""),
            "message": (S, ""),
            "last": (B, "the row tells the state before a restart"),
        },
    ),
    Table(
        "pod_events",
        "One Kubernetes event.",
        {
            **WHERE,
            "namespace": (S, ""),
            "age": (S, "LAST SEEN as written"),
            "type": (S, "Normal, Warning"),
            "reason": (S, "OOMKilling, Evicted, Preempted, NodeNotReady ..."),
            "object": (S, "pod/name, node/name"),
            "message": (S, ""),
            "count": (I64, ""),
        },
    ),
)
