"""``postmortem.md``: complete and short, for issue trackers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics.extras import Extras
from nccl_forensics.presentation import present
from nccl_forensics.render import render_text

_SPECIAL = re.compile(r"([\\`*\[\]{}|~$]|(?<!\w)_|_(?!\w))")
_TICKS = re.compile(r"`+")


def render(report: Mapping[str, object], extras: Extras) -> str:
    """The report in GitHub-flavoured Markdown. Foreign text is escaped in prose, and fenced or in code spans where it is quoted."""
    page = render_text("postmortem.md.j2", {"page": present(report, extras)}, {"md": prose, "code": code, "fence": fence})
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def prose(text: str) -> str:
    """Text that stays text: no markup, no HTML, and no link, mention or issue number that a tracker would make of it."""
    out = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    out = re.sub(r"([@#])(?=\w)", r"\1<!-- -->", out)
    out = out.replace("://", "\\://").replace("www.", "www\\.")
    return re.sub(r"^([-+=]|\d+[.)])(?=\s|$)", r"\\\1", out)


def code(text: str) -> str:
    """A code span that no content can leave."""
    if not text:
        return ""
    ticks = "`" * (max((len(t) for t in _TICKS.findall(text)), default=0) + 1)
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{ticks}{pad}{text}{pad}{ticks}".replace("|", "\\|") if "|" in text and ticks == "`" else f"{ticks}{pad}{text}{pad}{ticks}"


def fence(text: str) -> str:
    """A fenced block that no content can leave."""
    ticks = "`" * max(3, max((len(t) for t in _TICKS.findall(text)), default=0) + 1)
    return f"{ticks}text\n{text}\n{ticks}"
