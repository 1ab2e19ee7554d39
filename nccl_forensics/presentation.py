"""The one presentation model: what every report shows, in the order it is told, as plain text.

It reads ``report.json`` (the contract's mapping) and makes every foreign text harmless. Reporters place what stands here;
they neither count, choose nor word anything themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.extras import Extras
from nccl_forensics.model import CAUSES, SEVERITIES
from nccl_forensics.plain import plain
from nccl_forensics.supply import supply
from nccl_forensics.words import rank_list, ranks_words

Json = Mapping[str, object]

#: Longest text of a quote, of the reason beside it, of a sentence, of a command.
QUOTE, WHY, SENTENCE, COMMAND = 600, 240, 900, 2000
#: Rows of a list that a page shows; the rest is in ``tables/``.
ROWS = 200
#: Findings that a page shows, worst first; how many of them with up to ``QUOTES`` evidence items, and how many items the others have.
FINDINGS, QUOTED, QUOTES, FEW_QUOTES = 200, 30, 8, 2
#: Longest raw line around an evidence line.
CONTEXT = 300

STATUS_WORDS = {
    "explained": "Explained",
    "unexplained": "Unexplained",
    "nothing-wrong": "No fault found",
    "insufficient-evidence": "Not enough evidence",
}
#: Action words of the contract; spelled with ``-`` here, evidence of hosts spells them with ``_``.
ACTION_WORDS = {
    "exclude-node": "Exclude the node",
    "fix-code": "Fix the code",
    "fix-application": "Fix the application",
    "fix-config": "Fix the configuration",
    "change-setting": "Change the setting",
    "collect-more": "Collect more evidence",
    "restart-job": "Restart the job",
    "reset-gpu": "Reset the GPU",
    "reboot-node": "Reboot the node",
    "drain-and-reset": "Drain the node and reset the GPU",
    "check-cable-or-optic": "Check the cable or optic",
    "check-power-or-cooling": "Check power and cooling",
    "replace-hw": "Replace the hardware",
    "replace-hw(RMA)": "Replace the hardware",
    "update-sw-fw": "Update software or firmware",
    "raise-memory-limit": "Raise the memory limit",
    "none": "Nothing to do",
}
OUTCOME_WORDS = {"hung": "hung", "crashed": "crashed", "slow": "ran slowly", "stopped": "was stopped", "finished": "finished"}
CONFIDENCE_MEANING = {
    "high": "the evidence proves it",
    "medium": "the evidence points to it, and something that would settle it is missing",
    "low": "one of several readings of the evidence",
}


#: What the reading stage says of a file without a byte.
EMPTY = "empty file"


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
    group: str
    because: tuple[FindingText, ...]
    explains: tuple[FindingText, ...]
    quotes: tuple[Quote, ...]
    proof: tuple[Quote, ...]
    more_quotes: int
    remedy: str
    prevention: str
    actions: tuple[ActionText, ...]


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
    skipped_by_missing: tuple[tuple[str, str], ...]
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


def present(report: Json, extras: Extras) -> Presentation:
    """The presentation of a report."""
    case, verdict = part(report, "case"), part(report, "verdict")
    status = text(verdict, "status") or "insufficient-evidence"
    every = rows(report, "findings")
    ordered = sorted(every, key=lambda f: _severity_order(text(f, "severity")))
    explainable = {text(f, "id"): f for f in every}
    wanted = _cited_findings(verdict)
    shown = [f for n, f in enumerate(ordered) if n < FINDINGS or text(f, "id") in wanted]
    findings = {text(f, "id"): _finding(f, explainable, extras, QUOTES if n < QUOTED else FEW_QUOTES) for n, f in enumerate(shown)}
    rules = [_rule(r) for r in rows(report, "rules")]
    skipped = tuple(r for r in rules if r.status == "skipped")
    sources = rows(report, "sources")
    texts = [_source(s) for s in sources]
    total_sources = number(report, "sources_total") or len(sources)
    gaps = rows(report, "gaps")
    opinion = _opinion(verdict, findings)
    others = tuple(_opinion(o, findings) for o in rows(verdict, "others")[:20])
    run = _run(case, verdict)
    checklist = _checklist(rows(report, "checklist"), findings)
    outcome = OUTCOME_WORDS.get(text(run, "outcome"), "")
    headline, lead = _headline(status, opinion, verdict, outcome, skipped)
    generator = part(report, "generator")
    return Presentation(
        title=text(case, "title") or _joined(words(case, "inputs")) or "incident",
        generator=text(generator, "name") or "nccl-forensics",
        version=text(generator, "version"),
        inputs=tuple(words(case, "inputs")[:20]),
        particulars=(*_particulars(case), *_redaction(report)),
        status=status,
        status_word=STATUS_WORDS.get(status, status),
        confidence=opinion.confidence,
        confidence_meaning=CONFIDENCE_MEANING.get(opinion.confidence, "") if status == "explained" else "",
        run=_run_words(case, verdict),
        when=_span(text(run, "started_at") or text(case, "started_at"), text(run, "ended_at") or text(case, "ended_at")),
        outcome=outcome,
        outcome_words=f"the job {outcome}" if outcome else "",
        headline=headline,
        lead=lead,
        verdict=opinion,
        others=others,
        alternatives=tuple(
            Alternative(text(a, "cause"), CAUSES.get(text(a, "cause"), ""), _who(rows(a, "culprits")), text(a, "against"))
            for a in rows(verdict, "alternatives")[:20]
        ),
        would_refute=tuple(words(verdict, "would_refute")[:20]),
        findings=tuple(findings.values()),
        more_findings=len(every) - len(shown),
        counts=tuple((s, sum(text(f, "severity") == s for f in every)) for s in SEVERITIES),
        rules_found=tuple(r for r in rules if r.status == "found"),
        rules_clean=tuple(r for r in rules if r.status == "clean"),
        rules_skipped=skipped,
        rules_crashed=tuple(r for r in rules if r.status == "crashed"),
        checks=_checks(rules),
        skipped_by_missing=_by_missing(skipped),
        clean_by_cause=_by_cause(rules, rows(report, "rules")),
        thresholds=tuple((r.rule, name, value) for r in rules for name, value in r.thresholds),
        sources=tuple(texts[:ROWS]),
        more_sources=max(0, total_sources - ROWS),
        sources_total=total_sources,
        sources_in_error=tuple(s for s in texts if s.error)[:ROWS],
        sources_failed=sum(bool(s.error) for s in texts),
        sources_empty=sum(s.error == EMPTY for s in texts),
        sources_with_gaps=tuple(t for t, s in zip(texts, sources, strict=True) if number(s, "gaps") and not t.error)[:ROWS],
        gaps=tuple(_gap(g) for g in gaps[:50]),
        more_gaps=max(0, (number(report, "gaps_total") or len(gaps)) - 50),
        checklist=checklist[:ROWS],
        checklist_counts=_checklist_counts(checklist),
        ranks_missing=rank_list(ranks(case, "ranks_missing")),
        ranks_missing_words=rank_list(ranks(case, "ranks_missing"), 4),
        versions=_versions(case, generator),
        broken_plugins=tuple(_plugin(p) for p in rows(report, "plugins") if p.get("error") is not None)[:ROWS],
    )


# --- reading the mapping ---------------------------------------------------------------------------------------------------


def part(mapping: Json, key: str) -> Json:
    """A nested mapping; empty where there is none."""
    value = mapping.get(key)
    return value if isinstance(value, Mapping) else {}


def rows(mapping: Json, key: str) -> Sequence[Json]:
    """A list of mappings; empty where there is none."""
    value = mapping.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def words(mapping: Json, key: str, limit: int = SENTENCE) -> list[str]:
    """A list of harmless texts."""
    value = mapping.get(key)
    return [plain(item, limit) for item in value if item is not None] if isinstance(value, list | tuple) else []


def ranks(mapping: Json, key: str) -> list[int]:
    """A list of rank numbers."""
    value = mapping.get(key)
    return [item for item in value if isinstance(item, int)] if isinstance(value, list | tuple) else []


def text(mapping: Json, key: str, limit: int = SENTENCE) -> str:
    """A harmless text; empty for null."""
    return plain(mapping.get(key), limit)


def command(mapping: Json) -> str:
    """The command of an action or gap: the one text that may have several lines."""
    value = mapping.get("command")
    return "\n".join(plain(line, COMMAND) for line in str(value).splitlines()[:40]) if value else ""


def number(mapping: Json, key: str) -> int | None:
    """A whole number, or None."""
    value = mapping.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def amount(value: object) -> str:
    """A number as people read it: thousands in groups, at most four significant decimals; null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return plain(value, 200)


