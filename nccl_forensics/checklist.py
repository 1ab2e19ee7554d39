"""The field's first-response questions, answered from what the rules found: ``ok``, ``bad``, or ``unknown`` with how to find out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nccl_forensics.facts.checklist import QUESTIONS, SECTIONS, Question
from nccl_forensics.rules import Found, Outcome, severity_order

#: Where questions of extensions' rules stand: each is its rule's title.
OF_EXTENSIONS = "Extensions"


def checklist(outcomes: Sequence[Outcome], present: Callable[[str], bool]) -> list[dict[str, object]]:
    """``report.json``'s ``checklist``, in the order of its sections. ``present`` says whether a table or view holds anything."""
    by_name = {o.rule.name: o for o in outcomes}
    asked = {name for question in QUESTIONS for name in question.rules}
    others = [
        Question(
            OF_EXTENSIONS, o.rule.title, (o.rule.name,), o.rule.inputs.names, "see the page of the rule: nccl-forensics rule " + o.rule.name
        )
        for o in outcomes
        if o.rule.name not in asked and o.rule.severity != "info"
    ]
    ordered = sorted((*QUESTIONS, *others), key=lambda q: (*SECTIONS, OF_EXTENSIONS).index(q.section))
    return [_answered(q, [by_name[name] for name in q.rules if name in by_name], present) for q in ordered]


def _answered(question: Question, outcomes: Sequence[Outcome], present: Callable[[str], bool]) -> dict[str, object]:
    bad: list[Found] = [f for o in outcomes for f in o.found if f.finding.severity in ("critical", "error", "warning")]
    made = [o.rule.name for o in outcomes if o.status in ("found", "clean")]
    answer = "bad" if bad else "ok" if made and any(present(name) for name in question.takes) else "unknown"
    told = [f.rule.name for f in bad] if bad else made if answer == "ok" else []
    return {
        "section": question.section,
        "item": question.text,
        "answer": answer,
        "finding": min(bad, key=lambda f: severity_order(f.finding.severity)).id if bad else None,
        "where": f"rule {', '.join(dict.fromkeys(told))}" if told else None,
        "rules": list(question.rules),
        "command": question.command if answer == "unknown" else None,
    }
