"""The configuration file: thresholds of rules by rule name, checked against what the rules declare."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path

from nccl_forensics.errors import UsageError
from nccl_forensics.rules import Value, all_rules


def thresholds(file: Path) -> dict[str, dict[str, Value]]:
    """``[rules.<name>]`` tables of a TOML file. Raises ``UsageError`` for unknown keys (with the nearest known one) and wrong types."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(f"{file}: cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{file}: not valid TOML: {problem}") from problem
    known = {r.name: r for r in all_rules()}
    out: dict[str, dict[str, Value]] = {}
    for key in document:
        if key != "rules":
            raise UsageError(f"{file}: unknown key {key!r}{_nearest(key, ['rules'])}")
    section = document.get("rules", {})
    if not isinstance(section, dict):
        raise UsageError(f"{file}: 'rules' must be a table")
    for name, values in section.items():
        if name not in known:
            raise UsageError(f"{file}: no rule {name!r}{_nearest(name, sorted(known))}")
        declared = {t.name: t for t in known[name].inputs.thresholds}
        if not isinstance(values, dict):
            raise UsageError(f"{file}: rules.{name} must be a table")
        for threshold, value in values.items():
            if threshold not in declared:
                raise UsageError(f"{file}: rule {name} has no threshold {threshold!r}{_nearest(threshold, sorted(declared))}")
            default = declared[threshold].default
            number = isinstance(default, (int, float)) and not isinstance(default, bool)
            if (number and (isinstance(value, bool) or not isinstance(value, (int, float)))) or (
                not number and type(value) is not type(default)
            ):
                raise UsageError(f"{file}: rules.{name}.{threshold} must be like {default!r}")
            out.setdefault(name, {})[threshold] = value
    return out


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
