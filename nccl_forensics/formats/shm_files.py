"""``ls -l /dev/shm``: files of NCCL, PyTorch and others that fill shared memory, also those that dead processes left."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.grammar.blocks import classify, whole
from nccl_forensics.tables import TABLES


def read(text: Text) -> Reading:
    """One row per file."""
    lines = text.hits.filter(pl.col("text").str.contains(r"^[-s][rwxsStT-]{9}"))
    rows = [
        {
            **line.where,
            "name": line.get("name"),
            "owner": line.get("owner"),
            "bytes": whole(line.get("bytes")),
            "modified": line.get("modified"),
        }
        for line in classify(lines, "shm_files")
        if line.kind == "file"
    ]
    frame = TABLES["shm_files"].frame(rows)
    return Reading(frames={"shm_files": frame} if frame.height else {}, lines=frame["line_no"])


FORMAT = TextFormat(
    name="shm-files",
    title="ls -l /dev/shm",
    tables=("shm_files",),
    anchors=(" nccl-", " torch_", " cuda.shm", " sem.", " psm2_", " __KMP_"),
    read=read,
    priority=61,
)
