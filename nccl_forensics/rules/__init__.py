"""Rules: small modules that read tables and views and yield findings, found by walking this folder.

A rule does not open files, read raw text, draw, log, or know other rules. Its module's docstring is its page.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import polars as pl

from nccl_forensics import tables
from nccl_forensics.model import CAUSES, CONFIDENCES, SEVERITIES, Action, Culprit, Evidence, Finding, Severity, blamed_by
from nccl_forensics.plugins import Plugin, Unacceptable, gathered, load
from nccl_forensics.registry import Inputs, inputs_of
from nccl_forensics.views import Resolver, all_views
from nccl_forensics.words import UNIDENTIFIED

HEADINGS = ("## What it finds", "## Why it matters", "## What would refute it", "## What to do next")
Value = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its code, the cause it names, and what that cause explains."""

    name: str
    code: str
    cause: str
    severity: Severity
    at_most: int
    explains: tuple[str, ...]
    function: Callable[..., Iterator[Finding]]
    inputs: Inputs

    @property
    def page(self) -> str:
        """The rule's page: the docstring of its module."""
        return (sys.modules[self.function.__module__].__doc__ or "").strip()

    @property
    def built_in(self) -> bool:
        """Whether it is a part of this package."""
        return self.function.__module__.startswith(f"{__name__}.")

    @property
    def title(self) -> str:
        """First line of the page."""
        return self.page.splitlines()[0] if self.page else self.name

    def check(self, *frames: pl.LazyFrame | pl.DataFrame | None, **thresholds: Value) -> list[Finding]:
        """Findings on these inputs, in the order of the function's parameters, at most ``at_most``, worst first as yielded."""
        lazy = [f.lazy() if isinstance(f, pl.DataFrame) else f for f in frames]
        found: list[Finding] = []
        for finding in self.function(*lazy, **thresholds):
            if len(found) == self.at_most:
                break
            cause, severity = finding.cause or self.cause, finding.severity or self.severity
            found.append(_named(replace(finding, cause=cause, severity=severity, culprits=blamed_by(finding))))
        return found


def _named(finding: Finding) -> Finding:
    """With processes whose rank nothing tells under the file of theirs: they are counted in words, never blamed by number."""
    blamed = blamed_by(finding)
    if all(r < UNIDENTIFIED for r in (*finding.ranks, *(c.rank for c in blamed if c.rank is not None))):
        return finding
    return replace(
        finding,
        ranks=_known(finding.ranks),
        culprits=tuple(
            c if c.rank is None or c.rank < UNIDENTIFIED else replace(c, rank=None, source_id=c.rank - UNIDENTIFIED) for c in blamed
        ),
        actions=tuple(replace(a, ranks=_known(a.ranks)) for a in finding.actions),
        alternatives=tuple((cause, _known(ranks), why) for cause, ranks, why in finding.alternatives),
        confidence="medium" if finding.confidence == "high" else finding.confidence,
    )


