"""Every regular expression that Python's engine runs, and texts made from its own structure that would make a backtracking engine work
hard.

Patterns that run over columns (grammars' line kinds but for short lines, Polars' string functions) are not among them: Rust's engine takes
linear time by design.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as C
from re import _parser as parser

import nccl_forensics
from tests.corpus import ROOT

PACKAGE = ROOT / "nccl_forensics"
_ANYWHERE = ("search", "sub", "subn", "findall", "finditer", "split", "scanner")


@dataclass(frozen=True)
class Found:
    """A pattern, where it stands, and whether it is looked for anywhere in a text rather than at its start alone."""

    pattern: str | bytes
    flags: int
    where: str
    anywhere: bool


def patterns() -> list[Found]:
    """All compiled patterns of all modules, and those that functions hold as literals."""
    found: dict[tuple[str | bytes, int], Found] = {}
    for info in pkgutil.walk_packages(nccl_forensics.__path__, "nccl_forensics."):
        if ".lab" in info.name or info.name.endswith("__main__") or info.name.endswith("ray_engine"):
            continue
        module = importlib.import_module(info.name)
        file = module.__file__ or ""
        source = Path(file).read_text(encoding="utf-8") if file else ""
        for name, value in vars(module).items():
            for compiled in _inside(value, 0):
                uses = set(re.findall(rf"\b{re.escape(name)}\b(?:\[[^\]]*\])?\.(\w+)\(", source))
                anywhere = not isinstance(value, re.Pattern) or not uses or bool(uses & set(_ANYWHERE))
                key = (compiled.pattern, compiled.flags)
                if key not in found or (anywhere and not found[key].anywhere):
                    found[key] = Found(compiled.pattern, compiled.flags, f"{info.name}.{name}", anywhere)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "lab" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Attribute(ast.Name("re"), attr), [ast.Constant(str() | bytes() as pattern), *_]) if attr != "compile":
                    one = Found(pattern, 0, f"{path.name}:{node.lineno}", attr in _ANYWHERE)
                    found.setdefault((pattern, -1 - one.anywhere), one)
    return list(found.values())


def _inside(value: object, depth: int) -> Iterator[re.Pattern[str] | re.Pattern[bytes]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 3 and isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _inside(one, depth + 1)
    elif depth < 3 and isinstance(value, dict):
        for key, one in value.items():
            yield from _inside(key, depth + 1)
            yield from _inside(one, depth + 1)
    elif depth < 3 and hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        for name in value.__dataclass_fields__:
            yield from _inside(getattr(value, name, None), depth + 1)


def pumps(found: Found, length: int) -> list[str | bytes]:
    """Texts that lead into each unbounded repetition, feed it, and then fail: the worst cases of backtracking."""
    text = found.pattern if isinstance(found.pattern, str) else found.pattern.decode("latin-1")
    tree = parser.parse(text, found.flags & ~re.UNICODE if isinstance(found.pattern, bytes) else found.flags)
    out: set[str] = set()
    for before, body in _repeats(tree, ""):
        for piece in {body, body[:1], body + body[-1:], " ", "a", "0", "1.", "a ", "/a"}:
            if piece:
                fed = (piece * (length // len(piece) + 1))[:length]
                out |= {before + fed + "\x01", before + fed, fed + "\x01"}
    return [t if isinstance(found.pattern, str) else t.encode("latin-1", "replace") for t in sorted(out)]


def _repeats(tree: object, before: str) -> Iterator[tuple[str, str]]:
    """(a text that leads to the repetition, a text that it repeats) of each repetition without a small bound."""
    prefix = before
    for op, argument in tree:  # type: ignore[attr-defined]
        if op in (C.MAX_REPEAT, C.MIN_REPEAT, C.POSSESSIVE_REPEAT):
            _, high, body = argument
            if high > 200:
                yield prefix, _sample([(op, (1, 1, body))])
            yield from _repeats(body, prefix)
        elif op is C.SUBPATTERN:
            yield from _repeats(argument[-1], prefix)
        elif op is C.BRANCH:
            for branch in argument[1]:
                yield from _repeats(branch, prefix)
        elif op is C.ATOMIC_GROUP:
            yield from _repeats(argument, prefix)
        elif op in (C.ASSERT, C.ASSERT_NOT):
            yield from _repeats(argument[1], prefix)
        prefix += _sample([(op, argument)])


def _sample(tree: object) -> str:
    """One text that a piece of a pattern takes."""
    out = ""
    for op, argument in tree:  # type: ignore[attr-defined]
        if op is C.LITERAL:
            out += chr(argument)
        elif op is C.NOT_LITERAL:
            out += "a" if argument != ord("a") else "b"
        elif op is C.ANY:
            out += "a"
        elif op is C.IN:
            out += _member(argument)
        elif op in (C.MAX_REPEAT, C.MIN_REPEAT, C.POSSESSIVE_REPEAT):
            low, _, body = argument
            out += _sample(body) * min(max(low, 1), 64)
        elif op is C.SUBPATTERN:
            out += _sample(argument[-1])
        elif op is C.BRANCH:
            out += _sample(argument[1][0])
        elif op is C.ATOMIC_GROUP:
            out += _sample(argument)
    return out


_CATEGORIES = {
    C.CATEGORY_DIGIT: "0",
    C.CATEGORY_SPACE: " ",
    C.CATEGORY_WORD: "a",
    C.CATEGORY_NOT_DIGIT: "a",
    C.CATEGORY_NOT_SPACE: "a",
    C.CATEGORY_NOT_WORD: " ",
}


def _member(items: list[tuple[object, object]]) -> str:
    """A character of a class."""
    negated = items[0][0] is C.NEGATE
    if negated:
        for candidate in 'a0 .:-/"x':
            if not any(_holds(item, candidate) for item in items[1:]):
                return candidate
        return "~"
    op, argument = items[0]
    if op is C.LITERAL:
        return chr(argument)  # type: ignore[arg-type]
    if op is C.RANGE:
        return chr(argument[0])  # type: ignore[index]
    return _CATEGORIES.get(argument, "a")


def _holds(item: tuple[object, object], char: str) -> bool:
    op, argument = item
    if op is C.LITERAL:
        return ord(char) == argument
    if op is C.RANGE:
        return argument[0] <= ord(char) <= argument[1]  # type: ignore[index]
    return bool(re.fullmatch({C.CATEGORY_DIGIT: r"\d", C.CATEGORY_SPACE: r"\s", C.CATEGORY_WORD: r"\w"}.get(argument, r"(?!)"), char))
