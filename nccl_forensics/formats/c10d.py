"""Log lines of torch.distributed: watchdog and heartbeat of ProcessGroupNCCL, DETAIL fingerprints, monitored barriers.

Source of the texts: torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, ProcessGroupWrapper.cpp, ProcessGroupGloo.cpp), torch 2.0 to 2.13.
The sequence number of a timeout is the one its writer waits in, not a sign that the writer is at fault.
"""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.grammar import load
from nccl_forensics.tables import TABLES

#: Counters that were never set print as huge unsigned numbers.
_SANE = 1 << 31
_FIELD = re.compile(r"(SequenceNumber|OpType|TensorShape|TensorDtypes)=(\[[^\]]{0,4096}\]|[A-Za-z0-9_]{1,64})")
_HINTS = ("hint_rank", "hint_scope", "hint_host", "hint_pid")
_DESYNC_JOINED = re.compile(r"\[([0-9, ]+)\] joined but didn't finish collective #([0-9]+)")
_DESYNC_MISSED = re.compile(r"\[([0-9, ]+)\] finished collective #([0-9]+), but didn't join collective #([0-9]+)")
_DESYNC_NEVER = re.compile(r"ranks \[([0-9, ]+)\] are the lagging ranks that caused this timeout")


def _read(text: Text) -> Reading:
    hits = text.hits
    prefixed = load("c10d_prefix").extract(hits["text"])
    parts = [f.select("row", *(c for c in f.columns if c != "row")) for f in prefixed.frames.values() if f.height]
    if not parts:
        return _desync(text)
    heads = pl.concat(parts, how="diagonal").sort("row")
    lines = hits.with_row_index("row").join(heads, on="row", suffix="_p").sort("row")
    message = lines["message"].fill_null("")
    found = load("c10d").extract(message)
    time = _times(lines)
    lines = lines.with_columns(
        own_time=time, own_kind=pl.when(pl.Series(time).is_not_null()).then(pl.lit("local-unzoned")).otherwise(pl.col("time_kind"))
    ).with_columns(time_raw_ns=pl.coalesce("time_raw_ns", "own_time"), time_kind=pl.coalesce("time_kind", "own_kind"))
    watchdog: list[pl.DataFrame] = []
    reports: list[dict[str, object]] = []
    for kind, frame in found.frames.items():
        if not frame.height:
            continue
        rows = (
            lines.select("line_no", "time_raw_ns", "time_kind", *_HINTS, "message").with_row_index("row").join(frame, on="row").sort("row")
        )
        if kind in ("fingerprint", "barrier_missing", "barrier_timeout", "ddp_grad"):
            reports += [_report(kind, r) for r in rows.iter_rows(named=True)]
        else:
            watchdog.append(_watchdog(kind, rows))
    frames = {
        "watchdog": pl.concat([TABLES["watchdog"].conform(w) for w in watchdog]).sort("line_no")
        if watchdog
        else TABLES["watchdog"].frame(),
        "reports": TABLES["reports"].frame(sorted(reports, key=lambda r: int(str(r["line_no"])))),
    }
    desync = _desync(text)
    if "watchdog" in desync.frames:
        frames["watchdog"] = pl.concat([frames["watchdog"], desync.frames["watchdog"]])
    numbers = pl.concat([lines["line_no"], desync.lines]).unique().sort()
    return Reading(frames=frames, lines=numbers, records=numbers.len())


def _times(lines: pl.DataFrame) -> pl.Series:
    """Month, day and time of day as ns of the year 1970: these lines carry neither year nor zone."""
    if "date" not in lines.columns or "time" not in lines.columns:
        return pl.Series("own_time", [None] * lines.height, dtype=pl.Int64())
    stamp = pl.lit("1970") + pl.col("date").str.zfill(4) + pl.lit(" ") + pl.col("time")
    return lines.select(
        stamp.str.to_datetime("%Y%m%d %H:%M:%S%.f", time_unit="ns", strict=False).cast(pl.Int64).alias("own_time")
    ).to_series()


_KINDS = {
    "timeout": "timeout",
    "failure": "failure",
    "failure_old": "failure",
    "failure_work": "failure",
    "dump_signal": "dump-signal",
    "heartbeat": "heartbeat-stuck",
    "gil": "gil",
    "abort": "abort",
    "exception": "error",
    "created": "created",
}


