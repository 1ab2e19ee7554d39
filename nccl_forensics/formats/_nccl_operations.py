"""Lines of operations as NCCL itself sets them, read by pieces: logs with ``NCCL_DEBUG_SUBSYS=COLL`` hold little else, by the million.

What is taken here is a subset of what ``nccl_prefix.lark`` and ``nccl.lark`` take (``nccl_operation.lark``), with the same rows; anything
set otherwise is left to them. Of a line only its number and ``opCount`` are its own: all that stands before and behind is one of a few
sorts, of each of which the words are read once in a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import polars as pl
from polars.exceptions import PolarsError

from nccl_forensics.folding import SORT, Folded, told
from nccl_forensics.formats._nccl_rows import tables_of
from nccl_forensics.formats._nccl_steps import Steps, steps
from nccl_forensics.formats.base import Bulk, Found
from nccl_forensics.frames import typed
from nccl_forensics.grammar.lines import CutLine, cut_line, load
from nccl_forensics.tables import TABLES

_KIND, _TABLE, _OWN = "operation", "nccl_ops", "op_count"
_MARK = " NCCL INFO "
#: A letter of "opCount", "sendbuff", "recvbuff" and "count" that no number and no pointer holds.
_CUT = "u"
#: Host names and operations hold it too; so many times, and no more, in the lines that are looked at first.
_SAMPLE = 16 << 10
#: What a prefix of a launcher would have told; lines that carry one are not taken.
_UNTOLD = typed("time_raw_ns:i64 time_kind:str hint_rank:i32 hint_scope:str hint_host:str hint_pid:i64")
#: Longest piece of a line that is taken, in bytes.
_LONGEST = 4096
#: So many sorts are known by their words; with more, what was read so far is put away first.
_MOST_SORTS = 1 << 16
#: Sorts are told apart by a list of all combinations of their pieces where it is no longer than this.
_LISTED = 1 << 20
#: After so many pieces that are not made of steps, none is tried.
_STEPLESS = 3
_REST = typed("line_no:u32 text:str")
#: What a piece of text is that stands before and behind the numbers of a line.
_Sort = tuple[str, str]


@cache
def _line() -> CutLine:
    return cut_line(load("nccl_operation").kinds[_KIND], _CUT)


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of the first and the last piece of a line, which hold all words of its sort."""
    pieces = _line().pieces
    assert all(set(piece.columns) <= {_OWN} for piece in pieces[1:-1])
    return re.compile(pieces[0].pattern), re.compile(pieces[-1].pattern)


