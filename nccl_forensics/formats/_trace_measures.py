"""Where the time of one trace went: unions of intervals by kind of work, in the trace as a whole and in each step."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nccl_forensics.formats._trace_columns import Columns
from nccl_forensics.frames import text_of, typed
from nccl_forensics.tables import TABLES
from nccl_forensics.values.intervals import Cover, union

_MOST_NAMES, _MOST_SPANS, _FINENESS = 500, 2000, 1000
#: A pause of the main thread that is worth a row: shorter ones are the interpreter's own.
_PAUSE_NS, _PAUSE_SHARE = 5_000_000, 0.02
_FRAME = typed("record:str window:str step:i64 start:i64 end:i64 host_start:i64 host_end:i64")
_STEPS = typed("index:u32 step:i64 start:i64 end:i64 thread:u32")


@dataclass(frozen=True, slots=True)
class Activity:
    """One trace, its times counted from its first event, with the unions that everything is measured by.

    ``kind`` is gpu, cpu or host. ``device`` has the rows of the busiest device with what their names mean and ``launch`` (begin of the
    launch call) and ``launch_thread``. ``steps`` are ProfilerStep ranges in order; ``leads`` run from a step's begin to its first operator.
    """

    kind: str
    device: pl.DataFrame
    operators: pl.DataFrame
    ranges: pl.DataFrame
    steps: pl.DataFrame
    leads: pl.DataFrame
    compute: Cover
    communication: Cover
    memory: Cover
    either: Cover
    busy: Cover

    @staticmethod
    def of(columns: Columns, names: pl.DataFrame) -> Activity:
        """Shift, join and unite. ``names`` is what ``classify`` made of ``columns.names``."""
        origin = columns.first or 0
        shift = (pl.col("start") - origin, pl.col("end") - origin)
        device = _busiest(columns.device).with_columns(*shift)
        operators, ranges = columns.operators.with_columns(*shift), columns.ranges.with_columns(*shift)
        calls = columns.calls.select("thread", "correlation", *shift[:1])
        launches = calls.unique("correlation", keep="first", maintain_order=True)
        launches = launches.select("correlation", launch="start", launch_thread="thread")
        device = device.join(names, on="name", how="left").join(launches, on="correlation", how="left")
        device = device.with_columns(
            kind=pl.when(pl.col("copy").is_not_null())
            .then("copy")
            .otherwise(pl.when("communicates").then(pl.lit("communication")).otherwise(pl.lit("compute")))
        )
        steps = ranges.filter(pl.col("kind") == "step").sort("start").select(list(_STEPS))
        gloo = ranges.filter((pl.col("kind") == "collective") & pl.col("name").str.starts_with("gloo:"))
        times = device.select("start", "end", "kind", "copy")
        if device.height:
            kind = "gpu"
            compute = times.filter(pl.col("kind") == "compute")
            communication = times.filter(pl.col("kind") == "communication")
        else:
            silent = ranges.filter((pl.col("kind") == "collective") & ~pl.col("name").str.starts_with("gloo:"))
            kind = "host" if silent.height and not gloo.height else "cpu"
            compute = _computing(operators, gloo) if kind == "cpu" else operators.clear()
            communication = gloo
        memory = times.filter(pl.col("copy").is_not_null())
        return Activity(
            kind,
            device,
            operators,
            ranges,
            steps,
            _leads(steps, operators, calls),
            Cover.of(compute),
            Cover.of(communication),
            Cover.of(memory),
            Cover.of(compute, communication),
            Cover.of(compute, communication, memory),
        )

    def of_kind(self, kind: str) -> pl.DataFrame:
        """Ranges of a kind: data-loader, gc, checkpoint."""
        return self.ranges.filter(pl.col("kind") == kind)


def _busiest(device: pl.DataFrame) -> pl.DataFrame:
    if device["device"].n_unique() < 2:
        return device
    time = (
        device.group_by("device")
        .agg((pl.col("end") - pl.col("start")).sum().alias("time"))
        .sort("time", "device", descending=[True, False])
    )
    return device.filter(pl.col("device") == time["device"][0])


def _computing(operators: pl.DataFrame, gloo: pl.DataFrame) -> pl.DataFrame:
    """Operators off gloo's own threads that neither communicate nor call one that does: those that do wait for others inside."""
    own = operators.join(gloo.select("thread").unique(), on="thread", how="anti").sort("start")
    calls = own.filter("communicates").select("thread", "start", calls="start")
    around = own.join_asof(calls, on="start", by="thread", strategy="forward", check_sortedness=False)
    return around.filter(~pl.col("communicates") & (pl.col("calls").is_null() | (pl.col("calls") >= pl.col("end"))))