def sentence(words_: str) -> str:
    """A capital at the start where a plain word stands there; names of operations and settings stay as they are."""
    first = words_.split(" ", 1)[0]
    return words_[:1].upper() + words_[1:] if first.isalpha() and first.islower() else words_


def size(value: int | None) -> str:
    """Bytes in the largest unit that leaves a whole number or one decimal (10^3 steps)."""
    if value is None:
        return ""
    scaled, units = float(value), ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if scaled < 1000 or unit == units[-1]:
            return f"{scaled:.0f} {unit}" if unit == "B" or scaled >= 100 else f"{scaled:.1f} {unit}"
        scaled /= 1000
    return ""


# --- the parts -------------------------------------------------------------------------------------------------------------


def _severity_order(severity: str) -> int:
    return next((n for n, s in enumerate(SEVERITIES) if s == severity), len(SEVERITIES))


def _joined(items: Sequence[str], at_most: int = 6) -> str:
    rest = len(items) - at_most
    return ", ".join(items[:at_most]) + (f" … and {rest:,} more" if rest > 0 else "")


def _cited_findings(verdict: Json) -> set[str]:
    cited = {*words(verdict, "because"), *words(verdict, "explains")[:50]}
    for other in rows(verdict, "others"):
        cited |= set(words(other, "because"))
    return cited


