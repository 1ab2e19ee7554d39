"""``postmortem.html``: one file without any request to anywhere, readable without scripts, on paper and by a screen reader."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from nccl_forensics import drawings
from nccl_forensics.exhibits import Exhibits, exhibit
from nccl_forensics.extras import Extras
from nccl_forensics.figures import bundle, figures
from nccl_forensics.presentation import Presentation, present
from nccl_forensics.render import asset, render_html


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page, for its heading and the contents."""

    number: str
    anchor: str
    title: str
    empty: bool


def render(report: Mapping[str, object], extras: Extras) -> str:
    """The whole page. Style and scripts are allowed by their hashes only; nothing else can run or load."""
    page, shown = present(report, extras), exhibit(report, extras)
    plots = figures(report)
    style, script = asset("postmortem.css"), asset("postmortem.js")
    library = bundle() if plots else ""
    scripts = [_hash(script)] + ([_hash(library)] if library else [])
    # Plotly adds an empty style element and fills it through the object model, which the policy sees as an empty style.
    styles = [_hash(style)] + ([_hash("")] if library else [])
    policy = (
        f"default-src 'none'; style-src {' '.join(styles)}; script-src {' '.join(scripts)}; img-src data:; font-src 'none'; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    return render_html(
        "postmortem.html.j2",
        {
            "policy": policy,
            "style": style,
            "script": script,
            "library": library,
            "page": page,
            "shown": shown,
            "plots": plots,
            "sections": {s.anchor: s for s in _sections(page, shown)},
            "timelines": [drawings.timeline(t) for t in shown.timelines],
            "timeline_legend": drawings.legend([c.state for t in shown.timelines for r in t.drawn.rows for c in r.cells]),
            "cluster": drawings.cluster(shown.cluster) if shown.cluster else "",
            "cluster_legend": drawings.legend([s.state for h in shown.cluster.drawn for s in h.seats]) if shown.cluster else (),
        },
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"


def _sections(page: Presentation, shown: Exhibits) -> list[Section]:
    explained = page.status == "explained"
    titles = (
        ("why", "Why we believe it", explained, False),
        (
            "doubt",
            "What else it could be",
            explained or bool(page.alternatives or page.would_refute),
            not (page.alternatives or page.would_refute),
        ),
        ("now", "What to do now", explained, False),
        ("further", "Further causes", bool(page.others), False),
        ("timeline", "Divergence timeline", True, not shown.timelines),
        ("waits", "Who waits for whom", True, not shown.waits),
        ("stacks", "Where the ranks stand", True, not shown.stacks),
        ("cluster", "Cluster map", True, not (shown.cluster or shown.processes)),
        ("transports", "Transports and channels", True, not shown.transports),
        ("settings", "Settings", True, not shown.settings),
        ("events", "Sequence of events", True, not shown.events),
        ("measures", "Measures", True, not shown.measures),
        ("findings", "Findings", True, not page.findings),
        ("checked", "What was checked", True, False),
        ("unread", "What could not be read", True, False),
        ("collect", "What to collect next time", True, not page.gaps),
        ("checklist", "Checklist", True, not page.checklist),
        ("notes", "Author's notes", True, False),
    )
    kept = [(anchor, title, empty) for anchor, title, wanted, empty in titles if wanted]
    return [
        *(Section(str(n), anchor, title, empty) for n, (anchor, title, empty) in enumerate(kept, 1)),
        Section("A", "sources", "Sources", not page.sources),
        Section("B", "thresholds", "Thresholds", not page.thresholds),
        Section("C", "versions", "Versions", False),
    ]
