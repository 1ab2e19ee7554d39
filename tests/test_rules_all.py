"""What every rule must have."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nccl_forensics.conclusions.supply import supply
from nccl_forensics.model import CAUSES
from nccl_forensics.rules import HEADINGS, Rule, all_rules
from nccl_forensics.tables import TABLES
from nccl_forensics.views import all_views
from tests.corpus import ROOT


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.name)
def test_a_rule_has_its_page_a_known_cause_and_known_inputs(rule: Rule) -> None:
    assert all(heading in rule.page for heading in HEADINGS)
    assert rule.cause in CAUSES
    assert set(rule.inputs.names) <= set(TABLES) | set(all_views()) | {"sources"}
    assert all(t.meaning for t in rule.inputs.thresholds)


def test_names_and_codes_are_unique() -> None:
    rules = all_rules()
    assert len({r.name for r in rules}) == len(rules)
    assert len({r.code for r in rules}) == len(rules)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bool]]:
    """Which rules fired and which stayed quiet in the tests of ``tests/rules``."""
    target = tmp_path_factory.mktemp("record") / "rules.json"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "tests.rule_recorder", "-p", "no:cacheprovider", "tests/rules"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "RULE_RECORD": str(target)}, capture_output=True, text=True, timeout=600)
    assert target.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, list[bool]] = json.loads(target.read_text(encoding="utf-8"))
    return found


@pytest.mark.xdist_group("rule-record")
def test_every_rule_has_a_case_that_fires_and_a_near_miss_that_stays_quiet(record: dict[str, list[bool]]) -> None:
    names = [r.name for r in all_rules()]
    assert [n for n in names if not record.get(n, [False])[0]] == [], "rules that no test saw fire"
    assert [n for n in names if not record.get(n, [False, False])[1]] == [], "rules that no test saw stay quiet"


#: Tables that no rule needs to read: what could not be read is shown as it is, and these are for queries and pictures.
_FOR_QUERIES = frozenset({"gaps", "unmodelled", "collected", "trace_kernels", "trace_segments", "trace_spans", "trace_windows"})


def test_what_a_check_lacks_is_said_in_words_and_not_by_the_name_of_a_table() -> None:
    assert [name for rule in all_rules() for name in rule.inputs.names if supply(name) == name] == []


def test_every_table_is_read_by_a_rule_or_by_a_view_that_one_reads() -> None:
    views = all_views()
    wanted = [name for rule in all_rules() for name in rule.inputs.names]
    reached: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in reached:
            reached.add(name)
            wanted += views[name].inputs.names if name in views else ()
    assert sorted(set(TABLES) - reached - _FOR_QUERIES) == []
