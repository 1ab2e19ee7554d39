"""Suppressions: findings that somebody has looked at and accepted, with a reason and a day on which that ends.

A suppressed finding stays in every report, with its reason; a gate does not count it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Suppression:
    """What is accepted: every criterion that is given must hold. ``until`` is the last day on which it is in force.

    ``rule`` is a rule's name or code, ``host`` a pattern such as ``node-1*`` that all hosts of the finding must fit.
    """

    reason: str
    until: date
    rule: str | None = None
    cause: str | None = None
    fingerprint: str | None = None
    host: str | None = None

    def fits(self, finding: Json) -> bool:
        """Whether the finding (or regression) is the one that is meant."""
        if self.rule is not None and self.rule not in (finding.get("rule"), finding.get("code")):
            return False
        if self.cause is not None and self.cause != finding.get("cause"):
            return False
        if self.fingerprint is not None and self.fingerprint != finding.get("fingerprint"):
            return False
        if self.host is not None:
            hosts = finding.get("hosts")
            names = [str(h) for h in hosts] if isinstance(hosts, list | tuple) else []
            return bool(names) and all(fnmatchcase(n, self.host) for n in names)
        return True

    def holds(self, today: date | None) -> bool:
        """Whether it is in force. Where no day is known, it is not: a gate must not stay open for want of a date."""
        return today is not None and today <= self.until

    @property
    def words(self) -> str:
        """What it is about, for messages."""
        given = (("rule", self.rule), ("cause", self.cause), ("fingerprint", self.fingerprint), ("host", self.host))
        return ", ".join(f"{key} {value}" for key, value in given if value is not None)


def found(finding: Json, suppressions: Iterable[Suppression], today: date | None) -> dict[str, object] | None:
    """``{reason, until}`` of the first suppression in force that fits, as the report has it."""
    for s in suppressions:
        if s.fits(finding) and s.holds(today):
            return {"reason": s.reason, "until": s.until.isoformat()}
    return None


def suppress(findings: Sequence[dict[str, object]], suppressions: Sequence[Suppression], today: date | None) -> None:
    """Write ``suppressed`` into the findings of a report. What an accepted finding explains is accepted with it."""
    by_id = {str(f["id"]): f for f in findings}
    for finding in findings:
        finding["suppressed"] = found(finding, suppressions, today)
    for finding in findings:
        cause, seen = finding, {str(finding["id"])}
        while cause["suppressed"] is None and (above := by_id.get(str(cause.get("explained_by")))) is not None:
            if str(above["id"]) in seen:
                break
            seen.add(str(above["id"]))
            cause = above
        accepted = cause["suppressed"]
        if cause is not finding and isinstance(accepted, dict):
            finding["suppressed"] = {"reason": f"explained by {cause['id']}: {accepted['reason']}", "until": accepted["until"]}


def remarks(subjects: Sequence[Json], suppressions: Sequence[Suppression], today: date | None) -> list[str]:
    """What to say about suppressions that did nothing: expired, not to be judged, or fitting nothing."""
    out = []
    for s in suppressions:
        fits = any(s.fits(subject) for subject in subjects)
        if not fits:
            out.append(f"suppression of {s.words} fits nothing in this evidence")
        elif today is None:
            out.append(f"suppression of {s.words} is not in force: nothing tells the day (give --today)")
        elif not s.holds(today):
            out.append(f"suppression of {s.words} ended on {s.until.isoformat()} ({s.reason})")
    return out
