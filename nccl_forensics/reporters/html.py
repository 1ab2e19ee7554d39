"""``postmortem.html``: one file without any request to anywhere, readable without scripts, on paper and by a screen reader."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from nccl_forensics import drawings
from nccl_forensics.exhibits import CELL_WORDS, STATE_WORDS, Exhibits, exhibit
from nccl_forensics.extras import Extras
from nccl_forensics.figures import bundle, figures
from nccl_forensics.presentation import Presentation, present
from nccl_forensics.render import asset, render_html


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page, for its heading and the contents; ``template`` is empty where it stands in another's."""

    number: str
    anchor: str
    title: str
    template: str


def render(report: Mapping[str, object], extras: Extras) -> str:
    """The whole page. Style and scripts are allowed by their hashes only; nothing else can run or load."""
    page, shown = present(report, extras), exhibit(report, extras)
    plots = figures(report)
    style, script = asset("postmortem.css"), asset("postmortem.js")
    libraries = [asset("plots.js"), bundle()] if plots else []
    scripts = [_hash(s) for s in (script, *libraries)]
    # Plotly adds an empty style element and fills it through the object model, which the policy sees as an empty style.
    styles = [_hash(style)] + ([_hash("")] if plots else [])
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
            "libraries": libraries,
            "page": page,
            "shown": shown,
            "plots": plots,
            "absent": _absent(shown),
            "sections": {s.anchor: s for s in _sections(page, shown)},
            "timelines": [drawings.timeline(t) for t in shown.timelines],
            "timeline_legend": drawings.legend([c.state for t in shown.timelines for r in t.drawn.rows for c in r.cells], CELL_WORDS),
            "cluster": drawings.cluster(shown.cluster) if shown.cluster else "",
            "cluster_legend": drawings.legend([s.state for h in shown.cluster.drawn for s in h.seats], STATE_WORDS)
            if shown.cluster
            else (),
        },
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"


#: Parts of the report that evidence may leave empty: title, and what would fill it.
_EXHIBITS = {
    "timeline": ("Divergence timeline", "Flight Recorder dumps of all ranks, or NCCL logs with NCCL_DEBUG_SUBSYS=COLL"),
    "waits": ("Who waits for whom", "Flight Recorder dumps or logs that tell which collectives each rank entered"),
    "stacks": ("Where the ranks stand", "py-spy, gdb or faulthandler stacks of the processes"),
    "cluster": ("Cluster map", "any source that tells which rank ran on which host"),
    "transports": ("Transports and channels", "NCCL logs with NCCL_DEBUG=INFO"),
    "settings": ("Settings", "NCCL logs with NCCL_DEBUG=INFO, or the environment of each process"),
    "events": ("Sequence of events", "logs with times"),
    "measures": ("Measures", "profiler traces, nccl-tests output, or Flight Recorder dumps with times"),
}


def _present(shown: Exhibits) -> dict[str, bool]:
    return {
        "timeline": bool(shown.timelines),
        "waits": bool(shown.waits),
        "stacks": bool(shown.stacks),
        "cluster": bool(shown.cluster or shown.processes),
        "transports": shown.transports is not None,
        "settings": shown.settings is not None,
        "events": bool(shown.events),
        "measures": bool(shown.measures),
    }


def _absent(shown: Exhibits) -> list[tuple[str, str]]:
    return [_EXHIBITS[kind] for kind, there in _present(shown).items() if not there]


def _sections(page: Presentation, shown: Exhibits) -> list[Section]:
    """A proved cause is told as a story; without one, what was found, checked and missing comes before the exhibits."""
    explained = page.status == "explained"
    story = [
        ("why", "Why we believe it", explained),
        ("doubt", "What else it could be", bool(explained or page.alternatives or page.would_refute)),
        ("now", "What to do now", explained),
        ("further", "Further causes", bool(page.others)),
    ]
    exhibits = [(kind, _EXHIBITS[kind][0], there) for kind, there in _present(shown).items()]
    findings = [("findings", "Findings", True)]
    checks = [
        ("checked", "What was checked", True),
        ("unread", "What could not be read", True),
        ("absent", "What there was no evidence of", bool(_absent(shown))),
        ("collect", "What to collect next time", True),
        ("checklist", "Checklist", True),
    ]
    order = [*story, *exhibits, *findings, *checks] if explained else [*findings, *checks, *story, *exhibits]
    kept = [(anchor, title) for anchor, title, wanted in [*order, ("notes", "Author's notes", True)] if wanted]
    return [
        *(Section(str(n), anchor, title, anchor) for n, (anchor, title) in enumerate(kept, 1)),
        Section("A", "sources", "Sources", "appendix"),
        Section("B", "thresholds", "Thresholds", ""),
        Section("C", "versions", "Versions", ""),
    ]
