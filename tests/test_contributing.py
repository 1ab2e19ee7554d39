"""CONTRIBUTING.md shows a rule added in ten minutes: its files are what they say, and its commands work."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nccl_forensics.model import CAUSES
from nccl_forensics.rules import HEADINGS, Rule, own_rules
from nccl_forensics.tables import TABLES
from nccl_forensics.views import all_views
from tests.corpus import ROOT
from tests.test_docs import run

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


def load(name: str, place: Path) -> ModuleType:
    """A file of the page as the module that it will be."""
    target = place / Path(name).name
    target.write_text(FILES[name], encoding="utf-8")
    dotted = ".".join(Path(name).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(dotted, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[dotted] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[dict[str, ModuleType]]:
    loaded = {name: load(name, tmp_path) for name in FILES}
    yield loaded
    for module in loaded.values():
        sys.modules.pop(module.__name__, None)


def test_the_rule_of_the_page_has_all_that_a_rule_needs_and_its_tests_pass(modules: dict[str, ModuleType]) -> None:
    rule_file, test_file = modules.values()
    [rule] = [v for v in vars(rule_file).values() if isinstance(v, Rule)]
    assert all(heading in rule.page for heading in HEADINGS)
    assert rule.cause in CAUSES
    assert set(rule.inputs.names) <= set(TABLES) | set(all_views())
    assert not {rule.name, rule.code} & {word for r in own_rules() for word in (r.name, r.code)}
    tests = [v for n, v in vars(test_file).items() if n.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_its_commands_are_there() -> None:
    assert run(["sql", str(ROOT / "fixtures" / "host_listing"), "SELECT name, soft, unlimited FROM limits LIMIT 5"]).exit_code == 0
    assert "limits: One limit of ulimit" in run(["tables"]).output
    made = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = {word for line in re.findall(r"^make ([a-z -]+)", TEXT, re.MULTILINE) for word in line.split()}
    assert {"demo", "test", "score", "docs"} <= asked <= made
