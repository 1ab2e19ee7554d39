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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import polars as pl

from nccl_forensics.frames import taken_for_packed
from nccl_forensics.grammar.kinds import GrammarError, LineKind, ready_made
from nccl_forensics.resources import grammar_text

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

#: Characters of a line in which the anchor that decides the order of trial is looked for.
HEAD = 64
#: With so few kinds, trying one after the other on the rows left is cheaper than deciding first.
_FEW = 8
#: Up to so many rows go through Python's engine instead of a column operation.
_SMALL = 64
#: Characters up to which a text goes through Python's engine, whose time may grow with the square of them. That of columns is linear.
_SHORT = 1000
_BLANKS = " \t\r"

_GROUP = re.compile(r"\(\?P<([a-z0-9_]+)>")
#: The group of a terminal; parentheses inside of it are escaped.
_ANY_GROUP = re.compile(r"(?<!\\)\((?:[^()\\]|\\.)*\)")
#: What makes a part of a pattern something else than text.
_BENDS = re.compile(r"[|*+?{}()^$]")
_CLASS = re.compile(r"\[(?:[^\]\\]|\\.)+\]")


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
        if taken_for_packed(text):
            raise pl.exceptions.ComputeError("it begins like a compressed file")
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
        self._order = ready_made(name, text) or _made(name, text)
        self.kinds = {kind.name: kind for kind in self._order}
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
        from lark import Token
        from lark.exceptions import LarkError

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
        from lark.exceptions import LarkError

        try:
            return self._parser(kind).parse(text.rstrip(_BLANKS))
        except LarkError:
            return None

    def _parser(self, kind: str) -> Lark:
        if kind not in self._parsers:
            from nccl_forensics.grammar.compiler import parser

            self._parsers[kind] = parser(self._text, kind)
        return self._parsers[kind]

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


def _made(name: str, text: str) -> tuple[LineKind, ...]:
    """The kinds made anew: of a grammar that is being worked on, or of an extension's."""
    from nccl_forensics.grammar.compiler import line_kinds

    return line_kinds(name, text)


def _take(kind: LineKind, text: pl.Series, rows: pl.Series, found: dict[str, list[pl.DataFrame]]) -> pl.Series:
    """Move the rows that match from ``rows`` to ``found``; returns those that do not."""
    own = text if rows.len() == text.len() else text.gather(rows)
    if rows.len() <= _SMALL and int(str(own.str.len_chars().max() or 0)) <= _SHORT:
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
