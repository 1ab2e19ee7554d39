"""What a notebook shows of an incident: a piece of HTML without scripts, whose style does not leave it."""

from __future__ import annotations

from collections.abc import Mapping

from nccl_forensics.extras import Extras
from nccl_forensics.presentation import present
from nccl_forensics.render import render_html

#: Findings that are listed.
_FINDINGS = 12


def render(report: Mapping[str, object], extras: Extras) -> str:
    """A ``div`` with the verdict, its proof, what to do and the findings."""
    return render_html("notebook.html.j2", {"page": present(report, extras), "at_most": _FINDINGS})