def _who(culprits: Sequence[Json]) -> str:
    """``rank 3``, ``ranks 1-4``, else hosts, links or NICs."""
    numbers = [r for c in culprits if (r := number(c, "rank")) is not None]
    if numbers:
        return ranks_words(numbers)
    for key, word in (("link", "link"), ("nic", "NIC"), ("gpu", "GPU"), ("host", "host")):
        names = list(dict.fromkeys(text(c, key, 80) for c in culprits if c.get(key) is not None))
        if names:
            hosts = list(dict.fromkeys(text(c, "host", 80) for c in culprits if c.get("host") is not None))
            where = f" on {_joined(hosts, 4)}" if hosts and key != "host" else ""
            return f"{word}{'' if len(names) == 1 else 's'} {_joined(names)}{where}"
    return ""


def _who_is(culprits: Sequence[Json]) -> str:
    """The question that ``who`` answers."""
    numbers = {number(c, "rank") for c in culprits} - {None}
    return "Which part" if culprits and not numbers else "Which ranks" if len(numbers) > 1 else "Which rank"


def _party(culprit: Json) -> Party:
    labels = (("host", "host"), ("gpu", "GPU"), ("pid", "pid"), ("nic", "NIC"), ("link", "link"))
    facts = [(label, text(culprit, key, 160)) for key, label in labels if culprit.get(key) is not None]
    rank = number(culprit, "rank")
    if rank is not None:
        return Party(f"rank {rank}", tuple(facts))
    if not facts:
        return Party("not known", ())
    label, value = facts[-1] if len(facts) > 1 else facts[0]
    return Party(f"{label} {value}", tuple(f for f in facts if f != (label, value)))


