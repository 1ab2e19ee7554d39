"""The command line: exit codes of the contract, output, and bad input without a traceback."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import orjson

from tests.corpus import ROOT

INCIDENTS = ROOT / "fixtures" / "incidents"


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nccl_forensics.cli", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )


def test_an_archive_becomes_a_verdict_and_four_kinds_of_output(tmp_path: Path) -> None:
    archive = tmp_path / "incident.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(INCIDENTS / "skipped-collective-8r" / "evidence", "evidence")
    done = run("analyze", archive, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "collective-skipped" in done.stdout
    assert "rank 3" in done.stdout.lower()
    assert str(tmp_path / "out" / "postmortem.html") in done.stdout
    report = orjson.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["verdict"]["culprits"][0]["rank"] == 3
    assert (tmp_path / "out" / "tables" / "fr_entries.parquet").stat().st_size > 0
    assert (tmp_path / "out" / "postmortem.md").read_text(encoding="utf-8").startswith("#")


def test_a_missing_path_is_exit_code_3() -> None:
    done = run("analyze", "/nowhere/at/all")
    assert done.returncode == 3
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_evidence_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "beach.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)
    done = run("analyze", tmp_path)
    assert done.returncode == 3
    assert "nothing recognised" in done.stderr


def test_an_empty_archive_is_exit_code_3(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    assert run("analyze", tmp_path / "empty.tar").returncode == 3


def test_an_unknown_option_is_exit_code_2() -> None:
    assert run("analyze", "x", "--no-such-option").returncode == 2


def test_a_mistyped_command_names_the_nearest() -> None:
    done = run("anlyze", "x")
    assert done.returncode == 2
    assert "Did you mean 'analyze'?" in done.stderr


def test_an_unknown_threshold_is_exit_code_2_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[rules.nic-underused]\ngpus_per_nick = 2.0\n")
    done = run("analyze", INCIDENTS / "healthy-gloo-4r", "--config", tmp_path / "c.toml")
    assert done.returncode == 2
    assert "gpus_per_nic" in done.stderr


def test_an_output_that_cannot_be_written_is_exit_code_5(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run("analyze", INCIDENTS / "killed-rank-4r" / "evidence", "-o", tmp_path / "file" / "out")
    assert done.returncode == 5
    assert "Traceback" not in done.stderr


def test_a_truncated_archive_keeps_what_came_before_the_cut(tmp_path: Path) -> None:
    archive = tmp_path / "incident.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(INCIDENTS / "nccl-never-joined-8r" / "evidence", "evidence")
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) * 2 // 3])
    done = run("analyze", archive, "--json", "-")
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert any(s["error"] for s in report["sources"])
    assert any(s["records"] for s in report["sources"])


def test_a_zero_byte_dump_is_a_source_with_an_error_and_loses_nothing_else(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(INCIDENTS / "skipped-collective-8r" / "evidence" / "fr_pickle", tmp_path / "e")
    (tmp_path / "e" / "fr_trace_rank_7").write_bytes(b"")
    done = run("analyze", tmp_path / "e", "--json", "-")
    report = orjson.loads(done.stdout)
    assert [s["path"] for s in report["sources"] if s["error"]] == ["fr_trace_rank_7"]
    assert report["verdict"]["cause"] == "collective-skipped"


def test_the_lists_and_a_rule_page_are_printed() -> None:
    assert "flight-recorder" in run("formats").stdout
    assert "CO01" in run("rules").stdout
    assert "What would refute it" in run("rule", "collective-skipped").stdout
    assert "fr_entries" in run("tables").stdout
    assert run("rule", "colective-skipped").returncode == 2
