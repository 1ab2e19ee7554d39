"""The gate over an archived run: which findings and regressions make a check fail, as a value that reports print.

Works on reports of the contract; the baseline is the report of a good run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from nccl_forensics.changes import Change, Differences, differences
from nccl_forensics.facts.settings import HARMLESS
from nccl_forensics.model import SEVERITIES, Severity
from nccl_forensics.presentation import number, part, rows, text, words
from nccl_forensics.suppressions import Suppression, found, remarks

Json = Mapping[str, object]
#: Areas in which a run is held against its baseline.
AREAS = ("bandwidth", "overlap", "lag", "channels", "transport", "topology", "environment", "version", "hardware", "finding")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a run may fall behind its baseline, and what is not held against it (an area, or ``area:subject``)."""

    bandwidth: float = 0.1
    overlap: float = 0.05
    lag: float = 0.5
    lag_ms: float = 1.0
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is shown."""

    path: str
    line: int | None = None
    text: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that the gate looked at. ``fails``: it alone makes the check fail."""

    kind: Literal["finding", "regression", "verdict", "require", "crash"]
    rule: str
    code: str
    fingerprint: str
    severity: Severity
    title: str
    message: str
    fails: bool
    cause: str = ""
    suppressed: str = ""
    places: tuple[Place, ...] = ()
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one rule; ``why`` says what it lacks or how it crashed."""

    rule: str
    code: str
    status: str
    why: str


@dataclass(frozen=True, slots=True)
class Gate:
    """The outcome of a check: its exit code by the contract, what it rests on, and remarks that fail nothing."""

    exit_code: int
    reason: str
    title: str
    version: str
    fail_on: Severity
    status: str
    summary: str
    issues: tuple[Issue, ...]
    checked: tuple[Checked, ...]
    remarks: tuple[str, ...] = ()
    compared: bool = False
    inputs: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Issue, ...]:
        """What makes it fail."""
        return tuple(i for i in self.issues if i.fails)


@dataclass(frozen=True, slots=True)
class Demands:
    """What a run must satisfy."""

    fail_on: Severity = "error"
    require: tuple[str, ...] = ()
    allow_insufficient: bool = False
    suppressions: tuple[Suppression, ...] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)


def judge_run(report: Json, demands: Demands, baseline: Json | None = None, today: date | None = None) -> Gate:
    """Hold a report against the demands and, where there is one, against the report of a good run."""
    issues = [_finding(f, demands) for f in rows(report, "findings")]
    subjects: list[Json] = list(rows(report, "findings"))
    notes: list[str] = []
    if baseline is not None:
        changed = differences(baseline, report)
        told = {i.fingerprint for i in issues if i.fails or i.suppressed}
        for change, said in regressions(changed, demands.tolerance):
            if change.finding in told:
                continue
            subject = {"rule": f"baseline-{_area(change)}", "fingerprint": change.fingerprint, "hosts": []}
            subjects.append(subject)
            issues.append(_regression(change, said, subject, found(subject, demands.suppressions, today)))
        notes += [f"not held against the baseline: {c.subject} ({c.note})" for c in changed.one_sided if c.kind == "only-before"][:20]
    issues += _verdict(report, demands)
    issues += _require(report, demands.require)
    crashed = [r for r in rows(report, "rules") if r.get("status") == "crashed"]
    issues += [
        Issue("crash", text(r, "rule"), text(r, "code"), "", "error", f"rule {text(r, 'rule')} crashed", text(r, "error"), True)
        for r in crashed
    ]
    issues.sort(key=lambda i: (not i.fails, SEVERITIES.index(i.severity), i.kind, i.title))
    code = _exit_code(issues)
    failing = [i for i in issues if i.fails]
    generator, verdict = part(report, "generator"), part(report, "verdict")
    return Gate(
        code,
        _reason(failing, demands),
        text(part(report, "case"), "title"),
        text(generator, "version"),
        demands.fail_on,
        text(verdict, "status"),
        text(verdict, "summary"),
        tuple(issues),
        tuple(_checked(r) for r in rows(report, "rules")),
        (*remarks(subjects, demands.suppressions, today), *notes),
        baseline is not None,
        tuple(words(part(report, "case"), "inputs", 200)),
        demands.require,
    )


def _checked(rule: Json) -> Checked:
    missing = rule.get("missing")
    lacks = f"no {', '.join(map(str, missing))}" if isinstance(missing, list | tuple) and missing else ""
    return Checked(text(rule, "rule"), text(rule, "code"), text(rule, "status"), text(rule, "error") or lacks)


def _exit_code(issues: Sequence[Issue]) -> int:
    kinds = {i.kind for i in issues if i.fails}
    return 70 if "crash" in kinds else 3 if "require" in kinds else 1 if kinds else 0


def _reason(failing: Sequence[Issue], demands: Demands) -> str:
    if not failing:
        return f"nothing at or above {demands.fail_on}"
    kinds = {
        "finding": f"at or above {demands.fail_on}",
        "regression": "worse than the baseline",
        "verdict": "about the verdict",
        "require": "required and absent",
        "crash": "crashed",
    }
    counts = {kind: sum(i.kind == kind for i in failing) for kind in kinds}
    return ", ".join(f"{n} {kinds[kind]}" for kind, n in counts.items() if n)


def _finding(finding: Json, demands: Demands) -> Issue:
    severity = _severity(text(finding, "severity"))
    accepted = finding.get("suppressed")
    suppressed = f"{text(accepted, 'reason')} (until {text(accepted, 'until')})" if isinstance(accepted, Mapping) else ""
    fails = not suppressed and SEVERITIES.index(severity) <= SEVERITIES.index(demands.fail_on)
    hosts, ranks = finding.get("hosts"), finding.get("ranks")
    return Issue(
        "finding",
        text(finding, "rule"),
        text(finding, "code"),
        text(finding, "fingerprint"),
        severity,
        text(finding, "title"),
        text(finding, "summary"),
        fails,
        text(finding, "cause"),
        suppressed,
        tuple(
            Place(text(e, "path"), number(e, "line"), text(e, "text", 400), text(e, "why"))
            for e in rows(finding, "evidence")
            if e.get("path")
        ),
        tuple(map(str, hosts)) if isinstance(hosts, list | tuple) else (),
        tuple(r for r in ranks if isinstance(r, int)) if isinstance(ranks, list | tuple) else (),
        text(finding, "remedy"),
    )


def _severity(word: str) -> Severity:
    return next((s for s in SEVERITIES if s == word), "info")


def _verdict(report: Json, demands: Demands) -> list[Issue]:
    verdict = part(report, "verdict")
    status, summary = text(verdict, "status"), text(verdict, "summary")
    if status == "unexplained":
        return [Issue("verdict", "verdict", "VERDICT", "", "error", "the job failed and no cause is proved", summary, True)]
    if status == "insufficient-evidence":
        fails = not demands.allow_insufficient
        severity: Severity = "error" if fails else "info"
        return [Issue("verdict", "verdict", "VERDICT", "", severity, "the evidence is not enough to say anything", summary, fails)]
    return []


def _require(report: Json, wanted: Sequence[str]) -> list[Issue]:
    there = set()
    for source in rows(report, "sources"):
        formats = source.get("formats")
        if isinstance(formats, list | tuple) and (number(source, "records") or 0) > 0:
            there |= set(map(str, formats))
    return [
        Issue("require", "require", "REQUIRE", "", "error", f"no evidence of format {name}", "it is required (--require)", True)
        for name in wanted
        if name not in there
    ]


# --- the baseline --------------------------------------------------------------------------------------------------------------

_AREA_OF = {"step": "overlap", "setting": "environment", "gdr": "transport", "network": "transport", "algorithm": "environment"}


def _area(change: Change) -> str:
    return _AREA_OF.get(change.area, change.area)


def regressions(changed: Differences, tolerance: Tolerance) -> list[tuple[Change, str]]:
    """The differences that count against the run, each with what is wrong."""
    out = []
    for change in changed.every:
        said = _held_against(change, tolerance)
        if said and _area(change) not in tolerance.ignore and f"{_area(change)}:{change.subject}" not in tolerance.ignore:
            out.append((change, said))
    return out


def _held_against(change: Change, tolerance: Tolerance) -> str:
    """What to say of a difference that counts against the run; empty for one that does not."""
    area, subject = change.area, change.subject
    moved = f"{change.before} before, {change.after} now"
    if area == "bandwidth":
        return f"bus bandwidth of {subject} fell: {moved}" if _fell(change, tolerance.bandwidth) else ""
    if area == "step":
        gap = (change.after_number or 0) - (change.before_number or 0)
        lost = change.direction == "worse" and abs(gap) > tolerance.overlap
        return f"{subject}: {moved}" if lost and change.kind == "changed" and ("overlap" in subject or "exposed" in subject) else ""
    if area == "lag":
        if change.kind != "changed" or change.before_number is None or change.after_number is None:
            return ""
        slower = change.after_number - change.before_number
        grown = slower > tolerance.lag_ms and slower > tolerance.lag * change.before_number
        return f"{subject}: {moved}" if grown else ""
    if area == "setting":
        if subject in HARMLESS:
            return ""
        if change.kind == "changed":
            return f"setting {subject}: {moved}"
        beside = "though other settings are" in change.note
        return (
            f"setting {subject} is {'gone, it was' if change.kind == 'only-before' else 'new:'} {change.before or change.after}"
            if beside
            else ""
        )
    if area == "finding":
        return f"new: {change.after}" if change.direction == "worse" else ""
    if change.kind != "changed":
        return ""
    if area in ("version", "hardware"):
        return f"{subject}: {moved}"
    if area in ("transport", "gdr", "network", "channels", "topology"):
        return f"{subject}: {moved}" if change.direction == "worse" else ""
    return ""


def _fell(change: Change, tolerance: float) -> bool:
    """The mean over the large sizes by more than the tolerance, or one of them by more than twice of it."""
    if change.kind != "changed" or change.ratio is None:
        return False
    return change.ratio < 1 - tolerance or (change.worst_ratio is not None and change.worst_ratio < 1 - 2 * tolerance)


def _regression(change: Change, said: str, subject: Json, accepted: Mapping[str, object] | None) -> Issue:
    path, _, line = change.after_where.rpartition(":")
    place = Place(path, int(line)) if path and line.isdigit() else Place(change.after_where) if change.after_where else None
    suppressed = f"{accepted['reason']} (until {accepted['until']})" if accepted else ""
    return Issue(
        "regression",
        str(subject["rule"]),
        str(subject["rule"]).upper(),
        change.fingerprint,
        "error",
        said,
        change.note + (f"; before: {change.before_where}" if change.before_where else ""),
        not suppressed,
        "",
        suppressed,
        (place,) if place else (),
    )
