"""The CI examples of the documentation, run for real: exit codes, JUnit and SARIF of a good and a bad archived run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.corpus import ROOT
from tests.test_gate_reports import validate_junit, validate_sarif

INCIDENTS = ROOT / "fixtures" / "incidents"


def example(name: str) -> str:
    """The fenced block after ``<!-- example: name -->``."""
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a checkout of a CI job has: a baseline, two archived runs, and the program on the path."""
    place = tmp_path_factory.mktemp("ci")
    (place / "bin").mkdir()
    program = place / "bin" / "nccl-forensics"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m nccl_forensics.cli "$@"\n')
    program.chmod(0o755)
    for name, case in (("good", "nccl-healthy-8r"), ("bad", "nccl-version-mismatch-8r")):
        with tarfile.open(place / f"{name}.tar.gz", "w:gz") as tar:
            tar.add(INCIDENTS / case / "evidence", name)
    done = shell("nccl-forensics check good.tar.gz --json baseline.json", place)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def shell(script: str, place: Path, program: str = "bash", **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = [program, "-e", "-c", script] if program == "bash" else [program, "-c", script]
    return subprocess.run(
        command, cwd=place, env=os.environ | {"PATH": path} | variables, capture_output=True, text=True, timeout=300, check=False
    )


def github_step() -> str:
    """The script of the step that checks: the lines below ``run: |``, without their indent."""
    found = re.search(r"- name: Check the run\n( +)run: \|\n((?:\1  .*\n)+)", example("github"))
    assert found is not None
    return "\n".join(line[len(found[1]) + 2 :] for line in found[2].splitlines())


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("run", "code"), [("good", 0), ("bad", 1)])
def test_the_github_job_passes_the_good_run_and_fails_the_bad_one(workspace: Path, run: str, code: int) -> None:
    done = shell(github_step(), workspace, RUN=f"{run}.tar.gz")
    assert done.returncode == code, done.stdout + done.stderr
    junit = validate_junit((workspace / "nccl-junit.xml").read_bytes())
    assert (int(junit.get("failures", "0")) > 0) == (code == 1)
    [results] = [r["results"] for r in validate_sarif((workspace / "nccl.sarif").read_bytes())["runs"]]  # type: ignore[attr-defined]
    assert any(r["properties"]["cause"] == "version-mismatch" for r in results) == (code == 1)
    assert ("::error file=" in done.stdout) == (code == 1)


@pytest.mark.skipif(shutil.which("timeout") is None, reason="timeout(1) is not installed")
def test_the_epilog_leaves_a_report_tells_the_log_and_never_fails(workspace: Path) -> None:
    (workspace / "bin" / "logger").write_text('#!/bin/sh\necho "$@" >> logged\n')
    (workspace / "bin" / "logger").chmod(0o755)
    shutil.copytree(INCIDENTS / "nccl-version-mismatch-8r" / "evidence", workspace / "jobs" / "2")
    for job in ("2", "3"):
        assert shell(example("epilog"), workspace, "sh", LOGS_ROOT="jobs", SLURM_JOB_ID=job).returncode == 0
    assert (workspace / "jobs" / "2" / "report.json").exists()
    assert (workspace / "logged").read_text() == "-t nccl-forensics job 2: check ended with 1, see jobs/2/report.json\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_job_fails_for_what_its_logs_show_though_its_step_ended_well(workspace: Path) -> None:
    logs = workspace / "logs"
    shutil.copytree(INCIDENTS / "nccl-version-mismatch-8r" / "evidence", logs)
    (workspace / "bin" / "srun").write_text("#!/bin/sh\n")
    (workspace / "bin" / "srun").chmod(0o755)
    assert shell(example("job"), workspace, LOGS=str(logs), SLURM_JOB_ID="7").returncode == 3
    assert Path(f"{logs}.report.json").exists()
