"""``postmortem.md``: complete and short, for issue trackers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics.exhibits import exhibit
from nccl_forensics.extras import Extras
from nccl_forensics.presentation import present
from nccl_forensics.render import render_text

_SPECIAL = re.compile(r"([\\`*\[\]{}|~$]|(?<!\w)_|_(?!\w))")
#: An operation and its number.
_NUMBERED = re.compile(
    r"((?<![^\s(])(?:[a-z]{2,20}_[a-z_]{2,40}|broadcast|barrier|reduce|gather|scatter|send|recv|operation) #\d{1,12}(?!\w))", re.IGNORECASE
)
_TICKS = re.compile(r"`+")


def render(report: Mapping[str, object], extras: Extras) -> str:
    """The report in GitHub-flavoured Markdown. Foreign text is escaped in prose, and fenced or in code spans where it is quoted."""
    shown = [(e.title, said) for e in exhibit(report, extras).shown if (said := next((b.statement for b in e.blocks if b.statement), ""))]
    values = {"page": present(report, extras), "exhibits": shown}
    page = render_text("postmortem.md.j2", values, {"md": prose, "code": code, "fence": fence})
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def prose(text: str) -> str:
    """Text that stays text: no markup, no HTML, and no link, mention or issue number that a tracker would make of it. Operations with their
    number stand as code (``all_reduce #18``), where no tracker looks for issues."""
    parts = _NUMBERED.split(text)
    out = "".join(f"`{part}`" if n % 2 else _prose(part) for n, part in enumerate(parts))
    return re.sub(r"^([-+=]|\d+[.)])(?=\s|$)", r"\\\1", out)


def _prose(text: str) -> str:
    out = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    out = re.sub(r"([@#])(?=\w)", r"\1<!-- -->", out)
    return out.replace("://", "\\://").replace("www.", "www\\.")


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
