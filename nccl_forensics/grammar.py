"""Line grammars: one ``.lark`` file defines a text format, for Lark and for the fast form alike.

Every alternative of the grammar's ``start`` is a *line kind*: one rule that matches one whole line. A rule that is made of terminals,
literals, optional parts and alternatives is *flat* and is compiled, from Lark's own loaded rules and terminals, into one anchored
pattern that runs over a whole column. Both forms give the same rows; ``Grammar.parse`` (Lark) and ``Grammar.extract`` (columns) are held
together by a parity test.

## Rules for a grammar
* ``%ignore`` is not used. Blanks are written in the literals, and one blank in a literal stands for one blank or more.
  Blanks at the end of a line are dropped before matching.
* A terminal's name is its column: ``OP_COUNT`` fills ``op_count``. Terminals and rules that start with ``_`` are matched and dropped
  (rules are inlined). Where a terminal stands in several alternatives, it fills the one column.
* Terminals are ASCII (``[0-9]``, not ``\\d``), free of look-around, and greedy: what follows a terminal in a rule may not start with a
  character that the terminal itself could still take, and two terminals that could both come next must differ in what they match.
  Otherwise Lark and the pattern would cut at different places.
* Where a literal and a terminal could both come next, the literal wins.
* In a terminal, the longer of two alternatives with the same start comes first (``TcpExt|Tcp``): engines take the first that fits.
  Where two terminals that differ could both fit, a priority (``INDEX.2: ...``) tells Lark which the pattern tries first.
* A part that repeats (``*``, ``+``, ``~n``) fills no columns: ``Grammar.tree`` reads it, with Lark.

## Which kind is tried first
The *anchor* of a kind is the first word of its mandatory literals. The kinds of the anchor that stands leftmost in the first
``HEAD`` characters are tried first, in the order of ``start``; then all other kinds whose words occur, in the order of ``start``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import polars as pl
from lark import Lark, Token, Tree
from lark.exceptions import LarkError
from lark.grammar import NonTerminal, Terminal
from lark.lexer import PatternRE, PatternStr, TerminalDef

from nccl_forensics.resources import grammar_text

#: Characters of a line in which the anchor that decides the order of trial is looked for.
HEAD = 64
#: A word shorter than this is no anchor: it would stand in almost every line.
_SHORTEST_ANCHOR = 3
#: With so few kinds, trying one after the other on the rows left is cheaper than deciding first.
_FEW = 8
#: Up to so many rows go through Python's engine instead of a column operation.
_SMALL = 64
_BLANKS = " \t\r"
_FORBIDDEN = re.compile(r"\\[dDwWsSbB]|\(\?[=!<]")

_GROUP = re.compile(r"\(\?P<([a-z0-9_]+)>")
#: The group of a terminal; parentheses inside of it are escaped.
_ANY_GROUP = re.compile(r"(?<!\\)\((?:[^()\\]|\\.)*\)")
#: What makes a part of a pattern something else than text.
_BENDS = re.compile(r"[|*+?{}()^$]")
_CLASS = re.compile(r"\[(?:[^\]\\]|\\.)+\]")

Node = Tree[object]


class GrammarError(Exception):
    """A ``.lark`` file breaks the rules of this module: a mistake of its author, found by the tests."""


@dataclass(frozen=True, slots=True)
class LineKind:
    """One kind of line.

    ``pattern`` is valid for Rust's and Python's engines. A column that stands in several places has groups ``name``, ``name__2``, ...,
    at most one of which takes part in a match. ``anchors`` are words that every match contains. ``flat`` is false if parts repeat.
    ``openers`` are words at least one of which every match contains: they decide when the kind is tried. ``required`` is a column that
    every match fills, if there is one.
    """

    name: str
    pattern: str
    columns: tuple[str, ...]
    flat: bool
    anchors: tuple[str, ...]
    openers: tuple[str, ...]
    required: str | None


@dataclass(frozen=True, slots=True)
class Extraction:
    """What ``Grammar.extract`` found: a kind (or null) per input row, and one frame per kind with ``row`` and its columns."""

    kind: pl.Series
    frames: dict[str, pl.DataFrame]

    def frame(self, kind: str) -> pl.DataFrame | None:
        """Rows of one kind; ``None`` where there is none."""
        return self.frames.get(kind)


@dataclass(frozen=True, slots=True)
class Piece:
    """What stands between two cuts of a line: a pattern that matches it whole, and the columns that its groups fill.

    ``bare`` are the lengths of the literals around its only group, where it is made of nothing else.
    """

    pattern: str
    columns: tuple[str, ...]
    bare: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class CutLine:
    """A flat line kind, cut at every place where one letter stands that its literals hold and its later terminals cannot.

    Polars' reader of separated values finds ends of lines and such letters in one go, several times faster than a pattern is matched. The
    first piece may hold the letter itself: the lines of one kind then differ in how many pieces there are before the others.
    """

    letter: str
    pieces: tuple[Piece, ...]

    def cut(self, text: bytes, more: int) -> pl.DataFrame:
        """The pieces of every line of a text (UTF-8, LF) as ``p0``, ``p1``, ..., up to ``more`` above their number, and one column that is
        filled where a line has more than that. What is missing or empty is null.

        Raises ``PolarsError`` where Polars' reader of separated values cannot read it so.
        """
        return pl.read_csv(
            text,
            has_header=False,
            separator=self.letter,
            quote_char=None,
            schema={f"p{place}": pl.String() for place in range(len(self.pieces) + more + 1)},
            truncate_ragged_lines=True,
            missing_columns="insert",
            extra_columns="ignore",
        )


def cut_line(kind: LineKind, letter: str) -> CutLine:
    """The form of a kind that is cut at a letter; its lines have single blanks. Raises ``GrammarError`` where a terminal behind the first
    cut could hold the letter, or where the kind has parts that may be missing."""
    pieces: list[list[str]] = [[""]]  # of each piece: literal, group, literal, ...
    pattern, end = kind.pattern[1:-1].replace(" +", " "), 0
    for group in (*_ANY_GROUP.finditer(pattern), None):
        literal = pattern[end : group.start() if group is not None else None]
        if _BENDS.search(re.sub(r"\\.", "", literal)):
            raise GrammarError(f"{kind.name} cannot be cut: a part of it may be missing")
        first, *others = re.sub(r"\\(.)", r"\1", literal).split(letter)
        pieces[-1][-1] += first
        pieces += [[other] for other in others]
        if group is not None:
            if len(pieces) > 1 and _holds(group.group(), letter):
                raise GrammarError(f"{kind.name} cannot be cut at {letter!r}: {group.group()!r} may hold it")
            pieces[-1] += [group.group(), ""]
            end = group.end()
    return CutLine(letter, tuple(_piece(parts) for parts in pieces))


def _piece(parts: list[str]) -> Piece:
    pattern = "".join(part if place % 2 else re.escape(part) for place, part in enumerate(parts))
    columns = tuple(_GROUP.findall(pattern))
    return Piece(f"^{pattern}$", columns, (len(parts[0]), len(parts[2])) if len(parts) == 3 and columns else None)


def _holds(group: str, letter: str) -> bool:
    """Whether a group of one terminal could match a text with this letter in it."""
    body = _GROUP.sub("(", group).replace("(?:", "(")
    return letter in _CLASS.sub("", body) or any(re.fullmatch(found, letter) for found in _CLASS.findall(body))


@cache
def load(name: str) -> Grammar:
    """The grammar ``grammars/<name>.lark``."""
    return Grammar(name, grammar_text(name))


class Grammar:
    """A loaded grammar. It keeps Lark's parsers, which are made when first needed: that is why it is a class."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text
        loaded = Lark(text, parser=None, lexer="basic", start="start", maybe_placeholders=False)
        rules = {str(rule[0]): rule[2] for rule in loaded.grammar.rule_defs}
        self._named = frozenset(str(term[0]) for term in loaded.grammar.term_defs)
        terminals = {t.name: t.pattern.to_regexp() for t in loaded.terminals}
        for terminal, pattern in terminals.items():
            if terminal in self._named and _FORBIDDEN.search(pattern):
                raise GrammarError(f"{name}.lark: terminal {terminal} uses a class or look-around that the two engines read differently")
        self.kinds: dict[str, LineKind] = {}
        for kind in _alternatives(rules["start"]):
            self.kinds[kind] = _Compiler(name, rules, terminals).kind(kind)
        self._order = tuple(self.kinds.values())
        self._parsers: dict[str, Lark] = {}

    def extract(self, texts: pl.Series | pl.DataFrame) -> Extraction:
        """Kind and columns of every text (a series, or a frame with a column ``text``)."""
        text = (texts if isinstance(texts, pl.Series) else texts.get_column("text")).str.strip_chars_end(_BLANKS)
        found: dict[str, list[pl.DataFrame]] = {}
        left = pl.int_range(text.len(), dtype=pl.UInt32, eager=True)
        if len(self._order) > _FEW:
            left = self._by_anchor(text, left, found)
        self._in_order(text, left, found)
        frames = {kind: pl.concat(parts).sort("row") if len(parts) > 1 else parts[0] for kind, parts in found.items()}
        return Extraction(self._kinds_of(text.len(), frames), {kind: frames[kind] for kind in self.kinds if kind in frames})

    def parse(self, text: str) -> tuple[str, dict[str, str | None]] | None:
        """Kind and columns of one text through Lark's own parser; ``None`` where no kind matches."""
        text = text.rstrip(_BLANKS)
        for kind in self._candidates(text):
            try:
                tree = self._parser(kind.name).parse(text)
            except LarkError:
                continue
            values: dict[str, str | None] = dict.fromkeys(kind.columns)
            for token in tree.scan_values(lambda value: isinstance(value, Token)):
                column = token.type.lower()
                if column in values and values[column] is None:
                    values[column] = str(token)
            return kind.name, values
        return None

    def tree(self, text: str, kind: str) -> Tree[Token] | None:
        """Lark's tree of one text, for kinds with parts that repeat or nest; ``None`` where it does not match."""
        try:
            return self._parser(kind).parse(text.rstrip(_BLANKS))
        except LarkError:
            return None

    def _parser(self, kind: str) -> Lark:
        if kind not in self._parsers:
            self._parsers[kind] = Lark(
                self._text, parser="lalr", lexer="contextual", start=kind, maybe_placeholders=False, edit_terminals=self._loosen
            )
        return self._parsers[kind]

    def _loosen(self, terminal: TerminalDef) -> None:
        """Literals win over terminals, and a blank in them stands for one or more."""
        if terminal.name not in self._named and isinstance(terminal.pattern, PatternStr):
            terminal.priority = 1
            if " " in terminal.pattern.value:
                terminal.pattern = PatternRE(_literal(terminal.pattern.value), tuple(terminal.pattern.flags))

    @cached_property
    def _anchored(self) -> dict[str, tuple[LineKind, ...]]:
        by_anchor: dict[str, list[LineKind]] = {}
        for kind in self._order:
            for anchor in kind.openers:
                by_anchor.setdefault(anchor, []).append(kind)
        # Longer first: of two anchors at one place the longer says more.
        return {a: tuple(by_anchor[a]) for a in sorted(by_anchor, key=lambda a: (-len(a), a))}

    def _candidates(self, text: str) -> Iterator[LineKind]:
        first: tuple[LineKind, ...] = ()
        if len(self._order) > _FEW:
            head = text[:HEAD]
            places = [(head.find(anchor), n, kinds) for n, (anchor, kinds) in enumerate(self._anchored.items())]
            hits = [place for place in places if place[0] >= 0]
            if hits:
                first = min(hits)[2]
        yield from first
        for kind in self._order:
            if kind not in first and (not kind.openers or any(word in text for word in kind.openers)):
                yield kind

    def _by_anchor(self, text: pl.Series, rows: pl.Series, found: dict[str, list[pl.DataFrame]]) -> pl.Series:
        """One scan of the heads decides which kinds are tried; each sees only its own rows. Returns the rows left."""
        choice = "(" + "|".join(re.escape(anchor) for anchor in self._anchored) + ")"
        anchors = text.str.head(HEAD).str.extract(choice, 1)
        groups = pl.DataFrame({"row": rows, "anchor": anchors}).group_by("anchor", maintain_order=True).agg("row")
        left: list[pl.Series] = []
        for anchor, members in groups.iter_rows():
            own = pl.Series("row", members, dtype=pl.UInt32) if len(groups) > 1 else rows
            for kind in self._anchored.get(anchor, ()) if anchor is not None else ():
                if own.is_empty():
                    break
                own = _take(kind, text, own, found)
            left.append(own)
        return pl.concat(left).sort() if left else rows.clear()

    def _in_order(self, text: pl.Series, rows: pl.Series, found: dict[str, list[pl.DataFrame]]) -> None:
        """All kinds in the order of ``start``, each on the rows left that hold one of its words: those words are found in one scan."""
        if rows.is_empty():
            return
        if len(self._order) <= _FEW:
            for kind in self._order:
                rows = _take(kind, text, rows, found)
            return
        words = sorted({word for kind in self._order for word in kind.openers})
        found_words = text.gather(rows).str.extract_many(pl.Series([words], dtype=pl.List(pl.String)), overlapping=True)
        held = pl.DataFrame({"row": rows, "word": found_words})
        per_word = held.explode("word", empty_as_null=False).unique(maintain_order=True).group_by("word", maintain_order=True).agg("row")
        rows_of_word = dict(zip(per_word.get_column("word").to_list(), per_word.get_column("row"), strict=True))
        for kind in self._order:
            if rows.is_empty():
                return
            if not kind.openers:
                rows = _take(kind, text, rows, found)
                continue
            parts = [rows_of_word[word] for word in kind.openers if word in rows_of_word]
            if parts:
                has = rows.is_in(pl.concat(parts).implode())
                if has.any():
                    rows = pl.concat([rows.filter(~has), _take(kind, text, rows.filter(has), found)]).sort()

    def _kinds_of(self, height: int, frames: dict[str, pl.DataFrame]) -> pl.Series:
        names = list(frames)
        numbers = pl.repeat(None, height, dtype=pl.UInt32, eager=True)
        for number, name in enumerate(names):
            numbers = numbers.scatter(frames[name].get_column("row"), number)
        if not names:
            return pl.repeat(None, height, dtype=pl.String, eager=True).alias("kind")
        return pl.Series("kind", names, dtype=pl.String).gather(numbers).alias("kind")


