"""The structure is easy to see: no import goes in a circle, every module says what it is for, and none has outgrown its purpose."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.corpus import ROOT

PACKAGE = ROOT / "nccl_forensics"
#: Lines of a module of code; tables of facts may be longer.
LONGEST = 660


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imported(name: str) -> set[str]:
    """Modules of the package that a module loads when it is loaded: not those that functions and type checkers import."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(FILES[name].read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found & FILES.keys()


def test_no_import_goes_in_a_circle() -> None:
    graph = {name: imported(name) - {name, "nccl_forensics"} for name in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        raise AssertionError(f"imports in a circle: {' -> '.join(problem.args[1])}") from None


def test_every_module_says_what_it_is_for() -> None:
    assert not [name for name, file in FILES.items() if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))]


def test_no_module_has_outgrown_its_purpose() -> None:
    lengths = {name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in FILES.items() if "facts" not in file.parts}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def test_a_check_that_is_switched_off_in_a_line_says_why() -> None:
    silent = []
    for name, file in FILES.items():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            found = re.search(r"# (?:noqa|type: ignore)\b(.*)$", line)
            if found and not re.search(r"[a-z]{2,} [a-z]{2,}", re.sub(r"\[[^\]]*\]|type: ignore|noqa", "", found[1])):
                silent.append(f"{name}:{number}")
    assert not silent


def test_whatever_a_rule_can_call_a_fault_says_how_it_is_kept_from_coming_again() -> None:
    silent = []
    for name, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if "rules" in file.parts else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"):
                continue
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if "prevention" not in given and re.search("error|critical", given.get("severity", "")):
                silent.append(f"{name}:{node.lineno}")
    assert not silent
