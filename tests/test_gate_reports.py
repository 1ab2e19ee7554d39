"""JUnit, SARIF and annotations of a check: valid by their schemas, and saying what the gate says."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as Tree

import jsonschema
import pytest

from nccl_forensics.gate import Checked, Gate, Issue, Place
from nccl_forensics.reporters import annotations, gate_text, junit, sarif

SCHEMAS = Path(__file__).parent / "schemas"
NASTY = 'quote " < & ]]> %0A::error:: \N{SNOWMAN}, colon: comma'

FAILING = Issue(
    "finding",
    "gdr-disabled",
    "NI04",
    "aa11",
    "error",
    NASTY,
    "why",
    True,
    "gdr-disabled",
    "",
    (Place("a dir/n#1.log", 7, NASTY, "shows it"), Place("b.log", 9)),
    ("node-1",),
    (3,),
    "do this",
)
SUPPRESSED = Issue("finding", "nic-underused", "NI01", "bb22", "error", "few NICs", "", False, "nic-underused", "known (until 2027-01-01)")
WARNING = Issue("finding", "nic-underused", "NI01", "cc33", "warning", "fewer NICs", "", False, "nic-underused")
REGRESSION = Issue(
    "regression", "baseline-bandwidth", "BASELINE-BANDWIDTH", "dd44", "error", "bus bandwidth fell", "", True, places=(Place("t.txt", 3),)
)
OPEN = Issue("verdict", "verdict", "VERDICT", "", "error", "the job failed and no cause is proved", "", True)
ABSENT = Issue("require", "require", "REQUIRE", "", "error", "no evidence of format py-spy", "", True)
CRASH = Issue("crash", "straggler", "ST01", "", "error", "rule straggler crashed", "ValueError", True)


def gate(*issues: Issue, code: int = 1) -> Gate:
    checked = (
        Checked("gdr-disabled", "NI04", "found", ""),
        Checked("nic-underused", "NI01", "found", ""),
        Checked("node-failed", "NO01", "skipped", "no kernel_events"),
        Checked("straggler", "ST01", "crashed", "ValueError"),
        Checked("ib-link", "IB01", "clean", ""),
    )
    return Gate(
        code,
        "because",
        "run",
        "0.1",
        "error",
        "explained",
        "",
        issues,
        checked,
        ("a remark",),
        True,
        ("run.tar.gz",),
        ("nccl-log", "py-spy"),
    )


ALL = gate(FAILING, REGRESSION, OPEN, ABSENT, CRASH, SUPPRESSED, WARNING)
NONE = gate(code=0)


@cache
def sarif_schema() -> dict[str, object]:
    loaded = json.loads((SCHEMAS / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def validate_sarif(document: bytes) -> dict[str, object]:
    """The log, which must be valid by the published schema."""
    log = json.loads(document)
    jsonschema.Draft4Validator(sarif_schema(), format_checker=jsonschema.FormatChecker()).validate(log)
    assert isinstance(log, dict)
    return log


def validate_junit(document: bytes) -> Tree.Element:
    """The document, which must be valid by Jenkins' schema."""
    xmlschema = pytest.importorskip("xmlschema")
    xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd")).validate(document.decode())
    return Tree.fromstring(document.decode())


@pytest.mark.parametrize("outcome", [ALL, NONE], ids=["everything", "nothing"])
def test_junit_and_sarif_are_valid(outcome: Gate) -> None:
    validate_junit(junit.render(outcome))
    validate_sarif(sarif.render(outcome, {"gdr-disabled": ("title", "page")}))


def test_junit_has_a_case_per_rule_area_and_demand() -> None:
    root = validate_junit(junit.render(ALL))
    cases = {c.get("name"): c for c in root.iter("testcase")}
    assert [e.tag for e in cases["gdr-disabled"]] == ["failure"]
    assert cases["gdr-disabled"][0].get("message") == NASTY
    assert [e.tag for e in cases["nic-underused"]] == ["system-out"]
    assert "suppressed: known" in (cases["nic-underused"][0].text or "")
    assert cases["node-failed"][0].get("message") == "no kernel_events"
    assert [e.tag for e in cases["straggler"]] == ["error"]
    assert not list(cases["ib-link"])
    assert [e.tag for e in cases["baseline-bandwidth"]] == ["failure"]
    assert not list(cases["baseline-version"])
    assert [e.tag for e in cases["evidence of format py-spy"]] == ["error"]
    assert not list(cases["evidence of format nccl-log"])
    assert (root.get("failures"), root.get("errors")) == ("3", "2")


def test_junit_of_unusable_evidence_is_valid() -> None:
    root = validate_junit(junit.render_error("run.tar", f"broken {NASTY}"))
    assert root.get("errors") == "1"


def test_sarif_carries_places_fingerprints_and_suppressions() -> None:
    [run] = validate_sarif(sarif.render(ALL, {"gdr-disabled": ("title", "page")}))["runs"]  # type: ignore[misc]
    results = {r["ruleId"]: r for r in run["results"]}
    place = results["NI04"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20dir/n%231.log"
    assert place["region"]["startLine"] == 7
    assert results["NI04"]["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 9
    assert results["NI04"]["partialFingerprints"] == {"ncclForensics/v1": "aa11"}
    assert [("suppressions" in r) for r in run["results"] if r["ruleId"] == "NI01"] == [True, False]
    assert all(r["locations"] for r in run["results"])
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    assert run["invocations"][0]["executionSuccessful"] is False
    assert "straggler" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


#: https://docs.github.com: ::name key=value,key=value::message, with %, CR, LF escaped, in properties also : and ,
_ANNOTATION = re.compile(
    r"::(error|warning|notice) ((?:[a-z]+=[^:,%\r\n]*(?:%(?:25|0D|0A|3A|2C)[^:,%\r\n]*)*,?)+)::((?:[^%\r\n]|%(?:25|0D|0A))*)"
)


def test_annotations_follow_the_documented_grammar() -> None:
    lines = annotations.render(ALL).splitlines()
    assert len(lines) == len(ALL.issues)
    parsed = [_ANNOTATION.fullmatch(line) for line in lines]
    assert all(parsed)
    first = parsed[0]
    assert first is not None
    assert (first[1], first[2].split(",")[:2]) == ("error", ["file=a dir/n#1.log", "line=7"])
    assert [p[1] for p in parsed if p] == ["error"] * 5 + ["notice", "warning"]


def test_a_message_cannot_start_a_command_of_its_own() -> None:
    nasty = Issue("finding", "r", "R", "", "error", "one\n::set-output name=x::y", "", True)
    [line] = annotations.render(gate(nasty)).splitlines()
    assert line.startswith("::error title=")


def test_more_annotations_than_github_shows_are_counted() -> None:
    many = gate(*(Issue("finding", "r", "R", str(n), "error", f"f{n}", "", True) for n in range(25)))
    lines = annotations.render(many).splitlines()
    assert (len(lines), lines[-1]) == (11, "::notice title=nccl-forensics::15 more: see the report")


def test_the_terminal_says_failed_what_and_where_without_colour() -> None:
    text = gate_text.render(ALL, color=False)
    assert text.startswith("FAIL  run: because\n")
    assert "a dir/n#1.log:7" in text
    assert "suppressed: known (until 2027-01-01)" in text
    assert "note: a remark" in text
    assert "\x1b" not in text
    assert "\x1b" in gate_text.render(ALL, color=True)
    assert gate_text.render(NONE, color=False).startswith("PASS")
