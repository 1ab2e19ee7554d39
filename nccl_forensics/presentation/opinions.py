"""The verdict, further causes and findings, with the evidence that is quoted for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_forensics.extras import Extras
from nccl_forensics.model import CAUSES
from nccl_forensics.plain import plain
from nccl_forensics.presentation.mapping import (
    QUOTE,
    Json,
    amount,
    beyond,
    command,
    joined,
    number,
    part,
    ranks,
    rows,
    text,
    words,
)
from nccl_forensics.presentation.values import ActionText, ContextText, FindingText, Opinion, Party, Quote
from nccl_forensics.words import folded, ranks_words, sentence

#: Longest reason beside a quote, and longest raw line around it.
WHY, CONTEXT = 240, 300

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


#: What to say where no collective is named.
_OF_MANY = "no single one: the job goes on and is slow"
_OF_NONE = "none; the cause lies outside the collectives, or none was recorded"


def cited_findings(verdict: Json) -> set[str]:
    cited = {*words(verdict, "because"), *words(verdict, "explains")[:50]}
    for other in rows(verdict, "others"):
        cited |= set(words(other, "because"))
    return cited


_MANY = {"process that wrote": "processes that wrote"}


def who_words(culprits: Sequence[Json]) -> str:
    """``rank 3``, ``ranks 1-4``, else hosts, links or NICs."""
    numbers = [r for c in culprits if (r := number(c, "rank")) is not None]
    if numbers:
        return ranks_words(numbers)
    for key, word in (("link", "link"), ("nic", "NIC"), ("gpu", "GPU"), ("host", "host"), ("source", "process that wrote")):
        names = list(dict.fromkeys(text(c, key, 80) for c in culprits if c.get(key) is not None))
        if names:
            hosts = list(dict.fromkeys(text(c, "host", 80) for c in culprits if c.get("host") is not None))
            where = f" on {joined(folded(hosts), 4)}" if hosts and key != "host" else ""
            return f"{word if len(names) == 1 else _MANY.get(word, f'{word}s')} {joined(folded(names))}{where}"
    return ""


def who_is(culprits: Sequence[Json]) -> str:
    """The question that ``who`` answers."""
    numbers = {number(c, "rank") for c in culprits} - {None}
    if culprits and all(c.get("source") is not None for c in culprits):
        return "Which process"
    return "Which part" if culprits and not numbers else "Which ranks" if len(numbers) > 1 else "Which rank"


def _party(culprit: Json) -> Party:
    labels = (("host", "host"), ("gpu", "GPU"), ("pid", "pid"), ("nic", "NIC"), ("link", "link"), ("source", "process that wrote"))
    facts = [(label, text(culprit, key, 160)) for key, label in labels if culprit.get(key) is not None]
    rank = number(culprit, "rank")
    if rank is not None:
        return Party(f"rank {rank}", tuple(facts))
    if not facts:
        return Party("not known", ())
    label, value = facts[-1] if len(facts) > 1 else facts[0]
    return Party(f"{label} {value}", tuple(f for f in facts if f != (label, value)))


def opinion_of(verdict: Json, findings: Mapping[str, FindingText], *, slow: bool = False) -> Opinion:
    """What a verdict says, in words. ``slow``: of a run that went on."""
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
        summary=beyond(title, summary) if because else summary,
        who=who_words(culprits),
        who_is=who_is(culprits),
        hosts=joined(folded(hosts)),
        no_host=_where_words(culprits),
        parties=tuple(_party(c) for c in culprits[:8]),
        more_parties=max(0, len(culprits) - 8),
        collective=_operation(point),
        no_collective=_OF_MANY if slow else _OF_NONE,
        group=_group(point),
        because=because,
        explains=tuple(findings[i] for i in words(verdict, "explains")[:50] if i in findings),
        quotes=tuple(quotes[:8]),
        proof=_proof(quotes),
        more_quotes=sum(f.more_quotes for f in because) + max(0, len(quotes) - 8),
        remedy=text(verdict, "remedy"),
        prevention=text(verdict, "prevention"),
        actions=tuple(_action(n, a) for n, a in enumerate(_actions(verdict)[:20], 1)),
    )


def _actions(verdict: Json) -> list[Json]:
    """Without those that would say no more than the remedy above them: to fix or change something, and neither what nor where."""
    vague = ("fix-code", "fix-application", "fix-config", "change-setting")
    told = ("ranks", "hosts", "gpus", "where", "command")
    every = rows(verdict, "actions")
    return [
        a
        for a in every
        if any(a.get(k) for k in told) or not text(verdict, "remedy") or text(a, "action", 80).replace("_", "-") not in vague
    ]


def _where_words(culprits: Sequence[Json]) -> str:
    """What to say where no host is named."""
    return "not told by the evidence" if culprits else "no host alone is to blame"


def _proof(quotes: Sequence[Quote]) -> tuple[Quote, ...]:
    """The evidence for a first screen: one item for each different reason before a second one for the same, and that from another file
    before one that stands beside the first."""
    seen: set[str] = set()
    repeated: list[Quote] = []
    first: list[Quote] = []
    for quote in quotes:
        (repeated if quote.why in seen else first).append(quote)
        seen.add(quote.why)
    shown = {quote.path for quote in first}
    elsewhere: list[Quote] = []
    beside: list[Quote] = []
    for quote in repeated:
        (beside if quote.path in shown else elsewhere).append(quote)
        shown.add(quote.path)
    return tuple(first[:6] if len(first) > 2 else [*first, *elsewhere, *beside][: 3 + len(first)])


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
        joined(folded(words(action, "hosts", 80))),
        f"GPU {joined(folded(words(action, 'gpus', 80)))}" if words(action, "gpus") else "",
        f"at {text(action, 'where', 160)}" if action.get("where") is not None else "",
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
    if not context and line is not None and quoted:
        # Beyond the first few nothing around a line is read: it stands alone, or among the lines of the one before.
        context = ((line, quoted, True),)
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


def finding_text(finding: Json, every: Mapping[str, Json], extras: Extras, at_most: int) -> FindingText:
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
        summary=beyond(title, summary),
        ranks=ranks_words(numbers) if numbers else "",
        hosts=joined(folded(hosts)),
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
