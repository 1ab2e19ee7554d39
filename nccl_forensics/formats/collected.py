"""The manifest of our own collection script: what each step got on a node, and why it got nothing."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Gap, Reading, Text, TextFormat
from nccl_forensics.frames import typed
from nccl_forensics.grammar.lines import load
from nccl_forensics.masking import mask_expr
from nccl_forensics.tables import TABLES

_MARK = "nccl-forensics-collect: "
_HINTS = typed("host:str step:str pid:str rank:str")


def read(text: Text) -> Reading:
    """One row per step. A manifest that does not end was cut off, and is a gap at its last line."""
    lines = text.hits.filter(pl.col("text").str.starts_with(_MARK))
    grammar = load("collect").extract(lines["text"])
    context = lines.with_row_index("row").select("row", "line_no")
    frames = {kind: context.join(frame, on="row", how="inner").sort("line_no") for kind, frame in grammar.frames.items() if frame.height}
    if not frames:
        return Reading()
    host = frames["begin"]["host"][0] if "begin" in frames else None
    parts = [frames[kind].with_columns(extra) for kind, extra in _ROWS.items() if kind in frames]
    rows = (
        pl.concat([pl.DataFrame(schema={"line_no": pl.UInt32(), **_HINTS}), *parts], how="diagonal_relaxed")
        .sort("line_no")
        .with_columns(host=pl.lit(host, dtype=pl.String()))
    )
    nothing = [pl.when(pl.col(c) != "-").then(pl.col(c)).alias(c) for c in ("pid", "rank", "file", "reason") if c in rows.columns]
    rows = rows.with_columns(nothing)
    if "reason" in rows.columns:
        rows = rows.with_columns(mask_expr("reason").alias("reason"))
    gaps: tuple[Gap, ...] = ()
    claimed = pl.concat([f["line_no"] for f in frames.values()]).sort()
    if "end" not in frames:
        last = int(claimed[-1])
        claimed = claimed.filter(claimed != last)
        rows = rows.filter(pl.col("line_no") != last)
        gaps = (Gap("truncated: the collection did not come to its end", last, last),)
    return Reading(frames={"collected": TABLES["collected"].conform(rows)}, lines=claimed, gaps=gaps)


_ROWS: dict[str, list[pl.Expr]] = {
    "step": [],
    "look": [pl.lit("ok").alias("status"), (pl.col("at").cast(pl.Int64) * 1_000_000_000).alias("at_ns")],
    "interrupted": [
        pl.lit("interrupted").alias("step"),
        pl.lit("skipped").alias("status"),
        pl.lit("somebody stopped the collection").alias("reason"),
    ],
}

FORMAT = TextFormat(
    name="collect-manifest",
    title="manifest of the script of `nccl-forensics collect`",
    tables=("collected",),
    anchors=(_MARK.strip(),),
    read=read,
    priority=15,
)