def _take(kind: LineKind, text: pl.Series, rows: pl.Series, found: dict[str, list[pl.DataFrame]]) -> pl.Series:
    """Move the rows that match from ``rows`` to ``found``; returns those that do not."""
    own = text if rows.len() == text.len() else text.gather(rows)
    if rows.len() <= _SMALL:
        return _take_small(kind, own.to_list(), rows.to_list(), found)
    if kind.columns:
        frame = own.str.extract_groups(kind.pattern).struct.unnest().with_columns(rows.alias("row"))
        matched = frame.get_column(kind.required).is_not_null() if kind.required else own.str.contains(kind.pattern)
    else:
        frame = pl.DataFrame({"row": rows})
        matched = own.str.contains(kind.pattern)
    if matched.any():
        if not matched.all():
            frame = frame.filter(matched)
        groups = frame.columns
        columns = [pl.coalesce([g for g in groups if g == column or g.startswith(f"{column}__")]).alias(column) for column in kind.columns]
        found.setdefault(kind.name, []).append(frame.select("row", *columns))
    return rows.filter(~matched)


def _take_small(kind: LineKind, texts: list[str], rows: list[int], found: dict[str, list[pl.DataFrame]]) -> pl.Series:
    """The same for few rows, through Python's engine: a column operation costs more than the rows do."""
    match = re.compile(kind.pattern).match
    left: list[int] = []
    taken: list[int] = []
    values: dict[str, list[str | None]] = {column: [] for column in kind.columns}
    for row, text in zip(rows, texts, strict=True):
        hit = match(text)
        if hit is None:
            left.append(row)
            continue
        taken.append(row)
        groups = hit.groupdict()
        for column, cells in values.items():
            cells.append(next((v for g, v in groups.items() if v is not None and (g == column or g.startswith(f"{column}__"))), None))
    if taken:
        columns = [pl.Series(column, cells, dtype=pl.String) for column, cells in values.items()]
        found.setdefault(kind.name, []).append(pl.DataFrame([pl.Series("row", taken, dtype=pl.UInt32), *columns]))
    return pl.Series("row", left, dtype=pl.UInt32)


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
