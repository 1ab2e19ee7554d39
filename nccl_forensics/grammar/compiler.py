"""Making line kinds of a ``.lark`` file, and Lark's own parsers of them: what is seldom needed of ``grammar``, as all kinds are ready
made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from lark import Lark, Tree
from lark.grammar import NonTerminal, Terminal
from lark.lexer import PatternRE, PatternStr, TerminalDef

from nccl_forensics.grammar.kinds import GrammarError, LineKind

#: A word shorter than this is no anchor: it would stand in almost every line.
_SHORTEST_ANCHOR = 3
_FORBIDDEN = re.compile(r"\\[dDwWsSbB]|\(\?[=!<]")

Node = Tree[object]


def line_kinds(name: str, text: str) -> tuple[LineKind, ...]:
    """All kinds of a grammar, in the order of its ``start``. Raises ``GrammarError`` where it breaks the rules of ``grammar``."""
    loaded = _loaded(text)
    rules = {str(rule[0]): rule[2] for rule in loaded.grammar.rule_defs}
    named = _named(text)
    terminals = {t.name: t.pattern.to_regexp() for t in loaded.terminals}
    for terminal, pattern in terminals.items():
        if terminal in named and _FORBIDDEN.search(pattern):
            raise GrammarError(f"{name}.lark: terminal {terminal} uses a class or look-around that the two engines read differently")
    return tuple(_Compiler(name, rules, terminals).kind(kind) for kind in _alternatives(rules["start"]))


def parser(text: str, kind: str) -> Lark:
    """Lark's parser of one kind of a grammar."""
    named = _named(text)

    def loosen(terminal: TerminalDef) -> None:
        """Literals win over terminals, and a blank in them stands for one or more."""
        if terminal.name not in named and isinstance(terminal.pattern, PatternStr):
            terminal.priority = 1
            if " " in terminal.pattern.value:
                terminal.pattern = PatternRE(_literal(terminal.pattern.value), tuple(terminal.pattern.flags))

    return Lark(text, parser="lalr", lexer="contextual", start=kind, maybe_placeholders=False, edit_terminals=loosen)


@cache
def _loaded(text: str) -> Lark:
    return Lark(text, parser=None, lexer="basic", start="start", maybe_placeholders=False)


def _named(text: str) -> frozenset[str]:
    """Terminals that the grammar names itself."""
    return frozenset(str(term[0]) for term in _loaded(text).grammar.term_defs)


def _literal(value: str) -> str:
    """A literal as a pattern: one blank stands for one or more."""
    return " +".join(re.escape(part) for part in re.split(" +", value))


def _alternatives(tree: Node) -> Iterator[str]:
    for symbol in tree.scan_values(lambda value: isinstance(value, NonTerminal)):
        assert isinstance(symbol, NonTerminal)
        yield str(symbol.name)


#: A pattern; clauses, each a choice of words of which a match contains one; the columns that a match fills.
_Part = tuple[str, list[tuple[str, ...]], list[str]]


class _Compiler:
    """Compiles one rule. It counts the groups of each column as it goes."""

    def __init__(self, grammar: str, rules: dict[str, Node], terminals: dict[str, str]) -> None:
        self._grammar, self._rules, self._terminals = grammar, rules, terminals
        self._groups: dict[str, int] = {}
        self._inside_repeat: set[str] = set()
        self._repeats = False
        self._stack: list[str] = []

    def kind(self, name: str) -> LineKind:
        pattern, clauses, required = self._rule(name, keep=True)
        twice = self._inside_repeat & set(self._groups)
        if twice:
            raise GrammarError(f"{self._grammar}.lark: {name} has {', '.join(sorted(twice))} inside and outside of a part that repeats")
        first = next((column for column in required if self._groups[column] == 1), None)
        anchors = tuple(dict.fromkeys(word for words in clauses if len(words) == 1 for word in words))
        openers = next((words for words in clauses if min(len(word) for word in words) >= _SHORTEST_ANCHOR), ())
        return LineKind(name, f"^{pattern}$", tuple(self._groups), not self._repeats, anchors, openers, first)

    def _rule(self, name: str, keep: bool) -> _Part:
        if name in self._stack:
            raise GrammarError(f"{self._grammar}.lark: {name} contains itself; a line kind cannot")
        self._stack.append(name)
        out = self._node(self._rules[name], keep)
        self._stack.pop()
        return out

    def _node(self, node: object, keep: bool) -> _Part:
        if isinstance(node, Terminal):
            return self._terminal(str(node.name), keep)
        if isinstance(node, NonTerminal):
            return self._rule(str(node.name), keep)
        if not isinstance(node, Tree):
            raise GrammarError(f"{self._grammar}.lark: {node!r} cannot stand in a line kind")
        children = list(node.children)
        if node.data in ("value", "expansion"):
            parts = [self._node(child, keep) for child in children]
            return "".join(p[0] for p in parts), [clause for p in parts for clause in p[1]], [c for p in parts for c in p[2]]
        if node.data == "expansions":
            parts = [self._node(child, keep) for child in children]
            if len(parts) == 1:
                return parts[0]
            return f"(?:{'|'.join(p[0] for p in parts)})", _either([p[1] for p in parts]), _common([p[2] for p in parts])
        if node.data == "maybe":
            return f"(?:{self._node(children[0], keep)[0]})?", [], []
        if node.data == "literal":
            return self._literal_node(str(children[0]))
        if node.data == "expr":
            return self._repeat(children, keep)
        raise GrammarError(f"{self._grammar}.lark: {node.data} is not supported in a line kind")

    def _repeat(self, children: Sequence[object], keep: bool) -> _Part:
        operator = str(children[1])
        if operator == "?":
            return f"(?:{self._node(children[0], keep)[0]})?", [], []
        self._repeats = True
        pattern, clauses, _ = self._node(children[0], False)
        bounds = {"*": "*", "+": "+"}.get(operator) or "{" + ",".join(str(n) for n in children[2:]) + "}"
        return f"(?:{pattern}){bounds}", [] if operator == "*" else clauses, []

    def _terminal(self, name: str, keep: bool) -> _Part:
        pattern = self._terminals[name]
        if name.startswith("_"):
            return f"(?:{pattern})", [], []
        column = name.lower()
        if not keep:
            self._inside_repeat.add(column)
            return f"(?:{pattern})", [], []
        count = self._groups[column] = self._groups.get(column, 0) + 1
        return f"(?P<{column if count == 1 else f'{column}__{count}'}>{pattern})", [], [column]

    def _literal_node(self, source: str) -> _Part:
        if source.startswith("/"):
            raise GrammarError(f"{self._grammar}.lark: give the pattern {source} a name")
        body, flags = source[1 : source.rindex('"')], source[source.rindex('"') + 1 :]
        value = re.sub(r"\\(.)", r"\1", body)
        if flags:
            return f"(?{flags}:{_literal(value)})", [], []
        return _literal(value), [(word,) for word in value.split()], []


def _either(alternatives: list[list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """What holds if one of the alternatives does: a word of the first telling clause of each, and the words that all share."""
    shared = [clause for clause in alternatives[0] if all(clause in other for other in alternatives[1:])]
    telling = [next((c for c in clauses if min(map(len, c)) >= _SHORTEST_ANCHOR), None) for clauses in alternatives]
    words = [word for clause in telling if clause is not None for word in clause]
    return [tuple(dict.fromkeys(words)), *shared] if None not in telling else shared


def _common(lists: list[list[str]]) -> list[str]:
    return [word for word in lists[0] if all(word in other for other in lists[1:])]