def _opinion(verdict: Json, findings: Mapping[str, FindingText]) -> Opinion:
    culprits = rows(verdict, "culprits")
    because = tuple(findings[i] for i in words(verdict, "because") if i in findings)
    quotes = list(dict.fromkeys(q for f in because for q in f.quotes))
    point = part(verdict, "first_divergence")
    cause = text(verdict, "cause")
    summary = text(verdict, "summary")
    hosts = list(dict.fromkeys(text(c, "host", 80) for c in culprits if c.get("host") is not None))
    title = because[0].title if because else summary
    return Opinion(
        cause=cause,
        meaning=CAUSES.get(cause, ""),
        confidence=text(verdict, "confidence"),
        title=title,
        summary=_beyond(title, summary) if because else summary,
        who=_who(culprits),
        who_is=_who_is(culprits),
        hosts=_joined(hosts),
        no_host=_where_words(culprits),
        parties=tuple(_party(c) for c in culprits[:8]),
        more_parties=max(0, len(culprits) - 8),
        collective=_operation(point),
        group=_group(point),
        because=because,
        explains=tuple(findings[i] for i in words(verdict, "explains")[:50] if i in findings),
        quotes=tuple(quotes[:8]),
        proof=_proof(quotes),
        more_quotes=sum(f.more_quotes for f in because) + max(0, len(quotes) - 8),
        remedy=text(verdict, "remedy"),
        prevention=text(verdict, "prevention"),
        actions=tuple(_action(n, a) for n, a in enumerate(rows(verdict, "actions")[:20], 1)),
    )


def _where_words(culprits: Sequence[Json]) -> str:
    """What to say where no host is named."""
    return "not told by the evidence" if culprits else "no host alone is to blame"


def _proof(quotes: Sequence[Quote]) -> tuple[Quote, ...]:
    """The evidence for a first screen: one item for each different reason before a second one for the same."""
    seen: set[str] = set()
    repeated: list[Quote] = []
    first: list[Quote] = []
    for quote in quotes:
        (repeated if quote.why in seen else first).append(quote)
        seen.add(quote.why)
    return tuple(first[:6] if len(first) > 2 else [*first, *repeated][: 3 + len(first)])


def _operation(point: Json) -> str:
    op, seq = text(point, "op", 120), number(point, "seq")
    if not op and seq is None:
        return ""
    return f"{op or 'operation'} #{seq}" if seq is not None else op


def _group(point: Json) -> str:
    group, comm = text(point, "process_group", 120), text(point, "comm_id", 80)
    return ", ".join(p for p in (f"process group {group}" if group else "", f"communicator {comm}" if comm else "") if p)


def _action(position: int, action: Json) -> ActionText:
    word = text(action, "action", 80).replace("_", "-")
    numbers = ranks(action, "ranks")
    targets = (
        ranks_words(numbers) if numbers else "",
        _joined(words(action, "hosts", 80)),
        f"GPU {_joined(words(action, 'gpus', 80))}" if words(action, "gpus") else "",
    )
    return ActionText(
        position,
        ACTION_WORDS.get(word, word.replace("-", " ").capitalize()),
        " · ".join(t for t in targets if t),
        command(action),
        text(action, "confidence", 20),
    )


#: A quoted line shorter than this tells nothing alone.
_TELLING = 12


def _quote(item: Json, context: Sequence[tuple[int, str, bool]]) -> Quote:
    path, line, record = text(item, "path", 400), number(item, "line"), text(item, "record", 120)
    where = f"{path}:{line}" if path and line is not None else f"{path} {record}" if path and record else path
    quoted = text(item, "text", QUOTE)
    if len(quoted.strip()) < _TELLING:
        # The first of several lines, or none: the lines together tell more.
        quoted = plain(" ".join(t.strip() for _, t, marked in context[:15] if marked), QUOTE) or quoted
    return Quote(
        kind=text(item, "kind", 20),
        where=where,
        path=path,
        text=quoted,
        why=text(item, "why", WHY),
        looked_in=tuple(words(item, "looked_in", 200)[:8]),
        truncated=item.get("truncated") is True,
        masked=item.get("masked") is True,
        context=tuple(ContextText(n, plain(t, CONTEXT if not marked else QUOTE), marked) for n, t, marked in context[:15]),
    )