def _known(ranks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(r for r in ranks if r < UNIDENTIFIED)


def rule(
    *, name: str, code: str, cause: str, severity: Severity, at_most: int = 64, explains: tuple[str, ...] = ()
) -> Callable[[Callable[..., Iterator[Finding]]], Rule]:
    """Declare a rule. ``explains`` are causes or symptom words that a finding of this rule accounts for."""

    def declare(function: Callable[..., Iterator[Finding]]) -> Rule:
        return Rule(name, code, cause, severity, at_most, explains, function, inputs_of(function))

    return declare


@cache
def own_rules() -> tuple[Rule, ...]:
    """Every rule of the program, by code."""
    found: list[Rule] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found.extend(v for v in vars(module).values() if isinstance(v, Rule))
    return tuple(sorted(found, key=lambda r: r.code))


@cache
def third_party() -> tuple[Plugin[Rule], ...]:
    """Rules of extensions."""
    tables.third_party()  # they may read tables of their own
    taken = {word for r in own_rules() for word in (r.name, r.code)}

    def accept(held: object) -> list[Rule]:
        rules = gathered(held, Rule)
        for r in rules:
            _examine(r, taken)
            taken.update((r.name, r.code))
        return rules

    return load("rules", accept)


def _examine(r: Rule, taken: set[str]) -> None:
    """Raises ``Unacceptable`` for a rule that could not work beside the others."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", r.name) or not re.fullmatch(r"[A-Z]{2,8}[0-9]{2,4}", r.code):
        raise Unacceptable(f"rule {r.name!r} ({r.code!r}): a name is made of a-z, 0-9 and -, a code of capitals and digits (ACME01)")
    if twice := sorted({r.name, r.code} & taken):
        raise Unacceptable(f"rule {' and '.join(twice)} is there already")
    if r.cause not in CAUSES:
        raise Unacceptable(f"rule {r.name!r}: cause {r.cause!r} is none of the report's")
    if r.severity not in SEVERITIES:
        raise Unacceptable(f"rule {r.name!r}: severity {r.severity!r} is none of {', '.join(SEVERITIES)}")
    if unknown := sorted(set(r.inputs.names) - tables.TABLES.keys() - all_views().keys() - {"sources"}):
        raise Unacceptable(f"rule {r.name!r} reads {', '.join(unknown)}, which no table or view is called")


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, also those of extensions, by code."""
    return tuple(sorted((*own_rules(), *(r for plugin in third_party() for r in plugin.values)), key=lambda r: r.code))


@cache
def _foreign() -> frozenset[str]:
    """Names of the rules of extensions."""
    return frozenset(r.name for plugin in third_party() for r in plugin.values)


def _refuse_unsound(finding: Finding) -> None:
    """Raises ``TypeError`` or ``ValueError`` for a finding that no report could hold: an extension's rule is not type-checked here."""
    if finding.cause not in CAUSES or finding.severity not in SEVERITIES or finding.confidence not in CONFIDENCES:
        raise ValueError(f"a finding of cause {finding.cause!r}, severity {finding.severity!r}, confidence {finding.confidence!r}")
    wanted: tuple[tuple[object, type], ...] = (
        *((text, str) for text in (finding.title, finding.summary, finding.remedy, finding.prevention)),
        *((rank, int) for rank in finding.ranks),
        *((text, str) for text in (*finding.hosts, *finding.subject, *finding.would_refute, *finding.metrics)),
        *((item, Evidence) for item in finding.evidence),
        *((item, Action) for item in finding.actions),
        *((item, Culprit) for item in finding.culprits or ()),
        *((item.source_id, int) for item in finding.evidence if item.source_id is not None),
    )
    for value, kind in wanted:
        if not isinstance(value, kind):
            raise TypeError(f"a finding holds a {type(value).__name__} where a {kind.__name__} is wanted")
    if not all(value is None or isinstance(value, str | int | float) for value in finding.metrics.values()):
        raise TypeError("a finding's metrics are numbers and texts")


@dataclass(frozen=True, slots=True)
class Found:
    """A finding with the rule that made it and its identity."""

    id: str
    fingerprint: str
    rule: Rule
    finding: Finding


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rule in one run."""

    rule: Rule
    status: Literal["found", "clean", "skipped", "crashed"]
    found: tuple[Found, ...]
    missing: tuple[str, ...]
    thresholds: Mapping[str, Value]
    error: str | None = None


#: A place in code: its folder and line move from run to run, the file and the function stay.
_CODE_PLACE = re.compile(r"(?<![^\s()\x1f:])(?:[^\s()\x1f:]*/)?([^\s()\x1f/:]+\.(?:py|pyx|cc|cpp|cu|cuh|c|h|hpp)):[0-9]+")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def fingerprint(made_by: Rule, finding: Finding) -> str:
    """Hash of rule, cause and stable subject; without times, pids, paths of code, line numbers and addresses."""
    subject = finding.subject or tuple(sorted(finding.hosts)) or tuple(str(r) for r in finding.ranks)
    text = _ADDRESS.sub("0x", _CODE_PLACE.sub(r"\1", "\x1f".join((made_by.name, finding.cause or "", *subject))))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_rules(
    resolver: Resolver,
    overrides: Mapping[str, Mapping[str, Value]] | None = None,
    prefix: str = "",
    step: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run every rule. A rule that raises is reported as crashed, and the others go on.

    ``overrides`` are thresholds by rule name. ``prefix`` goes in front of finding ids. ``step`` is told how many rules are done, and how
    many there are.
    """
    outcomes: list[Outcome] = []
    for number, r in enumerate(all_rules()):
        if step is not None:
            step(number, len(all_rules()))
        thresholds: dict[str, Value] = {t.name: t.default for t in r.inputs.thresholds}
        thresholds.update((overrides or {}).get(r.name, {}))
        try:
            missing = resolver.missing(r.inputs)
            if missing:
                outcomes.append(Outcome(r, "skipped", (), missing, thresholds))
                continue
            frames = [resolver.get(n) for n in r.inputs.order]
            findings = r.check(*frames, **thresholds)
            if r.name in _foreign():
                for finding in findings:
                    _refuse_unsound(finding)
        except (Exception, pl.exceptions.PanicException) as error:  # a panic of Polars is no Exception
            outcomes.append(Outcome(r, "crashed", (), (), thresholds, f"{type(error).__name__}: {error}"[:500]))
            continue
        found = tuple(Found(f"{prefix}{r.code}-{i + 1}", fingerprint(r, f), r, f) for i, f in enumerate(findings))
        outcomes.append(Outcome(r, "found" if found else "clean", found, (), thresholds))
    if step is not None:
        step(len(all_rules()), len(all_rules()))
    return outcomes


def severity_order(severity: Severity | None) -> int:
    """0 for critical, 3 for info."""
    return SEVERITIES.index(severity or "info")
