"""What was measured: how late ranks arrive at collectives, and the bandwidth that collectives reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_forensics.exhibits.base import Block, Item, Report, Table, table
from nccl_forensics.extras import Extras
from nccl_forensics.figures import POINTS, Figure, figure
from nccl_forensics.presentation import ROWS, amount, number, part, rows, text

Row = Mapping[str, object]
_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """Arrival lag, then bandwidth."""
    measures = part(report, "measures")
    made = (
        _lag(rows(measures, "lag"), number(measures, "lag_total")),
        _bandwidth(rows(measures, "bandwidth"), number(measures, "bandwidth_total")),
    )
    return tuple(block for block in made if block is not None)


def _lag(lag: Sequence[Row], total: int | None) -> Block | None:
    if not lag:
        return None
    worst = max(lag, key=lambda row: value(row, "lost_ms") or 0.0)
    who, lost, count = amount(worst.get("rank")), amount(worst.get("lost_ms")), amount(worst.get("collectives"))
    said = f"Rank {who} cost the others the most: {lost} ms in {count} collectives."
    keys = (
        ("rank", "Rank"),
        ("collectives", "Collectives"),
        ("median_ms", "Median lag ms"),
        ("p99_ms", "p99 lag ms"),
        ("lost_ms", "Lost ms"),
        ("source", "Measured by"),
    )
    shown = sorted(lag[:POINTS], key=lambda r: number(r, "rank") or 0)
    # Enqueue times of dumps and durations of traces may both tell of a rank.
    both = len({text(r, "source", 20) for r in shown}) > 1
    names = [f"{amount(r.get('rank'))} ({text(r, 'source', 20)})" if both else amount(r.get("rank")) for r in shown]
    bars = [
        {
            "type": "bar",
            "name": label,
            "x": names,
            "y": [value(r, key) for r in shown],
            "hovertemplate": f"rank %{{x}}: %{{y:.4g}} ms {label}<extra></extra>",
        }
        for key, label in (("median_ms", "median lag"), ("p99_ms", "99th percentile"))
    ]
    layout = {
        "height": 300,
        "barmode": "group",
        "xaxis": {"title": {"text": "rank"}, "type": "category"},
        "yaxis": {"title": {"text": "ms behind the first"}},
    }
    plot = figure("lag", "How late each rank arrives", bars, layout, said)
    return Block(
        said, "Arrival at collectives", figures=(plot,), tables=(measured("How late each rank arrives", keys, lag, total, folded=True),)
    )


def _bandwidth(bandwidth: Sequence[Row], total: int | None) -> Block | None:
    if not bandwidth:
        return None
    rated = [b for b in bandwidth if share(b, "bus_bw_gb_s", "expected_gb_s") is not None]
    said = f"{len(bandwidth):,} collectives were measured; what the links should carry is not known."
    if rated:
        worst = min(rated, key=lambda b: share(b, "bus_bw_gb_s", "expected_gb_s") or 0.0)
        name, got, expected = text(worst, "collective", 60), amount(worst.get("bus_bw_gb_s")), amount(worst.get("expected_gb_s"))
        said = f"The farthest below what is expected: {name} at {got} of {expected} GB/s bus bandwidth."
    keys = (
        ("collective", "Collective"),
        ("dtype", "Type"),
        ("bytes", "Bytes"),
        ("ranks", "Ranks"),
        ("alg_bw_gb_s", "Algorithm GB/s"),
        ("bus_bw_gb_s", "Bus GB/s"),
        ("expected_gb_s", "Expected GB/s"),
        ("source", "Source"),
    )
    plot = _curves([b for b in bandwidth[:POINTS] if value(b, "bytes") and value(b, "bus_bw_gb_s") is not None], said)
    data = measured("Bandwidth of the collectives (10⁹ bytes a second)", keys, bandwidth, total, folded=plot is not None)
    return Block(said, "Bandwidth", figures=(plot,) if plot else (), tables=(data,))


def _curves(sized: Sequence[Row], said: str) -> Figure | None:
    if not sized:
        return None
    lines: list[Row] = []
    for n, name in enumerate(sorted({text(b, "collective", 40) for b in sized})[:8]):
        points = sorted((b for b in sized if text(b, "collective", 40) == name), key=lambda b: value(b, "bytes") or 0.0)
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name or "not named",
                "x": [value(b, "bytes") for b in points],
                "y": [value(b, "bus_bw_gb_s") for b in points],
                "marker": {"symbol": _SYMBOLS[n], "size": 7},
                "hovertemplate": "%{x} bytes: %{y:.4g} GB/s<extra></extra>",
            }
        )
    expected = max((e for b in sized if (e := value(b, "expected_gb_s"))), default=None)
    layout: dict[str, object] = {
        "height": 340,
        "xaxis": {"type": "log", "title": {"text": "bytes"}},
        "yaxis": {"title": {"text": "bus bandwidth, GB/s"}, "rangemode": "tozero"},
    }
    if expected:
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": expected,
                "y1": expected,
                "line": {"dash": "dash", "width": 1, "color": "#8a939e"},
            }
        ]
        layout["annotations"] = [
            {
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "y": expected,
                "yanchor": "bottom",
                "text": f"expected {expected:.4g} GB/s",
                "showarrow": False,
            }
        ]
    return figure("bandwidth", "Bandwidth of the collectives", lines, layout, said)


def value(row: Row, key: str) -> float | None:
    """A number, or None."""
    found = row.get(key)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def share(row: Row, over: str, under: str) -> float | None:
    """One number as a share of another."""
    top, bottom = value(row, over), value(row, under)
    return top / bottom if top is not None and bottom else None


def measured(caption: str, keys: Sequence[tuple[str, str]], items: Sequence[Row], total: int | None, *, folded: bool = False) -> Table:
    """Rows of a measure as a table: keys of the report with their headings."""
    body = [
        tuple(Item(amount(row.get(key)), "text" if isinstance(row.get(key), str) else "num") for key, _ in keys) for row in items[:ROWS]
    ]
    return table(caption, tuple(label for _, label in keys), body, max(0, (total or len(items)) - ROWS), folded=folded)
