"""Log lines of torch.distributed: watchdog and heartbeat of ProcessGroupNCCL, DETAIL fingerprints, monitored barriers.

Source of the texts: torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, ProcessGroupWrapper.cpp, ProcessGroupGloo.cpp), torch 2.0 to 2.13.
The sequence number of a timeout is the one its writer waits in, not a sign that the writer is at fault.
"""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.facts.signatures import classify
from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers, line_of
from nccl_forensics.grammar.blocks import glog_timed
from nccl_forensics.grammar.lines import load
from nccl_forensics.grammar.writers import HINTS
from nccl_forensics.masking import mask, mask_expr
from nccl_forensics.raised_reports import fingerprint
from nccl_forensics.tables import TABLES

#: Counters that were never set print as huge unsigned numbers.
_SANE = 1 << 31
_RANKS = r"\[([0-9, ]+)\]"
_DESYNC = (
    ("desync-lagging", re.compile(rf"ranks {_RANKS} are the lagging ranks that caused this timeout")),
    ("desync-missing", re.compile(rf"{_RANKS} finished collective #([0-9]{{1,18}}), but didn't join collective")),
    ("desync-stuck", re.compile(rf"{_RANKS} joined but didn't finish collective #([0-9]{{1,18}})")),
)
_DESYNC_TIMEOUT = re.compile(r"- \[([0-9]{1,7})\] Timeout at collective: ([A-Za-z0-9_]{1,64}), #([0-9]{1,18})")
#: The other lines of the report: headings and the snapshot of each rank's state.
_DESYNC_OTHER = re.compile(
    r"^\s*- (?:To our best knowledge|Snapshot of ranks' latest states)|^\s+#[0-9]+ (?:started|finished) ranks:|^\s+\[[0-9, ]+\] (?:started|finished) [A-Z_]+"
)
_FRAME = re.compile(r"^\s*#[0-9]{1,5} (.{1,512}?) from (.{1,2048}):([0-9]{1,9})\s*$")
#: Lines after a hit that may belong to it.
_AFTER = 2000


def _read(text: Text) -> Reading:
    hits = text.hits
    watchdog: list[pl.DataFrame] = []
    reports: list[Row] = []
    raised: list[Row] = []
    used: list[pl.Series] = []
    unmodelled = line_numbers([])
    prefixed = load("c10d_prefix").extract(hits["text"])
    parts = [f for f in prefixed.frames.values() if f.height]
    if parts:
        heads = pl.concat(parts, how="diagonal").sort("row")
        lines = glog_timed(hits.with_row_index("row").join(heads, on="row", suffix="_p").sort("row"))
        found = load("c10d").extract(lines["message"].fill_null(""))
        used.append(lines["line_no"])
        unmodelled = lines["line_no"].filter(found.kind.is_null() & (lines["message"].fill_null("") != ""))
        base = lines.select("line_no", *HINTS, "message").with_row_index("row")
        for kind, frame in found.frames.items():
            if kind.startswith("quiet_") or kind == "stack_none":
                continue
            rows = base.join(frame, on="row").sort("row")
            if kind == "gloo_connect":
                raised += [_unconnected(r) for r in rows.iter_rows(named=True)]
            elif kind in _REPORTS:
                reports += [_report(kind, r) for r in rows.iter_rows(named=True)]
            else:
                watchdog.append(_watchdog(kind, rows))
            if kind in ("exception", "exception_async"):
                raised += [row for r in rows.iter_rows(named=True) if (row := _raised(r))]
        blocks, members = _blocks(text, base, found.frames)
        watchdog = [w.update(blocks, on="line_no", how="left") if blocks.height and w["kind"][0] == "stack" else w for w in watchdog]
        used.append(members)
    desync, numbers = _desync(hits)
    if desync.height:
        watchdog.append(desync)
    used.append(numbers)
    claimed = pl.concat([u.cast(pl.UInt32) for u in used]).unique().sort()
    frames = filled({"reports": sorted(reports, key=line_of), "exceptions": sorted(raised, key=line_of)})
    if watchdog:
        frames["watchdog"] = pl.concat(watchdog).sort("line_no")
    return Reading(frames=frames, lines=claimed, records=claimed.len(), unmodelled=unmodelled)


