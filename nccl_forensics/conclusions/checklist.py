"""The field's first-response questions, answered from what the rules found: ``ok``, ``bad``, or ``unknown`` with how to find out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from nccl_forensics.facts.checklist import QUESTIONS, SECTIONS, Question
from nccl_forensics.rules import Found, Outcome, severity_order

#: Where rules stand that no question knows, such as those of extensions: their titles are the questions.
FURTHER = "Further checks"


def checklist(outcomes: Sequence[Outcome], present: Callable[[str], bool]) -> list[dict[str, object]]:
    """``report.json``'s ``checklist``, in the order of its sections. ``present`` says whether a table, a view or a column
    (``table.column``) holds anything."""
    by_name = {o.rule.name: o for o in outcomes}
    asked = {name for question in QUESTIONS for name in question.rules}
    unasked = [o for o in outcomes if o.rule.name not in asked and o.rule.severity != "info"]
    variants = {o.rule.name: near for o in unasked if (near := variant_of(o.rule.name, asked)) is not None}
    known = [replace(q, rules=(*q.rules, *(name for name, near in variants.items() if near in q.rules))) for q in QUESTIONS]
    others = [
        Question(FURTHER, o.rule.title, (o.rule.name,), o.rule.inputs.names, f"nccl-forensics rule {o.rule.name}")
        for o in unasked
        if o.rule.name not in variants
    ]
    ordered = sorted((*known, *others), key=lambda q: (*SECTIONS, FURTHER).index(q.section))
    return [_answered(q, [by_name[name] for name in q.rules if name in by_name], present) for q in ordered]


def variant_of(name: str, asked: Collection[str]) -> str | None:
    """The rule of a question that another one is a variant of: ``collective-mismatch`` for ``collective-mismatch-by-stacks``."""
    return max((known for known in asked if name.startswith(f"{known}-")), key=len, default=None)


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
