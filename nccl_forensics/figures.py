"""Interactive figures of the measures: the one home of Plotly. A report without measures never loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.presentation import number, part, rows, text

#: Points of a figure; worst first, as the report lists them.
POINTS = 512
#: Colours that stay apart for the colour-blind (Okabe and Ito), in the order of the step's parts.
_COLOURS = {
    "compute": "#0072B2",
    "exposed": "#D55E00",
    "memcpy": "#CC79A7",
    "idle": "#999999",
    "bad": "#D55E00",
    "good": "#0072B2",
}
_GREY = "#7b8490"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as Plotly's JSON, with the name of the measure that it draws."""

    name: str
    title: str
    json: str


def figures(report: Mapping[str, object]) -> tuple[Figure, ...]:
    """Figures for those measures that have rows."""
    measures = part(report, "measures")
    made = (
        _steps(rows(measures, "traces")[:POINTS]),
        _lag(rows(measures, "lag")[:POINTS]),
        _bandwidth(rows(measures, "bandwidth")[:POINTS]),
    )
    return tuple(f for f in made if f is not None)


def bundle() -> str:
    """Plotly's script, about 5 MB."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("\r\n", "\n")


def _float(row: Mapping[str, object], key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _layout(**known: object) -> dict[str, object]:
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": _GREY},
        "margin": {"l": 64, "r": 16, "t": 16, "b": 52},
        "height": 360,
        "legend": {"orientation": "h", "y": 1.12},
        **known,
    }


def _figure(name: str, title: str, traces: Sequence[Mapping[str, object]], layout: Mapping[str, object]) -> Figure:
    from plotly.graph_objects import Figure as Plot

    return Figure(name, title, Plot(data=list(traces), layout=dict(layout)).to_json(engine="json").replace("<", "\\u003c"))


def _ranks_of(items: Sequence[Mapping[str, object]]) -> list[str]:
    return [f"rank {number(i, 'rank')}" for i in items]


def _steps(traces: Sequence[Mapping[str, object]]) -> Figure | None:
    if not traces:
        return None
    ordered = sorted(traces, key=lambda t: number(t, "rank") or 0)
    parts = [
        (key, label, [_float(t, f"{key}_ms") for t in ordered])
        for key, label in (("compute", "compute"), ("exposed", "exposed communication"), ("memcpy", "memcpy"), ("idle", "idle"))
    ]
    bars = [
        {"type": "bar", "name": label, "x": _ranks_of(ordered), "y": values, "marker": {"color": _COLOURS[key]}}
        for key, label, values in parts
    ]
    return _figure(
        "traces",
        "Where the time of each rank goes",
        bars,
        _layout(barmode="stack", yaxis={"title": {"text": "ms"}, "gridcolor": "rgba(128,128,128,.25)"}),
    )


def _lag(lag: Sequence[Mapping[str, object]]) -> Figure | None:
    if not lag:
        return None
    ordered = sorted(lag, key=lambda t: number(t, "rank") or 0)
    keys = (("median_ms", "median lag"), ("p99_ms", "p99 lag"))
    heat = {
        "type": "heatmap",
        "x": _ranks_of(ordered),
        "y": [label for _, label in keys],
        "z": [[_float(r, key) for r in ordered] for key, _ in keys],
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": "ms"}},
    }
    return _figure("lag", "How late each rank arrives", [heat], _layout(height=240))


def _bandwidth(bandwidth: Sequence[Mapping[str, object]]) -> Figure | None:
    sized = [b for b in bandwidth if _float(b, "bytes") and _float(b, "bus_bw_gb_s") is not None]
    if not sized:
        return None
    lines: list[Mapping[str, object]] = []
    for n, name in enumerate(sorted({text(b, "collective", 40) for b in sized})[:8]):
        points = sorted((b for b in sized if text(b, "collective", 40) == name), key=lambda b: _float(b, "bytes") or 0.0)
        symbol = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")[n]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": [_float(b, "bytes") for b in points],
                "y": [_float(b, "bus_bw_gb_s") for b in points],
                "marker": {"symbol": symbol},
            }
        )
    expected = [_float(b, "expected_gb_s") for b in sized if _float(b, "expected_gb_s")]
    shapes = (
        [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": max(e for e in expected if e),
                "y1": max(e for e in expected if e),
                "line": {"dash": "dash", "color": _GREY},
            }
        ]
        if expected
        else []
    )
    axes = {
        "xaxis": {"type": "log", "title": {"text": "bytes"}},
        "yaxis": {"title": {"text": "bus bandwidth, GB/s"}, "gridcolor": "rgba(128,128,128,.25)"},
    }
    return _figure("bandwidth", "Bandwidth of the collectives", lines, _layout(shapes=shapes, **axes))
