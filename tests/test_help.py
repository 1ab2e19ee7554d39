"""Help with examples that hold, completion in the shell, and what a notebook shows."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
import subprocess
import sys

import click
import pytest
from click.shell_completion import BashComplete, ShellComplete, get_completion_class

import nccl_forensics
from nccl_forensics import api
from nccl_forensics.cli import cli
from nccl_forensics.commands import COMMANDS, EXAMPLES
from nccl_forensics.commands.output import progress_bar
from nccl_forensics.reading.engine import InlineEngine
from tests.corpus import ROOT
from tests.test_docs import run

INCIDENT = ROOT / "fixtures" / "incidents" / "skipped-collective-8r" / "evidence"


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_shows_examples(name: str) -> None:
    done = run([name, "--help"])
    assert done.exit_code == 0
    for line in EXAMPLES[name]:
        assert f"  {line}" in done.output.splitlines() or line in re.sub(r"\n\s+", " ", done.output)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_are_commands_that_parse(line: str) -> None:
    words = shlex.split(re.split(r" [|&]", line)[0])
    assert words[0] == "nccl-forensics"
    with contextlib.suppress(click.exceptions.Exit):  # --list and its like end at once
        command(words[1]).make_context(words[1], words[2:]).close()


def completions(words: str) -> list[str]:
    *given, begun = words.split(" ")
    kind = get_completion_class("bash") or BashComplete
    completion: ShellComplete = kind(cli, {}, "nccl-forensics", "_NCCL_FORENSICS_COMPLETE")
    return [item.value for item in completion.get_completions(given, begun)]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ch", ["check"]),
        ("check --base", ["--baseline"]),
        ("check --fail-on w", ["warning"]),
        ("check --require nccl-l", ["nccl-log"]),
        ("check --require nccl-log,flight-r", ["nccl-log,flight-recorder"]),
        ("rule collective-st", ["collective-stuck", "collective-stuck-downstream"]),
        ("rule SE06", ["SE06"]),
        ("sql --format p", ["parquet"]),
        ("collect --launcher k", ["kubectl"]),
    ],
)
def test_the_shell_completes_commands_options_and_names(typed: str, expected: list[str]) -> None:
    assert completions(typed) == expected


def test_the_installed_program_prints_its_completion_script() -> None:
    program = "import sys; sys.argv[0] = 'nccl-forensics'; from nccl_forensics.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"_NCCL_FORENSICS_COMPLETE": "zsh_source", "PATH": ""},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "compdef" in done.stdout


def test_a_mistyped_option_names_the_nearest() -> None:
    assert "--baseline" in run(["check", "x", "--basline", "y"]).output


def test_progress_is_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert progress_bar(False) is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert progress_bar(True) is None
    show = progress_bar(False)
    assert show is not None
    show("reading", 1, 2)
    show("reading", 2, 2)
    first, last = capsys.readouterr().err.strip("\r\n").split("\r")
    assert (first.count("━"), first.count("─")) == (15, 15)
    assert (last.count("━"), last.endswith("2/2")) == (30, True)


def test_an_analysis_tells_how_far_reading_and_checking_are() -> None:
    told: list[tuple[str, int, int]] = []
    api.analyze([INCIDENT], engine=InlineEngine(), progress=lambda *step: told.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages == ["reading", "checking"]
    for stage in stages:
        steps = [(done, total) for name, done, total in told if name == stage]
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


def test_the_functions_of_the_package_are_those_of_the_api() -> None:
    for name in ("analyze", "check", "compare", "sql", "read_report", "Incident", "Comparison"):
        assert getattr(nccl_forensics, name) is getattr(api, name)
    assert set(dir(nccl_forensics)) >= {"analyze", "__version__"}
    with pytest.raises(AttributeError):
        nccl_forensics.nothing_of_the_kind  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, nccl_forensics; assert not {'polars', 'lark', 'plotly'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_a_notebook_shows_the_verdict_its_proof_and_no_markup_of_the_evidence() -> None:
    incident = api.analyze([INCIDENT], engine=InlineEngine())
    shown = incident._repr_html_()
    assert "collective-skipped" in shown
    assert "rank 3" in shown.lower()
    assert any(e["path"] in shown for e in incident.findings[0]["evidence"])  # type: ignore[attr-defined]
    assert "<script" not in shown
    case = incident.report["case"] | {"title": "<script>alert(1)</script>"}  # type: ignore[operator]
    nasty = api.Incident(incident.report | {"case": case}, incident.extras, incident.store)
    assert "<script" not in nasty._repr_html_()
    assert "&lt;script" in nasty._repr_html_()


def test_an_incident_writes_the_files_of_the_command_line() -> None:
    incident = api.analyze([INCIDENT], engine=InlineEngine())
    assert incident.html().startswith("<!doctype html>") or "<html" in incident.html()
    assert incident.markdown().startswith("#")
    assert incident.json().startswith(b"{")
    assert incident.verdict["cause"] == "collective-skipped"


def test_modules_of_commands_hold_their_commands() -> None:
    from nccl_forensics.commands import MODULES

    for name in COMMANDS:
        assert isinstance(getattr(importlib.import_module(f"nccl_forensics.commands.{MODULES.get(name, name)}"), name), click.Command)
