"""A plugin for pytest that notes, for every rule, whether some test saw it fire and some test saw it stay quiet.

``pytest -p tests.rule_recorder`` writes ``{rule: [fired, quiet]}`` to the file that ``RULE_RECORD`` names.
"""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from nccl_forensics.model import Finding
from nccl_forensics.rules import Rule

_seen: dict[str, list[bool]] = defaultdict(lambda: [False, False])


def pytest_configure(config: pytest.Config) -> None:
    """Wrap the check of every rule."""
    original = Rule.check

    @functools.wraps(original)
    def check(self: Rule, *frames: object, **thresholds: object) -> list[Finding]:
        found = original(self, *frames, **thresholds)  # type: ignore[arg-type]
        _seen[self.name][0 if found else 1] = True
        return found

    Rule.check = check  # type: ignore[method-assign,assignment]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was seen."""
    Path(os.environ["RULE_RECORD"]).write_text(json.dumps(_seen, sort_keys=True), encoding="utf-8")
