"""The collectives of one trace: kernels joined with the calls that launched them, or the ranges of gloo's worker threads."""

from __future__ import annotations

import ast
import hashlib
import math
from functools import lru_cache

import polars as pl

from nccl_forensics.decoding.chrome_json import Args, plain
from nccl_forensics.facts.collective_kernels import message_bytes, operation
from nccl_forensics.formats._trace_columns import Columns, whole
from nccl_forensics.formats._trace_measures import Activity
from nccl_forensics.formats.base import Row
from nccl_forensics.frames import text_of
from nccl_forensics.tables import TABLES
from nccl_forensics.values.intervals import Cover

#: Longer lists of ranks are not kept: they stand in every collective, and their hash tells groups apart.
_MOST_RANKS = 64


def collectives(columns: Columns, activity: Activity) -> pl.DataFrame:
    """``trace_collectives`` in the order of their starts."""
    held = _kernels(columns, activity) if activity.kind == "gpu" else _gloo(columns, activity)
    table = TABLES["trace_collectives"]
    if not held:
        return table.frame()
    held.sort(key=lambda r: (int(str(r["start"])), int(str(r["index"]))))
    frame = pl.DataFrame(held, infer_schema_length=None, schema_overrides={c: t for c, t in table.schema.items() if c in held[0]})
    frame = frame.with_columns(
        ordinal=pl.int_range(pl.len()),
        record=text_of("traceEvents[{}]", "index"),
        start_ns="start",
        duration_ns=pl.col("end") - pl.col("start"),
        exposed_ns=pl.col("end") - pl.col("start") - activity.compute.inside(frame["start"], frame["end"]),
        launched=pl.coalesce("launch_ns", "start"),
    )
    if activity.kind != "gpu":
        # Between two operators runs what the trace does not show, so that only one long stretch is a wait.
        free = activity.compute.longest_free(frame["start"], frame["end"])
        frame = frame.with_columns(stretch_ns=free["length"], stretch_at_ns=free["at"] - frame["start"])
    frame = frame.sort("launched").join_asof(
        activity.steps.select("step", launched="start", until="end"), on="launched", strategy="backward"
    )
    frame = frame.with_columns(step=pl.when(pl.col("launched") < pl.col("until")).then("step")).sort("ordinal")
    return table.conform(_before(frame, activity))


def _before(frame: pl.DataFrame, activity: Activity) -> pl.DataFrame:
    """What the rank did between the collective before (the last end so far) and this one."""
    # The first collective of a trace has none before it: what was done since the trace's begin tells as much.
    since = frame.select(a=pl.min_horizontal(pl.col("end").cum_max().shift(1).fill_null(0), "start"), b="start")
    a, b = since["a"], since["b"]
    compute = activity.compute.inside(a, b)
    parts = {
        "since_ns": b - a,
        "since_compute_ns": compute,
        "since_memcpy_ns": Cover.of(activity.compute.intervals, activity.memory.intervals).inside(a, b) - compute,
        "since_loader_ns": Cover.of(activity.of_kind("data-loader")).inside(a, b),
        "since_gc_ns": Cover.of(activity.of_kind("gc")).inside(a, b),
        "since_lead_ns": Cover.of(activity.leads).inside(a, b),
    }
    return frame.with_columns(**parts)


def _gloo(columns: Columns, activity: Activity) -> list[Row]:
    ranges = activity.ranges.filter((pl.col("kind") == "collective") & pl.col("name").str.starts_with("gloo:"))
    out: list[Row] = []
    for row in ranges.iter_rows(named=True):
        args = columns.arguments.get(row["index"])
        elements, dtype = _input(args)
        op = operation(row["name"])
        out.append(
            _named(args, op, row["name"].split(":", 1)[1])
            | {
                "index": row["index"],
                "start": row["start"],
                "end": row["end"],
                "backend": "gloo",
                "in_elements": elements,
                "dtype": dtype,
                "bytes": message_bytes(op, elements, None, dtype, None) if op != "all_gather" else None,
                "stream": None,
                "launch_ns": None,
                "channels": None,
                "kernel": None,
                "named_algorithm": None,
                "named_protocol": None,
            }
        )
    return out


