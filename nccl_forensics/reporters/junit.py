"""JUnit XML of a check, as Jenkins, GitLab and most test viewers read it: one test case per rule, per area of the baseline, per demand."""

from __future__ import annotations

from xml.etree import ElementTree as Tree

from nccl_forensics.gate import AREAS, Gate, Issue

_NAME = "nccl-forensics"


def render(gate: Gate) -> bytes:
    """The document, the same for the same evidence: it holds no time and no duration."""
    root = Tree.Element("testsuites", name=_NAME)
    _rules(root, gate)
    if gate.compared:
        _suite(root, "baseline", [(f"baseline-{area}", [i for i in gate.issues if i.rule == f"baseline-{area}"]) for area in AREAS])
    _suite(root, "verdict", [("verdict", [i for i in gate.issues if i.kind == "verdict"])])
    if gate.required:
        missing = {i.title: i for i in gate.issues if i.kind == "require"}
        cases = [(f"evidence of format {name}", [i for t, i in missing.items() if t.endswith(f" {name}")]) for name in gate.required]
        _suite(root, "required", cases)
    return _document(root)


def render_error(title: str, message: str) -> bytes:
    """The document for evidence that could not be used at all."""
    root = Tree.Element("testsuites", name=_NAME)
    suite = Tree.SubElement(root, "testsuite", name="evidence")
    case = Tree.SubElement(suite, "testcase", name=title or "evidence", classname=f"{_NAME}.evidence")
    Tree.SubElement(case, "error", message=message, type="unusable").text = message
    _count(suite)
    return _document(root)


def _rules(root: Tree.Element, gate: Gate) -> None:
    suite = Tree.SubElement(root, "testsuite", name="rules")
    for checked in gate.checked:
        case = Tree.SubElement(suite, "testcase", name=checked.rule, classname=f"{_NAME}.rules")
        own = [i for i in gate.issues if i.kind == "finding" and i.rule == checked.rule]
        if checked.status == "skipped":
            Tree.SubElement(case, "skipped", message=checked.why)
        elif checked.status == "crashed":
            Tree.SubElement(case, "error", message=checked.why, type="crashed").text = checked.why
        else:
            _results(case, own)
    _count(suite)


def _suite(root: Tree.Element, name: str, cases: list[tuple[str, list[Issue]]]) -> None:
    suite = Tree.SubElement(root, "testsuite", name=name)
    for title, issues in cases:
        _results(Tree.SubElement(suite, "testcase", name=title, classname=f"{_NAME}.{name}"), issues)
    _count(suite)


def _results(case: Tree.Element, issues: list[Issue]) -> None:
    """Failures, and what was found and does not fail as output."""
    for issue in (i for i in issues if i.fails):
        kind = "error" if issue.kind == "require" else "failure"
        Tree.SubElement(case, kind, message=issue.title, type=issue.cause or issue.kind).text = _text(issue)
    rest = [i for i in issues if not i.fails]
    if rest:
        Tree.SubElement(case, "system-out").text = "\n\n".join(_text(i) for i in rest)


def _text(issue: Issue) -> str:
    lines = [f"{issue.severity}: {issue.title}", issue.message]
    if issue.suppressed:
        lines.append(f"suppressed: {issue.suppressed}")
    for place in issue.places:
        where = f"{place.path}:{place.line}" if place.line is not None else place.path
        lines.append(" ".join(t for t in (where, f"({place.why})" if place.why else "", place.text.strip()) if t))
    if issue.remedy:
        lines.append(f"remedy: {issue.remedy}")
    if issue.fingerprint:
        lines.append(f"fingerprint: {issue.fingerprint}")
    return "\n".join(line for line in lines if line)


def _count(suite: Tree.Element) -> None:
    cases = suite.findall("testcase")
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("tests", str(len(cases)))


def _document(root: Tree.Element) -> bytes:
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    Tree.indent(root)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + Tree.tostring(root, encoding="unicode").encode() + b"\n"
