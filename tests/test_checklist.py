"""The first-response questions: each rule answers one, and an answer is never better than the evidence."""

from __future__ import annotations

from collections import Counter

from nccl_forensics import api
from nccl_forensics.conclusions.checklist import FURTHER, checklist, variant_of
from nccl_forensics.facts.checklist import QUESTIONS, SECTIONS
from nccl_forensics.model import Finding, Severity
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.rules import Found, Outcome, Rule, own_rules
from nccl_forensics.tables import TABLES
from nccl_forensics.views import all_views
from tests.corpus import ROOT

RULES = {r.name: r for r in own_rules()}
QUESTION = "Do GPUs run at full clocks?"


def outcome(status: str, severity: Severity = "error") -> Outcome:
    """What became of the rule that answers ``QUESTION``."""
    rule: Rule = RULES["gpu-throttled"]
    found = (Found("GP04-1", "f", rule, Finding("slow", severity=severity)),) if status == "found" else ()
    return Outcome(rule, status, found, (), {})  # type: ignore[arg-type]


def answer(one: Outcome, present: bool) -> dict[str, object]:
    [item] = [i for i in checklist([one], lambda name: present) if i["item"] == QUESTION]
    return item


def test_a_rule_that_found_something_is_a_bad_answer_and_names_its_finding() -> None:
    item = answer(outcome("found"), True)
    assert (item["answer"], item["finding"], item["where"], item["command"]) == ("bad", "GP04-1", "rule gpu-throttled", None)


def test_context_is_no_bad_answer() -> None:
    assert answer(outcome("found", "info"), True)["answer"] == "ok"


def test_a_clean_rule_is_a_good_answer_only_where_there_was_evidence() -> None:
    assert answer(outcome("clean"), True)["answer"] == "ok"
    item = answer(outcome("clean"), False)
    assert (item["answer"], item["where"]) == ("unknown", None)
    assert "nvidia-smi" in str(item["command"])


def test_a_rule_that_was_skipped_or_crashed_answers_nothing() -> None:
    assert {answer(outcome(status), True)["answer"] for status in ("skipped", "crashed")} == {"unknown"}


def test_every_rule_answers_a_question_and_every_question_can_be_answered() -> None:
    asked = Counter(name for q in QUESTIONS for name in q.rules)
    assert set(asked) <= set(RULES)
    unasked = {r.name for r in RULES.values() if r.severity != "info"} - set(asked)
    assert {name for name in unasked if variant_of(name, asked) is None} == set(), "add them to a question of facts/checklist.py"
    for q in QUESTIONS:
        assert q.section in SECTIONS
        assert q.command
        for name in q.takes:
            table, _, column = name.partition(".")
            assert table in TABLES.keys() | all_views().keys(), q.text
            assert not column or column in TABLES[table].columns, q.text
    assert {q.section for q in QUESTIONS} == set(SECTIONS)
    assert max(Counter(q.text for q in QUESTIONS).values()) == 1


def test_a_rule_that_no_question_knows_is_a_question_of_its_own() -> None:
    rule = RULES["gpu-throttled"]
    foreign = Rule("acme", "ACME01", rule.cause, rule.severity, rule.at_most, (), rule.function, rule.inputs)
    [item] = [i for i in checklist([Outcome(foreign, "clean", (), (), {})], lambda name: True) if i["section"] == FURTHER]
    assert (item["answer"], item["item"]) == ("ok", rule.title)


def test_nccl_logs_alone_say_nothing_of_the_hosts() -> None:
    evidence = ROOT / "fixtures" / "incidents" / "nccl-healthy-8r" / "evidence"
    items = api.analyze([evidence], engine=InlineEngine()).report["checklist"]
    assert isinstance(items, list)
    answers = {section: {i["answer"] for i in items if i["section"] == section} for section in SECTIONS}
    for section in ("GPU", "NVLink and PCIe", "InfiniBand and RoCE", "Host"):
        assert answers[section] == {"unknown"}, section
    assert "ok" in answers["Hang"]
    assert not any("bad" in said for said in answers.values())


def test_a_variant_of_a_rule_answers_its_question() -> None:
    rule = RULES["gpu-throttled"]
    variant = Rule("gpu-throttled-by-guess", "GP99", rule.cause, rule.severity, rule.at_most, (), rule.function, rule.inputs)
    found = (Found("GP99-1", "f", variant, Finding("slow", severity="error")),)
    items = checklist([Outcome(variant, "found", found, (), {})], lambda name: True)
    assert [i["item"] for i in items if i["answer"] == "bad"] == [QUESTION]
