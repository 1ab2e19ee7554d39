"""The configuration file: thresholds of rules, suppressions, and what the gate demands. Unknown keys are refused with the nearest known
one.

It is ``nccl-forensics.toml``, or the table ``[tool.nccl-forensics]`` of a ``pyproject.toml``.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from pathlib import Path

from nccl_forensics.errors import UsageError
from nccl_forensics.formats import all_formats
from nccl_forensics.gate import AREAS, Tolerance
from nccl_forensics.limits import Limits, changed
from nccl_forensics.model import CAUSES, SEVERITIES, Severity
from nccl_forensics.rules import Value, all_rules
from nccl_forensics.suppressions import Suppression

FILE, PROJECT_FILE = "nccl-forensics.toml", "pyproject.toml"
_SECTIONS = ("check", "limits", "rules", "suppress", "tolerance")
_CHECK = ("allow-insufficient", "baseline", "fail-on", "require")
_SUPPRESS = ("cause", "fingerprint", "host", "reason", "rule", "until")

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a configuration file says; the defaults are those of no file."""

    file: Path | None = None
    thresholds: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    suppressions: tuple[Suppression, ...] = ()
    fail_on: Severity | None = None
    require: tuple[str, ...] = ()
    allow_insufficient: bool = False
    baseline: Path | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)
    limits: Limits = field(default_factory=Limits)


def discover(folder: Path) -> Path | None:
    """The configuration of a folder: its own file, else a ``pyproject.toml`` that holds the table."""
    if (own := folder / FILE).is_file():
        return own
    project = folder / PROJECT_FILE
    if project.is_file() and _project_table(_document(project)) is not None:
        return project
    return None


def load(file: Path) -> Config:
    """Read a configuration file. Raises ``UsageError``."""
    document: Table = _document(file)
    if file.name == PROJECT_FILE:
        table = _project_table(document)
        if table is None:
            raise UsageError(f"{file}: there is no table [tool.nccl-forensics]")
        document = table
    _known(file, "", document, _SECTIONS)
    check = _table(file, "check", document.get("check", {}))
    _known(file, "check.", check, _CHECK)
    baseline = _text(file, "check.baseline", check["baseline"]) if "baseline" in check else None
    return Config(
        file,
        _thresholds(file, _table(file, "rules", document.get("rules", {}))),
        _suppressions(file, document.get("suppress", [])),
        _fail_on(file, check.get("fail-on")),
        formats(_texts(file, "check.require", check.get("require", [])), f"{file}: check.require"),
        _switch(file, "check.allow-insufficient", check.get("allow-insufficient", False)),
        file.parent / baseline if baseline is not None else None,
        _tolerance(file, _table(file, "tolerance", document.get("tolerance", {}))),
        changed(Limits(), _table(file, "limits", document.get("limits", {})), f"{file}: limits"),
    )


def formats(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Names of formats, checked. Raises ``UsageError``."""
    known = [f.name for f in all_formats()]
    for name in names:
        if name not in known:
            raise UsageError(f"{where}: no format {name!r}{_nearest(name, known)} (`nccl-forensics formats` lists them)")
    return tuple(names)


def _document(file: Path) -> Table:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(f"{file}: cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{file}: not valid TOML: {problem}") from problem


def _project_table(document: Table) -> Table | None:
    tool = document.get("tool")
    table = tool.get("nccl-forensics") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _known(file: Path, where: str, table: Table, known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise UsageError(f"{file}: unknown key {where + key!r}{_nearest(key, known)}")


def _table(file: Path, key: str, value: object) -> Table:
    if not isinstance(value, dict):
        raise UsageError(f"{file}: {key} must be a table")
    return value


def _text(file: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{file}: {key} must be a text that is not empty")
    return value


def _texts(file: Path, key: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise UsageError(f"{file}: {key} must be a list of texts")
    return [_text(file, key, item) for item in value]


def _switch(file: Path, key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{file}: {key} must be true or false")
    return value


def _fail_on(file: Path, value: object) -> Severity | None:
    if value is None:
        return None
    found = next((s for s in SEVERITIES if s == value), None)
    if found is None:
        raise UsageError(f"{file}: check.fail-on must be one of {', '.join(SEVERITIES)}{_nearest(str(value), SEVERITIES)}")
    return found


def _thresholds(file: Path, section: Table) -> dict[str, dict[str, Value]]:
    known = {r.name: r for r in all_rules()}
    out: dict[str, dict[str, Value]] = {}
    for name, table in section.items():
        if name not in known:
            raise UsageError(f"{file}: no rule {name!r}{_nearest(name, known)}")
        declared = {t.name: t for t in known[name].inputs.thresholds}
        for threshold, value in _table(file, f"rules.{name}", table).items():
            if threshold not in declared:
                raise UsageError(f"{file}: rule {name} has no threshold {threshold!r}{_nearest(threshold, declared)}")
            default = declared[threshold].default
            number = isinstance(default, int | float) and not isinstance(default, bool)
            fits = _number(value) if number else type(value) is type(default)
            if not fits or not isinstance(value, bool | int | float | str):
                raise UsageError(f"{file}: rules.{name}.{threshold} must be like {default!r}")
            out.setdefault(name, {})[threshold] = value
    return out


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _suppressions(file: Path, value: object) -> tuple[Suppression, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{file}: suppressions are written as [[suppress]], each with its reason and until")
    return tuple(_suppression(file, f"suppress[{n}]", item) for n, item in enumerate(value))


def _suppression(file: Path, where: str, value: object) -> Suppression:
    table = _table(file, where, value)
    _known(file, f"{where}.", table, _SUPPRESS)
    for needed in ("reason", "until"):
        if needed not in table:
            raise UsageError(f"{file}: {where} lacks {needed!r}")
    given = {key: _text(file, f"{where}.{key}", table[key]) for key in ("rule", "cause", "fingerprint", "host") if key in table}
    if not given.keys() - {"host"}:
        raise UsageError(f"{file}: {where} must say what is accepted: rule, cause or fingerprint")
    known = {name for r in all_rules() for name in (r.name, r.code)} | {f"baseline-{area}" for area in AREAS}
    if "rule" in given and given["rule"] not in known:
        raise UsageError(f"{file}: {where}.rule: no rule {given['rule']!r}{_nearest(given['rule'], known)}")
    if "cause" in given and given["cause"] not in CAUSES:
        raise UsageError(f"{file}: {where}.cause: no cause {given['cause']!r}{_nearest(given['cause'], CAUSES)}")
    until = table["until"]
    return Suppression(reason=_text(file, f"{where}.reason", table["reason"]), until=_day(file, f"{where}.until", until), **given)


def _day(file: Path, key: str, value: object) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise UsageError(f"{file}: {key} must be a day such as 2026-12-31") from None


def _tolerance(file: Path, table: Table) -> Tolerance:
    names = {f.name.replace("_", "-"): f.name for f in fields(Tolerance)}
    _known(file, "tolerance.", table, names)
    numbers: dict[str, float] = {}
    for key, value in table.items():
        if key == "ignore":
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise UsageError(f"{file}: tolerance.{key} must be a number, 0 or more")
        numbers[names[key]] = float(value)
    ignore = tuple(_texts(file, "tolerance.ignore", table.get("ignore", [])))
    for item in ignore:
        if item.split(":", 1)[0] not in AREAS:
            raise UsageError(
                f"{file}: tolerance.ignore: no area {item!r}{_nearest(item.split(':', 1)[0], AREAS)}; there are {', '.join(AREAS)}"
            )
    return Tolerance(**numbers, ignore=ignore)


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