def _watchdog(kind: str, rows: pl.DataFrame) -> pl.DataFrame:
    names = set(rows.columns)

    def number(column: str) -> pl.Expr:
        if column not in names:
            return pl.lit(None, dtype=pl.Int64())
        value = pl.col(column).cast(pl.Int64, strict=False)
        return pl.when(value.is_between(0, _SANE)).then(value)

    blamed = pl.col("from").str.extract(r"([0-9]+)").cast(pl.Int32, strict=False) if "from" in names else pl.lit(None, dtype=pl.Int32())
    return rows.with_columns(
        kind=pl.lit(_KINDS[kind]),
        pg_id=number("pg_id"),
        pg_rank=number("pg_rank"),
        seq=number("seq"),
        numel_in=number("numel_in"),
        numel_out=number("numel_out"),
        timeout_ms=number("timeout_ms"),
        elapsed_ms=number("elapsed_ms"),
        last_enqueued=number("last_enqueued"),
        last_started=number("last_started"),
        last_completed=number("last_completed"),
        blamed_ranks=pl.when(blamed.is_not_null()).then(pl.concat_list(blamed)),
        message=pl.col("message").str.head(400),
    )


def fingerprint(text: str) -> dict[str, str]:
    """Fields of a CollectiveFingerPrint: SequenceNumber, OpType, TensorShape, TensorDtypes. The device options' dtype is a fixed text."""
    return dict(_FIELD.findall(text.split("TensorDeviceTypes=", 1)[0]))


def _report(kind: str, row: dict[str, object]) -> dict[str, object]:
    base = {k: row[k] for k in ("line_no", "time_raw_ns", "time_kind", *_HINTS)}
    writer = row.get("pg_rank")
    base["rank"] = int(str(writer)) if writer is not None else None
    if kind == "fingerprint":
        fields = fingerprint(str(row["fingerprint"]))
        seq = fields.get("SequenceNumber")
        return base | {
            "kind": "fingerprint",
            "seq": int(seq) if seq and seq.isdigit() else None,
            "op": fields.get("OpType"),
            "detail": f"{fields.get('TensorShape', '')} {fields.get('TensorDtypes', '')}".strip() or None,
        }
    if kind == "ddp_grad":
        return base | {"kind": "ddp-unused", "detail": row["parameter"], "ranks": [base["rank"]] if base["rank"] is not None else None}
    return base | {"kind": "barrier-missing", "ranks": [int(str(row["missing"]))], "timeout_ms": int(str(row["timeout_ms"]))}


def _desync(text: Text) -> Reading:
    """Lines of the desync report (TORCH_NCCL_DESYNC_DEBUG=1): the ranks that it names as lagging."""
    rows: list[dict[str, object]] = []
    numbers: list[int] = []
    picked = text.lines.filter(
        pl.col("text").str.contains(r"joined but didn't finish collective|but didn't join collective|are the lagging ranks")
    )
    for row in picked.iter_rows(named=True):
        line = str(row["text"])[:20_000]
        for pattern, kind in ((_DESYNC_NEVER, "desync-lagging"), (_DESYNC_MISSED, "desync-missing"), (_DESYNC_JOINED, "desync-stuck")):
            match = pattern.search(line)
            if match:
                ranks = [int(r) for r in match.group(1).replace(" ", "").split(",") if r]
                seq = int(match.group(match.lastindex or 1)) if kind != "desync-lagging" else None
                rows.append(
                    {k: row[k] for k in ("line_no", *_HINTS)} | {"kind": kind, "blamed_ranks": ranks, "seq": seq, "message": line[:400]}
                )
                numbers.append(row["line_no"])
                break
    if not rows:
        return Reading()
    return Reading(
        frames={"watchdog": TABLES["watchdog"].frame(rows)}, lines=pl.Series("line_no", numbers, dtype=pl.UInt32()), records=len(rows)
    )


FORMAT = TextFormat(
    name="c10d-log",
    title="torch.distributed log lines: watchdog, heartbeat, DETAIL, barriers",
    tables=("watchdog", "reports"),
    anchors=(".cpp:", ".py:", "joined but didn't finish collective", "but didn't join collective", "are the lagging ranks"),
    read=_read,
    priority=30,
)
