"""The lab: its catalog fits its jobs, its truths fit what is done, and (where PyTorch is) a real incident is made and diagnosed."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_forensics.lab import survey, torch_env
from nccl_forensics.lab.__main__ import asks_for_comparison, compare, main
from nccl_forensics.lab.catalog import ACTS_AS, SCENARIOS, Scenario, accepted, choose, faults, ranks_for, truth
from nccl_forensics.lab.gather import Worker, ask_for_faulthandler, cpu_seconds, workers_of
from nccl_forensics.lab.incident import plan_for, world_for
from nccl_forensics.lab.launch import AT_WORK_S, JOBS
from nccl_forensics.model import CAUSES
from tests.corpus import ROOT

IDS = [f"{s.fault}-{s.job}-{s.site}" for s in SCENARIOS]


def lab_python() -> Path:
    """An interpreter with PyTorch, or skip."""
    found = torch_env.find(None, ROOT / ".venv-lab")
    if found is None:
        pytest.skip("no interpreter here can import PyTorch (LAB_PYTHON names one, make hang installs one)")
    return found.python


def test_the_faults_that_the_lab_promises_are_there() -> None:
    promised = {
        "skipped-collective", "other-operation", "swapped-order", "shape", "dtype", "killed-rank", "exception", "early-exit", "slow-loader",
        "slow-compute", "gil-held", "p2p-deadlock", "subgroup-hang", "unused-parameter", "memory-limit", "healthy",
    }  # fmt: skip
    assert promised <= set(faults())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
def test_a_scenario_acts_in_its_job_and_its_truth_names_a_rank_of_it(scenario: Scenario) -> None:
    places = "".join((JOBS / f"{name}.py").read_text() for name in (scenario.job, "harness", "host_work"))
    if scenario.culprits != "nobody" and scenario.fault not in scenario.options:
        assert f'"{ACTS_AS.get(scenario.fault, scenario.fault)}"' in places
        assert scenario.site in ("workers", "quiet", "hard") or f'"{scenario.site}"' in places or not scenario.site
    for option in scenario.options:
        assert f'option("{option}")' in places or f'"{option}" in' in places
    assert {c for c in scenario.causes if c is not None} <= set(CAUSES)
    for seed in range(8):
        dice = random.Random(seed)
        world = world_for(scenario, dice.randint(2, 8))
        plan = plan_for(scenario, world, dice)
        assert world % scenario.multiple == 0
        assert all(0 <= r < world for r in plan.ranks)
        assert not set(plan.ranks) & set(scenario.not_ranks)
        lists = accepted(scenario, plan, world)
        assert all(0 <= r < world for ranks in lists for r in ranks)
        assert sorted(plan.ranks) in lists
        assert plan.step < plan.steps


def test_a_truth_has_the_layout_of_the_other_incidents() -> None:
    scenario = choose("skipped-collective", random.Random(1), "train_dp", "metrics")
    plan = plan_for(scenario, 4, random.Random(1), rank=2, step=5)
    known = truth(scenario, plan, 4, detail=False)
    assert known["cause_accepted"] == ["collective-skipped"]
    assert known["culprit_ranks_accepted"] == [[2]]
    assert known["world_size"] == 4
    assert "collective-mismatch" in str(truth(scenario, plan, 4, detail=True)["cause_accepted"])


def test_what_no_file_of_gloo_holds_is_said_in_the_truth_and_still_no_other_rank_is_right() -> None:
    scenario = next(s for s in SCENARIOS if s.fault == "p2p-missing-send" and "batched" in s.options)
    plan = plan_for(scenario, 4, random.Random(1), rank=1, step=5)
    known = truth(scenario, plan, 4, detail=False)
    assert known["culprit_ranks_accepted"] == [[1], [0, 1], []]
    assert known["not_in_the_evidence"] == scenario.untold
    # NCCL's recorder holds sends.
    assert truth(scenario, replace(plan, device="cuda"), 4, detail=False)["culprit_ranks_accepted"] == [[1], [0, 1]]
    told: dict[str, object] = {"status": "explained", "cause": "p2p-deadlock", "culprits": []}
    assert compare(told, known)
    assert not compare(told | {"culprits": [{"rank": 0}]}, known)
    tokens = next(s for s in SCENARIOS if s.fault == "dtype" and s.site == "tokens")
    assert truth(tokens, plan, 4, detail=False)["cause_accepted"] == ["dtype-mismatch", "shape-mismatch"]
    assert truth(tokens, replace(plan, device="cuda"), 4, detail=False)["cause_accepted"] == ["dtype-mismatch"]


def test_of_two_ranks_that_swap_their_groups_those_beside_them_close_the_circle() -> None:
    scenario = next(s for s in SCENARIOS if s.culprits == "diagonal")
    assert accepted(scenario, plan_for(scenario, 6, random.Random(1), rank=4), 6) == [[1, 4], [0, 5], [0, 1, 4, 5]]
    with pytest.raises(ValueError, match="cannot have this fault"):
        plan_for(scenario, 6, random.Random(1), rank=2)  # with rank 3 it shares a tensor-parallel group, in which both keep one order


def test_a_second_run_is_made_where_the_verdict_asks_for_pytorchs_comparison_and_else_not() -> None:
    size = {"action": "collect-more", "command": "TORCH_DISTRIBUTED_DEBUG=DETAIL"}
    stacks = {"action": "collect-more", "command": "py-spy dump --pid <pid>"}
    assert asks_for_comparison({"actions": [{"action": "fix-code", "command": None}, size]})
    assert not asks_for_comparison({"actions": [{"action": "fix-code", "command": None}, stacks]})


def test_a_rank_at_which_the_fault_cannot_act_is_refused() -> None:
    scenario = choose("skipped-collective", random.Random(1), "train_control", "gather")
    with pytest.raises(ValueError, match="rank 0 cannot have this fault"):
        ranks_for(scenario, 4, random.Random(1), rank=0)


def test_the_jobs_stand_alone() -> None:
    # They are copied and run where only PyTorch is: nothing of this package, nothing that is not PyTorch's or Python's.
    for file in JOBS.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            assert all(n.split(".")[0] in {*sys.stdlib_module_names, "torch"} for n in names), (file.name, names)


def test_the_size_is_said_where_pytorch_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["healthy", "--python", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().out
    assert "215 MB to download" in said
    assert "--install" in said


def test_a_wrong_rank_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["killed-rank", "--ranks", "4", "--rank", "9"]) == 2
    assert "rank 9 cannot have this fault" in capsys.readouterr().err


def test_the_list_names_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line for line in listed if not line.startswith(" ")] == faults()


@pytest.mark.parametrize(
    ("status", "cause", "ranks", "right"),
    [
        ("explained", "rank-died", [2], True),
        ("explained", "rank-died", [1], False),
        ("explained", "rank-died", [], False),
        ("explained", "host-stall", [2], False),
        ("nothing-wrong", None, [], False),
    ],
)
def test_a_verdict_is_held_against_what_was_done(status: str, cause: str | None, ranks: list[int], right: bool) -> None:
    verdict: dict[str, object] = {"status": status, "cause": cause, "culprits": [{"rank": r} for r in ranks]}
    assert compare(verdict, {"cause_accepted": ["rank-died"], "culprit_ranks_accepted": [[2]]}) is right


def test_no_verdict_is_not_the_healthy_one() -> None:
    truth_: dict[str, object] = {"cause_accepted": [None], "culprit_ranks_accepted": [[]]}
    assert compare({"status": "nothing-wrong", "cause": None, "culprits": []}, truth_)
    assert not compare({"status": "insufficient-evidence", "cause": None, "culprits": []}, truth_)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are found through /proc")
def test_ranks_are_found_and_one_that_does_not_catch_the_signal_is_left_alone() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(30)"]
    rank = subprocess.Popen(sleeper, env={**os.environ, "RANK": "3", "LOCAL_RANK": "1"})
    helper = subprocess.Popen(sleeper, env={k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK")})
    try:
        end = time.monotonic() + 5
        while Worker(3, rank.pid) not in (found := workers_of(os.getpid())) and time.monotonic() < end:
            time.sleep(0.05)
        assert Worker(3, rank.pid) in found
        assert helper.pid not in {w.pid for w in found}
        ask_for_faulthandler(found)
        assert rank.poll() is None
    finally:
        rank.kill()
        helper.kill()
        rank.wait()
        helper.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="times are read from /proc")
def test_a_process_at_work_uses_cpu_time_and_one_that_waits_or_is_gone_does_not() -> None:
    waits = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"])
    try:
        before = cpu_seconds([os.getpid()])
        end = time.monotonic() + 20
        while cpu_seconds([os.getpid()]) <= before + AT_WORK_S and time.monotonic() < end:
            sum(range(10_000))
        assert cpu_seconds([os.getpid()]) > before + AT_WORK_S
        first = cpu_seconds([waits.pid])
        time.sleep(0.3)
        assert cpu_seconds([waits.pid]) <= first + AT_WORK_S
    finally:
        waits.kill()
        waits.wait()
    assert cpu_seconds([waits.pid]) == 0


@pytest.mark.parametrize(("written", "read"), [("", False), ("step 0 rank 0 loss 1.0\nstep 1 rank 0 loss 0.9\n", True)])
def test_a_run_without_evidence_does_not_end_the_survey(tmp_path: Path, written: str, read: bool) -> None:
    place = tmp_path / "killed-rank-0"
    (place / "evidence").mkdir(parents=True)
    (place / "evidence" / "torchrun.log").write_text(written)
    (place / "truth.json").write_text(json.dumps({"cause_accepted": ["rank-died"], "culprit_ranks_accepted": [[1]]}))
    result = survey.one(
        "killed-rank", 0, 1, torch_env.TorchEnvironment(Path(sys.executable), "2.0", gpus=0, gloo=True, nccl=False), tmp_path
    )
    assert not result.right
    assert result.evidence is read


def test_a_killed_rank_is_made_and_named(tmp_path: Path) -> None:
    python = lab_python()
    told = main(["killed-rank", "--job", "train_dp", "--ranks", "2", "--rank", "1", "--python", str(python), "-o", str(tmp_path / "made")])
    assert told == 0
    known = json.loads((tmp_path / "made" / "truth.json").read_text())
    assert known["culprit_ranks_accepted"] == [[1]]
    assert (tmp_path / "made" / "report" / "postmortem.html").stat().st_size > 10_000
