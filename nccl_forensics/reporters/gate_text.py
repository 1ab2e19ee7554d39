"""The outcome of a check on a terminal: passed or failed, why, and where it is shown."""

from __future__ import annotations

from nccl_forensics.gate import Gate, Issue

_BAD, _GOOD, _DIM = "1;31", "1;32", "2"
#: Evidence lines below each issue.
_PLACES = 2


def render(gate: Gate, *, color: bool) -> str:
    """Lines, the worst first; ends with a newline. Without ``color`` there is no escape sequence in it."""

    def paint(text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if color and text else text

    lines = [paint("FAIL" if gate.exit_code else "PASS", _BAD if gate.exit_code else _GOOD) + f"  {gate.title}: {gate.reason}"]
    for issue in gate.failures:
        lines += _issue(issue, paint("✗", _BAD))
    for issue in gate.issues:
        if not issue.fails:
            lines += _issue(issue, paint("·", _DIM))
    lines += [paint(f"note: {remark}", _DIM) for remark in gate.remarks]
    clean = sum(c.status == "clean" for c in gate.checked)
    skipped = sum(c.status == "skipped" for c in gate.checked)
    lines.append(paint(f"{len(gate.checked)} rules: {clean} clean, {skipped} not made for want of evidence", _DIM))
    return "\n".join(lines) + "\n"


def _issue(issue: Issue, mark: str) -> list[str]:
    identity = f"  [{issue.fingerprint}]" if issue.fingerprint else ""
    lines = [f"{mark} {issue.severity} {issue.rule}: {issue.title}{identity}"]
    if issue.suppressed:
        lines.append(f"    suppressed: {issue.suppressed}")
    for place in issue.places[:_PLACES]:
        where = f"{place.path}:{place.line}" if place.line is not None else place.path
        lines.append(f"    {where}  {place.text.strip()[:160]}".rstrip())
    return lines
