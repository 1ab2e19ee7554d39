"""Nsight Systems' SQLite export (``nsys export --type sqlite``): one process' activity, measured like a profiler's trace.

Export schema 2.x and 3.x. Tables are made only for what was recorded and their columns vary between releases, so both are asked for.
Kernels run on the device's clock; NVTX ranges of NCCL's domain and of PyTorch (``nccl:all_reduce``) only tell when the host enqueued.
Times are nanoseconds since the start of the session.
"""

from __future__ import annotations

import mmap
import re
from typing import TYPE_CHECKING

import polars as pl

from nccl_forensics.formats._trace_collectives import collectives
from nccl_forensics.formats._trace_columns import Columns, whole
from nccl_forensics.formats._trace_kernels import classify
from nccl_forensics.formats._trace_measures import Activity, kernels, measure
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row
from nccl_forensics.frames import text_of, typed
from nccl_forensics.tables import TABLES

if TYPE_CHECKING:
    from nccl_forensics.decoding.sqlite_reader import Database

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
#: Names of tables that say that a database is an export of Nsight Systems.
_OURS = frozenset({"META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA", "TARGET_INFO_SESSION_START_TIME"})
#: NVTX event types: ranges of a thread, and ranges that start and end anywhere.
_RANGES, _DOMAIN = (59, 60), 75
_NCCL_CALL = re.compile(r"^nccl(AllReduce|AllGather|AllGatherV|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|AlltoAll|Gather|Scatter)$")
_NCCL_OPS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "AllGatherV": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Bcast": "broadcast",
    "Reduce": "reduce",
    "Send": "send",
    "Recv": "recv",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}
_TORCH_CALL = re.compile(r"^(?:nccl|gloo|c10d):")
_STEP = re.compile(r"^(?:ProfilerStep#|(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)[ _#:-]*)(\d{1,9})$", re.IGNORECASE)
_LOADER = re.compile(r"dataloader|data_loader|data loading|load[ _]?batch", re.IGNORECASE)
_GC = re.compile(r"^gc\b|garbage collect", re.IGNORECASE)
_CHECKPOINT = re.compile(r"checkpoint", re.IGNORECASE)
_MOST_GAPS = 100


def _sniff(head: bytes) -> bool:
    # The list of tables stands in the first pages; where it goes on behind them, reading says "not a ...".
    return head.startswith(b"SQLite format 3\x00")


def read(data: bytes | mmap.mmap) -> Reading:
    """The trace, its windows, collectives, kernels by name, telling ranges and the middle step."""
    from nccl_forensics.decoding.sqlite_reader import BrokenDatabase, open_database  # few sources need SQLite

    try:
        with open_database(data) as database:
            if "StringIds" not in database.tables or not _OURS & set(database.tables):
                return Reading(gaps=(Gap("not a report of Nsight Systems", record="sqlite_master"),))
            return _read(database)
    except BrokenDatabase as problem:
        return Reading(gaps=(Gap(f"unreadable: {problem}"[:200], record="sqlite_master"),))


def _read(database: Database) -> Reading:
    gaps: list[Gap] = []
    names = _Names(database)
    device, broken, several = _device(database, names, gaps)
    calls, ranges = _calls(database, several), _nvtx(database, names)
    everything = [f for f in (device, calls, ranges) if f.height]
    if not everything:
        why = "truncated: no kernel, call or NVTX range in it (profile with --trace=cuda,nvtx)"
        return Reading(gaps=(Gap(why, record="sqlite_master"),))
    if not device.height:
        gaps.append(Gap(f"missing: no kernels (table {_KERNEL}); profile with --trace=cuda,nvtx", record="sqlite_master"))
    device, calls, ranges, where = _numbered(device, calls, ranges)
    columns = Columns(
        device=device,
        calls=calls,
        operators=pl.DataFrame(
            schema={"index": pl.UInt32(), "start": pl.Int64(), "end": pl.Int64(), "thread": pl.UInt32(), "communicates": pl.Boolean()}
        ),
        ranges=ranges,
        names=names.kernels,
        arguments={},
        pids=[],
        first=min(int(str(f["start"].min())) for f in everything),
        last=max(int(str(f["end"].max())) for f in everything),
        events=sum(f.height for f in everything),
        malformed=broken,
        clamped=0,
    )
    activity = Activity.of(columns, classify(columns.names))
    listed = collectives(columns, activity)
    frames = {
        "traces": _trace(database, columns, activity, listed),
        "trace_collectives": listed,
        "trace_kernels": kernels(activity),
        **measure(activity, listed),
    }
    gaps.extend(_lost(database))
    frames = {n: _cited(TABLES[n].conform(f), where) for n, f in frames.items() if f.height}
    return Reading(frames=frames, gaps=tuple(gaps[:_MOST_GAPS]), records=1 + columns.events)