def _finding(finding: Json, every: Mapping[str, Json], extras: Extras, at_most: int) -> FindingText:
    ident = text(finding, "id", 80)
    cited = rows(finding, "evidence")
    evidence = cited[:at_most]
    parent = text(finding, "explained_by", 80)
    suppressed = part(finding, "suppressed")
    until = text(suppressed, "until", 40)
    numbers, hosts = ranks(finding, "ranks"), words(finding, "hosts", 80)
    title, summary = sentence(text(finding, "title", 300)), text(finding, "summary")
    return FindingText(
        id=ident,
        anchor=anchor(ident),
        rule=text(finding, "rule", 80),
        code=text(finding, "code", 20),
        cause=text(finding, "cause", 80),
        severity=text(finding, "severity", 20),
        confidence=text(finding, "confidence", 20),
        title=title,
        summary=_beyond(title, summary),
        ranks=ranks_words(numbers) if numbers else "",
        hosts=_joined(hosts),
        explained_by=sentence(text(every[parent], "title", 300)) if parent in every else parent,
        explained_by_anchor=anchor(parent) if parent in every else "",
        suppressed=(text(suppressed, "reason") or "no reason given") + (f" (until {until})" if until else "") if suppressed else "",
        quotes=tuple(_quote(e, extras.contexts.get((str(finding.get("id")), n), ())) for n, e in enumerate(evidence)),
        more_quotes=max(0, (number(finding, "evidence_total") or len(cited)) - len(evidence)),
        remedy=text(finding, "remedy"),
        prevention=text(finding, "prevention"),
        metrics=tuple((plain(k, 60), amount(v)) for k, v in sorted(part(finding, "metrics").items()) if v is not None)[:20],
        search=" ".join(
            (ident, title, text(finding, "cause", 80), text(finding, "rule", 80), *(f"rank{r}" for r in numbers[:64]), *hosts)
        ).lower(),
    )


def anchor(ident: str) -> str:
    """A fragment name made of harmless characters only."""
    return "finding-" + "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in ident)[:80]


def _rule(rule: Json) -> RuleText:
    return RuleText(
        text(rule, "rule", 80),
        text(rule, "code", 20),
        text(rule, "status", 20),
        ", ".join(words(rule, "missing", 80)[:12]),
        text(rule, "error", 300),
        tuple((plain(k, 60), amount(v)) for k, v in sorted(part(rule, "thresholds").items())),
    )


def _checks(rules: Sequence[RuleText]) -> str:
    """What became of all checks, in one phrase."""
    counts = {status: sum(r.status == status for r in rules) for status in ("found", "clean", "skipped", "crashed")}
    found = "No check" if not counts["found"] else "1 check" if counts["found"] == 1 else f"{counts['found']} checks"
    clean = f"{counts['clean']} {'was' if counts['clean'] == 1 else 'were'} clean"
    crashed = f", {counts['crashed']} crashed" if counts["crashed"] else ""
    return f"{found} found something, {clean}, {counts['skipped']} could not be made for want of evidence{crashed}"


def _by_missing(skipped: Sequence[RuleText]) -> tuple[tuple[str, str], ...]:
    """Skipped rules by the evidence that they lacked, in the order of the rules."""
    groups: dict[str, list[str]] = {}
    for rule in skipped:
        lacked = list(dict.fromkeys(supply(name) for name in rule.missing.split(", ") if name))
        groups.setdefault(" and ".join(lacked) or "not told", []).append(rule.rule)
    return tuple((missing, ", ".join(names)) for missing, names in groups.items())


