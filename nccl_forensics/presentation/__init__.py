"""The one presentation model: what every report shows, in the order it is told, as plain text.

It reads ``report.json`` (the contract's mapping) and makes every foreign text harmless. Reporters place what stands here;
they neither count, choose nor word anything themselves.
"""

from __future__ import annotations

from nccl_forensics.extras import Extras
from nccl_forensics.model import CAUSES, SEVERITIES
from nccl_forensics.presentation.case import (
    CONFIDENCE_MEANING,
    OUTCOME_WORDS,
    STATUS_WORDS,
    headline_of,
    moment,
    particulars_of,
    redaction_of,
    run_of,
    run_words,
    span_words,
    versions_of,
)
from nccl_forensics.presentation.checks import (
    by_cause,
    by_missing,
    checklist_counts,
    checklist_texts,
    checks_words,
    gap_text,
    plugin_words,
    rule_text,
    source_text,
)
from nccl_forensics.presentation.mapping import Json, amount, joined, number, part, ranks, rows, severity_order, size, text, words
from nccl_forensics.presentation.opinions import cited_findings, finding_text, opinion_of, who_words
from nccl_forensics.presentation.values import Alternative, Presentation, Quote
from nccl_forensics.words import rank_list

#: Rows of a list that a page shows; the rest is in ``tables/``.
ROWS = 200
#: Findings that a page shows, worst first; how many of them with up to ``QUOTES`` evidence items, and how many items the others have.
FINDINGS, QUOTED, QUOTES, FEW_QUOTES = 200, 30, 8, 2

#: What the reading stage says of a file without a byte.
EMPTY = "empty file"


def present(report: Json, extras: Extras) -> Presentation:
    """The presentation of a report."""
    case, verdict = part(report, "case"), part(report, "verdict")
    status = text(verdict, "status") or "insufficient-evidence"
    every = rows(report, "findings")
    ordered = sorted(every, key=lambda f: severity_order(text(f, "severity")))
    explainable = {text(f, "id"): f for f in every}
    wanted = cited_findings(verdict)
    shown = [f for n, f in enumerate(ordered) if n < FINDINGS or text(f, "id") in wanted]
    findings = {text(f, "id"): finding_text(f, explainable, extras, QUOTES if n < QUOTED else FEW_QUOTES) for n, f in enumerate(shown)}
    rules = [rule_text(r) for r in rows(report, "rules")]
    skipped = tuple(r for r in rules if r.status == "skipped")
    sources = rows(report, "sources")
    texts = [source_text(s) for s in sources]
    total_sources = number(report, "sources_total") or len(sources)
    gaps = rows(report, "gaps")
    run = run_of(case, verdict)
    slow = text(run, "outcome") == "slow"
    opinion = opinion_of(verdict, findings, slow=slow)
    others = tuple(opinion_of(o, findings, slow=slow) for o in rows(verdict, "others")[:20])
    checklist = checklist_texts(rows(report, "checklist"), findings)
    outcome = OUTCOME_WORDS.get(text(run, "outcome"), "")
    headline, lead = headline_of(status, opinion, outcome, skipped)
    generator = part(report, "generator")
    return Presentation(
        title=text(case, "title") or joined(words(case, "inputs")) or "incident",
        generator=text(generator, "name") or "nccl-forensics",
        version=text(generator, "version"),
        inputs=tuple(words(case, "inputs")[:20]),
        particulars=(*particulars_of(case, extras.cluster), *redaction_of(report)),
        status=status,
        status_word=STATUS_WORDS.get(status, status),
        confidence=opinion.confidence,
        confidence_meaning=CONFIDENCE_MEANING.get(opinion.confidence, "") if status == "explained" else "",
        run=run_words(case, verdict),
        when=span_words(text(run, "started_at") or text(case, "started_at"), text(run, "ended_at") or text(case, "ended_at")),
        outcome=outcome,
        outcome_words=f"the job {outcome}" if outcome else "",
        goes_on=slow,
        headline=headline,
        lead=lead,
        verdict=opinion,
        others=others,
        alternatives=tuple(
            Alternative(text(a, "cause"), CAUSES.get(text(a, "cause"), ""), who_words(rows(a, "culprits")), text(a, "against"))
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
        checks=checks_words(rules),
        skipped_by_missing=by_missing(skipped),
        clean_by_cause=by_cause(rules, rows(report, "rules")),
        thresholds=tuple((r.rule, name, value) for r in rules for name, value in r.thresholds),
        sources=tuple(texts[:ROWS]),
        more_sources=max(0, total_sources - ROWS),
        sources_total=total_sources,
        sources_in_error=tuple(s for s in texts if s.error)[:ROWS],
        sources_failed=sum(bool(s.error) for s in texts),
        sources_empty=sum(s.error == EMPTY for s in texts),
        sources_with_gaps=tuple(t for t, s in zip(texts, sources, strict=True) if number(s, "gaps") and not t.error)[:ROWS],
        gaps=tuple(gap_text(g) for g in gaps[:50]),
        more_gaps=max(0, (number(report, "gaps_total") or len(gaps)) - 50),
        checklist=checklist[:ROWS],
        checklist_counts=checklist_counts(checklist),
        ranks_missing=rank_list(ranks(case, "ranks_missing")),
        ranks_missing_words=rank_list(ranks(case, "ranks_missing"), 4),
        versions=versions_of(case, generator),
        broken_plugins=tuple(plugin_words(p) for p in rows(report, "plugins") if p.get("error") is not None)[:ROWS],
    )


__all__ = [
    "EMPTY",
    "ROWS",
    "Json",
    "Presentation",
    "Quote",
    "amount",
    "moment",
    "number",
    "part",
    "present",
    "rows",
    "size",
    "text",
    "words",
]
