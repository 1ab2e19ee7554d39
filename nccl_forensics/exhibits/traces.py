"""Where the time of each rank goes, who comes late to which collective, and one step side by side: from profiler traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_forensics.exhibits.base import Block, Report
from nccl_forensics.exhibits.measures import measured, share, value
from nccl_forensics.extras import Extras, LagMap, StepLanes
from nccl_forensics.figures import Figure, figure
from nccl_forensics.plain import plain
from nccl_forensics.presentation import amount, number, part, rows, text

Row = Mapping[str, object]
#: Ranks of the stacked bars: more are no longer told apart. Those with most exposed communication, and as many spread over the rest.
_BARS = 64
_PARTS = (("compute", "compute"), ("exposed", "exposed communication"), ("exposed_memcpy", "memcpy"), ("idle", "idle"))
_LANES = (("compute", "compute"), ("communication", "exposed"), ("memcpy", "memcpy"), ("loader", "idle"))


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """The parts of each rank's time, the lag map, one step of three ranks, message sizes."""
    measures = part(report, "measures")
    traces = rows(measures, "traces")
    made = (
        _breakdown(traces, number(measures, "traces_total"), part(measures, "definitions")),
        _lag(extras.lag_map),
        _step(extras.step_lanes),
        _messages(rows(measures, "messages"), rows(measures, "host")),
    )
    return tuple(block for block in made if block is not None)


def _breakdown(traces: Sequence[Row], total: int | None, definitions: Row) -> Block | None:
    if not traces:
        return None
    # Steps where there are any: what lies before the first and behind the last step is not the job's usual work.
    stepped = {str(t.get("source")) for t in traces if t.get("window") == "steps"}
    chosen = [t for t in traces if t.get("window") == "steps" or str(t.get("source")) not in stepped]
    worst = max(chosen, key=lambda t: share(t, "exposed_ms", "span_ms") or 0.0)
    exposed = share(worst, "exposed_ms", "span_ms")
    said = f"{len(chosen)} traces were measured."
    if exposed is not None:
        said = f"Rank {amount(worst.get('rank'))} spends the largest share of its time in communication that nothing hides: {exposed:.0%}."
    shown = sorted(_spread(chosen), key=lambda t: number(t, "rank") or 0)
    bars = [
        {
            "type": "bar",
            "name": label,
            "meta": key.removeprefix("exposed_"),
            "x": [amount(t.get("rank")) for t in shown],
            "y": [_percent(t, f"{key}_ms") for t in shown],
            "hovertemplate": f"rank %{{x}}: %{{y:.1f}} % {label}<extra></extra>",
        }
        for key, label in _PARTS
    ]
    layout = {
        "height": 340,
        "barmode": "stack",
        "xaxis": {"title": {"text": "rank"}, "type": "category"},
        "yaxis": {"title": {"text": "% of the traced steps"}, "range": [0, 100]},
    }
    keys = (
        ("rank", "Rank"),
        ("window", "Window"),
        ("span_ms", "Span ms"),
        ("compute_ms", "Compute ms"),
        ("communication_ms", "Communication ms"),
        ("exposed_ms", "Exposed ms"),
        ("memcpy_ms", "Memcpy ms"),
        ("idle_ms", "Idle ms"),
        ("host_wait_ms", "Host late ms"),
        ("overlap_fraction", "Overlap"),
        ("overlap_hta", "Overlap (HTA)"),
        ("overlap_tracelens", "Overlap (TraceLens)"),
        ("compute_fraction", "Compute / (compute + communication)"),
    )
    plot = figure("traces", "Where the time of each rank goes", bars, layout, said)
    tables = [measured("Where the time of each rank goes", keys, traces, total, folded=True)]
    if definitions:
        listed = [{"figure": name, "definition": plain(str(words), 600)} for name, words in definitions.items()]
        tables.append(
            measured("How each figure is defined", (("figure", "Figure"), ("definition", "Definition")), listed, None, folded=True)
        )
    return Block(said, "Where the time of each rank goes", figures=(plot,), tables=tuple(tables))