@dataclass(slots=True)
class _Met:
    """Sorts that were met: their numbers, and of those that are new the number, the words and the text of a line."""

    numbers: list[int | None] = field(default_factory=list)
    fresh: dict[_Sort, int] = field(default_factory=dict)
    words: list[dict[str, str | None]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Operations:
    """The operations of one text, piece after piece. What a piece adds is kept apart from what it is found to hold
    (``base.BulkReader``)."""

    _numbers: dict[_Sort, int] = field(default_factory=dict)
    _words: list[dict[str, str | None]] = field(default_factory=list)
    _rows: list[pl.DataFrame] = field(default_factory=list)
    #: By host and pid the number and the text of the last line.
    _last: dict[tuple[str | None, str | None], tuple[int, str]] = field(default_factory=dict)
    _whole: bool = True
    #: How many pieces were not made of steps.
    _stepless: int = 0

    @property
    def full(self) -> bool:
        """Whether more sorts are known than are worth to be kept."""
        return len(self._words) >= _MOST_SORTS

    def look(self, data: bytes, first: int, lines: Callable[[], pl.Series]) -> Found | None:
        """The operations among the lines of a piece of text (UTF-8, LF), of which the first has the number ``first``; ``lines`` gives them
        where they are needed. None where there is no operation, or where that is not sure."""
        walked = steps(data) if self._stepless < _STEPLESS else None
        stepped = self._stepped(walked, first) if walked is not None else None
        if stepped is not None:
            return stepped
        self._stepless += 1
        line = _line()
        try:
            cut = line.cut(data, _letters_before(data))
        except (PolarsError, OSError, TypeError, ValueError):  # TypeError: a Polars whose reader has no such options
            return None
        cut = cut.with_columns(pl.col("p0").fill_null(""))
        filled = [column.len() - column.null_count() for column in cut.get_columns()]
        names = [name for name, some in zip(cut.columns, filled, strict=True) if some]
        # Each cut and each end of a line takes a byte: where all bytes are accounted for, no line was passed over and none is cut short.
        length = sum(cut.select(pl.col(names).str.len_bytes().sum()).row(0)) + sum(filled)
        text = None
        if length != len(data) + (not data.endswith(b"\n")):
            text = lines()
            if text.len() != cut.height:
                return None
            lengths = pl.sum_horizontal([pl.col(name).str.len_bytes().fill_null(-1) + 1 for name in names]) - 1
            cut = cut.with_columns(whole=lengths == text.str.len_bytes())
        found = _read(line, cut, filled)
        if found is None:
            return None
        return self._found(line, cut, text, found, first)

    def _found(self, line: CutLine, cut: pl.DataFrame, text: pl.Series | None, found: _Read, first: int) -> Found | None:
        pieces = cut.select(pl.exclude("whole"))
        letter = line.letter
        met = self._met([letter.join(p for p in row if p is not None) for row in pieces[found.firsts].iter_rows()])
        if met is None:
            return None
        sorts = found.numbered(met.numbers)
        places = found.places
        counts = found.counts
        if sorts.null_count():
            known = sorts.is_not_null()
            places = known.arg_true() if places is None else places.filter(known)
            sorts, counts = sorts.filter(known), counts.filter(known)
        if not sorts.len():
            return None
        rest = _rest(pieces, text, places, letter)
        lines = pl.int_range(first, first + cut.height, dtype=pl.UInt32(), eager=True)
        rows = pl.DataFrame(
            [
                (lines if places is None else lines.gather(places)).alias("line_no"),
                counts.alias(_OWN),
                sorts.alias(SORT),
            ]
        )

        return self._kept_later(
            cut.height,
            rows,
            rest.with_columns(pl.col("line_no") + pl.lit(first, dtype=pl.UInt32)),
            met,
            lambda number: letter.join(p for p in pieces.row(number - first) if p is not None),
        )

    def _stepped(self, walked: Steps, first: int) -> Found | None:
        """The same of a piece whose lines are told already."""
        met = self._met(walked.samples)
        if met is None or None in met.numbers:
            return None
        places, counts, sorts = walked.columns()
        sort = pl.Series(met.numbers, dtype=pl.UInt32).gather(sorts)
        rows = pl.DataFrame([(places + first).alias("line_no"), counts.alias(_OWN), sort.alias(SORT)])
        rest = pl.DataFrame(
            {"line_no": [place + first for place, _ in walked.rest], "text": [text for _, text in walked.rest]}, schema=_REST
        )
        return self._kept_later(walked.height, rows, rest, met, lambda number: walked.text(number - first))

    def _met(self, samples: Sequence[str]) -> _Met | None:
        """The numbers of the sorts of these lines (null: none of an operation), with what is new of them; None where that is not sure."""
        letter, last = _line().letter, len(_line().pieces) - 1
        met = _Met()
        for sample in samples:
            pieces = sample.split(letter)
            sort = (letter.join(pieces[: len(pieces) - last]), pieces[-1])
            number = self._numbers.get(sort, met.fresh.get(sort))
            if number is None and (said := _words_of(sort)) is not None and len(sample) <= _LONGEST:
                number = met.fresh[sort] = len(self._numbers) + len(met.fresh)
                met.words.append(said)
                met.texts.append(sample)
            met.numbers.append(number)
        return met if _understood(met.texts) else None

    def _kept_later(self, height: int, rows: pl.DataFrame, rest: pl.DataFrame, met: _Met, text: Callable[[int], str]) -> Found:
        """What was found, with what keeping it does; ``text`` gives the line of a number."""

        def keep() -> None:
            self._numbers |= met.fresh
            self._words += met.words
            self._rows.append(rows)
            self._whole &= rest.is_empty()
            ends = rows.group_by(SORT).agg(pl.col("line_no").max()).sort("line_no")
            own = {(self._words[sort]["host"], self._words[sort]["pid"]): number for sort, number in ends.iter_rows()}
            self._last |= {writer: (number, text(number)) for writer, number in own.items()}

        return Found(height, rows.height, rest, tuple(met.texts), keep)

    def bulk(self) -> Bulk:
        """What was kept of all pieces. It begins anew then."""
        rows = self._rows[0] if len(self._rows) == 1 else pl.concat(self._rows, rechunk=True)
        columns = [c for piece in _line().pieces for c in piece.columns if c != _OWN]
        words = pl.DataFrame(self._words, schema=dict.fromkeys(columns, pl.String())).with_columns(
            pl.lit(0, dtype=pl.UInt32).alias("line_no"),
            pl.lit("0").alias(_OWN),
            pl.col("pid", "tid").cast(pl.Int64, strict=False),
            pl.col("dev").cast(pl.Int32, strict=False),
            *(pl.lit(None, dtype=t).alias(c) for c, t in _UNTOLD.items()),
        )
        [(_, table)] = tables_of(_KIND, words)
        own = TABLES[_TABLE].own
        flags = [pl.lit(c != "time_raw_ns").alias(told(c)) for c in own]
        nothing = pl.lit(None, dtype=pl.Int64).alias("time_raw_ns")
        folded = Folded(rows.select("line_no", _OWN, nothing, SORT), table.select(pl.all().exclude(own), *flags).with_row_index(SORT))
        made = Bulk(rows.get_column("line_no"), {_TABLE: folded}, self._ends(rows, words), self._whole)
        self._numbers, self._words, self._rows, self._last, self._whole = {}, [], [], {}, True
        return made

    def _ends(self, rows: pl.DataFrame, words: pl.DataFrame) -> pl.DataFrame:
        """The last line of each process with its ``message`` and the number of its ``lines``."""
        told_of = rows.group_by(SORT).agg(pl.col("line_no").max(), lines=pl.len().cast(pl.Int64)).sort("line_no")
        sorts = pl.concat([told_of, words.drop("line_no", _OWN)[told_of.get_column(SORT)]], how="horizontal")
        last = sorts.with_columns(pl.col("lines").sum().over("host", "pid")).unique(["host", "pid"], keep="last", maintain_order=True)
        texts = dict(self._last.values())
        messages = [texts[number].partition(_MARK)[2] for number in last.get_column("line_no").to_list()]
        return last.drop(SORT).with_columns(pl.Series("message", messages, dtype=pl.String))


def _letters_before(data: bytes) -> int:
    """How often the letter stands in the first piece of a line, at most, in samples of its lines."""
    starts = (0, len(data) // 2, max(0, len(data) - _SAMPLE))
    heads = (part.rpartition(b"\n")[2] for start in starts for part in data[start : start + _SAMPLE].split(b"unt ")[:-1])
    return max((head.count(_CUT.encode()) for head in heads if head.endswith(b": opCo")), default=0)


@dataclass(frozen=True, slots=True)
class _Read:
    """Lines that have the form of an operation: their ``places`` (None: all lines), their ``opCount``, and a ``key`` that is equal where
    they are of one sort; ``keys`` are the distinct ones, ``firsts`` the place of the first line of each."""

    places: pl.Series | None
    counts: pl.Series
    key: pl.Series
    size: int
    keys: pl.Series
    firsts: pl.Series

    def numbered(self, numbers: Sequence[int | None]) -> pl.Series:
        """The number of the sort of each line; ``numbers`` are those of ``keys``."""
        own = pl.Series(SORT, numbers, dtype=pl.UInt32)
        if len(numbers) == 1:
            return pl.repeat(numbers[0], self.key.len(), dtype=pl.UInt32, eager=True)
        if self.size <= _LISTED:
            return pl.repeat(None, self.size, dtype=pl.UInt32, eager=True).scatter(self.keys, own).gather(self.key)
        return self.key.replace_strict(self.keys, own, return_dtype=pl.UInt32())


def _read(line: CutLine, cut: pl.DataFrame, filled: Sequence[int]) -> _Read | None:
    """What of the lines has the form of an operation, whatever the words of its sort; ``filled``: how many lines have each piece.

    A line has as many pieces as the grammar's line, and some more before them that belong to the first (``more``).
    """
    last = len(line.pieces) - 1
    mores = [more for more in range(len(filled) - last - 1) if filled[last + more] > filled[last + more + 1]]
    if not mores:
        return None

    def column(place: int) -> pl.Expr:
        return pl.col(f"p{place}")

    def own(place: int) -> pl.Expr:
        """A piece counted from the first of the grammar's line."""
        chosen = column(place + mores[0])
        for more in mores[1:]:
            chosen = pl.when(column(last + more).is_not_null()).then(column(place + more)).otherwise(chosen)
        return chosen

    fits = pl.any_horizontal([column(last + more).is_not_null() & column(last + more + 1).is_null() for more in mores])
    heads = [column(0)]
    for place in range(1, mores[-1] + 1):
        before = column(last + place).is_not_null()  # it belongs to the first piece in lines that have so many
        fits &= column(place).is_not_null() | ~before
        heads.append(column(place) if place <= mores[0] else pl.when(before).then(column(place)))
    if "whole" in cut.columns:
        fits &= pl.col("whole")
    counts = None
    for place, piece in enumerate(line.pieces[1:-1], start=1):
        fits &= own(place).str.contains(piece.pattern)
        if piece.bare is not None:
            before_it, behind_it = piece.bare
            counts = own(place).str.head(-behind_it).str.slice(before_it).str.to_integer(base=16, strict=False)
    assert counts is not None
    codes = [head.cast(pl.Categorical).to_physical().cast(pl.UInt64).alias(f"c{n}") for n, head in enumerate([*heads, own(last)])]
    read = cut.select(fits.fill_null(False).alias("fits"), counts.alias(_OWN), *codes)
    good = read.get_column("fits") & read.get_column(_OWN).is_not_null()
    places = None
    if not good.all():
        places = good.arg_true()
        read = read[places]
    if not read.height:
        return None
    key, size = _together([read.get_column(f"c{n}") for n in range(len(codes))])
    firsts = key.arg_unique()
    return _Read(places, read.get_column(_OWN), key, size, key.gather(firsts), firsts if places is None else places.gather(firsts))


def _together(columns: Sequence[pl.Series]) -> tuple[pl.Series, int]:
    """A number for rows that are equal in these columns of numbers, and a bound of it."""
    key, bound = None, 1
    for codes in columns:
        if codes.null_count():
            codes = (codes + 1).fill_null(0)
        size = int(str(codes.max())) + 1
        if bound * size >= 1 << 63:
            assert key is not None
            firsts = key.arg_unique()
            numbers = pl.int_range(firsts.len(), dtype=pl.UInt64(), eager=True)
            key, bound = key.replace_strict(key.gather(firsts), numbers, return_dtype=pl.UInt64()), firsts.len()
        key = codes if key is None else key * size + codes
        bound *= size
    assert key is not None
    return key, bound


def _words_of(sort: _Sort) -> dict[str, str | None] | None:
    """The columns of a sort, or None where it is none of an operation."""
    matches = [pattern.match(text) for pattern, text in zip(_patterns(), sort, strict=True)]
    return {c: v for match in matches if match is not None for c, v in match.groupdict().items()} if all(matches) else None


def _rest(pieces: pl.DataFrame, text: pl.Series | None, places: pl.Series | None, letter: str) -> pl.DataFrame:
    """``line_no``, from 0, and ``text`` of the lines that are not at ``places`` (None: all are); ``text`` where the pieces do not hold
    all."""
    if places is None:
        return pl.DataFrame(schema=_REST)
    left = pl.repeat(True, pieces.height, dtype=pl.Boolean, eager=True).scatter(places, False).arg_true()
    if text is None:
        text = pieces[left].select(pl.concat_str(pl.all(), separator=letter, ignore_nulls=True)).to_series()
    else:
        text = text.gather(left)
    return pl.DataFrame([left.cast(pl.UInt32).alias("line_no"), text.alias("text")])


def _understood(samples: Sequence[str]) -> bool:
    """Whether the messages of these lines are operations for the grammar of all messages too."""
    if not samples:
        return True
    found = load("nccl").extract(pl.Series([text.partition(_MARK)[2] for text in samples], dtype=pl.String))
    return bool((found.kind == _KIND).fill_null(False).all())
