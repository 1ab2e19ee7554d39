"""The log of NVIDIA's fabric manager: NVSwitch errors that it repeats, multicast teams of NVLink SHARP, and its own start.

The log of IMEX (/var/log/nvidia-imex.log) has the same form.
"""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.grammar.lines import load
from nccl_forensics.grammar.writers import WRITER
from nccl_forensics.tables import TABLES
from nccl_forensics.values import pci

_IGNORED = "the fabric manager found no NVSwitch on this host"

#: Texts of the kind "other", in the order in which they are tried: word in the text, kind, severity.
_TEXTS: tuple[tuple[str, str, str], ...] = (
    ("NV_WARN_NOTHING_TO_DO", "noise", "benign"),
    ("Node disconnect event detected", "imex-disconnect", "degraded"),
    ("version mismatch", "version-mismatch", "fatal"),
    ("failed to train", "training", "fatal"),
    ("training failed", "training", "fatal"),
    ("degraded", "degraded", "degraded"),
    ("aborting fabric manager", "topology", "fatal"),
)


def read(text: Text) -> Reading:
    """One row per line with a head; payload lines below belong to the line above."""
    lines = text.lines
    grammar = load("fabric_manager").extract(lines["text"])
    if grammar.kind.null_count() == lines.height:
        return Reading()
    parts = [_rows(lines, kind, frame) for kind, frame in grammar.frames.items()]
    empty = pl.DataFrame(schema={"number": pl.Int32(), "port": pl.Int32()})
    rows = pl.concat([*parts, empty], how="diagonal_relaxed").sort("line_no")
    errors = rows.filter(pl.col("kind") == "switch-error").with_columns(
        code=pl.col("number"), link=pl.col("port"), fatal=pl.col("severity") == "fatal", reporter=pl.lit("fabric-manager")
    )
    payload = lines.filter(grammar.kind.is_null() & lines["text"].str.starts_with("Message payload details:"))["line_no"]
    frames = {"fabric_events": TABLES["fabric_events"].conform(rows), "sxids": TABLES["sxids"].conform(errors)}
    return Reading(
        frames={n: f for n, f in frames.items() if f.height},
        lines=pl.concat([rows["line_no"], payload]),
        unmodelled=rows.filter(pl.col("kind") == "other")["line_no"],
    )


def _rows(lines: pl.DataFrame, kind: str, frame: pl.DataFrame) -> pl.DataFrame:
    context = lines.with_row_index("row").select(
        "row", "line_no", *WRITER, message=pl.col("text").str.replace(r"^\[[^\]]*\] \[[^\]]*\] \[[^\]]*\] ", "")
    )
    rows = context.join(frame.drop("message", strict=False), on="row", how="inner").with_columns(
        time_raw_ns=pl.col("stamp").str.to_datetime("%b %d %Y %H:%M:%S", time_unit="ns", strict=False).cast(pl.Int64),
        time_kind=pl.lit("local-unzoned"),
        kind=pl.lit(_KINDS[kind][0]),
        severity=pl.lit(_KINDS[kind][1]),
    )
    if kind == "switch_error":
        fatal = pl.col("fatality") == "fatal"
        return rows.with_columns(
            severity=pl.when(fatal).then(pl.lit("fatal")).otherwise(pl.lit("suspect")),
            number=pl.col("number").cast(pl.Int32, strict=False),
            port=pl.col("port").cast(pl.Int32, strict=False),
            bus_id=pci.normal_expr(pl.col("bus")),
        )
    if kind == "multicast_team":
        setup = pl.col("team_state") == "setup"
        return rows.with_columns(kind=pl.when(setup).then(pl.lit("multicast-setup")).otherwise(pl.lit("multicast-release")))
    if kind == "other":
        wrong = pl.col("level").is_in(["ERROR", "FATAL", "CRITICAL"])
        kinds = pl.when(wrong).then(pl.lit("other")).otherwise(pl.lit("info"))
        severities = pl.when(wrong).then(pl.lit("suspect")).otherwise(pl.lit("info"))
        for word, name, severity in reversed(_TEXTS):
            says = pl.col("message").str.to_lowercase().str.contains(word.lower(), literal=True)
            kinds = pl.when(says).then(pl.lit(name)).otherwise(kinds)
            severities = pl.when(says).then(pl.lit(severity)).otherwise(severities)
        noise = pl.when(kinds == "noise").then(pl.lit(_IGNORED))
        return rows.with_columns(kind=kinds, severity=severities, detail=noise)
    return rows


_KINDS = {
    "switch_error": ("switch-error", "suspect"),
    "multicast_handle": ("multicast-handle", "fatal"),
    "multicast_group": ("info", "info"),
    "multicast_team": ("multicast-setup", "info"),
    "topology": ("topology", "fatal"),
    "other": ("other", "info"),
}

FORMAT = TextFormat(
    name="fabric-manager",
    title="logs of NVIDIA's fabric manager and of IMEX",
    tables=("fabric_events", "sxids"),
    anchors=("] [tid ",),
    read=read,
    priority=40,
)
