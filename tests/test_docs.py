"""The commands and the code of the documentation do what the pages say: each page is run from its top in a folder of its own."""

from __future__ import annotations

import re
import shlex
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nccl_forensics.errors import ForensicsError
from nccl_forensics.reading.engine import InlineEngine
from tests.corpus import ROOT

INCIDENTS = ROOT / "fixtures" / "incidents"
MARK = "are run by tests/test_docs.py -->"
PAGES = sorted(p for p in (ROOT / "docs").glob("*.md") if MARK in p.read_text(encoding="utf-8"))
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"#\s*exit (\d+)\s*$")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each block that is to be run, in order."""
    yield from _BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> Iterator[tuple[list[str], str | None, int]]:
    """Words, the file that standard output goes to, and the exit code that a comment states (0 without one)."""
    waiting = ""
    for line in text.splitlines():
        waiting += line + "\n"
        stated = _EXIT.search(waiting)
        try:
            words = shlex.split(waiting.replace("\\\n", " "), comments=True)
        except ValueError:  # a quote is open
            continue
        if line.endswith("\\"):
            continue
        waiting = ""
        if words:
            target = words.pop() if len(words) > 1 and words[-2] == ">" else None
            yield [w for w in words if w != ">"], target, int(stated.group(1)) if stated else 0
    assert not waiting, f"a command does not end: {waiting}"


def run(words: list[str]) -> Result:
    """One command of the program, in this process, with the exit codes of the contract."""
    from nccl_forensics.cli import cli

    done = CliRunner().invoke(cli, words, prog_name="nccl-forensics")
    if isinstance(done.exception, ForensicsError):
        done.exit_code = done.exception.exit_code
    elif done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages speak of: an incident, and the archived evidence of a good and a bad run."""
    with tarfile.open(tmp_path / "incident.tar.gz", "w:gz") as tar:
        tar.add(INCIDENTS / "nccl-skipped-collective-8r" / "evidence", "incident")
    for name, case in (("good-run", "nccl-healthy-8r"), ("bad-run", "nccl-version-mismatch-8r")):
        shutil.copytree(INCIDENTS / case / "evidence", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nccl_forensics.api.default_engine", lambda bundle, limits=None: InlineEngine())
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_does_what_it_says(page: Path, workplace: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            for library in ("duckdb", "pandas"):
                if f"import {library}" in text:
                    pytest.importorskip(library)
            exec(compile(text, page.name, "exec"), names)
            ran += 1
            continue
        for words, target, expected in commands(text):
            assert words[0] == "nccl-forensics", f"{page.name}: a block of sh holds commands of the program only, not {words[0]}"
            done = run(words[1:])
            assert done.exit_code == expected, f"{shlex.join(words)}: exit {done.exit_code}, {done.output}"
            if target is not None:
                (workplace / target).write_bytes(done.stdout_bytes)
            ran += 1
    assert ran, f"{page.name} holds no command"


def test_every_page_is_run() -> None:
    assert {p.name for p in PAGES} >= {"sql.md"}