def _by_cause(rules: Sequence[RuleText], titled: Sequence[Json]) -> tuple[tuple[str, str, str], ...]:
    """Causes of which every check that was made was clean: the cause, what it means, the checks. A rule without a cause of its name
    (``ib-error``) stands under its own."""
    found = {r.rule for r in rules if r.status == "found"}
    groups: dict[str, list[str]] = {}
    for rule in rules:
        cause = max((c for c in CAUSES if rule.rule == c or rule.rule.startswith(f"{c}-")), key=len, default=rule.rule)
        if rule.status == "clean" and cause not in found:
            groups.setdefault(cause, []).append(rule.rule)
    titles = {text(r, "rule", 80): text(r, "title", 300) for r in titled}
    return tuple((cause, CAUSES.get(cause, titles.get(cause, "")).rstrip("."), ", ".join(names)) for cause, names in groups.items())


def _source(source: Json) -> SourceText:
    formats = words(source, "formats", 40)
    attempt, run = number(source, "attempt"), number(source, "run")
    return SourceText(
        path=text(source, "path", 300),
        formats=", ".join(formats) if formats else "not recognised",
        host=text(source, "host", 80),
        ranks=rank_list(ranks(source, "ranks"), 6),
        attempt=" · ".join(p for p in (f"run {run}" if run is not None else "", f"attempt {attempt}" if attempt is not None else "") if p),
        size=size(number(source, "bytes")),
        lines=amount(source.get("lines")),
        records=amount(source.get("records")),
        gaps=amount(source.get("gaps")),
        unmodelled=amount(source.get("unmodelled")),
        foreign=amount(source.get("foreign")),
        stale=source.get("stale") is True,
        error=text(source, "error", 300),
    )


def _plugin(plugin: Json) -> str:
    """An extension that could not be loaded, with its reason."""
    return f"{text(plugin, 'origin', 80)}, {text(plugin, 'kind', 20)} {text(plugin, 'name', 80)}: {text(plugin, 'error', 300)}"


def _gap(gap: Json) -> GapText:
    numbers, hosts = ranks(gap, "ranks"), words(gap, "hosts", 80)
    who = " · ".join(p for p in (ranks_words(numbers) if numbers else "", _joined(hosts, 4)) if p)
    return GapText(sentence(text(gap, "what", 300)), sentence(text(gap, "why")), who, command(gap))


_ANSWERS = ("bad", "ok", "unknown")


def _checklist(items: Sequence[Json], findings: Mapping[str, FindingText]) -> tuple[CheckText, ...]:
    """What is at fault first, then what is clean, then what is not known; each in the order of the sections."""
    ordered = sorted(items, key=lambda i: _ANSWERS.index(a) if (a := text(i, "answer", 20)) in _ANSWERS else len(_ANSWERS))
    return tuple(_check(item, findings) for item in ordered)


def _checklist_counts(checks: Sequence[CheckText]) -> str:
    """``2 at fault, 30 clean, 12 not known for want of evidence.``"""
    counts = {answer: sum(c.answer == answer for c in checks) for answer in _ANSWERS}
    return f"{counts['bad']} at fault, {counts['ok']} clean, {counts['unknown']} not known for want of evidence."


def _check(check: Json, findings: Mapping[str, FindingText]) -> CheckText:
    answer, ident = text(check, "answer", 20), text(check, "finding", 80)
    found = findings.get(ident)
    return CheckText(
        text(check, "item", 300),
        answer,
        {"ok": "clean", "bad": "at fault"}.get(answer, "not known"),
        found.title if found else "",
        found.anchor if found else "",
        text(check, "where", 300),
        text(check, "section", 40),
        command(check),
    )


def _run(case: Json, verdict: Json) -> Json:
    runs = rows(case, "runs")
    wanted = (verdict.get("run"), verdict.get("attempt"))
    return next((r for r in runs if (r.get("run"), r.get("attempt")) == wanted), runs[-1] if len(runs) == 1 else {})


