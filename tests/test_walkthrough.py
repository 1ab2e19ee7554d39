"""docs/walkthrough.md says what happens: its commands are run where PyTorch is, and what it quotes is held against bundled evidence where
not."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_forensics.lab import torch_env
from nccl_forensics.lab.launch import JOBS
from tests.corpus import ROOT

PAGE = ROOT / "docs" / "walkthrough.md"
CUT = "…"
#: The page shows the width that the program gives to a pipe.
ENVIRONMENT = {**os.environ, "COLUMNS": "100"}


def consoles() -> list[tuple[list[str], list[str]]]:
    """Each command of the page with the lines that it is said to print."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        command, *lines = block.splitlines()
        assert command.startswith("$ python -m nccl_forensics.lab ")
        found.append((shlex.split(command[2:])[1:], [line for line in lines if line != CUT]))
    return found


def test_the_page_has_the_baseline_the_hang_and_the_prevention() -> None:
    assert [words[2] for words, _ in consoles()] == ["healthy", "skipped-collective", "skipped-collective"]
    assert all(lines for _, lines in consoles())


def test_the_hang_on_the_page_is_what_the_bundled_evidence_gives() -> None:
    _, lines = consoles()[1]
    evidence = ROOT / "fixtures" / "incidents" / "lab-skipped-metrics-4r" / "evidence"
    command = [sys.executable, "-m", "nccl_forensics.cli", "analyze", str(evidence)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=ENVIRONMENT).stdout.splitlines()
    verdict = lines[next(i for i, line in enumerate(lines) if line.startswith("EXPLAINED")) :]
    assert verdict == [line for line in printed if line in verdict]


def test_the_lines_of_code_on_the_page_are_those_of_the_job() -> None:
    tree = ast.parse((JOBS / "train_dp.py").read_text(encoding="utf-8"))
    functions = {n.name: range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in tree.body if isinstance(n, ast.FunctionDef)}
    quoted = re.findall(r"(\w+)\s\(train_dp\.py:(\d+)\)", PAGE.read_text(encoding="utf-8"))
    assert quoted
    for function, line in quoted:
        assert int(line) in functions[function]


@pytest.mark.parametrize("number", range(3), ids=["baseline", "hang", "prevention"])
def test_a_command_of_the_page_prints_what_the_page_says(number: int, tmp_path: Path) -> None:
    found = torch_env.find(None, ROOT / ".venv-lab")
    if found is None:
        pytest.skip("no interpreter here can import PyTorch (LAB_PYTHON names one, make hang installs one)")
    words, lines = consoles()[number]
    words[words.index("-o") + 1] = str(tmp_path / "made")
    done = subprocess.run(
        [sys.executable, *words, "--python", str(found.python)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=400,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.splitlines()
    missing = [line for line in lines if line not in printed]
    assert not missing, done.stdout
