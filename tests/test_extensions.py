"""Extensions of other packages: the sample package works as installed, and broken ones are reported and change nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from nccl_forensics.plugins import GROUPS
from tests.corpus import ROOT

EXAMPLE = ROOT / "examples" / "acme-forensics"
INCIDENT = ROOT / "fixtures" / "incidents" / "nccl-skipped-collective-8r" / "evidence"


#: Several commands in one process: what extensions bring is loaded once.
_RUNNER = """
import json, sys
from click.testing import CliRunner
from nccl_forensics import api, cli, errors
from nccl_forensics.reading import engine
api.default_engine = lambda *_, **__: engine.InlineEngine()
told = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(cli.cli, words, prog_name="nccl-forensics")
    known = isinstance(done.exception, errors.ForensicsError)
    told.append((done.exception.exit_code if known else done.exit_code, done.stdout, done.stderr + (str(done.exception) if known else "")))
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Done:
    """What became of one command."""

    returncode: int
    stdout: str
    stderr: str


def many(*commands: list[str], path: Path, **variables: str) -> list[Done]:
    """Commands of the program with the extensions below ``path``, in a process of their own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(path)]), **variables}
    words = [sys.executable, "-c", _RUNNER, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [Done(*row) for row in json.loads(done.stdout.splitlines()[-1])]


def run(*words: str, path: Path, **variables: str) -> Done:
    """One command, as it is called: also readers in processes of their own find the extensions."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(path)]), **variables}
    command = [sys.executable, "-m", "nccl_forensics.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def extension(place: Path, name: str, points: dict[str, str], code: str) -> None:
    """An installed distribution, as pip leaves it: a module and its metadata."""
    (place / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
    info = place / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    groups = "\n".join(f"[{GROUPS[kind]}]\n{name} = {value}\n" for kind, value in points.items())
    (info / "entry_points.txt").write_text(groups, encoding="utf-8")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package, built and installed into a folder of its own, without a network."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(place)]
    done = subprocess.run([*command, str(EXAMPLE)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return place


def test_the_rule_of_the_sample_package_appears_in_a_report(installed: Path, tmp_path: Path) -> None:
    words = ["analyze", str(EXAMPLE / "evidence"), "--json", str(tmp_path / "r.json"), "--report", f"acme-ticket={tmp_path / 'ticket.txt'}"]
    done = run(*words, "--markdown", str(tmp_path / "r.md"), path=installed)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    [finding] = [f for f in report["findings"] if f["rule"] == "acme-prolog-failed"]
    assert (finding["code"], finding["cause"], finding["hosts"]) == ("ACME01", "gpu-throttled", ["gpu17"])
    assert (finding["evidence"][0]["path"], finding["evidence"][0]["line"]) == ("prolog.log", 3)
    assert report["sources"][0]["formats"] == ["acme-prolog"]
    assert report["sources"][0]["gaps"] == 1
    assert {(p["kind"], p["status"], p["origin"]) for p in report["plugins"]} == {(kind, "loaded", "acme-forensics 1.0") for kind in GROUPS}
    assert "gpu17 was used although" in (tmp_path / "ticket.txt").read_text(encoding="utf-8").lower()
    assert "gpu17 was used although" in (tmp_path / "r.md").read_text(encoding="utf-8").lower()


def test_what_the_sample_package_brings_is_listed_with_its_origin(installed: Path) -> None:
    formats, rules, tables, rule = many(["formats"], ["rules"], ["tables"], ["rule", "acme-prolog-failed"], path=installed)
    assert "acme-prolog              Acme's checks before a job [acme-forensics 1.0]" in formats.stdout.splitlines()
    listed = (
        "ACME01  acme-prolog-failed       warning   A node was used although a check of the site had failed on it. [acme-forensics 1.0]"
    )
    assert listed in rules.stdout.splitlines()
    assert "x_acme_checks: One check of one node before the job started. [acme-forensics 1.0]" in tables.stdout.splitlines()
    assert "ACME01" in rule.stdout
    [off] = many(["formats"], path=installed, NCCL_FORENSICS_NO_PLUGINS="1")
    assert "acme" not in off.stdout.lower()


def test_rows_of_an_extension_can_be_queried_also_from_saved_tables(installed: Path, tmp_path: Path) -> None:
    query = "SELECT node FROM x_acme_checks WHERE passed = 'FAIL'"
    evidence, saved = str(EXAMPLE / "evidence"), str(tmp_path / "t")
    asked = ["--format", "csv"]
    commands = (["sql", evidence, query, *asked], ["analyze", evidence, "--tables", saved], ["sql", saved, query, *asked])
    read, _, again = many(*commands, path=installed)
    assert read.stdout.split() == again.stdout.split() == ["node", "gpu17"]


#: Each is broken in a way of its own; the words are in what is reported.
UNUSABLE: dict[str, tuple[str, str, str]] = {
    "raises": ("rules", "raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "leaves": ("formats", "import sys\nsys.exit(3)", "SystemExit: 3"),
    "absent": ("rules", "import a_module_that_is_not_there", "ModuleNotFoundError"),
    "empty": ("rules", "x = 1", "holds no Rule"),
    "odd": ("formats", "FORMAT = 'text'", "holds a str where a TextFormat or DocumentFormat is wanted"),
    "twin": (
        "formats",
        "from nccl_forensics.formats.base import *\nFORMAT = TextFormat('nccl-log', '', (), ('NCCL',), lambda text: Reading())",
        "format 'nccl-log' is there already",
    ),
    "greedy": (
        "formats",
        "from nccl_forensics.formats.base import *\nFORMAT = TextFormat('all-of-it', '', (), ('a',), lambda text: Reading())",
        "it needs anchors, of 3 characters",
    ),
    "named": (
        "tables",
        "from nccl_forensics.tables.base import *\nTABLES = (Table('mine', '', {**LINE}),)",
        "names of an extension's tables start with 'x_'",
    ),
    "uncited": (
        "tables",
        "from nccl_forensics.tables.base import *\nTABLES = (Table('x_mine', '', {'a': (S, '')}),)",
        "could not be cited",
    ),
    "worded": (
        "rules",
        """
        import polars as pl
        from nccl_forensics.rules import rule

        @rule(name="worded", code="WO01", cause="gremlins", severity="error")
        def worded(nccl_comms: pl.LazyFrame):
            yield
        """,
        "cause 'gremlins' is none of the report's",
    ),
    "blind": (
        "rules",
        """
        import polars as pl
        from nccl_forensics.rules import rule

        @rule(name="blind", code="BL01", cause="ib-link", severity="error")
        def blind(no_such_table: pl.LazyFrame):
            yield
        """,
        "reads no_such_table, which no table or view is called",
    ),
    "printer": (
        "reporters",
        "from nccl_forensics.reporters.base import Reporter\nR = Reporter('html', '', lambda report, extras: '')",
        "reporter 'html' is there already",
    ),
}

#: These load, and fail when they are used.
FALLS_OVER = """
import polars as pl
from nccl_forensics.formats.base import DocumentFormat, Reading, TextFormat
from nccl_forensics.model import Finding
from nccl_forensics.reporters.base import Reporter
from nccl_forensics.rules import rule

def read(text):
    raise KeyError("oops")

def wrong(text):
    return Reading(lines=[1, 2, 3])

def unsure(head):
    raise ValueError("what is it?")

FORMATS = (
    TextFormat("falls-over", "", (), ("NCCL INFO",), read),
    TextFormat("wrong-type", "", (), ("NCCL INFO",), wrong),
    DocumentFormat("unsure", "", (), unsure, read),
)

@rule(name="falls-over", code="FO01", cause="ib-link", severity="critical")
def falls_over(nccl_comms: pl.LazyFrame):
    raise ZeroDivisionError("by none")

@rule(name="misspeaks", code="FO02", cause="ib-link", severity="critical")
def misspeaks(nccl_comms: pl.LazyFrame):
    yield Finding(title="all is lost", hosts=(3,))

@rule(name="overstates", code="FO03", cause="ib-link", severity="critical")
def overstates(nccl_comms: pl.LazyFrame):
    yield Finding(title="all is lost", confidence="certain")

def render(report, extras):
    raise RuntimeError("out of paper")

PRINTER = Reporter("falls-over", "", render)
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of extensions that are broken in every way we could think of."""
    place = tmp_path_factory.mktemp("broken")
    for name, (kind, code, _) in UNUSABLE.items():
        extension(place, name, {kind: name}, code)
    extension(place, "fallsover", {"formats": "fallsover", "rules": "fallsover", "reporters": "fallsover:PRINTER"}, FALLS_OVER)
    return place


def test_broken_extensions_are_reported_and_change_no_verdict(broken: Path, tmp_path: Path) -> None:
    done = run("analyze", str(INCIDENT), "-o", str(tmp_path / "with"), path=broken)
    assert done.returncode == 0, done.stderr
    many(["analyze", str(INCIDENT), "-o", str(tmp_path / "without")], path=broken, NCCL_FORENSICS_NO_PLUGINS="1")
    report, plain = (json.loads((tmp_path / d / "report.json").read_text(encoding="utf-8")) for d in ("with", "without"))
    assert report["verdict"] == plain["verdict"]
    assert report["findings"] == plain["findings"]
    assert plain["plugins"] == []
    rows = {(p["name"], p["kind"]): p for p in report["plugins"]}
    for name, (kind, _, words) in UNUSABLE.items():
        assert rows[name, kind]["status"] == "broken", name
        assert words in rows[name, kind]["error"], name
    crashed = {r["rule"]: r["error"] for r in report["rules"] if r["status"] == "crashed"}
    assert crashed == {
        "falls-over": "ZeroDivisionError: by none",
        "misspeaks": "TypeError: a finding holds a int where a str is wanted",
        "overstates": "ValueError: a finding of cause 'ib-link', severity 'critical', confidence 'certain'",
    }
    page = (tmp_path / "with" / "postmortem.html").read_text(encoding="utf-8")
    assert "RuntimeError: no licence" in page
    assert "RuntimeError: no licence" in (tmp_path / "with" / "postmortem.md").read_text(encoding="utf-8")
    assert "Extensions" not in (tmp_path / "without" / "postmortem.md").read_text(encoding="utf-8")


def test_the_lists_go_on_and_name_what_is_broken(broken: Path) -> None:
    done, plugins = many(["rules"], ["plugins"], path=broken)
    assert done.returncode == 0
    assert "CO01" in done.stdout
    assert "raises 1.0: rules 'raises' is not used: RuntimeError: no licence" in done.stderr
    assert all(f"broken  {kind}" in plugins.stdout and words in plugins.stdout for kind, _, words in UNUSABLE.values())


def test_a_reporter_that_fails_costs_its_own_file(broken: Path, tmp_path: Path) -> None:
    asked = ["analyze", str(INCIDENT), "-o", str(tmp_path / "o"), "--report", f"falls-over={tmp_path / 'x'}"]
    done, refused = many(asked, ["analyze", str(INCIDENT), "--report", "falls-ovr=x"], path=broken)
    assert done.returncode == 5
    assert "report 'falls-over' could not be made: RuntimeError: out of paper" in done.stderr
    assert (tmp_path / "o" / "postmortem.html").exists()
    assert not (tmp_path / "x").exists()
    assert (refused.returncode, "did you mean 'falls-over'?" in refused.stderr) == (2, True)
