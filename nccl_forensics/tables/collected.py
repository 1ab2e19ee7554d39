"""What our own collection script says about itself."""

from __future__ import annotations

from nccl_forensics.tables.base import F64, I32, I64, LINE, S, Table

TABLES: tuple[Table, ...] = (
    Table(
        "collected",
        "One step of the script that `nccl-forensics collect` prints: what it got on a node, or why it got nothing.",
        {
            **LINE,
            "host": (S, "host on which it ran"),
            "step": (S, "stack, flight-recorder, environment, nvidia-smi, kernel-log, infiniband, logs ...; interrupted for the whole"),
            "status": (S, "ok, absent (no such tool or thing), denied, failed, timeout, stuck (in the kernel), skipped"),
            "pid": (I64, "process that the step was about"),
            "rank": (I32, "its rank, as its environment says"),
            "seconds": (F64, ""),
            "at_ns": (I64, "when a dump was asked for that was written after that, epoch nanoseconds by the clock of the host"),
            "file": (S, "file of the archive that the step filled"),
            "reason": (S, "why nothing or not all was got"),
        },
    ),
)