def _kernels(columns: Columns, activity: Activity) -> list[Row]:
    device = activity.device.filter(pl.col("kind") == "communication")
    if not device.height:
        return []
    ranges = activity.ranges.filter(pl.col("kind") == "collective")
    calls = _enclosing(device, ranges.filter(pl.col("name") == "record_param_comms"), "call")
    named = _enclosing(device, ranges.filter(pl.col("name").str.contains(r"^[a-z]+:")), "range")
    out: list[Row] = []
    for row in device.join(calls, on="index", how="left").join(named, on="index", how="left").iter_rows(named=True):
        own = columns.arguments.get(row["index"])
        call = columns.arguments.get(row["call_index"]) if row["call_index"] is not None else None
        label = columns.arguments.get(row["range_index"]) if row["range_index"] is not None else None
        args = own if own is not None and own.collective is not None else call if call is not None and call.collective is not None else None
        raw = args.collective if args is not None else row["range_name"].split(":", 1)[1] if row["range_name"] else row["function"]
        op = operation(raw) or row["op"]
        size = whole(args.group_size) if args is not None else None
        elements, dtype = _input(label)
        into: int | None = elements
        outof: int | None = None
        if args is not None:
            into, outof = whole(args.in_elements), whole(args.out_elements)
            dtype = args.dtype or dtype
        out.append(
            _named(args, op, raw)
            | {
                "index": row["index"],
                "start": row["start"],
                "end": row["end"],
                "backend": row["backend"],
                "in_elements": into,
                "out_elements": outof,
                "dtype": dtype,
                "bytes": message_bytes(op, into, outof, dtype, size),
                "stream": str(row["stream"]),
                "launch_ns": row["launch"],
                "channels": _blocks(own) if row["backend"] == "nccl" else None,
                "kernel": row["text"],
                "named_algorithm": row["named_algorithm"],
                "named_protocol": row["named_protocol"],
            }
        )
    return out


def _enclosing(device: pl.DataFrame, ranges: pl.DataFrame, prefix: str) -> pl.DataFrame:
    """The range on the launching thread in which each kernel's launch call began: ``index``, ``<prefix>_index``, ``<prefix>_name``."""
    launched = device.filter(pl.col("launch").is_not_null()).select("index", "launch", thread="launch_thread").sort("launch")
    opened = ranges.select("thread", launch="start", end="end", found="index", label="name").sort("launch")
    joined = launched.join_asof(opened, on="launch", by="thread", strategy="backward", check_sortedness=False)
    return joined.filter(pl.col("launch") <= pl.col("end")).select(
        "index", pl.col("found").alias(f"{prefix}_index"), pl.col("label").alias(f"{prefix}_name")
    )


def _named(args: Args | None, op: str | None, raw: str | None) -> Row:
    """Group and position of a collective, where its arguments tell them."""
    row: Row = {"op": op, "op_raw": raw, "out_elements": None}
    if args is None:
        return row | dict.fromkeys(("pg_name", "pg_desc", "pg_ranks", "pg_members", "group_size", "seq", "src", "dst"))
    ranks, members = _members(bytes(args.pg_ranks))
    return row | {
        "pg_name": str(args.pg_name) if args.pg_name not in (None, "") else None,
        "pg_desc": args.pg_desc if args.pg_desc not in (None, "", "undefined") else None,
        "pg_ranks": ranks,
        "pg_members": members,
        "group_size": whole(args.group_size),
        "seq": whole(args.sequence),
        "src": whole(args.source),
        "dst": whole(args.destination),
    }


@lru_cache(maxsize=1024)
def _members(text: bytes) -> tuple[list[int] | None, str | None]:
    """(ranks, hash) of ``"[0, 1]"`` or a list. The ranks are None where it is cut (``"[0, 1, ..., 63]"``), too long to keep or not told."""
    value = plain(text)
    if not value:
        return None, None
    told = value if isinstance(value, str) else repr(value)
    return _ranks(told), hashlib.blake2s(told.replace(" ", "").encode(), digest_size=6).hexdigest()


def _ranks(text: str) -> list[int] | None:
    if "..." in text or len(text) > 10 * _MOST_RANKS:
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(value, list | tuple) or not 0 < len(value) <= _MOST_RANKS:
        return None
    ranks = [r for r in value if isinstance(r, int) and not isinstance(r, bool) and 0 <= r < 10_000_000]
    return ranks if len(ranks) == len(value) else None


def _input(args: Args | None) -> tuple[int | None, str | None]:
    """(elements, data type) of the first input of a range that shows shapes."""
    if args is None:
        return None, None
    dims, types = plain(args.input_dims), plain(args.input_type)
    first = dims[0] if isinstance(dims, list) and dims else None
    kind = types[0] if isinstance(types, list) and types and isinstance(types[0], str) else None
    if not isinstance(first, list) or not first or not all(isinstance(d, int) for d in first):
        return None, None
    return math.prod(first), kind


def _blocks(args: Args | None) -> int | None:
    """Blocks of the kernel's grid: NCCL starts one per channel."""
    grid = plain(args.grid) if args is not None else None
    return whole(grid[0]) if isinstance(grid, list) and grid else None
