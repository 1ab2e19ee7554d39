"""Interactive figures: the one home of Plotly, with the one theme that all of them share. A report without figures never loads it.

Figures carry data and axes only; colours, fonts and margins come from ``themes``, which the page applies for light and dark. The script is
the partial bundle with Cartesian traces (``reports/vendor``), so a figure uses these kinds: scatter, bar, box, violin, heatmap, histogram,
histogram2d, contour, pie, image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.resources import reports_folder

#: Points of a figure; worst first, as the report lists them.
POINTS = 512
#: Colours that stay apart for the colour-blind (after Okabe and Ito), in the order in which traces take them: for light and for dark paper.
_LIGHT = ("#0072B2", "#D55E00", "#5b7f95", "#CC79A7", "#009E73", "#B8860B", "#56B4E9", "#555f6b")
_DARK = ("#4aa8e0", "#ff8a4c", "#8fb0c4", "#e3a0c5", "#3cc9a0", "#e6bd5c", "#9bd4f5", "#a1abb7")
#: Traces that mean one thing everywhere name it in ``meta``; the page gives them the colour of that meaning.
MEANINGS = {"compute": 0, "exposed": 1, "memcpy": 3, "idle": 7, "hidden": 2, "bad": 1, "good": 0}
KINDS = frozenset({"scatter", "bar", "box", "violin", "heatmap", "histogram", "histogram2d", "contour", "pie", "image"})
_SANS = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as Plotly's JSON. ``name`` is unique on the page and made of letters, digits and dashes; ``statement`` says in one
    sentence what is to be seen, for readers who do not see it."""

    name: str
    title: str
    json: str
    statement: str = ""


def figure(name: str, title: str, traces: Sequence[Mapping[str, object]], layout: Mapping[str, object], statement: str = "") -> Figure:
    """A figure of traces (Plotly's own words) and what is special about its layout. Raises ``ValueError`` where Plotly would not draw
    it."""
    from plotly.graph_objects import Figure as Plot

    unknown = {str(t.get("type")) for t in traces} - KINDS
    if unknown:
        raise ValueError(f"not in the bundle: {', '.join(sorted(unknown))}")
    drawn = Plot(data=[dict(t) for t in traces], layout=dict(layout), layout_template=None).to_json(engine="json")
    return Figure(name, title, drawn.replace("<", "\\u003c"), statement)


def themes() -> str:
    """The theme for light and dark as JSON: ``{"light": layout, "dark": layout, "meanings": {word: colour index}}``."""
    made = {
        "light": _theme(_LIGHT, "#16191d", "#56606c", "#e1e5ea", "#ffffff"),
        "dark": _theme(_DARK, "#e7eaee", "#a1abb7", "#2c333b", "#1c2127"),
    }
    return json.dumps({**made, "meanings": MEANINGS}, sort_keys=True).replace("<", "\\u003c")


def _theme(colours: Sequence[str], ink: str, soft: str, line: str, paper: str) -> dict[str, object]:
    axis: dict[str, object] = {
        "gridcolor": line,
        "linecolor": line,
        "zerolinecolor": line,
        "tickcolor": line,
        "tickfont": {"color": soft, "size": 12},
    }
    axis |= {"title": {"font": {"color": soft, "size": 12}, "standoff": 10}, "automargin": True}
    return {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(colours),
            "colorscale": {"sequential": _scale(line, colours[0]), "diverging": [[0, colours[0]], [0.5, line], [1, colours[1]]]},
            "font": {"family": _SANS, "size": 13, "color": ink},
            "hoverlabel": {"bgcolor": paper, "bordercolor": line, "font": {"color": ink, "size": 12}},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": soft, "size": 12}},
            "margin": {"l": 64, "r": 16, "t": 34, "b": 52},
            "bargap": 0.25,
            "xaxis": {**axis, "showgrid": False},
            "yaxis": axis,
        },
        "data": {
            "heatmap": [
                {
                    "type": "heatmap",
                    "colorscale": _scale(line, colours[0]),
                    "colorbar": {"thickness": 12, "outlinewidth": 0, "tickfont": {"color": soft}},
                }
            ]
        },
    }


def _scale(low: str, high: str) -> list[list[object]]:
    return [[0, low], [1, high]]


def bundle() -> str:
    """Plotly's script."""
    return (reports_folder() / "vendor" / "plotly-cartesian.min.js").read_text(encoding="utf-8").replace("\r\n", "\n")
