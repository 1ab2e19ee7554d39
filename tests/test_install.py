"""What a stranger's machine meets: imports that are quick, modules that other systems can load, a wheel that has everything."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_forensics.commands import COMMANDS
from tests.corpus import ROOT
from tests.footprint import IMPORT_MS

PACKAGE = ROOT / "nccl_forensics"
HEAVY = ("polars", "lark", "plotly", "jinja2", "orjson", "yaml", "msgspec", "zstandard", "starlette", "uvicorn", "ray", "sqlite3")
#: Modules of the standard library that Windows lacks.
LINUX = frozenset({"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "posix", "syslog"})


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["analyze", "--help"]], ids=" ".join)
def test_help_loads_no_heavy_library(words: list[str]) -> None:
    code = f"""
import sys
sys.argv = ["nccl-forensics", *{words!r}]
from nccl_forensics.cli import main
try:
    main()
except SystemExit:
    pass
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    assert python(code).stdout.splitlines()[-1] == "[]"


def test_importing_the_command_line_takes_less_than_its_bound() -> None:
    code = """
import time
before = time.process_time()
import nccl_forensics.cli
print(1000 * (time.process_time() - before))
"""
    assert min(float(python(code).stdout) for _ in range(3)) < IMPORT_MS


def eager(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is loaded: not those inside functions, and not those that a try guards."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try):
            waiting += ast.iter_child_nodes(node)


def test_no_module_needs_what_windows_lacks_to_be_loaded() -> None:
    """The lab's jobs are apart: they run on Linux only, inside PyTorch."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        if "jobs" in file.parts:
            continue
        for node in eager(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            wrong += [f"{file.relative_to(ROOT)}:{node.lineno}: {name}" for name in names if name.split(".")[0] in LINUX]
    assert not wrong


def test_text_is_read_and_written_with_a_stated_encoding() -> None:
    """Windows' own encoding is another one."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        if "lab" in file.parts:
            continue  # real jobs on Linux
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            keywords = {k.arg for k in node.keywords}
            if name in ("read_text", "write_text") and "encoding" not in keywords and len(node.args) < (1 if name == "read_text" else 2):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {name} without encoding")
    assert not wrong


def test_extras_and_source_distribution_hold_what_the_pages_promise() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    assert {"serve", "all", "docs", "dev"} <= extras.keys()
    assert extras["all"] == [f"nccl-forensics[{','.join(sorted(extras.keys() - {'all', 'dev', 'docs'}))}]"]
    sources = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"nccl_forensics", "grammars", "reports", "docs", "examples", "fixtures", "tests"} <= set(sources)
    for name in sources:
        assert Path(ROOT / name).exists(), name
    for page in ("README.md", "CONTRIBUTING.md", "docs/install.md"):
        folder = (ROOT / page).parent
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
        linked = {(folder / link).resolve().relative_to(ROOT.resolve()).parts[0] for link in links}
        assert linked <= set(sources), page
    assert {"Containerfile", ".containerignore", "locks"} <= set(sources), "what the pages tell to run"
    assert next(iter(COMMANDS)) == "analyze"


def test_the_container_needs_package_indexes_only() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    steps = [line for line in text.splitlines() if line.split(" ")[0] in ("ADD", "RUN", "COPY", "FROM")]
    assert all("curl" not in s and "wget" not in s and "apt" not in s and "://" not in s.replace("file://", "") for s in steps)
    assert not [s for s in steps if s.startswith("ADD")]
    assert re.search(r"^USER [1-9][0-9]*$", text, re.MULTILINE), "a cluster that refuses root needs the user as a number"