def _leads(steps: pl.DataFrame, operators: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """From the begin of each step to the first operator or call of its thread, at most to its end."""
    events = pl.concat([operators.select("thread", "start"), calls.select("thread", "start")]).sort("start")
    if not steps.height or not events.height:
        return steps.select("step", "index", "start", end="start").clear()
    first = steps.join_asof(events.with_columns(first="start"), on="start", by="thread", strategy="forward", check_sortedness=False)
    return first.select("step", "index", "start", end=pl.min_horizontal(pl.col("first").fill_null(pl.col("end")), "end"))


def measure(activity: Activity, listed: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """``trace_windows``, ``trace_spans`` and ``trace_segments``; ``listed`` are the trace's collectives."""
    return {
        "trace_windows": _windows(activity, listed),
        "trace_spans": _spans(activity),
        "trace_segments": _segments(activity),
    }


def _frame(activity: Activity) -> pl.DataFrame:
    """The windows: the whole first, then the steps. ``start`` and ``end`` bound the device's work, ``host_start`` and ``host_end`` the
    range.

    A device runs behind its host, by more than a step where the host runs far ahead. Its step therefore begins with the first activity
    that the step launched and ends where that of the next step begins; the last one ends with the last activity that it launched.
    """
    if activity.kind == "gpu":
        every = activity.device
    else:
        every = pl.concat([activity.operators.select("start", "end"), activity.ranges.select("start", "end")])
    if not every.height:
        return pl.DataFrame(schema=_FRAME)
    first, last = every["start"].min(), every["end"].max()
    bounds = {"start": [first], "end": [last], "host_start": [first], "host_end": [last]}
    whole = pl.DataFrame({"record": ["traceEvents"], "window": ["whole"], "step": [None], **bounds}, schema=_FRAME)
    steps = activity.steps.with_columns(
        record=text_of("traceEvents[{}]", "index"), window=pl.lit("step"), host_start="start", host_end="end"
    )
    if activity.kind == "gpu" and steps.height:
        own = launched_in(activity.device, activity.steps).filter(pl.col("step").is_not_null())
        work = own.group_by("step").agg(begins=pl.col("start").min(), ends=pl.col("end").max())
        steps = steps.join(work, on="step", how="left", maintain_order="left").with_columns(
            start=pl.coalesce("begins", "start"), end=pl.coalesce(pl.col("begins").shift(-1), "ends", "end")
        )
        steps = steps.with_columns(end=pl.max_horizontal("start", "end"))
    return pl.concat([whole, steps.select(list(_FRAME))])


def launched_in(device: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Activities with the ``step`` in which their launch call began; null outside of all steps or where the launch is not known."""
    ordered = device.with_columns(at=pl.col("launch")).sort("at", nulls_last=True)
    known = ordered.filter(pl.col("at").is_not_null()).join_asof(
        steps.select("step", at="start", until="end").sort("at"), on="at", strategy="backward"
    )
    return known.with_columns(step=pl.when(pl.col("at") < pl.col("until")).then("step"))


def _windows(activity: Activity, listed: pl.DataFrame) -> pl.DataFrame:
    windows = _frame(activity)
    a, b = windows["start"], windows["end"]
    host = (windows["host_start"], windows["host_end"])
    compute, communication, busy = (c.inside(a, b) for c in (activity.compute, activity.communication, activity.busy))
    either = activity.either.inside(a, b)
    known = windows.with_columns(
        start_ns="start",
        duration_ns=pl.col("end") - pl.col("start"),
        compute_ns=compute,
        communication_ns=communication,
        exposed_ns=either - compute,
        overlap_ns=compute + communication - either,
        stretch_ns=_stretches(activity, a, b),
        memcpy_ns=activity.memory.inside(a, b),
        exposed_memcpy_ns=busy - either,
        idle_ns=(b - a) - busy,
        loader_ns=Cover.of(activity.of_kind("data-loader")).inside(*host),
        gc_ns=Cover.of(activity.of_kind("gc")).inside(*host),
        lead_ns=Cover.of(activity.leads).inside(*host),
    )
    if activity.kind == "host":
        hidden = ("compute_ns", "communication_ns", "exposed_ns", "overlap_ns", "stretch_ns", "memcpy_ns", "exposed_memcpy_ns", "idle_ns")
        known = known.with_columns(pl.lit(None, dtype=pl.Int64).alias(c) for c in hidden)
    if activity.kind == "gpu":
        known = known.with_columns(host_wait_ns=_host_waits(activity).inside(a, b), **_peers(activity, a, b))
        known = _launches(activity, known)
    began = listed["start_ns"].sort()
    counted = began.search_sorted(b, side="left").cast(pl.Int64) - began.search_sorted(a, side="left").cast(pl.Int64)
    return TABLES["trace_windows"].conform(known.with_columns(counted.alias("collectives")))


def _stretches(activity: Activity, a: pl.Series, b: pl.Series) -> pl.Series:
    """Of each window the most communication between two computations that follow each other."""
    busy, alone = activity.compute.intervals, activity.communication
    most = []
    for begin, end in zip(a, b, strict=True):
        first, last = busy["end"].search_sorted(begin, side="right"), busy["start"].search_sorted(end, side="left")
        held = busy.slice(first, max(last - first, 0))
        edges = pl.Series([begin], dtype=pl.Int64), pl.Series([end], dtype=pl.Int64)
        from_, to = pl.concat([edges[0], held["end"].clip(begin, end)]), pl.concat([held["start"].clip(begin, end), edges[1]])
        most.append(int(str(alone.inside(from_, to).max() or 0)))
    return pl.Series(most, dtype=pl.Int64)


def _peers(activity: Activity, a: pl.Series, b: pl.Series) -> dict[str, pl.Series]:
    """The same by the classes of HolisticTraceAnalysis and of TraceLens (peer tools, so that numbers can be compared)."""
    device = activity.device
    hta_compute = device.filter(pl.col("hta") == "compute")
    hta_communication = device.filter(pl.col("hta") == "communication")
    copy = pl.col("copy").fill_null("")
    lens_communication = device.filter((copy == "") & pl.col("tracelens"))
    lens_compute = device.filter((copy == "memset") | ((copy == "") & ~pl.col("tracelens")))
    out: dict[str, pl.Series] = {}
    for name, compute, communication in (("hta", hta_compute, hta_communication), ("tracelens", lens_compute, lens_communication)):
        first, second = Cover.of(compute).inside(a, b), Cover.of(communication).inside(a, b)
        both = Cover.of(compute, communication).inside(a, b)
        out[f"{name}_compute_ns"], out[f"{name}_communication_ns"] = first, second
        if name == "hta":
            out["hta_overlap_ns"] = first + second - both
        else:
            out["tracelens_exposed_ns"] = both - first
    return out


def _host_waits(activity: Activity) -> Cover:
    """Idle times of the device that end with a kernel whose launch call began only after the device had run dry."""
    busy = activity.busy.intervals
    gaps = busy.select(start=pl.col("end").shift(1), end="start").drop_nulls()
    launched = activity.device.group_by("start").agg(pl.col("launch").min()).select(end="start", launch="launch")
    late = gaps.join(launched, on="end", how="left").filter(pl.col("launch") > pl.col("start"))
    return Cover.of(late)


def _launches(activity: Activity, windows: pl.DataFrame) -> pl.DataFrame:
    """Delay from the launch call to the start, by the step that launched."""
    delays = launched_in(activity.device, activity.steps).select("step", delay=(pl.col("start") - pl.col("launch")) / 1000)
    statistics = (
        pl.len().alias("launches"),
        pl.col("delay").median().alias("launch_median_us"),
        pl.col("delay").quantile(0.99).alias("launch_p99_us"),
        pl.col("delay").max().alias("launch_max_us"),
    )
    whole = delays.select(statistics).with_columns(step=pl.lit(None, dtype=pl.Int64), window=pl.lit("whole"))
    steps = delays.filter(pl.col("step").is_not_null()).group_by("step").agg(statistics).with_columns(window=pl.lit("step"))
    every = pl.concat([whole, steps.select(whole.columns)])
    return windows.join(every, on=["window", "step"], how="left", nulls_equal=True, maintain_order="left")


def kernels(activity: Activity) -> pl.DataFrame:
    """``trace_kernels``: activities by name."""
    known = activity.device.with_columns(duration=pl.col("end") - pl.col("start"), kind=pl.coalesce("copy", "kind"))
    by_name = known.group_by("kind", pl.col("text").alias("name")).agg(
        pl.lit("traceEvents").alias("record"),
        pl.len().alias("count"),
        pl.col("duration").sum().alias("total_ns"),
        pl.col("duration").min().alias("min_ns"),
        pl.col("duration").max().alias("max_ns"),
        # Of a copy whose size is not told nothing can be compared.
        pl.when(pl.col("bytes").is_not_null().all()).then(pl.col("bytes").sum()).alias("bytes"),
    )
    return TABLES["trace_kernels"].conform(by_name.sort("total_ns", "name", descending=[True, False]).head(_MOST_NAMES))


def _spans(activity: Activity) -> pl.DataFrame:
    """``trace_spans``: what the host did while the device may have waited."""
    columns = ("kind", "name", "index", "start", "end")
    telling = activity.ranges.filter(pl.col("kind").is_in(["data-loader", "gc", "checkpoint"])).select(columns)
    leads = activity.leads.select(
        pl.lit("lead").alias("kind"), text_of("before the first operator of step {}", "step").alias("name"), "index", "start", "end"
    )
    every = pl.concat([telling, leads, _pauses(activity).select(columns)]).sort("start")
    placed = every.join_asof(activity.steps.select("start", "step", until="end"), on="start", strategy="backward")
    rows = placed.with_columns(
        record=text_of("traceEvents[{}]", "index"),
        step=pl.when(pl.col("start") < pl.col("until")).then("step"),
        start_ns="start",
        duration_ns=pl.col("end") - pl.col("start"),
    )
    return TABLES["trace_spans"].conform(rows.sort("duration_ns", "start_ns", descending=[True, False]).head(_MOST_SPANS).sort("start_ns"))


def _pauses(activity: Activity) -> pl.DataFrame:
    """Pauses of the main thread between operators inside a step, after its first operator."""
    steps = activity.steps
    if not steps.height:
        return pl.DataFrame(schema={"kind": pl.String(), "name": pl.String(), "index": pl.UInt32(), "start": pl.Int64(), "end": pl.Int64()})
    thread = steps["thread"][0]
    work = union(activity.operators.filter(pl.col("thread") == thread))
    gaps = work.select(start=pl.col("end").shift(1), end="start").drop_nulls()
    inside = gaps.sort("start").join_asof(steps.select("start", "index", "step", until="end"), on="start", strategy="backward")
    long = pl.max_horizontal(pl.lit(_PAUSE_NS), (pl.col("until") - pl.col("start")) * _PAUSE_SHARE)
    return inside.filter((pl.col("end") <= pl.col("until")) & (pl.col("end") - pl.col("start") >= long)).select(
        pl.lit("host-gap").alias("kind"), pl.lit("the main thread runs no operator").alias("name"), "index", "start", "end"
    )


def _segments(activity: Activity) -> pl.DataFrame:
    """``trace_segments`` of the middle step."""
    if not activity.steps.height or activity.kind == "host":
        return TABLES["trace_segments"].frame()
    step, record, begin, end = (
        _frame(activity).filter(pl.col("window") == "step").select("step", "record", "start", "end").row((activity.steps.height - 1) // 2)
    )
    fine = max(1, (end - begin) // _FINENESS)
    lanes = {
        "compute": activity.compute.intervals,
        "communication": activity.communication.intervals,
        "memcpy": activity.memory.intervals,
        "loader": pl.concat([activity.of_kind("data-loader").select("start", "end"), activity.leads.select("start", "end")]),
    }
    parts = []
    for lane, intervals in lanes.items():
        clipped = intervals.select(pl.col("start").clip(begin, end), pl.col("end").clip(begin, end))
        merged = union(clipped, gap=fine)
        parts.append(
            merged.select(
                pl.lit(record).alias("record"),
                pl.lit(step, dtype=pl.Int64).alias("step"),
                pl.lit(lane).alias("lane"),
                (pl.col("start") - begin).alias("start_ns"),
                (pl.col("end") - pl.col("start")).alias("duration_ns"),
                pl.lit(end - begin, dtype=pl.Int64).alias("step_ns"),
            )
        )
    return TABLES["trace_segments"].conform(pl.concat(parts))
