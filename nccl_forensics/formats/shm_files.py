"""``ls -l /dev/shm``: files of NCCL, PyTorch and others that fill shared memory, also those that dead processes left."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat, filled, line_numbers, line_of
from nccl_forensics.grammar.blocks import classify, whole


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
    return Reading(frames=filled({"shm_files": rows}), lines=line_numbers([line_of(row) for row in rows]))


FORMAT = TextFormat(
    name="shm-files",
    title="ls -l /dev/shm",
    tables=("shm_files",),
    anchors=(" nccl-", " torch_", " cuda.shm", " sem.", " psm2_", " __KMP_"),
    read=read,
    priority=61,
)
