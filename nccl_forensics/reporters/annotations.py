"""Workflow commands of GitHub Actions: one annotation per issue, printed to standard output of the step."""

from __future__ import annotations

from nccl_forensics.gate import Gate, Issue

#: GitHub shows ten annotations of each level of a step; the rest would be lost in silence.
_EACH = 10


def render(gate: Gate) -> str:
    """Annotations, failures first as errors, the rest as warnings and notices; a last notice counts what is left away."""
    lines: list[str] = []
    counts: dict[str, int] = {}
    left = 0
    for issue in gate.issues:
        level = _level(issue)
        counts[level] = counts.get(level, 0) + 1
        if counts[level] > _EACH or (level == "notice" and counts[level] == _EACH):
            left += 1
            continue
        lines.append(_annotation(level, issue))
    if left:
        lines.append(f"::notice title=nccl-forensics::{left} more: see the report")
    return "".join(line + "\n" for line in lines)


def render_error(message: str) -> str:
    """The annotation for evidence that could not be used at all."""
    return f"::error title=nccl-forensics::{_data(message)}\n"


def _level(issue: Issue) -> str:
    if issue.fails:
        return "error"
    return "warning" if issue.severity in ("critical", "error", "warning") and not issue.suppressed else "notice"


def _annotation(level: str, issue: Issue) -> str:
    properties = []
    place = issue.places[0] if issue.places else None
    if place is not None:
        properties.append(f"file={_property(place.path)}")
        if place.line is not None:
            properties.append(f"line={place.line}")
    properties.append(f"title={_property(f'{issue.rule} ({issue.severity})')}")
    quoted = f"{place.text.strip()}" if place is not None else ""
    parts = [issue.title, issue.message, f"suppressed: {issue.suppressed}" if issue.suppressed else "", quoted]
    return f"::{level} {','.join(properties)}::{_data(chr(10).join(p for p in parts if p))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