#: Kinds of ``c10d.lark`` whose word in the table differs from their name with hyphens.
_KINDS = {
    "timeout_torn": "timeout",
    "failure_old": "failure",
    "failure_work": "failure",
    "heartbeat": "heartbeat-stuck",
    "exception": "error",
    "exception_async": "error",
    "exception_timeout": "error",
    "store_timeout_s": "store-timeout",
}
_REPORTS = frozenset({"fingerprint", "barrier_missing", "barrier_timeout", "barrier_reached", "ddp_grad", "ddp_init"})


def _watchdog(kind: str, rows: pl.DataFrame) -> pl.DataFrame:
    names = set(rows.columns)

    def number(column: str) -> pl.Expr:
        if column not in names:
            return pl.lit(None, dtype=pl.Int64())
        value = pl.col(column).cast(pl.Int64, strict=False)
        return pl.when(value.is_between(0, _SANE)).then(value)

    blamed = pl.lit(None, dtype=pl.Int32())
    if "from" in names:
        blamed = pl.col("from").str.extract(r"([0-9]+)").cast(pl.Int32, strict=False)
    elif "root" in names:
        blamed = pl.col("root").cast(pl.Int32, strict=False)
    return TABLES["watchdog"].conform(
        rows.with_columns(
            kind=pl.lit(_KINDS.get(kind, kind.replace("_", "-"))),
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
            message=mask_expr(pl.col("message").str.head(1000)).str.head(400),
        )
    )


