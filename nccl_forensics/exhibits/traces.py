"""Where the time of each rank goes, from profiler traces."""

from __future__ import annotations

from nccl_forensics.exhibits.base import Block, Report
from nccl_forensics.exhibits.measures import measured, share, value
from nccl_forensics.extras import Extras
from nccl_forensics.figures import POINTS, figure
from nccl_forensics.presentation import amount, number, part, rows

_PARTS = (("compute", "compute"), ("exposed", "exposed communication"), ("memcpy", "memcpy"), ("idle", "idle"))


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """The parts of each rank's time."""
    measures = part(report, "measures")
    traces = rows(measures, "traces")
    if not traces:
        return ()
    worst = max(traces, key=lambda t: share(t, "exposed_ms", "span_ms") or 0.0)
    exposed = share(worst, "exposed_ms", "span_ms")
    said = f"{len(traces)} traces were measured."
    if exposed is not None:
        said = f"Rank {amount(worst.get('rank'))} spends the largest share of its time in communication that nothing hides: {exposed:.0%}."
    keys = (
        ("rank", "Rank"),
        ("window", "Window"),
        ("compute_ms", "Compute ms"),
        ("communication_ms", "Communication ms"),
        ("exposed_ms", "Exposed ms"),
        ("memcpy_ms", "Memcpy ms"),
        ("idle_ms", "Idle ms"),
        ("span_ms", "Span ms"),
        ("overlap_fraction", "Overlap"),
    )
    ordered = sorted(traces[:POINTS], key=lambda t: number(t, "rank") or 0)
    bars = [
        {
            "type": "bar",
            "name": label,
            "meta": key,
            "x": [str(t.get("rank")) for t in ordered],
            "y": [value(t, f"{key}_ms") for t in ordered],
        }
        for key, label in _PARTS
    ]
    layout = {
        "height": 340,
        "barmode": "stack",
        "xaxis": {"title": {"text": "rank"}, "type": "category"},
        "yaxis": {"title": {"text": "ms"}},
    }
    plot = figure("traces", "Where the time of each rank goes", bars, layout, said)
    table = measured("Where the time of each rank goes", keys, traces, number(measures, "traces_total"), folded=True)
    return (Block(said, figures=(plot,), tables=(table,)),)
