"""docs/coverage.md: what people do by hand and what the field's tools say, with what does it here and the tests that show it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from nccl_forensics.formats import own_formats
from nccl_forensics.model import CAUSES
from nccl_forensics.rules import own_rules
from tests.corpus import ROOT
from tests.coverage_kinds import KINDS, UNREAD
from tests.coverage_rows import GUIDE, HOSTS, MISSING, TORCH, Row
from tests.coverage_signatures import CONTEXT, SIGNATURES

TESTS = ROOT / "tests"


@cache
def shown_rules() -> dict[str, tuple[str, ...]]:
    """Rule to the test files that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    by_place = {(r.function.__module__, r.function.__name__): r.name for r in own_rules()}
    for file in sorted((TESTS / "rules").glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (name := by_place.get((node.module or "", alias.name))) is not None:
                        found[name].add(f"rules/{file.name}")
    return {name: tuple(sorted(files)) for name, files in found.items()}


@cache
def shown_formats() -> dict[str, tuple[str, ...]]:
    """Format to the test files that name it in a text or import its module; where none does, to those that name a table of it."""
    named: dict[str, set[str]] = defaultdict(set)
    tables: dict[str, set[str]] = defaultdict(set)
    modules = {f.name: f.read.__module__ for f in own_formats()}
    for file in sorted((TESTS / "formats").glob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        for name, module in modules.items():
            if name in words or module in imported:
                named[name].add(f"formats/{file.name}")
        for form in own_formats():
            if words & set(form.tables):
                tables[form.name].add(f"formats/{file.name}")
    found = {form.name: named.get(form.name) or tables[form.name] for form in own_formats()}
    return {name: tuple(sorted(files)) for name, files in found.items()}


def page() -> str:
    """The text of docs/coverage.md."""
    text = (
        "# Coverage\n\nWhat engineers do by hand when a distributed job hangs, crashes, slows down or computes wrong numbers, and what does it here. "
        "Rules and formats are linked to their pages; the tests show each at work. `tests/test_coverage.py` holds the table against the code.\n"
    )
    text += "\n## By hand\n\n" + _table(GUIDE)
    text += "\n## Causes of a verdict\n\n| cause | meaning | rules | tests |\n|---|---|---|---|\n"
    for cause, meaning in CAUSES.items():
        rules = [r.name for r in own_rules() if r.cause == cause]
        text += f"| `{cause}` | {meaning} | {_rules(rules)} | {_tests(_of(rules, shown_rules()))} |\n"
    text += "\n## Signs of hosts and networks\n\n" + _table(HOSTS)
    text += "\n## What PyTorch, gloo and launchers say\n\n" + _table(TORCH)
    text += "\n## Kinds of evidence\n\n" + _kinds()
    text += (
        "\n## What NCCL says\n\nEach line is read by `tests/test_coverage.py` as the signature beside it, and makes the rules speak that are named. "
        "Where none is, it is evidence for other rules (who died first, what a stop looks like), or known to be harmless.\n\n"
        "| key | line | read as | rules that it alone makes speak, or why none |\n|---|---|---|---|\n"
    )
    for key, line, kind, rules_ in SIGNATURES:
        shown = line.replace("|", "\\|")
        text += f"| {key} | `{shown[:110]}{'…' if len(shown) > 110 else ''}` | {f'`{kind}`' if kind else 'context'} | {_rules(rules_.split()) or CONTEXT[key]} |\n"
    return text + "\n## What is missing\n\n" + "".join(f"- {line}\n" for line in MISSING)


def _table(rows: Sequence[Row]) -> str:
    text = "| key | what | rules | formats and pages | tests |\n|---|---|---|---|---|\n"
    for row in rows:
        formats = [f"[`{name}`](reference/formats.md)" for name in row.formats]
        pages = [f"[{Path(page).stem}]({page})" for page in row.pages]
        missing = f"; missing: {row.missing}" if row.missing else ""
        tests = [*_of(row.rules, shown_rules()), *_of(row.formats, shown_formats())]
        text += f"| {row.key} | {row.words}{missing} | {_rules(row.rules)} | {', '.join([*formats, *pages])} | {_tests(tests)} |\n"
    return text


def _kinds() -> str:
    text = (
        "Each file, output or family of lines that the format pages name, by page and section. `tests/test_coverage_kinds.py` reads a sample of each: "
        "the format must read it, fill the tables, and the rules must use these.\n\n"
        "| page | kind | format | tables | rules |\n|---|---|---|---|---|\n"
    )
    for kind in KINDS:
        tables = ", ".join(f"`{name}`" for name in kind.tables)
        words = kind.words.replace("|", "\\|")
        text += f"| {kind.page} | {words} | [`{kind.format}`](reference/formats.md) | {tables} | {_rules(kind.rules)} |\n"
    return text + "\nNot read, on purpose: " + "; ".join(f"{words} ({page}: {why})" for page, words, why in UNREAD) + ".\n"


def anchor(name: str) -> str:
    """The fragment of a rule's heading on the reference page."""
    code = next(r.code for r in own_rules() if r.name == name)
    return f"{code.lower()}-{name}"


def _rules(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](reference/rules.md#{anchor(name)})" for name in names)


def _of(names: Iterable[str], known: dict[str, tuple[str, ...]]) -> list[str]:
    return list(dict.fromkeys(file for name in names for file in known.get(name, ())))


def _tests(files: Sequence[str]) -> str:
    return ", ".join(f"`{file}`" for file in dict.fromkeys(files))
