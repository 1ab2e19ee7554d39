"""The floors of the architecture: a module imports only from below, and each heavy library has one home."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.corpus import ROOT

PACKAGE = ROOT / "nccl_forensics"
#: From the top down. A module belongs to the first floor that names it or its folder.
FLOORS: list[set[str]] = [
    {"cli"},
    {"commands", "serve"},
    {"api", "__init__"},
    {"analysis"},
    {"pictures", "config", "query", "watching", "extensions", "redaction"},
    {"reporters"},
    {"figures", "render", "drawings", "exhibits", "presentation", "changes", "gate", "suppressions"},
    {"conclusions"},
    {"rules"},
    {"views"},
    {"reading"},
    {"store", "cache"},
    {"formats"},
    {"grammar", "decoding", "stacks", "alignment", "raised_reports"},
    {"tables"},
    {"simulate"},
    {"facts", "lab", "collect"},
    {"registry", "evidence", "extras", "words", "pseudonyms", "model"},
    {
        "values",
        "plugins",
        "errors",
        "aside",
        "outlets",
        "folding",
        "frames",
        "resources",
        "limits",
        "masking",
        "plain",
    },
]
#: Folders, or modules of a folder.
HOMES = {
    "lark": {"grammar"},
    "click": {"cli", "commands"},
    "jinja2": {"render"},
    "plotly": {"figures"},
    "ray": {"reading.ray_engine"},
    "fsspec": {"reading.remote"},
    "zstandard": {"decoding.archives"},
    "isal": {"decoding.archives"},
    "torch": {"lab"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "anyio": {"serve"},
    "python_multipart": {"serve"},
    "yaml": {"decoding.safe_yaml"},
    "sqlite3": {"serve", "decoding.sqlite_reader"},
    "msgspec": {"decoding.chrome_json"},
}


def floor_of(name: str) -> int:
    for index, floor in enumerate(FLOORS):
        if name in floor:
            return index
    raise AssertionError(f"nccl_forensics.{name} stands on no floor: add it to FLOORS")


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def modules() -> list[tuple[str, Path]]:
    """Folder or module of the package, and file, of every module."""
    return [(file.relative_to(PACKAGE).parts[0].removesuffix(".py"), file) for file in sorted(PACKAGE.rglob("*.py"))]


def dotted(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts)


def test_a_module_imports_only_from_its_own_floor_or_below() -> None:
    wrong = []
    for name, file in modules():
        for target in imports(file):
            parts = target.split(".")
            if parts[0] != "nccl_forensics" or len(parts) < 2 or parts[1] == "__version__":
                continue
            if floor_of(parts[1]) < floor_of(name):
                wrong.append(f"{file.relative_to(ROOT)} imports {target}")
    assert not wrong


def test_each_heavy_library_has_one_home() -> None:
    wrong = []
    for name, file in modules():
        for target in imports(file):
            top = target.split(".")[0]
            if top in HOMES and not {name, dotted(file)} & HOMES[top]:
                wrong.append(f"{file.relative_to(ROOT)} imports {target}")
    assert not wrong


def test_text_is_put_together_in_the_way_that_does_not_fail() -> None:
    # pl.format panics on frames that a filter left in several pieces: frames.text_of does the same.
    users = [str(f.relative_to(ROOT)) for f in sorted(PACKAGE.rglob("*.py")) if "pl.format(" in f.read_text()]
    assert users == []
