"""UCX's own log lines (``[epoch] [host:pid:tid] file:line UCX ERROR text``): what the transport below MPI or a plugin reports.

They go where NCCL's own errors go: a retry count that was exceeded on a port means the same whoever prints it.
"""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.tables import TABLES

_LINE = (
    r"^\[(?<seconds>\d{9,11})\.(?<micros>\d{6})\] \[(?<host>[\w.-]{1,128}):(?<pid>\d{1,10})\s*:(?<tid>\d{1,10})\]\s+(?<file>[\w.-]{1,64}):(?<file_line>\d{1,6})"
    r"\s+UCX\s+(?<word>ERROR|FATAL|WARN|DIAG|INFO|DEBUG|TRACE|REQ|DATA|ASYNC|FUNC|POLL)\s+(?<message>.*)$"
)
#: What a message means, the first that fits; anything else is the plugin's own word.
_KINDS = (
    (r"(?i)retry count exceeded|RNR retry|remote access|remote operation|local protection|transport error|CQE error|with error on", "ib-completion"),
    (r"(?i)async event.*(?:port error|fatal|lid change)", "ib-async-event"),
    (r"(?i)Cannot allocate memory.*(?:memlock|locked)|ibv_reg_mr.*Cannot allocate memory", "ibv-call"),
)  # fmt: skip


def read(text: Text) -> Reading:
    """Rows of ``nccl_errors``: level WARN for errors, INFO for warnings. Lines of lower levels are known and of no interest."""
    fields = text.hits.select("line_no", found=pl.col("text").str.extract_groups(_LINE)).unnest("found")
    lines = fields.filter(pl.col("word").is_not_null())
    rows = lines.filter(pl.col("word").is_in(["ERROR", "FATAL", "WARN"]))
    kind = pl.lit("plugin")
    for pattern, name in reversed(_KINDS):
        kind = pl.when(pl.col("message").str.contains(pattern)).then(pl.lit(name)).otherwise(kind)
    told = rows.with_columns(
        pl.col("pid", "tid").cast(pl.Int64, strict=False),
        pl.col("file_line").cast(pl.Int32, strict=False),
        level=pl.when(pl.col("word") == "WARN").then(pl.lit("INFO")).otherwise(pl.lit("WARN")),
        kind=kind,
        time_raw_ns=(pl.col("seconds").cast(pl.Int64) * 1_000_000 + pl.col("micros").cast(pl.Int64)) * 1000,
        time_kind=pl.lit("epoch"),
        detail=pl.lit("UCX"),
    )
    frame = TABLES["nccl_errors"].conform(told)
    return Reading(frames={"nccl_errors": frame} if frame.height else {}, lines=lines["line_no"])


FORMAT = TextFormat(
    name="ucx-log",
    title="UCX log lines",
    tables=("nccl_errors",),
    anchors=("UCX  ",),
    read=read,
    priority=21,
)
