"""``comparison.md``: a comparison for issue trackers."""

from __future__ import annotations

import re

from nccl_forensics.changes import AREA_WORDS, Change, Differences, percent
from nccl_forensics.render import render_text
from nccl_forensics.reporters.markdown import code, prose


def render(compared: Differences) -> bytes:
    """GitHub-flavoured Markdown; foreign text is escaped."""
    page = render_text(
        "comparison.md.j2", {"compared": compared, "words": AREA_WORDS, "percent": _percents(compared)}, {"md": prose, "code": code}
    )
    return (re.sub(r"\n{3,}", "\n\n", page).strip() + "\n").encode()


def _percents(compared: Differences) -> dict[Change, str]:
    return {change: percent(change) for change in compared.every}
