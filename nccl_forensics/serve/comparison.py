"""Two incidents side by side: what each verdict says, which facts of the jobs differ, and which findings came, went and stayed.

Findings are matched by their fingerprint, which holds no times, pids or paths: the same fault on the same host is the same finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LISTED = 8


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of both jobs, as text."""

    label: str
    before: str
    after: str

    @property
    def same(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, slots=True)
class Comparison:
    """``facts`` in a fixed order; findings as rows of their reports."""

    facts: tuple[Fact, ...]
    gone: tuple[Mapping[str, object], ...]
    new: tuple[Mapping[str, object], ...]
    both: tuple[Mapping[str, object], ...]

    def as_json(self) -> dict[str, object]:
        """For the API."""
        return {
            "facts": [{"label": f.label, "before": f.before, "after": f.after, "same": f.same} for f in self.facts],
            "gone": [_short(f) for f in self.gone],
            "new": [_short(f) for f in self.new],
            "both": [_short(f) for f in self.both],
        }


def compare(before: Mapping[str, object], after: Mapping[str, object]) -> Comparison:
    """Compare two reports of the contract."""
    facts = [
        Fact("Status", _word(before, "verdict", "status"), _word(after, "verdict", "status")),
        Fact("Cause", _word(before, "verdict", "cause"), _word(after, "verdict", "cause")),
        Fact("Confidence", _word(before, "verdict", "confidence"), _word(after, "verdict", "confidence")),
        Fact("Culprits", _culprits(before), _culprits(after)),
        *(
            Fact(label, _word(before, "case", key), _word(after, "case", key))
            for label, key in (
                ("World size", "world_size"),
                ("Hosts", "hosts"),
                ("GPUs", "gpus"),
                ("NCCL", "nccl_versions"),
                ("PyTorch", "torch_versions"),
                ("Backends", "backends"),
                ("Started", "started_at"),
                ("Ended", "ended_at"),
            )
        ),
    ]
    old, young = _findings(before), _findings(after)
    return Comparison(
        tuple(facts),
        tuple(f for key, f in old.items() if key not in young),
        tuple(f for key, f in young.items() if key not in old),
        tuple(f for key, f in young.items() if key in old),
    )


def _findings(report: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    rows = report.get("findings")
    return {str(f.get("fingerprint")): f for f in rows if isinstance(f, Mapping)} if isinstance(rows, Sequence) else {}


def _culprits(report: Mapping[str, object]) -> str:
    verdict = report.get("verdict")
    rows = verdict.get("culprits") if isinstance(verdict, Mapping) else None
    return _listed([culprit_words(c) for c in rows if isinstance(c, Mapping)]) if isinstance(rows, Sequence) else "–"


def culprit_words(culprit: Mapping[str, object]) -> str:
    """One culprit in words."""
    names = (("rank", "rank {}"), ("host", "{}"), ("gpu", "GPU {}"), ("nic", "{}"), ("link", "{}"))
    return " · ".join(form.format(culprit[key]) for key, form in names if culprit.get(key) is not None)


def _word(report: Mapping[str, object], part: str, key: str) -> str:
    held = report.get(part)
    value = held.get(key) if isinstance(held, Mapping) else None
    if isinstance(value, (list, tuple)):
        return _listed([str(v) for v in value])
    return "–" if value is None else str(value)


def _listed(values: Sequence[str]) -> str:
    if not values:
        return "–"
    return ", ".join(values[:_LISTED]) + (f" and {len(values) - _LISTED} more" if len(values) > _LISTED else "")


def _short(finding: Mapping[str, object]) -> dict[str, object]:
    return {key: finding.get(key) for key in ("fingerprint", "rule", "cause", "severity", "title", "ranks", "hosts")}
