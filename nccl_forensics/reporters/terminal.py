"""The verdict on one screen of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nccl_forensics.extras import Extras
from nccl_forensics.plain import cut_columns
from nccl_forensics.presentation import EMPTY, Presentation, Quote, present

#: Lines of one screen, and the column in which values start.
SCREEN, LABEL = 40, 13
_NARROWEST, _WIDEST = 60, 120
_COMMAND = 240
#: Quotes of which a second line is shown.
_FOLDED = 2
_STYLES = {"bold": "1", "dim": "2", "bad": "1;31", "warn": "1;33", "good": "1;32", "mark": "36"}
_TONES = {"explained": "bad", "unexplained": "warn", "nothing-wrong": "good", "insufficient-evidence": "warn"}
#: Half of a word is no longer.
_HALF = 24


@dataclass(slots=True)
class _Page:
    """Lines written so far, with what is left of the screen."""

    width: int
    color: bool
    lines: list[str] = field(default_factory=list)

    def left(self) -> int:
        return SCREEN - len(self.lines)

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color and style and text else text

    def line(self, text: str, style: str = "") -> None:
        self.lines.append(self.paint(cut_columns(text, self.width), style))

    def rule(self) -> None:
        self.line("─" * self.width, "dim")

    def entry(self, label: str, texts: Sequence[tuple[str, str]]) -> None:
        """A label, then one line per text with its style; the label stands before the first."""
        for n, (text, style) in enumerate(texts):
            head = self.paint((label if n == 0 else "").ljust(LABEL), "bold" if n == 0 else "")
            shown = text if text.lstrip().startswith("$ ") else cut_columns(text, self.width - LABEL)
            self.lines.append((head + self.paint(shown, style)).rstrip())

    def folded(self, text: str, at_most: int, indent: int = 0) -> list[str]:
        """Text in lines that fit beside the label; the last one says when text was cut."""
        room = self.width - LABEL - indent
        wrapped = textwrap.wrap(text, room, break_long_words=True, break_on_hyphens=False) or [""]
        if len(wrapped) > at_most:
            wrapped = [*wrapped[: at_most - 1], _at_word(cut_columns(" ".join(wrapped[at_most - 1 :]), room))]
        return [" " * (indent if n else 0) + w for n, w in enumerate(wrapped)]


def _at_word(cut: str) -> str:
    """A text that was cut, without the half of a word at its end; of what has no spaces, such as a path, as much as there is."""
    head, space, half = cut.removesuffix("…").rpartition(" ")
    return f"{head} …" if cut.endswith("…") and space and len(half) <= _HALF else cut


def render(report: Mapping[str, object], extras: Extras, *, color: bool, width: int) -> str:
    """At most one screen, ends with a newline. Without ``color`` there is no escape sequence in it."""
    shown = present(report, extras)
    page = _Page(max(_NARROWEST, min(width, _WIDEST)), color)
    _head(page, shown)
    if shown.status == "explained":
        _who(page, shown)
        _why(page, shown.verdict.proof)
        _doing(page, shown)
        _doubt(page, shown)
    else:
        _others_found(page, shown)
    tail = _tail(shown)
    # Where nothing seems wrong, what nobody could look at says more than what would help to look further.
    unchecked = [] if shown.status == "explained" else _not_checked(shown)
    first = shown.status == "nothing-wrong"
    if first:
        _unchecked(page, unchecked)
    _missing(page, shown, page.left() - len(tail) - 1 - (0 if first else len(unchecked)))
    if not first:
        _unchecked(page, unchecked)
    page.rule()
    for label, text, style in tail:
        page.entry(label, [(text, style)])
    return "\n".join(page.lines) + "\n"


def _head(page: _Page, shown: Presentation) -> None:
    page.line(" · ".join(t for t in (shown.title, shown.run, shown.when) if t), "bold")
    if shown.particulars:
        page.line(" · ".join(f"{label} {value}" for label, value in shown.particulars[:5]), "dim")
    page.rule()
    tone = _TONES.get(shown.status, "warn")
    said = shown.status_word.upper()
    if shown.verdict.cause:
        said += f"  {shown.verdict.cause}"
    if shown.confidence and shown.status == "explained":
        said += f"  ({shown.confidence} confidence)"
    page.line(said, tone)
    for text in textwrap.wrap(shown.headline, page.width, break_on_hyphens=False)[:3]:
        page.line(text, "bold")
    if shown.lead:
        for text in page.folded(shown.lead, 3):
            page.line(text)
    page.line("")


def _who(page: _Page, shown: Presentation) -> None:
    verdict = shown.verdict
    texts = [", ".join([p.name, *(f"{label} {value}" for label, value in p.particulars)]) for p in verdict.parties]
    if len(texts) > 2 or verdict.more_parties:
        # Parts are told with the host that they are in; ranks are not.
        told = f" on {verdict.hosts}" in verdict.who or "host" in verdict.who
        texts = [verdict.who + (f" on {verdict.hosts}" if verdict.hosts and not told else "")]
    page.entry("Who", [(t, "bold") for t in texts or ["no rank and no host alone"]])
    if verdict.collective:
        page.entry("Collective", [(" of ".join(t for t in (verdict.collective, verdict.group) if t), "")])


def _why(page: _Page, quotes: Sequence[Quote]) -> None:
    texts: list[tuple[str, str]] = []
    for n, quote in enumerate(quotes[:4]):
        if quote.kind == "absence":
            texts.append((f"{quote.why}; looked in {', '.join(quote.looked_in) or 'all that was handed in'}", ""))
            continue
        texts.append((quote.where + (f"  ({quote.why})" if quote.why and quote.text else ""), "mark"))
        # What a line tells often stands at its end.
        said = quote.text.strip() or quote.why
        texts += [(f"  {t}", "") for t in (page.folded(said, 2, 2) if n < _FOLDED else [said])]
    page.entry("Why", texts or [("no line of evidence could be quoted", "")])


def _doing(page: _Page, shown: Presentation) -> None:
    verdict = shown.verdict
    texts: list[tuple[str, str]] = [(t, "") for t in page.folded(verdict.remedy, 2)] if verdict.remedy else []
    for action in verdict.actions[:3]:
        texts.append((f"{action.number}. {action.what}{': ' + action.target if action.target else ''}", "bold"))
        if action.command:
            texts += _command(action.command)
    page.entry("Do now", texts or [("nothing is proposed", "")])
    if verdict.prevention:
        page.entry("Prevent", [(t, "") for t in page.folded(verdict.prevention, 2)])


def _command(command: str) -> list[tuple[str, str]]:
    """A command is never cut in the middle, for it is copied; one that is too long for a screen stands in the other reports."""
    if "\n" in command or len(command) > _COMMAND:
        return [("   (a long command: see postmortem.md)", "dim")]
    return [(f"   $ {command}", "mark")]


def _doubt(page: _Page, shown: Presentation) -> None:
    for other in shown.others[:2]:
        page.entry("Also", [(f"{other.cause}: {other.title}", "")])
    for n, alternative in enumerate(shown.alternatives[:2]):
        # What nothing speaks against is as open as the verdict.
        label = "Weighed" if alternative.against else "Or else"
        against = f": {alternative.against}" if alternative.against else ""
        page.entry(label, [(t, "") for t in page.folded(f"{alternative.cause} {alternative.who}".rstrip() + against, 1 if n else 2)])
    if shown.would_refute:
        page.entry("Refuted by", [(t, "") for t in page.folded(shown.would_refute[0], 2)])


def _others_found(page: _Page, shown: Presentation) -> None:
    visible = [f for f in shown.findings if not f.suppressed]
    texts = [line for n, f in enumerate(visible[:6]) for line in page.folded(f"{f.severity}: {f.title}", 1 if n else 2)]
    if texts:
        page.entry("Findings", [(t, "") for t in texts])


def _not_checked(shown: Presentation) -> list[tuple[str, str]]:
    texts = [(f"no {u.missing}: {u.brief}", "") for u in shown.skipped_by_missing[:6]]
    rest = len(shown.skipped_by_missing) - 6
    return [*texts, (f"… and {rest} more kinds of evidence", "dim")] if rest > 0 else texts


def _unchecked(page: _Page, texts: Sequence[tuple[str, str]]) -> None:
    if texts:
        page.entry("Not checked", texts)


def _missing(page: _Page, shown: Presentation, room: int) -> None:
    texts: list[tuple[str, str]] = []
    for gap in shown.gaps[:3]:
        block = [(f"{gap.what}{' (' + gap.who + ')' if gap.who else ''}", "")]
        if gap.command:
            block += _command(gap.command)
        if len(texts) + len(block) > room:
            break
        texts += block
    if texts:
        page.entry("Missing", texts)


def _tail(shown: Presentation) -> list[tuple[str, str, str]]:
    counts = ", ".join(f"{n} {severity}" for severity, n in shown.counts if n) or "none"
    explained = sum(bool(f.explained_by) for f in shown.findings)
    found = f"{counts}{f'; {explained} of them explained by another' if explained else ''}"
    checks = f"{len(shown.rules_found)} found something, {len(shown.rules_clean)} clean, {len(shown.rules_skipped)} not made for want of evidence"
    if shown.rules_crashed:
        checks += f", {len(shown.rules_crashed)} crashed"
    if shown.broken_plugins:
        checks += f"; {len(shown.broken_plugins)} extensions could not be loaded (nccl-forensics plugins)"
    out = [("Findings", found, ""), ("Checks", checks, "")]
    read = f"{shown.sources_total} {'source' if shown.sources_total == 1 else 'sources'}"
    # Launchers make the files of every rank, written to or not: an empty one is told, and is no trouble in reading.
    empty = f", {shown.sources_empty} of them empty" if shown.sources_empty else ""
    if shown.sources_failed > shown.sources_empty:
        names = "; ".join(f"{s.path}: {s.error}" for s in [s for s in shown.sources_in_error if s.error != EMPTY][:2])
        out.append(
            ("Sources", f"{read}{empty}, {shown.sources_failed - shown.sources_empty} could not be read as a whole: {names}", "warn")
        )
    elif shown.sources_empty:
        out.append(("Sources", f"{read}{empty}, all others could be read", ""))
    else:
        out.append(("Sources", f"{read}, all could be read", ""))
    return out
