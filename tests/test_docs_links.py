"""Every link of the documentation leads somewhere, every command in it parses, and every quoted piece of code is the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from nccl_forensics.cli import cli
from nccl_forensics.commands import COMMANDS
from tests.corpus import ROOT

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)
_QUOTED = re.compile(r"^<!-- from (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))


def fragments(page: Path) -> set[str]:
    """Anchors of the headings as GitHub and the site make them."""
    titles = [re.sub(r"[`*]", "", t) for t in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))]
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        parts = urlsplit(link)
        if parts.scheme:
            if parts.scheme != "https":
                broken.append(f"{link}: not https")
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif parts.fragment and target.suffix == ".md" and parts.fragment not in fragments(target):
            broken.append(f"{link}: no such heading")
    assert not broken


def command_lines() -> list[tuple[str, str]]:
    """Page and words of each line that calls the program, in any fenced block of the documentation."""
    found = []
    for page in PAGES:
        for _, language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
            if language not in ("sh", "bash", "console", ""):
                continue
            joined = re.sub(r"\\\n\s*", " ", text)
            # A quote that is open goes on in the next lines.
            lines = re.findall(r'^(?:\$ )?(nccl-forensics (?:[^\n"\']|"[^"]*"|\'[^\']*\')*)', joined, re.MULTILINE)
            found += [(page.name, re.split(r"\s(?:[|&;>]|2>|#)", line)[0].strip()) for line in lines]
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_command_in_the_documentation_parses(page: str, line: str) -> None:
    words = shlex.split(line.replace("…", ""))
    if len(words) == 1:
        return
    if words[1].startswith("-") or re.search(r"[A-Z]{4,}…|…", line):
        return
    assert words[1] in COMMANDS, line
    command = cli.get_command(click.Context(cli), words[1])
    assert command is not None
    try:
        command.make_context(words[1], words[2:]).close()
    except click.exceptions.Exit:
        pass  # --list and its like end at once
    except click.BadParameter as problem:
        if "does not exist" not in problem.format_message():  # a file of the reader's
            raise


def test_the_commands_are_found_where_they_stand() -> None:
    pages = {page for page, _ in command_lines()}
    assert {"README.md", "start.md", "cookbook.md", "check.md"} <= pages


@pytest.mark.parametrize("page", [p for p in PAGES if _QUOTED.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.name)
def test_quoted_code_is_the_code(page: Path) -> None:
    for file, text in _QUOTED.findall(page.read_text(encoding="utf-8")):
        assert text.strip() in (ROOT / file).read_text(encoding="utf-8"), file
