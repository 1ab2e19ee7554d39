"""What every rule must have."""

from __future__ import annotations

import pytest

from nccl_forensics.model import CAUSES
from nccl_forensics.rules import HEADINGS, Rule, all_rules
from nccl_forensics.tables import TABLES
from nccl_forensics.views import all_views


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