def _run_words(case: Json, verdict: Json) -> str:
    """Which run and attempt, where there is more than one to tell apart."""
    run, attempt, total = number(verdict, "run"), number(verdict, "attempt"), len(rows(case, "runs"))
    said = [f"run {run}" if run is not None and total > 1 else "", f"attempt {attempt}" if attempt else ""]
    return ", ".join(s for s in said if s) + (f" (the last failing of {total})" if total > 1 and any(said) else "")


def moment(time: str) -> str:
    """``2026-01-31 10:02:03`` from ISO 8601; text that is no time stays as it is."""
    return f"{time[:10]} {time[11:19]}" if len(time) >= 19 and time[10:11] == "T" else time


def _span(start: str, end: str) -> str:
    if start and end:
        same_day = start[:10] == end[:10]
        return f"{moment(start)} – {moment(end)[11:] if same_day else moment(end)} UTC"
    if start or end:
        return f"from {moment(start)} UTC" if start else f"until {moment(end)} UTC"
    return ""


#: A bus address in place of a GPU's name.
_ADDRESS = re.compile(r"[0-9a-fA-F:.]+")


def _particulars(case: Json) -> tuple[tuple[str, str], ...]:
    seen, world = number(case, "ranks_seen"), number(case, "world_size")
    hosts = words(case, "hosts", 80)
    of_ranks = f"{amount(seen)} of {amount(world)}" if world is not None and seen is not None and seen != world else amount(world or seen)
    pairs = (
        ("Ranks", of_ranks if seen or world else ""),
        ("Host" if len(hosts) == 1 else "Hosts", hosts[0] if len(hosts) == 1 else amount(len(hosts)) if hosts else ""),
        ("GPUs", _joined([g for g in words(case, "gpus", 80) if not _ADDRESS.fullmatch(g)], 3)),
        ("NCCL", _joined(words(case, "nccl_versions", 40), 3)),
        ("PyTorch", _joined(words(case, "torch_versions", 40), 3)),
        ("Backend", _joined(words(case, "backends", 40), 3)),
        ("Communicators", amount(number(case, "communicators"))),
        ("Process groups", amount(number(case, "process_groups"))),
    )
    return tuple((k, v) for k, v in pairs if v and v != "0")


def _redaction(report: Json) -> tuple[tuple[str, str], ...]:
    """That names are not the real ones, where that is so."""
    identity = text(part(report, "redaction"), "level") == "identity"
    return (("Names", "pseudonyms for hosts, users, addresses and paths"),) if identity else ()


def _versions(case: Json, generator: Json) -> tuple[tuple[str, str], ...]:
    return (
        ("Generator", f"{text(generator, 'name')} {text(generator, 'version')}".strip()),
        ("Report format", "nccl-forensics/report/1"),
        ("NCCL", _joined(words(case, "nccl_versions", 40), 12) or "not told"),
        ("PyTorch", _joined(words(case, "torch_versions", 40), 12) or "not told"),
        ("Backends", _joined(words(case, "backends", 40), 12) or "not told"),
    )


def _beyond(title: str, summary: str) -> str:
    """A summary without the title that it opens with."""
    if summary[: len(title)].lower() != title.lower():
        return summary
    return sentence(summary[len(title) :].lstrip(" .:;,"))


def _headline(status: str, opinion: Opinion, verdict: Json, outcome: str, skipped: Sequence[RuleText]) -> tuple[str, str]:
    summary = opinion.summary
    if status == "explained":
        title = opinion.title or f"{opinion.who or 'The job'}: {opinion.meaning or opinion.cause}"
        return sentence(title), _beyond(title, summary)
    if status == "unexplained":
        said = f"The job {outcome}" if outcome and outcome != "finished" else "The job failed"
        return f"{said}, and nothing handed in proves why", summary
    if status == "nothing-wrong":
        rest = (
            f"{len(skipped)} checks could not be made for want of evidence; for those this report says nothing."
            if skipped
            else "Every check had what it needed."
        )
        title = "No fault was found in what was handed in"
        return title, f"{_beyond(title, summary)} {rest}".strip()
    return "What was handed in does not tell whether anything went wrong", summary
