"""Where grammars and report templates lie: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    installed = _PACKAGE / f"_{name}"
    return installed if installed.is_dir() else _PACKAGE.parent / name


def grammar_text(name: str) -> str:
    """Text of ``grammars/<name>.lark``."""
    return (_folder("grammars") / f"{name}.lark").read_text(encoding="utf-8")


def grammars_folder() -> Path:
    """Folder of the .lark files."""
    return _folder("grammars")


def reports_folder() -> Path:
    """Folder of the templates and styles of the reports."""
    return _folder("reports")
