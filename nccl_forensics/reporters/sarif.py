"""SARIF 2.1.0 of a check, for code-scanning pages and trackers: results with stable fingerprints, suppressed ones marked as such."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import orjson

from nccl_forensics.gate import Gate, Issue, Place
from nccl_forensics.model import Severity

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: dict[Severity, str] = {"critical": "error", "error": "error", "warning": "warning", "info": "note"}
#: Name of the fingerprint; its number changes when the way of making it does.
_FINGERPRINT = "ncclForensics/v1"
_LOCATIONS = 10


def render(gate: Gate, pages: Mapping[str, tuple[str, str]]) -> bytes:
    """The log of one run. ``pages`` gives the title and text of a rule by its name."""
    names = sorted({i.rule for i in gate.issues})
    results = [_result(i, names.index(i.rule), gate) for i in gate.issues]
    failed = [i for i in gate.issues if i.kind == "crash"]
    driver = {"name": "nccl-forensics", "version": gate.version, "rules": [_rule(n, gate, pages) for n in names]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not failed,
                "exitCode": gate.exit_code,
                "exitCodeDescription": gate.reason,
                "toolExecutionNotifications": [{"level": "error", "message": {"text": f"{i.title}: {i.message}"}} for i in failed],
            }
        ],
        "results": [r for r, i in zip(results, gate.issues, strict=True) if i.kind != "crash"],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return orjson.dumps(log, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _rule(name: str, gate: Gate, pages: Mapping[str, tuple[str, str]]) -> dict[str, object]:
    own = [i for i in gate.issues if i.rule == name]
    title, page = pages.get(name, (_TITLES.get(name.split("-", 1)[0], name), ""))
    out: dict[str, object] = {
        "id": own[0].code or name,
        "name": name,
        "shortDescription": {"text": title},
        "defaultConfiguration": {"level": _LEVELS[own[0].severity]},
    }
    if page:
        out["help"] = {"text": page, "markdown": page}
    return out


_TITLES = {
    "baseline": "The run falls behind the report of a good run.",
    "verdict": "The verdict leaves it open what happened.",
    "require": "Required evidence is absent.",
}


def _result(issue: Issue, index: int, gate: Gate) -> dict[str, object]:
    places = issue.places or (Place(gate.inputs[0] if gate.inputs else gate.title),)
    out: dict[str, object] = {
        "ruleId": issue.code or issue.rule,
        "ruleIndex": index,
        "kind": "fail",
        "level": _LEVELS[issue.severity],
        "message": {"text": ". ".join(t.rstrip(".") for t in (issue.title, issue.message, issue.remedy) if t) + "."},
        "locations": [_location(p, issue) for p in places[:1]],
        "relatedLocations": [{"id": n, **_location(p, None)} for n, p in enumerate(places[1:_LOCATIONS], 1)],
        "properties": {"cause": issue.cause, "hosts": list(issue.hosts), "ranks": list(issue.ranks), "fails": issue.fails},
    }
    if issue.fingerprint:
        out["partialFingerprints"] = {_FINGERPRINT: issue.fingerprint}
    if issue.suppressed:
        out["suppressions"] = [{"kind": "external", "status": "accepted", "justification": issue.suppressed}]
    return out


def _location(place: Place, issue: Issue | None) -> dict[str, object]:
    physical: dict[str, object] = {"artifactLocation": {"uri": quote(place.path, safe="/!~._-")}}
    if place.line is not None:
        region: dict[str, object] = {"startLine": place.line}
        if place.text:
            region["snippet"] = {"text": place.text}
        physical["region"] = region
    out: dict[str, object] = {"physicalLocation": physical}
    if place.why:
        out["message"] = {"text": place.why}
    if issue is not None and issue.hosts:
        out["logicalLocations"] = [{"name": h, "kind": "resource"} for h in issue.hosts[:_LOCATIONS]]
    return out
