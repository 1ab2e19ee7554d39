"""Whole-program tests: bundled incidents against their truth, floors over the corpus, the same bytes twice, a schema for every report."""

from __future__ import annotations

import json
import shutil
from functools import cache
from importlib.resources import files
from pathlib import Path

import jsonschema
import orjson
import pytest

from nccl_forensics.api import analyze
from nccl_forensics.extras import Extras
from nccl_forensics.reading.engine import InlineEngine, LocalEngine
from nccl_forensics.redaction import Level
from nccl_forensics.reporters import html, json_report, markdown
from tests import claims
from tests.benchmarks.inputs import recorder
from tests.corpus import ROOT, corpus_root
from tests.score import FLOOR, Case, Score, below_floor, cases, run, run_all, summary

BUNDLED = [c for c in cases() if c.evidence.is_relative_to(ROOT / "fixtures")]


@cache
def schema() -> dict[str, object]:
    text = files("nccl_forensics").joinpath("report.schema.json").read_text(encoding="utf-8")
    loaded = json.loads(text)
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("case", BUNDLED, ids=lambda c: c.name)
def test_a_bundled_incident_is_explained_as_its_truth_says(case: Case) -> None:
    score = run(case)
    assert score.error is None
    assert score.right, score
    assert score.broken == (), "a citation does not say what is quoted, or a count does not add up"


@pytest.mark.parametrize("case", BUNDLED, ids=lambda c: c.name)
def test_two_runs_give_the_same_valid_bytes(case: Case) -> None:
    incidents = [analyze([case.evidence], engine=InlineEngine()) for _ in range(2)]
    first, second = (json_report.render(i.report) for i in incidents)
    assert first == second
    for reporter in (html, markdown):
        one, other = (reporter.render(i.report, i.extras) for i in incidents)
        assert one == other
    jsonschema.validate(orjson.loads(first), schema())


@cache
def corpus_scores() -> tuple[Score, ...]:
    return tuple(run_all())


@pytest.mark.corpus
def test_no_figure_of_the_scorecard_falls() -> None:
    if not corpus_root().exists():
        pytest.skip("corpus absent")
    assert not below_floor(summary(list(corpus_scores())), json.loads(FLOOR.read_text()))


@pytest.mark.corpus
def test_every_claim_of_every_report_on_the_corpus_holds_in_the_evidence() -> None:
    if not corpus_root().exists():
        pytest.skip("corpus absent")
    assert not {score.name: score.broken[:4] for score in corpus_scores() if score.broken}


def test_a_claim_that_does_not_hold_is_told(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED[0].evidence, tmp_path / "evidence")
    report = analyze([tmp_path / "evidence"], engine=InlineEngine()).report
    assert claims.broken(report, tmp_path / "evidence") == []
    cited = next(e for f in report["findings"] for e in f["evidence"] if e["kind"] == "line")  # type: ignore[attr-defined]  # a list of mappings
    cited["text"] = "something else"
    assert claims.broken(report, tmp_path / "evidence")


@pytest.mark.parametrize("engine", [InlineEngine, LocalEngine])
def test_dumps_that_are_read_together_are_judged_as_their_truth_says(tmp_path: Path, engine: type[InlineEngine | LocalEngine]) -> None:
    recorder(tmp_path, 12, 600)
    report = analyze([tmp_path / "evidence"], engine=engine()).report
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["cause"], [c["rank"] for c in verdict["culprits"]], verdict["confidence"]) == ("collective-skipped", [7], "high")
    rules = report["rules"]
    assert isinstance(rules, list)
    assert not [r for r in rules if r["status"] == "crashed"]
    assert claims.broken(report, tmp_path / "evidence") == []


@pytest.mark.parametrize("redact", ["secrets", "identity"])
def test_a_report_has_the_same_bytes_where_no_pictures_are_wanted(redact: Level) -> None:
    evidence = [str(ROOT / "fixtures" / "incidents" / "killed-rank-4r" / "evidence")]
    whole, bare = (analyze(evidence, engine=InlineEngine(), redact=redact, pictures=pictures) for pictures in (True, False))
    assert bare.json() == whole.json()
    assert whole.extras.processes
    if redact == "secrets":
        assert bare.gathered is None
        assert bare.extras == Extras()
        assert "<html" in bare.html()


@pytest.mark.parametrize("lines", [1, 3])
def test_the_head_of_a_bandwidth_test_tells_the_size_of_the_case_and_its_machines(tmp_path: Path, lines: int) -> None:
    # What NCCL itself says of a communicator counts for more: then the test's own head adds the GPUs' names alone.
    text = (ROOT / "fixtures" / "nccl_tests" / "wrong_and_cut.txt").read_text().split("\n\n")[0]
    init = "node01:101:120 [0] NCCL INFO comm 0x5 rank {} nranks 3 cudaDev 0 busId 1b000 - Init COMPLETE\n"
    (tmp_path / "test.txt").write_text(text + "\n" + "".join(init.format(rank) for rank in range(lines - 1)))
    case = analyze([tmp_path], engine=InlineEngine()).report["case"]
    assert isinstance(case, dict)
    assert case["world_size"] == (2 if lines == 1 else 3)
    assert "NVIDIA H100 80GB HBM3" in case["gpus"]
    if lines == 1:
        assert (case["ranks_seen"], case["hosts"], case["nccl_versions"]) == (2, ["node01", "node02"], ["2.28.7"])


def test_a_release_that_nccl_names_without_a_process_is_the_cases(tmp_path: Path) -> None:
    init = "n1:10{0}:120 [{0}] NCCL INFO comm 0x5 rank {0} nranks 2 cudaDev {0} busId {0}b000 - Init COMPLETE\n"
    (tmp_path / "job.out").write_text("NCCL version 2.7.8+cuda10.2\n" + "".join(init.format(rank) for rank in range(2)))
    case = analyze([tmp_path], engine=InlineEngine()).report["case"]
    assert isinstance(case, dict)
    assert case["nccl_versions"] == ["2.7.8"]
