"""What was checked, read, missing and asked: rules, sources, gaps and the checklist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_forensics.conclusions.supply import supply
from nccl_forensics.model import CAUSES
from nccl_forensics.plain import plain
from nccl_forensics.presentation.mapping import Json, amount, command, joined, number, part, ranks, size, text, words
from nccl_forensics.presentation.values import CheckText, FindingText, GapText, RuleText, SourceText, Unmade
from nccl_forensics.words import rank_list, ranks_words, sentence


def rule_text(rule: Json) -> RuleText:
    return RuleText(
        text(rule, "rule", 80),
        text(rule, "code", 20),
        text(rule, "status", 20),
        ", ".join(words(rule, "missing", 80)[:12]),
        text(rule, "error", 300),
        tuple((plain(k, 60), amount(v)) for k, v in sorted(part(rule, "thresholds").items())),
    )


def checks_words(rules: Sequence[RuleText]) -> str:
    """What became of all checks, in one phrase."""
    counts = {status: sum(r.status == status for r in rules) for status in ("found", "clean", "skipped", "crashed")}
    found = "No check" if not counts["found"] else "1 check" if counts["found"] == 1 else f"{counts['found']} checks"
    clean = f"{counts['clean']} {'was' if counts['clean'] == 1 else 'were'} clean"
    crashed = f", {counts['crashed']} crashed" if counts["crashed"] else ""
    return f"{found} found something, {clean}, {counts['skipped']} could not be made for want of evidence{crashed}"


def by_missing(skipped: Sequence[RuleText]) -> tuple[Unmade, ...]:
    """Skipped rules by the evidence that they lacked; what would allow most checks comes first."""
    groups: dict[str, list[str]] = {}
    for rule in skipped:
        lacked = list(dict.fromkeys(supply(name) for name in rule.missing.split(", ") if name))
        groups.setdefault(" and ".join(lacked) or "not told", []).append(rule.rule)
    return tuple(Unmade(missing, tuple(names)) for missing, names in sorted(groups.items(), key=lambda g: -len(g[1])))


def by_cause(rules: Sequence[RuleText], titled: Sequence[Json]) -> tuple[tuple[str, str, str], ...]:
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


def source_text(source: Json) -> SourceText:
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


def plugin_words(plugin: Json) -> str:
    """An extension that could not be loaded, with its reason."""
    return f"{text(plugin, 'origin', 80)}, {text(plugin, 'kind', 20)} {text(plugin, 'name', 80)}: {text(plugin, 'error', 300)}"


def gap_text(gap: Json) -> GapText:
    numbers, hosts = ranks(gap, "ranks"), words(gap, "hosts", 80)
    what = text(gap, "what", 300)
    told = ranks_words(numbers) if numbers else ""
    who = " · ".join(p for p in ("" if told in what else told, joined(hosts, 4)) if p)
    return GapText(sentence(what), sentence(text(gap, "why")), who, command(gap))


_ANSWERS = ("bad", "ok", "unknown")


def checklist_texts(items: Sequence[Json], findings: Mapping[str, FindingText]) -> tuple[CheckText, ...]:
    """What is at fault first, then what is clean, then what is not known; each in the order of the sections."""
    ordered = sorted(items, key=lambda i: _ANSWERS.index(a) if (a := text(i, "answer", 20)) in _ANSWERS else len(_ANSWERS))
    return tuple(_check(item, findings) for item in ordered)


def checklist_counts(checks: Sequence[CheckText]) -> str:
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
