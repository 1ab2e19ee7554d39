"""What reports show, as frozen values: plain text, already chosen, counted and worded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContextText:
    """One raw line around an evidence line."""

    number: int
    text: str
    marked: bool


@dataclass(frozen=True, slots=True)
class Quote:
    """One evidence item. ``where`` is what one copies: ``path:line``, ``path entries[18]`` or ``path``; empty for an absence."""

    kind: str
    where: str
    path: str
    text: str
    why: str
    looked_in: tuple[str, ...]
    truncated: bool
    masked: bool
    context: tuple[ContextText, ...]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of one file with one mark or more: evidence that stands close together is shown once, not once for each mark."""

    quotes: tuple[Quote, ...]
    context: tuple[ContextText, ...]


#: An excerpt of more lines is not made longer.
_LONGEST_EXCERPT = 30


def excerpts(quotes: Sequence[Quote]) -> tuple[Excerpt, ...]:
    """Quotes in their order; neighbours in one file whose lines overlap or touch are one excerpt."""
    found: list[Excerpt] = []
    for quote in quotes:
        if found and _adjoins(found[-1], quote):
            found[-1] = Excerpt((*found[-1].quotes, quote), _together(found[-1].context, quote.context))
        else:
            found.append(Excerpt((quote,), quote.context))
    return tuple(found)


def _adjoins(excerpt: Excerpt, quote: Quote) -> bool:
    have, new = excerpt.context, quote.context
    return (
        bool(have and new)
        and quote.path == excerpt.quotes[-1].path
        and new[0].number <= have[-1].number + 1
        and have[0].number <= new[-1].number + 1
        and max(have[-1].number, new[-1].number) - min(have[0].number, new[0].number) < _LONGEST_EXCERPT
    )


def _together(*contexts: Sequence[ContextText]) -> tuple[ContextText, ...]:
    """Each line once, marked where one of the contexts marks it."""
    lines: dict[int, ContextText] = {}
    for line in (line for context in contexts for line in context):
        if line.number not in lines or line.marked:
            lines[line.number] = line
    return tuple(lines[number] for number in sorted(lines))


@dataclass(frozen=True, slots=True)
class FindingText:
    """One finding. ``marks`` are words of its standing: suppressed, explained by another."""

    id: str
    anchor: str
    rule: str
    code: str
    cause: str
    severity: str
    confidence: str
    title: str
    summary: str
    ranks: str
    hosts: str
    explained_by: str
    explained_by_anchor: str
    suppressed: str
    quotes: tuple[Quote, ...]
    more_quotes: int
    remedy: str
    prevention: str
    metrics: tuple[tuple[str, str], ...]
    search: str

    @property
    def excerpts(self) -> tuple[Excerpt, ...]:
        """The quotes, put together where they stand close together."""
        return excerpts(self.quotes)


@dataclass(frozen=True, slots=True)
class ActionText:
    """One thing to do; ``target`` says on what."""

    number: int
    what: str
    target: str
    command: str
    confidence: str


@dataclass(frozen=True, slots=True)
class Party:
    """One culprit: ``name`` is the most telling field, ``particulars`` the rest."""

    name: str
    particulars: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Opinion:
    """The verdict, or one further cause. ``proof`` are those of its quotes that a first screen shows, most telling first."""

    cause: str
    meaning: str
    confidence: str
    title: str
    summary: str
    who: str
    who_is: str
    hosts: str
    no_host: str
    parties: tuple[Party, ...]
    more_parties: int
    collective: str
    no_collective: str
    group: str
    because: tuple[FindingText, ...]
    explains: tuple[FindingText, ...]
    quotes: tuple[Quote, ...]
    proof: tuple[Quote, ...]
    more_quotes: int
    remedy: str
    prevention: str
    actions: tuple[ActionText, ...]

    @property
    def excerpts(self) -> tuple[Excerpt, ...]:
        """The quotes, put together where they stand close together."""
        return excerpts(self.quotes)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another cause that was weighed."""

    cause: str
    meaning: str
    who: str
    against: str


@dataclass(frozen=True, slots=True)
class RuleText:
    """What became of one rule."""

    rule: str
    code: str
    status: str
    missing: str
    error: str
    thresholds: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SourceText:
    """One source; counts are text, empty where not known."""

    path: str
    formats: str
    host: str
    ranks: str
    attempt: str
    size: str
    lines: str
    records: str
    gaps: str
    unmodelled: str
    foreign: str
    stale: bool
    error: str


@dataclass(frozen=True, slots=True)
class GapText:
    """Evidence that would settle more."""

    what: str
    why: str
    who: str
    command: str


@dataclass(frozen=True, slots=True)
class CheckText:
    """One item of the checklist."""

    item: str
    answer: str
    word: str
    finding: str
    anchor: str
    where: str
    section: str
    command: str


@dataclass(frozen=True, slots=True)
class Unmade:
    """Checks that were not made, and the evidence that all of them lacked, in words."""

    missing: str
    checks: tuple[str, ...]

    @property
    def names(self) -> str:
        return ", ".join(self.checks)

    @property
    def brief(self) -> str:
        """``24 checks (peer-gone, version-mismatch …)``; few are named alone."""
        if len(self.checks) <= 3:
            return self.names
        return f"{len(self.checks)} checks ({', '.join(self.checks[:2])} …)"


@dataclass(frozen=True, slots=True)
class Presentation:
    """Everything that a report says, but for the figures of ``exhibits``."""

    title: str
    generator: str
    version: str
    inputs: tuple[str, ...]
    particulars: tuple[tuple[str, str], ...]
    status: str
    status_word: str
    confidence: str
    confidence_meaning: str
    run: str
    when: str
    outcome: str
    outcome_words: str
    goes_on: bool
    headline: str
    lead: str
    verdict: Opinion
    others: tuple[Opinion, ...]
    alternatives: tuple[Alternative, ...]
    would_refute: tuple[str, ...]
    findings: tuple[FindingText, ...]
    more_findings: int
    counts: tuple[tuple[str, int], ...]
    rules_found: tuple[RuleText, ...]
    rules_clean: tuple[RuleText, ...]
    rules_skipped: tuple[RuleText, ...]
    rules_crashed: tuple[RuleText, ...]
    checks: str
    skipped_by_missing: tuple[Unmade, ...]
    clean_by_cause: tuple[tuple[str, str, str], ...]
    thresholds: tuple[tuple[str, str, str], ...]
    sources: tuple[SourceText, ...]
    more_sources: int
    sources_total: int
    sources_in_error: tuple[SourceText, ...]
    sources_failed: int
    sources_empty: int
    sources_with_gaps: tuple[SourceText, ...]
    gaps: tuple[GapText, ...]
    more_gaps: int
    checklist: tuple[CheckText, ...]
    checklist_counts: str
    ranks_missing: str
    ranks_missing_words: str
    versions: tuple[tuple[str, str], ...]
    broken_plugins: tuple[str, ...]