def _blocks(text: Text, base: pl.DataFrame, found: dict[str, pl.DataFrame]) -> tuple[pl.DataFrame, pl.Series]:
    """Lines without a prefix that go on a line before: stacks of failed collectives (also as ``line_no``, ``frames``), DDP's data block."""
    stacks: dict[str, list[object]] = {"line_no": [], "frames": []}
    members: list[int] = []
    starts = [(kind, row) for kind in ("stack", "ddp_init") if kind in found for row in found[kind]["row"].to_list()]
    if starts:
        numbers, column, ranks = text.lines["line_no"], text.lines["text"], text.lines["hint_rank"]
        for kind, row in starts:
            line_no, rank = base["line_no"][row], base["hint_rank"][row]
            at = int(str(numbers.search_sorted(line_no))) + 1
            end = int(str(numbers.search_sorted((line_no // text.stride + 1) * text.stride))) if text.stride else numbers.len()
            frames: list[str] = []
            for i in range(at, min(at + _AFTER, end)):
                line = str(column[i])
                if kind == "stack":
                    frame = _FRAME.match(line)
                    if frame is None:
                        if ranks[i] == rank:
                            break
                        continue
                    frames.append(f"{frame.group(1)} ({frame.group(2)}:{frame.group(3)})")
                elif not _KEY_VALUE.match(line):
                    break
                members.append(int(numbers[i]))
            if frames:
                stacks["line_no"].append(line_no)
                stacks["frames"].append("\n".join(frames))
    schema = {"line_no": pl.UInt32(), "frames": pl.String()}
    return pl.DataFrame(stacks, schema=schema), line_numbers(members)


_KEY_VALUE = re.compile(r"^[a-z][a-z_0-9]{1,63}: ?")


def _number(value: object) -> int | None:
    return int(str(value)) if value is not None and str(value).isdecimal() and len(str(value)) < 10 else None


def _own(row: Row) -> Row:
    """Where a line stands, who wrote it and when."""
    return {k: row[k] for k in ("line_no", *HINTS)}


def _raised(row: Row) -> Row | None:
    """What ended a watchdog thread, where it is an error of CUDA: the GPU speaks, and often nothing else of the process is in the log."""
    said = str(row.get("detail") or "")
    signature = classify("", said)
    if signature not in ("cuda-error", "cuda-oom"):
        return None
    default = row.get("pg_desc") == "default_pg" or row.get("pg_name") == "0" or str(row.get("pg_id") or "") == "0"
    own = _number(row.get("pg_rank")) if default else None
    return _own(row) | {"end_line": row["line_no"], "kind": "watchdog", "rank": own, "message": mask(said[:2000]), "signature": signature}


def _unconnected(row: Row) -> Row:
    """What gloo logs before it raises the same words: of a worker whose traceback its launcher kept, or cut off, that is all there is."""
    said = str(row["message"])
    return _own(row) | {"end_line": row["line_no"], "kind": "gloo", "message": mask(said[:2000]), "signature": classify("", said)}


def _report(kind: str, row: Row) -> Row:
    base = _own(row)
    base["rank"] = _number(row.get("pg_rank"))
    if kind == "fingerprint":
        fields = fingerprint(str(row["fingerprint"]))
        return base | {
            "kind": "fingerprint",
            "seq": _number(fields.get("SequenceNumber")),
            "op": fields.get("OpType"),
            "detail": f"{fields.get('TensorShape', '')} {fields.get('TensorDtypes', '')}".strip() or None,
        }
    if kind == "ddp_grad":
        return base | {"kind": "ddp-unused", "detail": row["parameter"], "ranks": [base["rank"]] if base["rank"] is not None else None}
    if kind == "ddp_init":
        return base | {"kind": "ddp-init"}
    if kind == "barrier_reached":
        return base | {"kind": "barrier-ok", "rank": _number(row["reached"])}
    missing = [int(r) for r in str(row["missing"]).replace(" ", "").split(",")]
    return base | {"kind": "barrier-missing", "ranks": missing, "timeout_ms": _number(row["timeout_ms"])}


def _desync(hits: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Lines of the desync report (TORCH_NCCL_DESYNC_DEBUG=1): the ranks that it names, and the numbers of all its lines."""
    rows: list[Row] = []
    numbers: list[int] = []
    picked = hits.filter(pl.col("text").str.contains_any(list(_DESYNC_ANCHORS)))
    for row in picked.iter_rows(named=True):
        line = str(row["text"])
        base = _own(row) | {"message": line.strip()[:400]}
        if timeout := _DESYNC_TIMEOUT.search(line):
            rows.append(
                base | {"kind": "desync-timeout", "pg_rank": int(timeout.group(1)), "op": timeout.group(2), "seq": int(timeout.group(3))}
            )
        for kind, pattern in _DESYNC:
            match = pattern.search(line)
            if match:
                ranks = [int(r) for r in match.group(1).replace(" ", "").split(",") if r and len(r) < 10]
                seq = int(match.group(2)) if match.lastindex == 2 else None
                rows.append(base | {"kind": kind, "blamed_ranks": ranks, "seq": seq})
                break
        else:
            if timeout is None and not _DESYNC_OTHER.match(line):
                continue
        numbers.append(row["line_no"])
    return TABLES["watchdog"].frame(rows), line_numbers(numbers)


_DESYNC_ANCHORS = (
    "joined but didn't finish collective",
    "but didn't join collective",
    "are the lagging ranks",
    "Timeout at collective: ",
    "To our best knowledge, ",
    "Snapshot of ranks' latest states",
    " started ranks:",
    " finished ranks:",
    "] started ",
    "] finished ",
)


FORMAT = TextFormat(
    name="c10d-log",
    title="torch.distributed log lines: watchdog, heartbeat, DETAIL, barriers",
    tables=("watchdog", "reports", "exceptions"),
    anchors=(".cpp:", ".py:", *_DESYNC_ANCHORS),
    read=_read,
    priority=30,
    together=True,
)
