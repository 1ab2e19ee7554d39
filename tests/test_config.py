"""The configuration file: what it says is taken, what it mistypes is refused with the nearest name."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from nccl_forensics.config import Config, discover, load
from nccl_forensics.errors import UsageError
from nccl_forensics.gate import Tolerance
from nccl_forensics.suppressions import Suppression
from tests.corpus import ROOT

FULL = """
[check]
fail-on = "warning"
require = ["nccl-log"]
baseline = "good.json"
allow-insufficient = true
[tolerance]
bandwidth = 0.2
lag-ms = 5
ignore = ["version", "environment:NCCL_IB_TC"]
[rules.nic-underused]
gpus_per_nic = 8
[[suppress]]
rule = "gdr-disabled"
host = "old-*"
reason = "known"
until = 2027-03-31
"""


def written(folder: Path, text: str, name: str = "nccl-forensics.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_everything_that_is_said_is_taken(tmp_path: Path) -> None:
    file = written(tmp_path, FULL)
    assert load(file) == Config(
        file,
        {"nic-underused": {"gpus_per_nic": 8}},
        (Suppression("known", date(2027, 3, 31), rule="gdr-disabled", host="old-*"),),
        "warning",
        ("nccl-log",),
        True,
        tmp_path / "good.json",
        Tolerance(bandwidth=0.2, lag_ms=5, ignore=("version", "environment:NCCL_IB_TC")),
    )


def test_the_example_of_the_documentation_is_taken(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    config = load(written(tmp_path, page.split("```toml\n", 1)[1].split("```", 1)[0]))
    assert config.baseline == tmp_path / "baseline.json"
    assert config.tolerance.ignore == ("environment:NCCL_IB_TIMEOUT", "version:GPU driver")
    assert config.suppressions[0].host == "old-rack-*"


def test_a_table_of_pyproject_says_the_same(tmp_path: Path) -> None:
    prefixed = FULL.replace("[[suppress", "[[tool.nccl-forensics.suppress")
    for section in ("check", "tolerance", "rules"):
        prefixed = prefixed.replace(f"\n[{section}", f"\n[tool.nccl-forensics.{section}")
    file = written(tmp_path, prefixed, "pyproject.toml")
    own = load(written(tmp_path, FULL))
    assert [getattr(load(file), name) for name in ("thresholds", "suppressions", "fail_on", "tolerance")] == [
        getattr(own, name) for name in ("thresholds", "suppressions", "fail_on", "tolerance")
    ]


def test_a_folder_is_searched_for_its_own_file_then_for_the_table(tmp_path: Path) -> None:
    assert discover(tmp_path) is None
    project = written(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    assert discover(tmp_path) is None
    with pytest.raises(UsageError, match="no table"):
        load(project)
    written(tmp_path, "[tool.nccl-forensics.check]\nfail-on = 'info'\n", "pyproject.toml")
    assert discover(tmp_path) == project
    assert discover(tmp_path) != written(tmp_path, "")
    assert discover(tmp_path) == tmp_path / "nccl-forensics.toml"


SUPPRESS = "[[suppress]]\nreason='r'\nuntil=2027-01-01\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[chek]\n", "unknown key 'chek'; did you mean 'check'"),
        ("[check]\nfail_on = 'error'\n", "'check.fail_on'; did you mean 'fail-on'"),
        ("[check]\nfail-on = 'eror'\n", "did you mean 'error'"),
        ("[check]\nrequire = ['nccl_log']\n", "no format 'nccl_log'; did you mean 'nccl-log'"),
        ("[check]\nrequire = 'nccl-log'\n", "must be a list"),
        ("[check]\nallow-insufficient = 1\n", "true or false"),
        ("[tolerance]\nbandwith = 0.1\n", "did you mean 'bandwidth'"),
        ("[tolerance]\nbandwidth = -0.1\n", "0 or more"),
        ("[tolerance]\nignore = ['versions']\n", "did you mean 'version'"),
        ("[rules.gdr-disable]\n", "did you mean 'gdr-disabled'"),
        ("[rules.nic-underused]\ngpus_per_nick = 1\n", "did you mean 'gpus_per_nic'"),
        ("[rules.nic-underused]\ngpus_per_nic = 'many'\n", "must be like"),
        ("[[suppress]]\nrule = 'gdr-disabled'\nuntil = 2027-01-01\n", "lacks 'reason'"),
        ("[[suppress]]\nrule = 'gdr-disabled'\nreason = 'x'\n", "lacks 'until'"),
        (SUPPRESS, "rule, cause or fingerprint"),
        (SUPPRESS + "host = 'a'\n", "rule, cause or fingerprint"),
        (SUPPRESS + "rule = 'gdr-disable'\n", "did you mean 'gdr-disabled'"),
        (SUPPRESS + "rule = 'baseline-bandwith'\n", "did you mean 'baseline-bandwidth'"),
        (SUPPRESS + "cause = 'ib-lnk'\n", "did you mean 'ib-link'"),
        (SUPPRESS + "rulle = 'x'\n", "did you mean 'rule'"),
        ("[[suppress]]\nrule = 'gdr-disabled'\nreason = 'x'\nuntil = 'soon'\n", "must be a day"),
        ("[check\n", "not valid TOML"),
    ],
)
def test_what_is_mistyped_is_refused_with_what_helps(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(written(tmp_path, text))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(Path("/nowhere.toml"))
