"""UCX's own log lines (``[epoch] [host:pid:tid] file:line UCX ERROR text``), and libfabric's of its EFA provider: what the transport below
MPI or a plugin reports.

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
#: What UCX prints before it ends the process, without a time and a level (ucs_fatal): [host:pid:n:tid] file:line  text
_LAST = r"^\[(?<host>[\w.-]{1,128}):(?<pid>\d{1,10}):\d{1,4}:(?<tid>\d{1,10})\]\s+(?<file>[\w.-]{1,64}\.c):(?<file_line>\d{1,6})\s{1,4}(?<message>\S.*)$"
#: libfabric (FI_LOG_LEVEL): libfabric:pid:seconds::provider:part:function():line<level> text. Only completions with an error count, and
#: memory that could not be registered.
_FABRIC = r"^libfabric:(?<pid>\d{1,10}):(?<seconds>\d{9,11}):[\w ]{0,40}:efa:\w{1,16}:(?<file>\w{1,80})\(\):(?<file_line>\d{1,6})<warn>\s{0,4}(?<message>err: \d{1,6}, message: .*|Unable to register MR: .*)$"
#: What a message means, the first that fits; anything else is the plugin's own word.
_KINDS = (
    (r"(?i)retry count exceeded|RNR retry|remote access|remote operation|local protection|transport error|CQE error|with error on", "ib-completion"),
    (r"(?i)async event.*(?:port error|fatal|lid change)", "ib-async-event"),
    (r"(?i)Cannot allocate memory.*(?:memlock|locked)|ibv_reg_mr.*Cannot allocate memory", "ibv-call"),
)  # fmt: skip


def _lines(hits: pl.DataFrame, pattern: str) -> pl.DataFrame:
    return hits.select("line_no", found=pl.col("text").str.extract_groups(pattern)).unnest("found").filter(pl.col("message").is_not_null())


def read(text: Text) -> Reading:
    """Rows of ``nccl_errors``: level WARN for errors, INFO for warnings. Lines of lower levels are known and of no interest."""
    told = [
        _lines(text.hits, _LINE),
        _lines(text.hits, _LAST).with_columns(word=pl.lit("FATAL")),
        _lines(text.hits, _FABRIC).with_columns(word=pl.lit("ERROR"), micros=pl.lit("0")),
    ]
    lines = pl.concat(told, how="diagonal").sort("line_no")
    rows = lines.filter(pl.col("word").is_in(["ERROR", "FATAL", "WARN"]))
    kind = pl.lit("plugin")
    for pattern, name in reversed(_KINDS):
        kind = pl.when(pl.col("message").str.contains(pattern)).then(pl.lit(name)).otherwise(kind)
    errors = rows.with_columns(
        pl.col("pid", "tid").cast(pl.Int64, strict=False),
        pl.col("file_line").cast(pl.Int32, strict=False),
        level=pl.when(pl.col("word") == "WARN").then(pl.lit("INFO")).otherwise(pl.lit("WARN")),
        kind=kind,
        time_raw_ns=(pl.col("seconds").cast(pl.Int64) * 1_000_000 + pl.col("micros").cast(pl.Int64)) * 1000,
        time_kind=pl.when(pl.col("seconds").is_not_null()).then(pl.lit("epoch")),
        detail=pl.when(pl.col("tid").is_null()).then(pl.lit("libfabric")).otherwise(pl.lit("UCX")),
    )
    frame = TABLES["nccl_errors"].conform(errors)
    return Reading(frames={"nccl_errors": frame} if frame.height else {}, lines=lines["line_no"])


FORMAT = TextFormat(
    name="ucx-log",
    title="log lines of UCX and of libfabric's EFA provider",
    tables=("nccl_errors",),
    anchors=("UCX  ", "ib_mlx5_log.c:", "libfabric:"),
    read=read,
    priority=21,
)
