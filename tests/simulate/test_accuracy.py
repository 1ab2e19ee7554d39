"""A few simulated incidents through the whole program; the accuracy matrix (tests/accuracy_matrix.py) runs all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccl_forensics.simulate import Request, simulate
from tests.score import Case, run

CASES = [
    Request("healthy", 8, 1, variant="log", platform="h100"),
    Request("collective-skipped", 8, 1, variant="dump", platform="h100"),
    Request("gpu-fault", 8, 1, variant="host", platform="a100"),
    Request("few-channels", 8, 1, variant="log", platform="h200"),
    Request("connection-failed", 16, 1, variant="log", platform="h100"),
]


@pytest.mark.parametrize("request_", CASES, ids=lambda r: r.scenario)
def test_a_simulated_incident_gets_the_verdict_that_its_truth_accepts(request_: Request, tmp_path: Path) -> None:
    simulate(request_, tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text())
    score = run(Case(request_.scenario, tmp_path / "evidence", truth))
    assert score.error is None
    assert score.cause_right, (score.status, score.cause)
    assert score.culprits_right, score.culprits
    assert not score.blamed
