"""Damage to evidence never brings a high-confidence verdict against an innocent rank; the whole study is ``python -m
tests.disturbance``."""

from __future__ import annotations

import pytest

from tests.disturbance import DAMAGE, held
from tests.score import Case, cases

#: Bundled incidents whose logs or dumps a damaged line or bit would turn against somebody else.
BUNDLED = ("nccl-skipped-collective-8r", "nccl-version-mismatch-8r", "subgroup-hang-8r")


def bundled(name: str) -> Case:
    [case] = [c for c in cases() if c.name == f"incidents/{name}"]
    return case


@pytest.mark.parametrize("change", [c for c in DAMAGE if c.endswith("lightly")])
@pytest.mark.parametrize("name", BUNDLED)
def test_light_damage_blames_no_innocent_rank_at_high_confidence(name: str, change: str) -> None:
    found = held(bundled(name), change, seed=0, before=())
    assert found is not None
    assert not found.crashed
    assert not found.claims
    assert not found.blamed or found.confidence != "high", found