def _spread(traces: Sequence[Row]) -> list[Row]:
    """The worst half (as the report lists them), and ranks spread evenly over the rest."""
    if len(traces) <= _BARS:
        return list(traces)
    half = _BARS // 2
    rest = sorted(traces[half:], key=lambda t: number(t, "rank") or 0)
    return [*traces[:half], *(rest[n * len(rest) // half] for n in range(half))]


def _percent(row: Row, key: str) -> float | None:
    part_of = share(row, key, "span_ms")
    return None if part_of is None else round(100 * part_of, 3)


def _lag(lag: LagMap | None) -> Block | None:
    if lag is None or not lag.ranks or not lag.columns:
        return None
    worst = max((v, r, c) for r, line in enumerate(lag.lag_ms) for c, v in enumerate(line) if v is not None)
    said = (
        f"The latest arrival is that of rank {lag.ranks[worst[1]]}: {worst[0]:,.3g} ms after the first rank, at collective {lag.columns[worst[2]]}."
        if worst[0] > 0
        else "All ranks arrive together."
    )
    left = [
        f"{lag.more_ranks:,} ranks that lost and waited less are not drawn" if lag.more_ranks else "",
        f"{lag.more_collectives:,} collectives with less lag are not drawn" if lag.more_collectives else "",
    ]
    heat = {
        "type": "heatmap",
        "x": list(range(1, len(lag.columns) + 1)),
        "y": [f"rank {r}" for r in lag.ranks],
        "z": [list(line) for line in lag.lag_ms],
        "text": [[plain(c, 120) for c in lag.columns] for _ in lag.ranks],
        "hovertemplate": "%{y}, %{text}: %{z:.4g} ms after the first<extra></extra>",
        "colorbar": {"title": {"text": "ms"}},
        "zmin": 0,
        "autocolorscale": True,
    }
    layout = {
        "height": min(720, 160 + 16 * max(8, len(lag.ranks))),
        "xaxis": {"title": {"text": f"collectives of {plain(lag.group, 60)}, in order"}},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    plot = figure("lag-map", "How late each rank comes to each collective", [heat], layout, said)
    note = "; ".join(w for w in left if w)
    return Block(said + (f" ({note}.)" if note else ""), "Late arrivals, rank by collective", figures=(plot,))


def _step(lanes: Sequence[StepLanes]) -> Block | None:
    if not lanes:
        return None
    bars: dict[str, dict[str, list[object]]] = {}
    for rank in reversed(lanes):
        for lane in rank.lanes:
            held = bars.setdefault(lane.name, {"base": [], "x": [], "y": []})
            for start, duration in lane.segments:
                held["base"].append(round(start, 4))
                held["x"].append(round(duration, 4))
                held["y"].append(f"{_who(rank)} {lane.name}")
    order = [f"{_who(rank)} {name}" for rank in reversed(lanes) for name, _ in reversed(_LANES) if any(x.name == name for x in rank.lanes)]
    drawn = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "meta": meaning,
            **bars[name],
            "marker": {"line": {"width": 0}},
            "hovertemplate": f"{name}: %{{x:.4g}} ms from %{{base:.4g}} ms on<extra></extra>",
        }
        for name, meaning in _LANES
        if name in bars
    ]
    roles = ", ".join(f"rank {r.rank}{f' is the {r.role}' if r.role else ''}" for r in lanes)
    said = f"Step {lanes[0].step}: {roles}; the slowest is the one that communicates, and so waits, the least."
    layout: dict[str, object] = {
        "height": 120 + 26 * len(order),
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "ms since the step's begin"}},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": order},
    }
    plot = figure("step", "One step, rank by rank", drawn, layout, said)
    return Block(said, "One step, rank by rank", figures=(plot,))


def _who(rank: StepLanes) -> str:
    return f"rank {rank.rank}{f' ({rank.role})' if rank.role else ''}:"


def _messages(messages: Sequence[Row], host: Sequence[Row]) -> Block | None:
    sized = [m for m in messages if value(m, "from_bytes")]
    if not sized:
        return None
    most = max(sized, key=lambda m: value(m, "count") or 0.0)
    said = f"Most frequent are {text(most, 'op', 40)} operations of {amount(most.get('from_bytes'))} bytes and more: {amount(most.get('count'))}."
    names = sorted({text(m, "op", 40) for m in sized})
    lines: list[Row] = []
    for name in names[:8]:
        own = [m for m in sized if text(m, "op", 40) == name]
        lines.append(
            {
                "type": "bar",
                "name": name,
                "x": [_size(value(m, "from_bytes") or 0.0) for m in own],
                "y": [value(m, "count") for m in own],
            }
        )
    sizes = sorted({value(m, "from_bytes") or 0.0 for m in sized})
    layout = {
        "height": 300,
        "barmode": "stack",
        "xaxis": {
            "title": {"text": "message size from"},
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [_size(s) for s in sizes],
        },
        "yaxis": {"title": {"text": "collectives"}},
    }
    plot: Figure = figure("messages", "Sizes of the messages", lines, layout, said)
    keys = (
        ("op", "Operation"),
        ("from_bytes", "Bytes from"),
        ("count", "Count"),
        ("per_step", "Per step and rank"),
        ("median_ms", "Median ms"),
        ("total_ms", "Total ms"),
    )
    tables = [measured("Sizes of the messages", keys, messages, None, folded=True)]
    host_keys = (
        ("rank", "Rank"),
        ("host_wait_ms", "Device idle, host late ms"),
        ("loader_ms", "Data loader ms"),
        ("lead_ms", "Step begin to first operator ms"),
        ("gc_ms", "Garbage collection ms"),
        ("longest_gap_ms", "Longest pause ms"),
        ("launch_median_us", "Launch delay, median µs"),
        ("launch_p99_us", "Launch delay, p99 µs"),
    )
    if host:
        tables.append(measured("What the hosts did", host_keys, host, None, folded=True))
    return Block(said, "Messages and hosts", figures=(plot,), tables=tuple(tables))


def _size(size: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g} B"