class _Names:
    """Strings by their number, and small numbers for kernel names."""

    def __init__(self, database: Database) -> None:
        self._frame = database.frame("StringIds", {"id": "int", "value": "text"}).select("id", "value").unique("id", keep="first")
        self.kernels: list[str] = []

    def join(self, frame: pl.DataFrame, column: str, into: str) -> pl.DataFrame:
        """The frame with the string that ``column`` numbers, as ``into``."""
        return frame.join(self._frame.rename({"id": column, "value": into}), on=column, how="left", maintain_order="left")

    def number(self, texts: pl.Series) -> pl.Series:
        """A number for every kernel name; names are kept in ``kernels``."""
        distinct = texts.unique(maintain_order=True)
        start = len(self.kernels)
        self.kernels.extend(str(t) for t in distinct.to_list())
        lookup = pl.DataFrame({"text": distinct, "number": pl.int_range(start, start + distinct.len(), dtype=pl.UInt32, eager=True)})
        return texts.to_frame("text").join(lookup, on="text", how="left", maintain_order="left")["number"]


def _correlation(process: str, several: bool) -> pl.Expr:
    """What joins a call and its work: processes count their calls alike, so that where there are several the process belongs to the number.

    ``process`` is a globalPid or globalTid: hardware, VM, process and thread of 8, 8, 24 and 24 bits.
    """
    if not several:
        return pl.col("correlationId")
    return (((pl.col(process).fill_null(0) // (1 << 24)) % (1 << 24)) * (1 << 32)) + pl.col("correlationId")


def _device(database: Database, names: _Names, gaps: list[Gap]) -> tuple[pl.DataFrame, int, bool]:
    """Kernels, copies and fills with ``record``; how many had no usable time; and whether they are of several processes."""
    schema = {"start": "int", "end": "int", "deviceId": "int", "streamId": "int", "correlationId": "int", "globalPid": "int"}
    raw = database.frame(_KERNEL, {**schema, "demangledName": "int", "shortName": "int"})
    named = names.join(names.join(raw, "demangledName", "long"), "shortName", "short")
    texts = named.with_columns(
        text=pl.coalesce("long", "short", pl.lit("unknown kernel")),
        copy=pl.lit(None, dtype=pl.String()),
        bytes=pl.lit(None, dtype=pl.Int64()),
    )
    parts = [texts.with_columns(table=pl.lit(_KERNEL))]
    for table, kind in _COPIES.items():
        rows = database.frame(table, schema | {"bytes": "int"})
        parts.append(rows.with_columns(text=pl.lit(kind), copy=pl.lit(kind), table=pl.lit(table)))
    columns = ["table", "rowid", "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "text", "copy", "bytes"]
    every = pl.concat([p.select(columns) for p in parts])
    running = every.filter(pl.col("start").is_not_null() & pl.col("end").is_null())
    if running.height:
        record = f"{running['table'][0]}[{running['rowid'][0]}]"
        gaps.append(Gap(f"truncated: {running.height} activities had not ended when the capture did", record=record))
    usable = every.filter(pl.col("start").is_not_null() & (pl.col("end") >= pl.col("start")))
    processes = usable["globalPid"].drop_nulls().n_unique()
    if processes > 1:
        gaps.append(Gap(f"limit: {processes} processes in one report, of which only the busiest device is measured", record=_KERNEL))
    frame = usable.select(
        "table",
        "rowid",
        "start",
        "end",
        names.number(usable["text"]).alias("name"),
        "copy",
        pl.col("streamId").fill_null(0).cast(pl.UInt32, strict=False).fill_null(0).alias("stream"),
        # Ordinals repeat between processes: the process belongs to the device's name.
        text_of("{}/{}", pl.col("globalPid").fill_null(0), pl.col("deviceId").fill_null(0)).alias("device"),
        _correlation("globalPid", processes > 1).alias("correlation"),
        pl.col("bytes").cast(pl.Int64),
    )
    return frame, every.height - usable.height, processes > 1


def _calls(database: Database, several: bool) -> pl.DataFrame:
    """Calls of the CUDA runtime and driver."""
    parts = [
        database.frame(t, {"start": "int", "end": "int", "globalTid": "int", "correlationId": "int"}).with_columns(table=pl.lit(t))
        for t in _CALLS
        if t in database.tables
    ]
    if not parts:
        return pl.DataFrame(schema=typed("table:str rowid:i64 start:i64 end:i64 thread:i64 correlation:i64"))
    every = pl.concat(parts).filter(pl.col("start").is_not_null() & (pl.col("end") >= pl.col("start")))
    return every.select("table", "rowid", "start", "end", thread="globalTid", correlation=_correlation("globalTid", several))


def _nvtx(database: Database, names: _Names) -> pl.DataFrame:
    """NVTX ranges that say something: steps, collectives, data loaders, checkpoints, garbage collection."""
    table = "NVTX_EVENTS"
    wanted = {
        "start": "int",
        "end": "int",
        "eventType": "int",
        "text": "text",
        "textId": "int",
        "domainId": "int",
        "globalTid": "int",
    }
    raw = names.join(database.frame(table, wanted), "textId", "string").with_columns(label=pl.coalesce("text", "string"))
    nccl = raw.filter((pl.col("eventType") == _DOMAIN) & (pl.col("label") == "NCCL"))["domainId"].to_list()
    timed = raw.filter(pl.col("eventType").is_in(list(_RANGES)) & (pl.col("end") >= pl.col("start")) & pl.col("label").is_not_null())
    roles = {t: _role(t) for t in timed["label"].unique().to_list()}
    known = [(t, r[0], r[1], r[2]) for t, r in roles.items() if r is not None]
    schema = {"label": pl.String(), "kind": pl.String(), "name": pl.String(), "step": pl.Int64()}
    told = timed.join(pl.DataFrame(known, schema=schema, orient="row"), on="label", how="inner", maintain_order="left")
    # ncclAllReduce of another domain is somebody's own label.
    own = told.filter(~pl.col("label").str.starts_with("nccl") | pl.col("label").str.contains(":") | pl.col("domainId").is_in(nccl))
    return own.select(pl.lit(table).alias("table"), "rowid", "start", "end", pl.col("globalTid").alias("thread"), "kind", "name", "step")


def _role(label: str) -> tuple[str, str, int | None] | None:
    """(kind, name, step) of a range, None where it tells nothing."""
    short = label[:120]
    if found := _NCCL_CALL.match(label):
        return "collective", f"nccl:{_NCCL_OPS[found.group(1)]}", None
    if _TORCH_CALL.match(label):
        return "collective", short, None
    if found := _STEP.match(label):
        return "step", short, int(found.group(1))
    for pattern, kind in ((_LOADER, "data-loader"), (_GC, "gc"), (_CHECKPOINT, "checkpoint")):
        if pattern.search(label):
            return kind, short, None
    return None


def _numbered(
    device: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The frames with an ``index`` over all of them and small thread numbers, and where each index stands (``index``, ``place``)."""
    threads = pl.concat([calls["thread"], ranges["thread"]]).unique(maintain_order=True)
    lookup = pl.DataFrame({"thread": threads, "small": pl.int_range(threads.len(), dtype=pl.UInt32, eager=True)})
    out: list[pl.DataFrame] = []
    places: list[pl.DataFrame] = []
    at = 0
    for frame in (device, calls, ranges):
        numbered = frame.with_columns(index=pl.int_range(at, at + frame.height, dtype=pl.UInt32, eager=True))
        if "thread" in frame.columns:
            numbered = numbered.join(lookup, on="thread", how="left", nulls_equal=True, maintain_order="left")
            numbered = numbered.with_columns(thread="small").drop("small")
        places.append(numbered.select("index", place=text_of("{}[{}]", "table", "rowid")))
        out.append(numbered.drop("table", "rowid"))
        at += frame.height
    return out[0], out[1], out[2], pl.concat(places)


def _cited(frame: pl.DataFrame, where: pl.DataFrame) -> pl.DataFrame:
    """Records as ``table[rowid]``; what is about the trace as a whole points at its table of kernels."""
    index = pl.col("record").str.extract(r"^traceEvents\[(\d+)\]$").cast(pl.UInt32)
    joined = frame.with_columns(index=index).join(where, on="index", how="left", maintain_order="left")
    return joined.with_columns(record=pl.coalesce("place", pl.lit(_KERNEL))).select(frame.columns)


def _trace(database: Database, columns: Columns, activity: Activity, listed: pl.DataFrame) -> pl.DataFrame:
    start = next(iter(database.rows("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])), [])
    epoch = start[0][1] if start and isinstance(start[0][1], int) else None
    first = columns.first or 0
    environment = {
        str(row[1]): str(row[2])
        for batch in database.rows("TARGET_INFO_SYSTEM_ENV", ["name", "value"])
        for row in batch
        if row[1] is not None
    }
    gpus = sorted({str(row[1]) for batch in database.rows("TARGET_INFO_GPU", ["name"]) for row in batch if row[1]})
    pids = [
        (int(row[1]) >> 24) & 0xFFFFFF  # globalPid: hardware, VM, process and thread ids of 8, 8, 24 and 24 bits
        for batch in database.rows(_KERNEL, ["globalPid"])
        for row in batch[:1]
        if isinstance(row[1], int)
    ]
    row: Row = {
        "record": _KERNEL,
        "time_raw_ns": epoch + first if epoch is not None else first,
        "time_kind": "epoch" if epoch is not None else "monotonic",
        "backend": "nccl" if listed.height else None,
        "host": environment.get("Hostname"),
        "pid": pids[0] if pids else None,
        "device": activity.kind,
        "devices": columns.device["device"].n_unique(),
        "device_number": whole(activity.device["device"][0]) if activity.device.height else None,
        "gpus": gpus,
        "events": columns.events,
        "malformed": columns.malformed,
        "clamped": columns.clamped,
        "repaired": 0,
        "complete": True,
        "activities": activity.device.height,
        "collectives": listed.height,
        "steps": activity.steps.height,
        "first_step": activity.steps["step"].min() if activity.steps.height else None,
        "span_ns": (columns.last or 0) - first,
    }
    return TABLES["traces"].frame([row])


def _lost(database: Database) -> list[Gap]:
    """What the profiler itself says is missing from the report."""
    out: list[Gap] = []
    for batch in database.rows("DIAGNOSTIC_EVENT", ["text"]):
        for row in batch:
            text = str(row[1] or "")
            if re.search(r"lost|dropped|not all|incomplete|overflow", text, re.IGNORECASE):
                out.append(Gap("missing: the profiler lost events", record=f"DIAGNOSTIC_EVENT[{row[0]}]", text=text[:200]))
    return out


FORMAT = DocumentFormat(
    name="nsight-systems",
    title="Nsight Systems (SQLite export)",
    tables=("traces", "trace_windows", "trace_collectives", "trace_kernels", "trace_spans", "trace_segments"),
    sniff=_sniff,
    read=read,
    priority=8,
    mapped=True,
)
