"""``postmortem.html``: one file without any request to anywhere, readable without scripts, on paper and by a screen reader."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from nccl_forensics.drawings import cluster, timeline
from nccl_forensics.exhibits import Exhibits, Shown, exhibit
from nccl_forensics.exhibits.cluster import statement as cluster_statement
from nccl_forensics.exhibits.timeline import main_timeline
from nccl_forensics.exhibits.timeline import statement as timeline_statement
from nccl_forensics.extras import Extras
from nccl_forensics.figures import bundle, themes
from nccl_forensics.presentation import Presentation, present
from nccl_forensics.render import asset, render_html

#: Width and height of a picture on the first screen, and up to how many ranks it has a square for each,
#: and up to how many hosts it names them.
_GLANCE, _GLANCE_HIGH, _GLANCE_RANKS, _STRIPS = 344, 190, 16_384, 6


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page, for its heading and the contents; ``template`` is empty where it stands in another's, ``exhibit`` is set
    where it is an exhibit."""

    number: str
    anchor: str
    title: str
    template: str
    exhibit: Shown | None = None


@dataclass(frozen=True, slots=True)
class Glance:
    """A picture of the first screen with the sentence that it shows and the section that has the whole."""

    title: str
    statement: str
    svg: str
    anchor: str


def render(report: Mapping[str, object], extras: Extras) -> str:
    """The whole page. Style and scripts are allowed by their hashes only; nothing else can run or load."""
    page, shown = present(report, extras), exhibit(report, extras)
    plots = any(block.figures for e in shown.shown for block in e.blocks)
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
            "themes": themes() if plots else "",
            "page": page,
            "absent": shown.absent,
            "glances": _glances(extras, goes_on=page.goes_on),
            "sections": {s.anchor: s for s in _sections(page, shown)},
        },
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"


def _glances(extras: Extras, *, goes_on: bool) -> tuple[Glance, ...]:
    """What the first screen draws: where the ranks parted, and on which machines. Those of a job that goes on have not parted: whoever is behind
    in the moment of the look comes."""
    out = []
    group = None if goes_on else main_timeline(extras)
    if group is not None:
        said = timeline_statement(group)
        out.append(Glance("Where they parted", said, timeline.glance(group, said), "timeline"))
    ranks = sum(len(h.seats) for h in extras.cluster)
    if 0 < ranks <= _GLANCE_RANKS and (group is None or len(extras.cluster) > 1):
        said = cluster_statement(extras.cluster)
        if cluster.strip_lines(extras.cluster) <= _STRIPS:
            drawn = cluster.strips(extras.cluster, said, _GLANCE)
        else:
            drawn = cluster.mosaic(extras.cluster, said, _GLANCE, _GLANCE_HIGH)
        out.append(Glance(f"{ranks:,} {'rank' if ranks == 1 else 'ranks'} by host", said, drawn, "cluster"))
    return tuple(out)


def _sections(page: Presentation, shown: Exhibits) -> list[Section]:
    """A proved cause is told as a story; without one, what was found, checked and missing comes before the exhibits."""
    explained = page.status == "explained"
    story = [
        ("why", "Why we believe it", explained),
        ("now", "What to do now", explained),
        ("doubt", "What would refute it", bool(explained or page.alternatives or page.would_refute)),
        ("further", "Further causes", bool(page.others)),
    ]
    exhibits = [(e.anchor, e.title, True) for e in shown.shown]
    findings = [("findings", "Findings", True)]
    checks = [
        ("checked", "What was checked", True),
        ("unread", "What could not be read", True),
        ("absent", "What there was no evidence of", bool(shown.absent)),
        ("collect", "What to collect next time", True),
        ("checklist", "Checklist", True),
    ]
    order = [*story, *exhibits, *findings, *checks] if explained else [*findings, *checks[:1], *story, *exhibits, *checks[1:]]
    kept = [(anchor, title) for anchor, title, wanted in [*order, ("notes", "Author's notes", True)] if wanted]
    by_anchor = {e.anchor: e for e in shown.shown}
    return [
        *(
            Section(str(n), anchor, title, "exhibit" if anchor in by_anchor else anchor, by_anchor.get(anchor))
            for n, (anchor, title) in enumerate(kept, 1)
        ),
        Section("A", "sources", "Sources", "appendix"),
        Section("B", "thresholds", "Thresholds", ""),
        Section("C", "versions", "Versions", ""),
    ]
